//! Configures the log on standard error, as text or as JSON.

use std::{
    io::{self, IsTerminal as _},
    str::FromStr,
};

use clap::ValueEnum;
use tracing_subscriber::{
    EnvFilter,
    filter::{LevelFilter, ParseError},
};

use vipmux_inspect::output::table::Color;

/// The levels of targets that are not named. kube's client logs each failed request as an error, and
/// so does the caller, with the consequence. When an agent stops, netlink's connections warn of
/// notifications that nobody reads any more.
const SILENCED: &str = "kube_client::client::builder=off,netlink_proto::connection=error,kube_runtime::watcher=off";

/// The options of the log.
#[derive(Clone, Debug, clap::Args)]
pub struct LogArgs {
    /// The format of the log.
    #[arg(long, value_enum, env = "VIPMUX_LOG_FORMAT", default_value_t)]
    log_format: LogFormat,
    /// The log level: `error`, `warn`, `info`, `debug`, `trace` or `off`. Levels of single modules
    /// follow after commas: `info,vipmux_gossip=debug`.
    #[arg(long, value_name = "LEVEL", env = "RUST_LOG", default_value = "info")]
    log_level: LogLevel,
}

/// The format of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere
    #[default]
    Auto,
    /// Text lines, with colors only on a terminal
    Text,
    /// One JSON object per line
    Json,
}

/// The log level: directives of `tracing_subscriber`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLevel(String);

/// The text is not a log level.
#[derive(Debug, thiserror::Error)]
pub enum LogLevelError {
    /// A part of the text is not a level.
    #[error(
        "{0} is not a level: use error, warn, info, debug, trace or off, and for a single module such as vipmux_gossip=debug"
    )]
    Unknown(String),
    /// The text is not a list of directives.
    #[error("this is not a list like info,vipmux_gossip=debug")]
    Malformed(#[from] ParseError),
}

impl FromStr for LogLevel {
    type Err = LogLevelError;

    fn from_str(text: &str) -> Result<Self, LogLevelError> {
        let text = text.split(',').map(str::trim).collect::<Vec<_>>().join(",");
        EnvFilter::builder().parse(&text)?;
        // A misspelled level would count as a module, and all of it would be logged.
        let is_whole = |word: &&str| !word.contains(['=', '[', ']', '}', ':']) && !word.starts_with("vipmux");
        let words = text.split(',').filter(|word| !word.is_empty());
        match words.filter(is_whole).find(|word| word.parse::<LevelFilter>().is_err()) {
            Some(word) => Err(LogLevelError::Unknown(word.to_owned())),
            None => Ok(Self(text)),
        }
    }
}

impl LogLevel {
    fn filter(&self) -> EnvFilter {
        // An empty text: the default.
        let chosen = if self.0.is_empty() { "info" } else { &self.0 };
        EnvFilter::builder().parse_lossy(format!("{SILENCED},{chosen}"))
    }
}

impl LogArgs {
    /// Starts the log. Call it once in a process.
    pub fn start(&self) {
        let filter = self.log_level.filter();
        let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
        if self.log_format.is_text(io::stderr().is_terminal()) {
            builder.with_ansi(Color::of(&io::stderr()) == Color::Always).with_target(false).init();
        } else {
            builder.json().flatten_event(true).with_current_span(false).with_span_list(false).init();
        }
    }
}

impl LogFormat {
    const fn is_text(self, terminal: bool) -> bool {
        match self {
            Self::Auto => terminal,
            Self::Text => true,
            Self::Json => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_for_everything_or_for_parts() {
        for text in
            ["info", "WARN", "off", "", "info,vipmux_gossip=debug", "warn, vipmux=trace", "vipmux", "hyper::proto"]
        {
            assert!(text.parse::<LogLevel>().is_ok(), "{text}");
        }
        for text in ["verbose", "info,inof", "warn,vipmux=loud", "5x"] {
            assert!(text.parse::<LogLevel>().is_err(), "{text}");
        }
        let error = "loud".parse::<LogLevel>().unwrap_err().to_string();
        assert!(error.starts_with("loud is not a level: use error, warn,"), "{error}");
    }

    #[test]
    fn a_silenced_target_can_be_turned_on() {
        let filter = |text: &str| text.parse::<LogLevel>().unwrap().filter().to_string();
        let others = "netlink_proto::connection=error,kube_runtime::watcher=off";
        assert_eq!(filter("debug"), format!("kube_client::client::builder=off,{others},debug"));
        let on = "kube_client::client::builder=warn";
        assert_eq!(filter(&format!("info,{on}")), format!("{on},{others},info"));
        assert_eq!(filter("info,netlink_proto=debug"), format!("{SILENCED},netlink_proto=debug,info"));
        assert_eq!(filter(""), format!("{SILENCED},info"));
    }

    #[test]
    fn text_is_for_terminals_unless_it_is_requested() {
        let formats = [LogFormat::Auto, LogFormat::Text, LogFormat::Json];
        assert_eq!(formats.map(|format| format.is_text(true)), [true, true, false]);
        assert_eq!(formats.map(|format| format.is_text(false)), [false, true, false]);
    }
}
