//! Prints tables for people: a header, aligned columns, and color if [`Color`] says so.

use std::{
    borrow::Cow,
    fmt::{Display, Write as _},
    io::{self, IsTerminal, Write},
    iter,
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

/// The blanks between two columns.
const GAP: usize = 2;
/// The characters after which a cell may be broken.
const BREAKS: [char; 2] = [' ', ','];

/// Returns the width of the terminal that standard output is; `None`: it is a file or a pipe.
pub fn terminal_columns() -> Option<usize> {
    terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| width.0.into())
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
    /// The maximum width of a line, in characters.
    limit: Option<usize>,
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

    /// Breaks cells at blanks and commas so that lines are not wider than this, if possible.
    pub fn within(mut self, columns: Option<usize>) -> Self {
        self.limit = columns;
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

    /// Returns the cells' texts.
    fn texts(&self) -> impl Iterator<Item = &str> {
        let starts = iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.text[start..end])
    }

    /// Returns the table with cells broken into rows, if it is too wide.
    fn broken(&self) -> Option<Self> {
        let mut widths: Vec<usize> = self.columns.iter().map(|column| column.width).collect();
        let total = |widths: &[usize]| widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1);
        let limit = self.limit.filter(|limit| *limit < total(&widths))?;
        let mut least = vec![0; widths.len()];
        for (index, text) in self.texts().enumerate() {
            let least = &mut least[index % widths.len()];
            *least = text.split_inclusive(BREAKS).map(|word| word.trim_end().chars().count()).fold(*least, usize::max);
        }
        // The widest column that can be narrower gives way.
        while total(&widths) > limit {
            let can = (0..widths.len()).filter(|&index| widths[index] > least[index]);
            let Some(widest) = can.max_by_key(|&index| widths[index]) else { break };
            widths[widest] -= 1;
        }
        let columns: Vec<Column> = self.columns.iter().map(|it| Column { width: 0, right: it.right }).collect();
        let mut table = Self { columns, ..Self::default() };
        let texts: Vec<&str> = self.texts().collect();
        for (texts, styles) in texts.chunks(widths.len()).zip(self.cells.chunks(widths.len())) {
            let cells: Vec<Vec<&str>> = texts.iter().zip(&widths).map(|(text, width)| wrapped(text, *width)).collect();
            for line in 0..cells.iter().map(Vec::len).max().unwrap_or_default() {
                let part = |cell: &Vec<&'_ str>| cell.get(line).copied().unwrap_or(" ").to_owned();
                table.row(cells.iter().zip(styles).map(|(cell, style)| Cell::toned(part(cell), style.tone)));
            }
        }
        Some(table)
    }

    /// Writes header and rows.
    pub fn print(&self, out: &mut impl Write, color: Color) -> io::Result<()> {
        if let Some(table) = self.broken() {
            return table.print(out, color);
        }
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
                let gap = if index == 0 { 0 } else { GAP };
                blanks(&mut line, gap + before);
                let sgr = if color == Color::Always { cell.tone.sgr() } else { "" };
                line.push_str(sgr);
                line.push_str(text);
                line.push_str(if sgr.is_empty() { "" } else { "\x1b[0m" });
                blanks(&mut line, after);
            }
            // A broken cell has no text in its last lines.
            line.truncate(line.trim_end_matches(' ').len());
            line.push('\n');
            out.write_all(line.as_bytes())?;
        }
        Ok(())
    }
}

/// Returns the lines of a text that are not wider than this, except where it has no blank or comma.
fn wrapped(text: &str, width: usize) -> Vec<&str> {
    let mut lines = Vec::new();
    let (mut start, mut end, mut count) = (0, 0, 0);
    for word in text.split_inclusive(BREAKS) {
        let letters = word.trim_end().chars().count();
        if count > 0 && count + letters > width {
            lines.push(text[start..end].trim_end());
            (start, count) = (end, 0);
        }
        end += word.len();
        count += word.chars().count();
    }
    lines.push(text[start..end].trim_end());
    lines
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
    fn cells_are_broken_where_the_terminal_is_too_narrow() {
        let mut table = Table::new(&["VIP", "PORTS", "MESSAGE"]);
        table.row(["192.0.2.10", "1/TCP,3/TCP,5/TCP", "it is shared with shop/dns"]);
        table.row(["192.0.2.11", "1/TCP", "-"]);
        let wide = render(&table, Color::Never);
        let at = |columns| render(&table.clone().within(Some(columns)), Color::Never);
        assert_eq!(at(57), wide, "it fits");
        let narrow = "\
VIP         PORTS         MESSAGE
192.0.2.10  1/TCP,3/TCP,  it is shared
            5/TCP         with shop/dns
192.0.2.11  1/TCP         -
";
        assert_eq!(at(40), narrow);
        assert!(at(5).lines().all(|line| line.chars().count() <= 28), "words are never broken");
        assert!(wide.lines().chain(narrow.lines()).all(|line| line.trim_end() == line));
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
