//! Prints tables for people: a header, aligned columns, and color if [`Color`] says so.

use std::{
    borrow::Cow,
    io::{self, IsTerminal, Write},
};

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
pub struct Cell<'text> {
    text: Cow<'text, str>,
    tone: Tone,
}

impl<'text> Cell<'text> {
    /// Makes a cell with a tone. Control characters are escaped: text of a manifest must not
    /// control the terminal.
    pub fn toned(text: impl Into<Cow<'text, str>>, tone: Tone) -> Self {
        let text = text.into();
        // Most text is ASCII, where the test is faster.
        let is_plain = text.bytes().all(|byte| matches!(byte, b' '..=b'~')) || !text.contains(char::is_control);
        Self { text: if is_plain { text } else { text.escape_debug().to_string().into() }, tone }
    }
}

impl<'text, T: Into<Cow<'text, str>>> From<T> for Cell<'text> {
    fn from(text: T) -> Self {
        Self::toned(text, Tone::Plain)
    }
}

/// Rows under a header. Each column is as wide as its widest cell. There are no borders, and an
/// empty cell is `-`, so that `awk` and `column` can process the output.
#[derive(Clone, Debug, Default)]
pub struct Table {
    columns: Vec<Column>,
    /// The cells of all rows, one row after the other. The first row is the header.
    cells: Vec<Stored>,
    /// The text of all cells, one cell after the other: `inspect flows` can have a million rows.
    text: String,
}

#[derive(Clone, Debug)]
struct Column {
    width: usize,
    right: bool,
}

/// A cell's tone, and the end of its text in [`Table::text`].
#[derive(Clone, Copy, Debug)]
struct Stored {
    end: usize,
    tone: Tone,
}

impl Table {
    /// Makes a table with these columns and no rows.
    pub fn new(header: &[&str]) -> Self {
        let columns = vec![Column { width: 0, right: false }; header.len()];
        let mut table = Self { columns, ..Self::default() };
        table.row(header.iter().map(|name| Cell::toned(*name, Tone::Header)));
        table
    }

    /// Aligns the named columns to the right, for numbers.
    pub fn right_aligned(mut self, columns: &[&str]) -> Self {
        let mut start = 0;
        for (column, header) in self.columns.iter_mut().zip(&self.cells) {
            column.right |= columns.contains(&&self.text[start..header.end]);
            start = header.end;
        }
        self
    }

    /// Adds a row. Missing cells at its end are shown as empty; cells beyond the header are
    /// dropped.
    pub fn row<'text, C: Into<Cell<'text>>>(&mut self, cells: impl IntoIterator<Item = C>) {
        let mut cells = cells.into_iter();
        for column in &mut self.columns {
            let cell = cells.next().map_or(Cell::from(""), Into::into);
            let text = if cell.text.is_empty() { "-" } else { &cell.text };
            column.width = column.width.max(width(text));
            self.text.push_str(text);
            self.cells.push(Stored { end: self.text.len(), tone: cell.tone });
        }
    }

    /// Writes header and rows.
    pub fn print(&self, out: &mut impl Write, color: Color) -> io::Result<()> {
        let mut start = 0;
        for row in self.cells.chunks(self.columns.len().max(1)) {
            for (index, (column, cell)) in self.columns.iter().zip(row).enumerate() {
                let text = &self.text[start..cell.end];
                start = cell.end;
                let padding = column.width - width(text);
                let (before, after) = match (column.right, index + 1 == row.len()) {
                    (true, _) => (padding, 0),
                    (false, true) => (0, 0),
                    (false, false) => (0, padding),
                };
                let gap = if index == 0 { 0 } else { 2 };
                blanks(out, gap + before)?;
                let sgr = if color == Color::Always { cell.tone.sgr() } else { "" };
                out.write_all(sgr.as_bytes())?;
                out.write_all(text.as_bytes())?;
                out.write_all(if sgr.is_empty() { b"" } else { b"\x1b[0m" })?;
                blanks(out, after)?;
            }
            out.write_all(b"\n")?;
        }
        Ok(())
    }
}

fn width(text: &str) -> usize {
    if text.is_ascii() { text.len() } else { text.chars().count() }
}

fn blanks(out: &mut impl Write, count: usize) -> io::Result<()> {
    (0..count).try_for_each(|_| out.write_all(b" "))
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
        table.row(["prüfe", "", "last", "beyond the header"]);
        assert_eq!(
            render(&table, Color::Never),
            "\
VIP         PORTS  NAME
192.0.2.10      2  web
::1          1000  -
prüfe           -  last
"
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
