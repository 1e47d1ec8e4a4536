//! Prints tables for people: a header, aligned columns, and color if [`Color`] says so.

use std::io::{self, IsTerminal, Write};

/// The choice between plain text and ANSI colors (ECMA-48 SGR).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Color {
    /// On a terminal that wants them.
    Always,
    /// To files and pipes, and where `NO_COLOR` is set.
    Never,
}

impl Color {
    /// Returns the setting for standard output.
    pub fn of_stdout() -> Self {
        Self::of(&io::stdout())
    }

    /// Returns the setting for an output: color on a terminal, unless `NO_COLOR` is set and not
    /// empty (<https://no-color.org>).
    pub fn of(output: &impl IsTerminal) -> Self {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        if output.is_terminal() && !unwanted { Self::Always } else { Self::Never }
    }
}

/// The meaning of a cell, shown as a color.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// Neutral.
    #[default]
    Plain,
    /// Good: green.
    Good,
    /// Needs attention: yellow.
    Warn,
    /// Broken: red.
    Bad,
    /// A column's name: bold.
    Header,
}

impl Tone {
    const fn sgr(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Good => "\x1b[32m",
            Self::Warn => "\x1b[33m",
            Self::Bad => "\x1b[31m",
            Self::Header => "\x1b[1m",
        }
    }
}

/// One cell of a [`Table`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    /// Makes a cell with a tone. Control characters are escaped: text of a manifest must not
    /// control the terminal.
    pub fn toned(text: impl AsRef<str>, tone: Tone) -> Self {
        let text = text.as_ref();
        let text = if text.contains(char::is_control) { text.escape_debug().to_string() } else { text.to_owned() };
        Self { text, tone }
    }

    fn width(&self) -> usize {
        self.text.chars().count()
    }
}

impl<T: AsRef<str>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::toned(text, Tone::Plain)
    }
}

/// Rows under a header. Each column is as wide as its widest cell. There are no borders, and an
/// empty cell is `-`, so that `awk` and `column` can process the output.
#[derive(Clone, Debug)]
pub struct Table {
    header: Vec<Cell>,
    right: Vec<bool>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// Makes a table with these columns and no rows.
    pub fn new(header: &[&str]) -> Self {
        let header: Vec<Cell> = header.iter().map(|name| Cell::toned(name, Tone::Header)).collect();
        Self { right: vec![false; header.len()], rows: Vec::new(), header }
    }

    /// Aligns the named columns to the right, for numbers.
    pub fn right_aligned(mut self, columns: &[&str]) -> Self {
        for (cell, right) in self.header.iter().zip(&mut self.right) {
            *right |= columns.contains(&cell.text.as_str());
        }
        self
    }

    /// Adds a row. Missing cells at its end are shown as empty; cells beyond the header are
    /// dropped.
    pub fn row<C: Into<Cell>>(&mut self, cells: impl IntoIterator<Item = C>) {
        let mut row: Vec<Cell> = cells.into_iter().map(Into::into).take(self.header.len()).collect();
        row.resize(self.header.len(), Cell::from(""));
        for cell in row.iter_mut().filter(|cell| cell.text.is_empty()) {
            "-".clone_into(&mut cell.text);
        }
        self.rows.push(row);
    }

    /// Writes header and rows.
    pub fn print(&self, out: &mut impl Write, color: Color) -> io::Result<()> {
        let mut widths = vec![0; self.header.len()];
        for row in std::iter::once(&self.header).chain(&self.rows) {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.width().max(*width);
            }
        }
        for row in std::iter::once(&self.header).chain(&self.rows) {
            self.line(out, row, &widths, color)?;
        }
        Ok(())
    }

    fn line(&self, out: &mut impl Write, row: &[Cell], widths: &[usize], color: Color) -> io::Result<()> {
        for (index, (cell, width)) in row.iter().zip(widths).enumerate() {
            let padding = width.saturating_sub(cell.width());
            let right = self.right.get(index).copied().unwrap_or(false);
            let (before, after) = match (right, index + 1 == row.len()) {
                (true, _) => (padding, 0),
                (false, true) => (0, 0),
                (false, false) => (0, padding),
            };
            let gap = if index == 0 { "" } else { "  " };
            let sgr = if color == Color::Always { cell.tone.sgr() } else { "" };
            let reset = if sgr.is_empty() { "" } else { "\x1b[0m" };
            write!(out, "{gap}{:before$}{sgr}{}{reset}{:after$}", "", cell.text, "")?;
        }
        writeln!(out)
    }
}

/// Turns the error of a write to a closed pipe (`vipmux plan . | head`) into success.
pub fn ignore_broken_pipe(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(table: &Table, color: Color) -> String {
        let mut out = Vec::new();
        table.print(&mut out, color).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_and_lines_have_no_trailing_blanks() {
        let mut table = Table::new(&["VIP", "PORTS", "NAME"]).right_aligned(&["PORTS"]);
        table.row(["192.0.2.10", "2", "web"]);
        table.row(["::1", "1000"]);
        assert_eq!(
            render(&table, Color::Never),
            "VIP         PORTS  NAME\n192.0.2.10      2  web\n::1          1000  -\n"
        );
    }

    #[test]
    fn color_does_not_change_the_alignment() {
        let mut table = Table::new(&["A", "B"]);
        table.row([Cell::toned("ok", Tone::Good), Cell::from("x")]);
        assert_eq!(render(&table, Color::Always), "\x1b[1mA\x1b[0m   \x1b[1mB\x1b[0m\n\x1b[32mok\x1b[0m  x\n");
    }

    #[test]
    fn control_characters_never_reach_the_terminal() {
        let mut table = Table::new(&["A"]);
        table.row(["x\x1b[2Jy\nz"]);
        assert_eq!(render(&table, Color::Never), "A\nx\\u{1b}[2Jy\\nz\n");
    }

    #[test]
    fn a_broken_pipe_is_quiet_and_other_errors_are_not() {
        assert!(ignore_broken_pipe(Err(io::ErrorKind::BrokenPipe.into())).is_ok());
        assert!(ignore_broken_pipe(Err(io::ErrorKind::StorageFull.into())).is_err());
    }
}
