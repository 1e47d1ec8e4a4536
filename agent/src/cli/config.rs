//! The configuration file: every long option of a command as a key, in camelCase.
//!
//! The options themselves are what is known of keys, so that there is nothing to be kept in step: clap's own parsers judge
//! the values, which then take the defaults' place. So a flag goes before the environment, that before the file, and the
//! file before the default.
//!
//! ```text
//! arguments ─► which command, which file ─► file ─► keys, values, all that is wrong with them ─► arguments again, with the
//!                                                                                               file's values as defaults
//! ```
//!
//! Several commands may read one file (a ConfigMap), so a key of another one is no mistake; it is judged all the same.

mod file;
mod keys;
mod reference;

use std::{collections::BTreeMap, ffi::OsString, fmt, io, path::PathBuf};

use clap::{ArgMatches, CommandFactory, FromArgMatches, parser::ValueSource};

pub use self::reference::{schema, table};
use self::{
    file::Entry,
    keys::{Key, Keys},
};

/// The id of the option that names the file. Commands that have it read one.
const OPTION: &str = "config";

/// What a command has that can be configured by a file.
#[derive(Clone, Debug, clap::Args)]
pub struct ConfigArgs {
    /// A YAML file with the options, by their long names in camelCase (`xdpMode: native`; lists for those that repeat). Flags
    /// and environment variables go before it. Read once, at the start.
    #[arg(id = OPTION, long = OPTION, value_name = "FILE", env = "VIPMUX_CONFIG")]
    config: Option<PathBuf>,
}

/// The command line cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum CommandLineError {
    /// It is wrong in itself, or asks for help.
    #[error(transparent)]
    Usage(#[from] clap::Error),
    /// The file that it names is.
    #[error(transparent)]
    File(#[from] ConfigError),
}

/// A configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read.
    #[error("cannot read the configuration file {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// This is wrong with it.
    #[error("the configuration file {} cannot be used:{}", path.display(), Lines(problems))]
    Problems {
        /// The file.
        path: PathBuf,
        /// All of it, in the file's order; at least one.
        problems: Vec<Problem>,
    },
}

/// Something that is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The line, from 1, where known.
    pub line: Option<u64>,
    /// What it is about, and what is wrong.
    pub message: String,
}

struct Lines<'a>(&'a [Problem]);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|Problem { line, message }| match line {
            Some(line) => write!(f, "\n  line {line}: {message}"),
            None => write!(f, "\n  {message}"),
        })
    }
}

/// Reads the command line, with the configuration file that it names.
pub fn parse<C: CommandFactory + FromArgMatches>(arguments: &[OsString]) -> Result<C, CommandLineError> {
    let strict = || Ok(C::from_arg_matches(&C::command().try_get_matches_from(arguments)?)?);
    // What is required may be in the file.
    let relaxed = C::command()
        .mut_subcommands(|command| if reads(&command) { command.mut_args(|arg| arg.required(false)) } else { command });
    // Who is wrong already is told so by the very command.
    let Ok(matches) = relaxed.try_get_matches_from(arguments) else { return strict() };
    let Some((name, given)) = matches.subcommand() else { return strict() };
    let Some(path) = given.try_get_one::<PathBuf>(OPTION).ok().flatten() else { return strict() };
    let values = values(&C::command(), name, given, path.clone())?;
    let configured = C::command().mut_subcommand(name, |command| {
        values.into_iter().fold(command, |command, (id, values)| {
            command.mut_arg(id, |arg| arg.required(false).default_values(values))
        })
    });
    Ok(C::from_arg_matches(&configured.try_get_matches_from(arguments)?)?)
}

/// Whether a command reads a configuration file.
fn reads(command: &clap::Command) -> bool {
    command.get_arguments().any(|arg| arg.get_id() == OPTION)
}

/// The values that the file has for the command `name`, by the options' ids.
fn values(
    all: &clap::Command,
    name: &str,
    given: &ArgMatches,
    path: PathBuf,
) -> Result<BTreeMap<String, Vec<String>>, ConfigError> {
    let mut all = all.clone();
    all.build();
    let keys = Keys::of(&all, name);
    let text = std::fs::read_to_string(&path).map_err(|source| ConfigError::Read { path: path.clone(), source })?;
    let (settings, mut problems) = match file::entries(&text) {
        Ok(entries) => settings(&keys, entries),
        Err(problem) => (Vec::new(), vec![problem]),
    };
    problems.extend(contradictions(&settings));
    if !problems.is_empty() {
        problems.sort_by_key(|problem| problem.line);
        return Err(ConfigError::Problems { path, problems });
    }
    let stated: Vec<_> = keys.own().filter(|key| is_given(given, &key.id)).collect();
    let is_overruled = |key: &Key| stated.iter().any(|other| key.excludes(other));
    let own = settings.into_iter().filter(|setting| setting.key.own && !is_overruled(setting.key));
    Ok(own.map(|setting| (setting.key.id.clone(), setting.values)).collect())
}

/// What the file says of an option.
struct Setting<'a> {
    key: &'a Key,
    line: u64,
    values: Vec<String>,
}

fn settings(keys: &Keys, entries: Vec<Entry>) -> (Vec<Setting<'_>>, Vec<Problem>) {
    let (mut settings, mut problems) = (Vec::new(), Vec::new());
    for Entry { name, line, given } in entries {
        let problem = |message| Problem { line: Some(line), message };
        let Some(key) = keys.get(&name) else {
            problems.push(problem(keys.unknown(&name)));
            continue;
        };
        let (values, wrong) = key.read(given);
        problems.extend(wrong.into_iter().map(|message| problem(format!("{name}: {message}"))));
        if !values.is_empty() {
            settings.push(Setting { key, line, values });
        }
    }
    (settings, problems)
}

/// Keys that exclude each other.
fn contradictions<'a>(settings: &'a [Setting<'_>]) -> impl Iterator<Item = Problem> + 'a {
    settings.iter().enumerate().filter_map(|(place, Setting { key, line, .. })| {
        let other = settings[..place].iter().find(|other| key.excludes(other.key))?;
        let message = format!("{}: cannot be used beside {} (line {})", key.name, other.key.name, other.line);
        Some(Problem { line: Some(*line), message })
    })
}

/// Whether an option was set by a flag, or in the environment.
fn is_given(given: &ArgMatches, id: &str) -> bool {
    matches!(given.value_source(id), Some(ValueSource::CommandLine | ValueSource::EnvVariable))
}

#[cfg(test)]
mod tests;
