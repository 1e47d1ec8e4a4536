//! Prints what commands show: tables for people, JSON for programs.

pub mod table;

use std::io::{self, BufWriter, Write};

use serde::Serialize;

use self::table::{Color, ignore_broken_pipe};

/// The JSON's version: changes when a field goes or changes its meaning, not when one is added.
pub const VERSION: u32 = 1;

/// A report could not be printed.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the output")]
pub struct OutputError(#[from] io::Error);

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

/// Writes `report` to `out`. A reader that closes the pipe early is no error.
pub fn write<R: Report>(report: &R, format: Format, out: &mut impl Write) -> Result<(), OutputError> {
    let document = Document { version: VERSION, kind: R::KIND, report };
    let written = match format {
        Format::Table(color) => report.print(out, color),
        Format::Json => serde_json::to_writer(&mut *out, &document).map_err(Into::into).and_then(|()| writeln!(out)),
        Format::PrettyJson => {
            serde_json::to_writer_pretty(&mut *out, &document).map_err(Into::into).and_then(|()| writeln!(out))
        }
    };
    Ok(ignore_broken_pipe(written.and_then(|()| out.flush()))?)
}

/// Returns standard output, with a buffer. [`write()`] flushes it.
pub fn stdout() -> impl Write {
    BufWriter::with_capacity(1 << 16, io::stdout().lock())
}

/// Writes `report` to standard output.
pub fn print<R: Report>(report: &R, format: Format) -> Result<(), OutputError> {
    write(report, format, &mut stdout())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Answer {
        found: u32,
    }

    impl Report for Answer {
        const KIND: &'static str = "answer";

        fn print(&self, out: &mut impl Write, _: Color) -> io::Result<()> {
            writeln!(out, "{} found", self.found)
        }
    }

    struct Refusing(io::ErrorKind);

    impl Write for Refusing {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_report_is_one_document_that_ends_with_a_line() {
        let text = |format| {
            let mut out = Vec::new();
            write(&Answer { found: 2 }, format, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(text(Format::Table(Color::Never)), "2 found\n");
        assert_eq!(text(Format::Json), "{\"version\":1,\"kind\":\"answer\",\"found\":2}\n");
        assert_eq!(text(Format::PrettyJson), "{\n  \"version\": 1,\n  \"kind\": \"answer\",\n  \"found\": 2\n}\n");
    }

    #[test]
    fn a_reader_that_closes_the_pipe_is_no_error_and_a_full_disk_is() {
        for format in [Format::Table(Color::Never), Format::Json, Format::PrettyJson] {
            let written = |kind| write(&Answer { found: 2 }, format, &mut Refusing(kind));
            assert!(written(io::ErrorKind::BrokenPipe).is_ok(), "{format:?}");
            assert!(written(io::ErrorKind::StorageFull).is_err(), "{format:?}");
        }
    }
}
