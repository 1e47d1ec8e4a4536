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
//! Several commands may read one file (a ConfigMap), so a key of another one is no mistake; it is judged all the same. Commands
//! that work beside an agent take from its file what they have of its options.

mod file;
mod keys;
mod reference;

use std::{collections::BTreeMap, ffi::OsString, fmt, io, path::PathBuf};

use clap::{ArgMatches, CommandFactory, FromArgMatches, error::ErrorKind, parser::ValueSource};

pub use self::reference::{schema, table};
use self::{
    file::Entry,
    keys::{ALTERNATIVES, Key, Keys},
};

/// The id of the option that names the file. The options of the commands that have it are keys.
const OPTION: &str = "config";
/// The id of the option that names an agent's file.
const SHARED: &str = "shared-config";

/// What a command has that can be configured by a file.
#[derive(Clone, Debug, clap::Args)]
pub struct ConfigArgs {
    /// A YAML file with the options, by their long names in camelCase (`xdpMode: native`; lists for those that repeat). Flags
    /// and environment variables go before it. Read once, at the start.
    #[arg(id = OPTION, long = OPTION, value_name = "FILE", env = "VIPMUX_CONFIG")]
    config: Option<PathBuf>,
}

/// What a command has that works beside an agent, and has options of its.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct SharedConfigArgs {
    /// The agent's configuration file, for the options that this command shares with it. Flags and environment variables go
    /// before it
    #[arg(id = SHARED, long = OPTION, value_name = "FILE", env = "VIPMUX_CONFIG")]
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
    let read = |command: clap::Command| {
        let matches = command.try_get_matches_from(arguments)?;
        one_of_each_pair(&mut C::command(), &matches)?;
        Ok(C::from_arg_matches(&matches)?)
    };
    let strict = || read(C::command());
    // What is required may be in the file.
    let relaxed = C::command()
        .mut_subcommands(|command| if reads(&command) { command.mut_args(|arg| arg.required(false)) } else { command });
    // Who is wrong already is told so by the very command.
    let Ok(matches) = relaxed.try_get_matches_from(arguments) else { return strict() };
    let Some((name, given)) = matches.subcommand() else { return strict() };
    let file = |id| given.try_get_one::<PathBuf>(id).ok().flatten();
    let Some(path) = file(OPTION).or_else(|| file(SHARED)) else { return strict() };
    let values = values(&C::command(), name, given, path.clone())?;
    let configured = C::command().mut_subcommand(name, |command| {
        values.into_iter().fold(command, |command, (id, values)| {
            command.mut_arg(id, |arg| arg.required(false).default_values(values))
        })
    });
    read(configured)
}

/// Whether a command reads a configuration file.
fn reads(command: &clap::Command) -> bool {
    command.get_arguments().any(|arg| arg.get_long() == Some(OPTION))
}

/// Flags that exclude each other are not both there. Clap's own `conflicts_with` would take a variable for a flag, and KUBECONFIG
/// may be in the environment for others.
fn one_of_each_pair(command: &mut clap::Command, matches: &ArgMatches) -> Result<(), clap::Error> {
    let Some((_, given)) = matches.subcommand() else { return Ok(()) };
    let flag = |id| given.try_contains_id(id).is_ok() && given.value_source(id) == Some(ValueSource::CommandLine);
    match ALTERNATIVES.into_iter().find(|(one, other)| flag(one) && flag(other)) {
        None => Ok(()),
        Some((one, other)) => {
            Err(command.error(ErrorKind::ArgumentConflict, format!("--{one} cannot be used beside --{other}")))
        }
    }
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
    // A variable such as KUBECONFIG may be there for others.
    let stated: Vec<_> =
        keys.own().filter(|key| given.value_source(&key.id) == Some(ValueSource::CommandLine)).collect();
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

#[cfg(test)]
mod tests;
