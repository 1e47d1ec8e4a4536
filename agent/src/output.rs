//! Prints what commands show: tables for people, JSON for programs.

pub mod table;

use std::io::{self, Write};

use serde::Serialize;

use self::table::{Color, ignore_broken_pipe};

/// The JSON's version: changes when a field goes or changes its meaning, not when one is added.
pub const VERSION: u32 = 1;

/// A report could not be printed.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// The output could not be written.
    #[error("cannot write the output")]
    Write(#[from] io::Error),
    /// The report could not be made into JSON.
    #[error("cannot make JSON")]
    Json(#[source] serde_json::Error),
}

/// Something that a command shows.
pub trait Report: Serialize {
    /// Its name on the command line, and the JSON's `kind`.
    const KIND: &'static str;

    /// Writes it for people.
    fn print(&self, out: &mut impl Write, color: Color) -> io::Result<()>;
}

/// The format of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Table(Color),
    /// One line of JSON.
    Json,
    /// Indented JSON.
    PrettyJson,
}

impl Format {
    /// Returns the format that `--json` and `--pretty` choose; without them a table, colored as
    /// `color` says.
    pub fn chosen(json: bool, pretty: bool, color: Color) -> Self {
        match (pretty, json) {
            (true, _) => Self::PrettyJson,
            (false, true) => Self::Json,
            (false, false) => Self::Table(color),
        }
    }
}

#[derive(Serialize)]
struct Document<'a, R> {
    version: u32,
    kind: &'static str,
    #[serde(flatten)]
    report: &'a R,
}

/// Writes `report` to `out`.
pub fn write<R: Report>(report: &R, format: Format, out: &mut impl Write) -> Result<(), OutputError> {
    let document = Document { version: VERSION, kind: R::KIND, report };
    let text = match format {
        Format::Table(color) => return Ok(report.print(out, color)?),
        Format::Json => serde_json::to_string(&document),
        Format::PrettyJson => serde_json::to_string_pretty(&document),
    };
    Ok(writeln!(out, "{}", text.map_err(OutputError::Json)?)?)
}

/// Writes `report` to standard output.
pub fn print<R: Report>(report: &R, format: Format) -> Result<(), OutputError> {
    let mut text = Vec::new();
    write(report, format, &mut text)?;
    print_text(&text)
}

/// Writes to standard output. A reader that closes the pipe early is no error.
pub fn print_text(text: &[u8]) -> Result<(), OutputError> {
    let mut out = io::stdout().lock();
    Ok(ignore_broken_pipe(out.write_all(text).and_then(|()| out.flush()))?)
}
