//! Reads the configuration file: every long option of a command is a key, in camelCase.
//!
//! The keys follow from clap's options, so the two cannot differ: clap's own parsers check the
//! values. The values of the file then replace the options' defaults. So a flag takes precedence
//! over the environment, the environment over the file, and the file over the default.
//!
//! ```text
//! arguments ─► command, file name ─► file ─► keys, values, all mistakes
//!           ─► arguments again, with the file's values as defaults
//! ```
//!
//! Several commands may read one file (a ConfigMap). So a key of another command is no mistake, but
//! its value is checked too. Commands that work beside an agent take from its file the options that
//! they share with it.

mod file;
mod keys;
mod reference;

use std::{collections::BTreeMap, ffi::OsString, fmt, io, path::PathBuf};

use clap::{ArgMatches, CommandFactory, FromArgMatches, error::ErrorKind, parser::ValueSource};

pub use self::reference::{schema, table};
use self::{
    file::Entry,
    keys::{ALTERNATIVES, OptionKey, OptionKeys},
};

/// The id of the option that names the file. The other options of commands with this option are
/// keys.
const OPTION: &str = "config";
/// The id of the option that names an agent's file, in the commands that work beside an agent.
const SHARED: &str = "shared-config";

/// The option of a command that is configured by a file.
#[derive(Clone, Debug, clap::Args)]
pub struct ConfigArgs {
    /// YAML file with options, by their long names in camelCase (`xdpMode: native`; lists for
    /// options that repeat). Flags and environment variables take precedence over it. It is read
    /// once, at the start.
    #[arg(id = OPTION, long = OPTION, value_name = "FILE", env = "VIPMUX_CONFIG")]
    config: Option<PathBuf>,
}

/// The option of a command that works beside an agent and shares options with it.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct SharedConfigArgs {
    /// The configuration file of the agent or the allocator, for the options that this command
    /// shares with them. Flags and environment variables take precedence over it
    #[arg(id = SHARED, global = true, long = OPTION, value_name = "FILE", env = "VIPMUX_CONFIG")]
    config: Option<PathBuf>,
}

/// The command line cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CommandLineError {
    /// It has a mistake, or asks for help.
    #[error(transparent)]
    Usage(#[from] clap::Error),
    /// The file that it names has a mistake.
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
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// It has mistakes.
    #[error("the configuration file {} cannot be used:{}", path.display(), Lines(problems))]
    Problems {
        /// The file.
        path: PathBuf,
        /// All mistakes in the file's order; at least one.
        problems: Vec<ConfigProblem>,
    },
}

/// A mistake in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigProblem {
    /// The line, from 1, where known.
    pub line: Option<u64>,
    /// The key and the mistake.
    pub message: String,
}

struct Lines<'a>(&'a [ConfigProblem]);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|ConfigProblem { line, message }| match line {
            Some(line) => write!(f, "\n  line {line}: {message}"),
            None => write!(f, "\n  {message}"),
        })
    }
}

/// Reads the command line, with the configuration file that it names.
pub fn parse<C: CommandFactory + FromArgMatches>(arguments: &[OsString]) -> Result<C, CommandLineError> {
    let read = |command: clap::Command| {
        let matches = command.try_get_matches_from(arguments)?;
        refuse_conflicts(&mut C::command(), &matches)?;
        Ok(C::from_arg_matches(&matches)?)
    };
    let strict = || read(C::command());
    // Required options may be in the file.
    let relaxed = C::command()
        .mut_subcommands(|command| if reads(&command) { command.mut_args(|arg| arg.required(false)) } else { command });
    // If this fails already, the strict command has the right error message.
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

/// Returns whether a command reads a configuration file.
fn reads(command: &clap::Command) -> bool {
    command.get_arguments().any(|arg| arg.get_long() == Some(OPTION))
}

/// Refuses two flags that exclude each other. Clap's own `conflicts_with` would also count
/// environment variables, but KUBECONFIG may be set for other programs.
fn refuse_conflicts(command: &mut clap::Command, matches: &ArgMatches) -> Result<(), clap::Error> {
    let Some((_, given)) = matches.subcommand() else { return Ok(()) };
    let flag = |id| given.try_contains_id(id).is_ok() && given.value_source(id) == Some(ValueSource::CommandLine);
    match ALTERNATIVES.into_iter().find(|(one, other)| flag(one) && flag(other)) {
        None => Ok(()),
        Some((one, other)) => {
            Err(command.error(ErrorKind::ArgumentConflict, format!("--{one} cannot be used together with --{other}")))
        }
    }
}

/// Returns the file's values for the command `name`, by the options' ids.
fn values(
    all: &clap::Command,
    name: &str,
    given: &ArgMatches,
    path: PathBuf,
) -> Result<BTreeMap<String, Vec<String>>, ConfigError> {
    let mut all = all.clone();
    all.build();
    let keys = OptionKeys::of(&all, name);
    let text = std::fs::read_to_string(&path).map_err(|source| ConfigError::Read { path: path.clone(), source })?;
    let (settings, mut problems) = match file::entries(&text) {
        Ok(entries) => settings(&keys, entries),
        Err(problem) => (Vec::new(), vec![problem]),
    };
    problems.extend(conflicts(&settings));
    if !problems.is_empty() {
        problems.sort_by_key(|problem| problem.line);
        return Err(ConfigError::Problems { path, problems });
    }
    // Only flags count: a variable such as KUBECONFIG may be set for other programs.
    let stated: Vec<_> =
        keys.own().filter(|key| given.value_source(&key.id) == Some(ValueSource::CommandLine)).collect();
    let is_overruled = |key: &OptionKey| stated.iter().any(|other| key.excludes(other));
    let own = settings.into_iter().filter(|setting| setting.key.own && !is_overruled(setting.key));
    Ok(own.map(|setting| (setting.key.id.clone(), setting.values)).collect())
}

/// The values of an option in the file.
struct OptionSetting<'a> {
    key: &'a OptionKey,
    line: u64,
    values: Vec<String>,
}

fn settings(keys: &OptionKeys, entries: Vec<Entry>) -> (Vec<OptionSetting<'_>>, Vec<ConfigProblem>) {
    let (mut settings, mut problems) = (Vec::new(), Vec::new());
    for Entry { name, line, value } in entries {
        let problem = |message| ConfigProblem { line: Some(line), message };
        let Some(key) = keys.get(&name) else {
            problems.push(problem(keys.unknown(&name)));
            continue;
        };
        let (values, wrong) = key.read(value);
        problems.extend(wrong.into_iter().map(|message| problem(format!("{name}: {message}"))));
        if !values.is_empty() {
            settings.push(OptionSetting { key, line, values });
        }
    }
    (settings, problems)
}

/// Returns a problem for each pair of keys that exclude each other.
fn conflicts<'a>(settings: &'a [OptionSetting<'_>]) -> impl Iterator<Item = ConfigProblem> + 'a {
    settings.iter().enumerate().filter_map(|(place, OptionSetting { key, line, .. })| {
        let other = settings[..place].iter().find(|other| key.excludes(other.key))?;
        let message = format!("{}: cannot be used together with {} (line {})", key.name, other.key.name, other.line);
        Some(ConfigProblem { line: Some(*line), message })
    })
}

#[cfg(test)]
mod tests;
