//! Decides how columns of text line up, as Go's tab writer does, which Cilium's tools use.
//!
//! A cell with another one behind it is as wide as the widest of its block: the lines above and
//! below, without a gap, that have such a cell too. A last cell that is empty leaves blanks at the line's end, as there.

use std::fmt::Write as _;

/// Rows of cells, printed at the end.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
    narrowest: usize,
}

const PADDING: usize = 3;

impl Table {
    /// A table whose columns are at least `narrowest` wide, padding included.
    pub fn new(narrowest: usize) -> Self {
        Self { rows: Vec::new(), narrowest }
    }

    /// Adds a row.
    pub fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// Adds a row whose last cell is padded, too.
    pub fn closed<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        let cells = cells.into_iter().map(Into::into);
        self.rows.push(cells.chain([String::new()]).collect());
    }

    /// The rows in lines without blanks at their ends, for tables that Cilium's tools don't have.
    pub fn trimmed(&self) -> String {
        self.render().lines().flat_map(|line| [line.trim_end(), "\n"]).collect()
    }

    /// The rows in lines.
    pub fn render(&self) -> String {
        let mut cells: Vec<Vec<usize>> = self.rows.iter().map(|row| vec![0; row.len()]).collect();
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        for column in 0..columns {
            let mut first = 0;
            while first < self.rows.len() {
                let block = self.rows[first..].iter().take_while(|row| row.len() > column + 1);
                let widths = block.map(|row| row[column].chars().count() + PADDING);
                let (lines, width) =
                    widths.fold((0, self.narrowest), |(n, most), width| (n + 1, most.max(width)));
                for row in &mut cells[first..first + lines] {
                    row[column] = width;
                }
                first += lines.max(1);
            }
        }
        let mut text = String::new();
        for (row, widths) in self.rows.iter().zip(&cells) {
            for (cell, width) in row.iter().zip(widths) {
                // Writing to a text can't fail.
                let _ = write!(text, "{cell:width$}");
            }
            text.push('\n');
        }
        text
    }

    /// Prints the rows.
    pub fn print(&self) {
        print!("{}", self.render());
    }
}

#[cfg(test)]
mod tests {
    use super::Table;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(5);
        table.row(["ID", "LABELS"]);
        table.row(["4711", "k8s:app=web"]);
        table.row(["", "k8s:tier=front"]);
        assert_eq!(table.render(), "ID     LABELS\n4711   k8s:app=web\n       k8s:tier=front\n");
    }

    #[test]
    fn a_line_without_the_cell_ends_a_block() {
        let mut table = Table::new(2);
        table.row(["KVStore:", "Disabled", ""]);
        table.row(["Kubernetes:", "Ok", "1.36"]);
        table.row(["Cilium:", "Ok   0.1.0"]);
        table.row(["Allocated addresses:"]);
        table.row(["IPv4 BIG TCP:", "Disabled"]);
        let want = "KVStore:      Disabled   \n\
                    Kubernetes:   Ok         1.36\n\
                    Cilium:       Ok   0.1.0\n\
                    Allocated addresses:\n\
                    IPv4 BIG TCP:   Disabled\n";
        assert_eq!(table.render(), want);
        assert!(table.trimmed().starts_with("KVStore:      Disabled\n"), "{}", table.trimmed());
    }

    #[test]
    fn a_closed_row_is_padded_to_its_end() {
        let mut table = Table::new(5);
        table.row(["KEY", "VALUE"]);
        table.closed(["a", "long"]);
        table.closed(["b", ""]);
        assert_eq!(table.render(), "KEY   VALUE\na     long   \nb            \n");
    }
}
