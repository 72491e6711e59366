//! Decides how columns of text line up, as Go's tab writer does, which Cilium's tools use.
//!
//! A cell with another one behind it is as wide as the widest of its block: the lines above and
//! below, without a gap, that have such a cell too. Blanks at the ends of lines are left out.

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
            let mut line = String::new();
            for (cell, width) in row.iter().zip(widths) {
                // Writing to a text can't fail.
                let _ = write!(line, "{cell:width$}");
            }
            text.push_str(line.trim_end());
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
        let want = "KVStore:      Disabled\n\
                    Kubernetes:   Ok         1.36\n\
                    Cilium:       Ok   0.1.0\n\
                    Allocated addresses:\n\
                    IPv4 BIG TCP:   Disabled\n";
        assert_eq!(table.render(), want);
    }
}
