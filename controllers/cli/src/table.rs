//! Tables of text: columns as wide as their widest cell, three blanks between them.

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

    /// The rows in lines; the last cell of each isn't padded.
    pub fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            // The last cell of a row ends it, and needs no room.
            let cells = self
                .rows
                .iter()
                .filter(|row| row.len() > column + 1)
                .map(|row| row[column].chars().count());
            cells.max().map_or(0, |widest| (widest + PADDING).max(self.narrowest))
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                line.push_str(cell);
                if column + 1 < row.len() {
                    let fill = widths[column].saturating_sub(cell.chars().count());
                    line.extend(std::iter::repeat_n(' ', fill));
                }
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
}
