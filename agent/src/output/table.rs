//! Prints tables for people: a header, aligned columns, and color if [`Color`] says so.

use std::{
    borrow::Cow,
    fmt::{Display, Write as _},
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
pub struct Cell<'text> {
    text: Text<'text>,
    tone: Tone,
}

enum Text<'text> {
    Made(Cow<'text, str>),
    Display(&'text dyn Display),
}

impl<'text> Cell<'text> {
    /// Makes a cell with a tone.
    pub fn toned(text: impl Into<Cow<'text, str>>, tone: Tone) -> Self {
        Self { text: Text::Made(text.into()), tone }
    }

    /// Makes a cell of what `value` shows. It is written into the table without a string of its own.
    pub fn display(value: &'text dyn Display) -> Self {
        Self { text: Text::Display(value), tone: Tone::Plain }
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
    cells: Vec<Style>,
    /// The text of all cells, one cell after the other: `inspect flows` can have a million rows.
    text: String,
    /// The end of each cell's text.
    ends: Vec<usize>,
}

#[derive(Clone, Debug)]
struct Column {
    width: usize,
    right: bool,
}

/// A cell, without its text.
#[derive(Clone, Copy, Debug)]
struct Style {
    /// The text was printable ASCII before anything was escaped. So its width is its length.
    is_ascii: bool,
    tone: Tone,
}

impl Style {
    fn width(self, text: &str) -> usize {
        if self.is_ascii { text.len() } else { text.chars().count() }
    }
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
        for (column, &end) in self.columns.iter_mut().zip(&self.ends) {
            column.right |= columns.contains(&&self.text[start..end]);
            start = end;
        }
        self
    }

    /// Adds a row. Missing cells at its end are shown as empty; cells beyond the header are
    /// dropped. Control characters are escaped: text of a manifest must not control the terminal.
    pub fn row<'text, C: Into<Cell<'text>>>(&mut self, cells: impl IntoIterator<Item = C>) {
        let mut cells = cells.into_iter();
        for column in &mut self.columns {
            let cell = cells.next().map_or(Cell::from(""), Into::into);
            let start = self.text.len();
            match cell.text {
                Text::Made(text) => self.text.push_str(&text),
                // A write to a `String` fails only where `value` does. Then the cell is cut there.
                Text::Display(value) => _ = write!(self.text, "{value}"),
            }
            if self.text.len() == start {
                self.text.push('-');
            }
            // Faster than `all`: most cells have no other byte.
            let is_ascii = self.text[start..].bytes().fold(true, |all, byte| all & matches!(byte, b' '..=b'~'));
            if !is_ascii && self.text[start..].contains(char::is_control) {
                let escaped = self.text[start..].escape_debug().to_string();
                self.text.replace_range(start.., &escaped);
            }
            let style = Style { is_ascii, tone: cell.tone };
            column.width = column.width.max(style.width(&self.text[start..]));
            self.cells.push(style);
            self.ends.push(self.text.len());
        }
    }

    /// Writes header and rows.
    pub fn print(&self, out: &mut impl Write, color: Color) -> io::Result<()> {
        let mut start = 0;
        let mut line = String::new();
        let mut ends = self.ends.iter();
        for row in self.cells.chunks(self.columns.len().max(1)) {
            line.clear();
            for (index, ((column, cell), &end)) in self.columns.iter().zip(row).zip(&mut ends).enumerate() {
                let text = &self.text[start..end];
                start = end;
                let padding = column.width - cell.width(text);
                let (before, after) = match (column.right, index + 1 == row.len()) {
                    (true, _) => (padding, 0),
                    (false, true) => (0, 0),
                    (false, false) => (0, padding),
                };
                let gap = if index == 0 { 0 } else { 2 };
                blanks(&mut line, gap + before);
                let sgr = if color == Color::Always { cell.tone.sgr() } else { "" };
                line.push_str(sgr);
                line.push_str(text);
                line.push_str(if sgr.is_empty() { "" } else { "\x1b[0m" });
                blanks(&mut line, after);
            }
            line.push('\n');
            out.write_all(line.as_bytes())?;
        }
        Ok(())
    }
}

/// Adds blanks, faster than `extend` does.
fn blanks(line: &mut String, count: usize) {
    for _ in 0..count {
        line.push(' ');
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
        table.row([Cell::display(&"\x07")]);
        assert_eq!(render(&table, Color::Never), "A\nx\\u{1b}[2Jy\\nz\n\\u{7}\n");
    }

    #[test]
    fn a_displayed_value_is_aligned_like_text() {
        let mut table = Table::new(&["A", "B", "C"]);
        table.row([Cell::display(&4096), Cell::display(&""), Cell::display(&"ü")]);
        table.row(["1", "22", "333"]);
        assert_eq!(render(&table, Color::Never), "A     B   C\n4096  -   ü\n1     22  333\n");
    }

    #[test]
    fn a_broken_pipe_is_quiet_and_other_errors_are_not() {
        assert!(ignore_broken_pipe(Err(io::ErrorKind::BrokenPipe.into())).is_ok());
        assert!(ignore_broken_pipe(Err(io::ErrorKind::StorageFull.into())).is_err());
    }
}
