//! How a command that runs for long tells what it does: on standard error, as text or as JSON.

use std::{
    io::{self, IsTerminal as _},
    str::FromStr,
};

use clap::ValueEnum;
use tracing_subscriber::{
    EnvFilter,
    filter::{LevelFilter, ParseError},
};

/// What is left out unless it is asked for by this name: kube's client tells of each request that fails, as an error, and so do
/// those who ask, with what becomes of it.
const LEFT_OUT: &str = "kube_client::client::builder";

/// What of the log can be chosen.
#[derive(Clone, Debug, clap::Args)]
pub struct LogArgs {
    /// How the log is written.
    #[arg(long, value_enum, env = "VIPMUX_LOG_FORMAT", default_value_t)]
    log_format: LogFormat,
    /// What is logged: `error`, `warn`, `info`, `debug`, `trace` or `off`, and after a comma what holds for a part of vipmux
    /// alone: `info,vipmux::gossip=debug`.
    #[arg(long, value_name = "LEVEL", env = "RUST_LOG", default_value = "info")]
    log_level: LogLevel,
}

/// How the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere
    #[default]
    Auto,
    /// Lines for people
    Text,
    /// An object on each line
    Json,
}

/// What is logged: directives as `tracing_subscriber` has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLevel(String);

/// There is no such level.
#[derive(Debug, thiserror::Error)]
pub enum LogLevelError {
    /// A word that is none.
    #[error(
        "{0} is no level: there are error, warn, info, debug, trace and off, and for a part alone such as vipmux::gossip=debug"
    )]
    Unknown(String),
    /// It is no list of directives.
    #[error("it is no list like info,vipmux::gossip=debug")]
    Malformed(#[from] ParseError),
}

impl FromStr for LogLevel {
    type Err = LogLevelError;

    fn from_str(text: &str) -> Result<Self, LogLevelError> {
        let text = text.split(',').map(str::trim).collect::<Vec<_>>().join(",");
        EnvFilter::builder().parse(&text)?;
        // A word without a level would be taken for a part, all of which is logged.
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
        // Without a word, as without the option.
        let chosen = if self.0.is_empty() { "info" } else { &self.0 };
        EnvFilter::builder().parse_lossy(format!("{LEFT_OUT}=off,{chosen}"))
    }
}

impl LogArgs {
    /// Begins to log. Once in a process.
    pub fn start(&self) {
        let filter = self.log_level.filter();
        let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
        if self.log_format.is_text(io::stderr().is_terminal()) {
            builder.with_target(false).init();
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
            ["info", "WARN", "off", "", "info,vipmux::gossip=debug", "warn, vipmux=trace", "vipmux", "hyper::proto"]
        {
            assert!(text.parse::<LogLevel>().is_ok(), "{text}");
        }
        for text in ["verbose", "info,inof", "warn,vipmux=loud", "5x"] {
            assert!(text.parse::<LogLevel>().is_err(), "{text}");
        }
        let error = "loud".parse::<LogLevel>().unwrap_err().to_string();
        assert!(error.starts_with("loud is no level: there are error, warn,"), "{error}");
    }

    #[test]
    fn what_is_left_out_can_be_asked_for() {
        let filter = |text: &str| text.parse::<LogLevel>().unwrap().filter().to_string();
        assert_eq!(filter("debug"), "kube_client::client::builder=off,debug");
        assert_eq!(filter("info,kube_client::client::builder=warn"), "kube_client::client::builder=warn,info");
        assert_eq!(filter(""), "kube_client::client::builder=off,info");
    }

    #[test]
    fn text_is_for_terminals_unless_it_is_asked_for() {
        let formats = [LogFormat::Auto, LogFormat::Text, LogFormat::Json];
        assert_eq!(formats.map(|format| format.is_text(true)), [true, true, false]);
        assert_eq!(formats.map(|format| format.is_text(false)), [false, true, false]);
    }
}
