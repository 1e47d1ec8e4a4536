//! The keys of the configuration file: their commands and the values that they accept.

use std::{any::TypeId, collections::BTreeMap, error::Error as _, time::Duration};

use clap::{
    Arg, ArgAction, Command,
    builder::{PossibleValue, ValueParser},
    error::{ContextKind, ContextValue, ErrorKind},
};
use serde_json::Value;

use super::{OPTION, reads};

/// The options that exclude each other, by their ids, which are their names: the two sources of
/// objects.
pub(super) const ALTERNATIVES: [(&str, &str); 1] = [("manifests", "kubeconfig")];
/// The least similarity of a key that is suggested for an unknown one, by [`strsim::jaro_winkler`].
const MIN_SIMILARITY: f64 = 0.75;

/// An option as a key.
#[derive(Clone, Debug)]
pub(super) struct OptionKey {
    /// Its name in the file.
    pub(super) name: String,
    /// Its id in clap.
    pub(super) id: String,
    /// The option. If several commands have it: that of the running command, or the first.
    pub(super) arg: Arg,
    /// The commands that have it.
    pub(super) commands: Vec<String>,
    /// The running command has it.
    pub(super) own: bool,
    /// The kind of its value.
    pub(super) kind: ValueKind,
    /// It can have several values.
    pub(super) repeats: bool,
}

/// The kind of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueKind {
    Boolean,
    Integer,
    /// A number of seconds, or a number with a unit.
    Time,
    /// One of a few words.
    Word,
    Text,
}

/// All keys by name.
#[derive(Clone, Debug)]
pub(super) struct OptionKeys(BTreeMap<String, OptionKey>);

impl OptionKeys {
    /// Returns the options of all commands below `all` that have a configuration file of their own.
    /// The command `running` may share some of them.
    pub(super) fn of(all: &Command, running: &str) -> Self {
        let mut keys = BTreeMap::new();
        let has_file = |command: &&Command| command.get_arguments().any(|arg| arg.get_id() == OPTION);
        let (own, others): (Vec<_>, Vec<_>) =
            all.get_subcommands().filter(has_file).partition(|command| command.get_name() == running);
        for command in own.into_iter().chain(others) {
            for (name, arg) in options(command) {
                let own = command.get_name() == running;
                let key = keys.entry(name.clone()).or_insert_with(|| OptionKey::new(name, arg, own));
                key.commands.push(command.get_name().to_owned());
            }
        }
        let shares = all.find_subcommand(running).filter(|command| !has_file(command) && reads(command));
        for (name, arg) in shares.into_iter().flat_map(options) {
            // An option with the same name but another variable, or none, means something else.
            if let Some(key) =
                keys.get_mut(&name).filter(|key| arg.get_env().is_some() && key.arg.get_env() == arg.get_env())
            {
                *key = OptionKey { commands: std::mem::take(&mut key.commands), ..OptionKey::new(name, arg, true) };
            }
        }
        Self(keys)
    }

    pub(super) fn get(&self, name: &str) -> Option<&OptionKey> {
        self.0.get(name)
    }

    /// Returns the keys that are not hidden, in the order of their names.
    pub(super) fn shown(&self) -> impl Iterator<Item = &OptionKey> {
        self.0.values().filter(|key| !key.arg.is_hide_set())
    }

    /// Returns the keys of the running command.
    pub(super) fn own(&self) -> impl Iterator<Item = &OptionKey> {
        self.0.values().filter(|key| key.own)
    }

    /// Returns the message about an unknown key.
    pub(super) fn unknown(&self, name: &str) -> String {
        if name == OPTION {
            return "config: a file cannot name another file".to_owned();
        }
        // --gossip-port and GOSSIP_PORT mean gossipPort.
        let meant = camel_case(&name.trim_start_matches('-').replace('_', "-"));
        let folded = meant.to_lowercase();
        let similarity = |key: &&OptionKey| strsim::jaro_winkler(&folded, &key.name.to_lowercase());
        let nearest = self.shown().max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
        match nearest.filter(|key| similarity(key) >= MIN_SIMILARITY) {
            Some(key) => format!("{name}: unknown key; did you mean {}?", key.name),
            None => format!("{name}: unknown key; `vipmux agent --help` lists the options"),
        }
    }
}

/// Returns the options of a command that can be keys, with their names as keys.
fn options(command: &Command) -> impl Iterator<Item = (String, &Arg)> {
    let named = command.get_arguments().filter(|arg| !matches!(arg.get_long(), Some(OPTION | "help" | "version")));
    named.filter_map(|arg| Some((camel_case(arg.get_long()?), arg)))
}

impl OptionKey {
    fn new(name: String, arg: &Arg, own: bool) -> Self {
        let repeats = matches!(arg.get_action(), ArgAction::Append)
            || arg.get_num_args().is_some_and(|number| number.max_values() > 1);
        Self {
            name,
            id: arg.get_id().as_str().to_owned(),
            arg: arg.clone(),
            commands: Vec::new(),
            own,
            kind: ValueKind::of(arg),
            repeats,
        }
    }

    /// Returns whether the two options exclude each other.
    pub(super) fn excludes(&self, other: &Self) -> bool {
        let pair = (self.id.as_str(), other.id.as_str());
        ALTERNATIVES.into_iter().any(|(one, another)| pair == (one, another) || pair == (another, one))
    }

    /// Returns the words that it accepts; empty if it accepts other values too.
    pub(super) fn words(&self) -> Vec<String> {
        let possible = self.arg.get_possible_values();
        possible.iter().filter(|value| !value.is_hide_set()).map(|value| value.get_name().to_owned()).collect()
    }

    /// Returns the texts of a value, as on the command line, and its mistakes.
    pub(super) fn read(&self, value: Value) -> (Vec<String>, Vec<String>) {
        let items = match value {
            Value::Array(items) if self.repeats => items,
            Value::Array(_) => return (Vec::new(), vec!["is a list, but one value is expected".to_owned()]),
            one => vec![one],
        };
        let (mut texts, mut problems) = (Vec::new(), Vec::new());
        for item in &items {
            match self.text(item).and_then(|text| self.validate(&text).map(|()| text)) {
                Ok(text) => texts.push(text),
                Err(problem) => problems.push(problem),
            }
        }
        (texts, problems)
    }

    /// Returns a value as on the command line.
    fn text(&self, value: &Value) -> Result<String, String> {
        let words = self.words();
        match (self.kind, value) {
            (ValueKind::Boolean, Value::Bool(_)) | (ValueKind::Integer | ValueKind::Time, Value::Number(_)) => {
                Ok(value.to_string())
            }
            (ValueKind::Time | ValueKind::Word | ValueKind::Text, Value::String(text)) => Ok(text.clone()),
            // YAML 1.1, and so most tools that write YAML, turns these words into booleans.
            (ValueKind::Word, Value::Bool(false)) if words.iter().any(|word| word == "off") => Ok("off".to_owned()),
            (ValueKind::Word, Value::Bool(true)) if words.iter().any(|word| word == "on") => Ok("on".to_owned()),
            (ValueKind::Text, Value::Bool(_) | Value::Number(_)) => {
                Err(format!("{} is {}, but text is expected: put it in quotes", value, kind_of(value)))
            }
            (kind, value) => {
                Err(format!("{} is {}, but {} is expected", shown(value), kind_of(value), kind.expected()))
            }
        }
    }

    /// Checks that the option accepts the text.
    fn validate(&self, text: &str) -> Result<(), String> {
        let parser: ValueParser = self.arg.get_value_parser().clone();
        let mut arg = Arg::new("value").long("value").action(ArgAction::Append).value_parser(parser);
        if let Some(delimiter) = self.arg.get_value_delimiter() {
            arg = arg.value_delimiter(delimiter);
        }
        let command = Command::new("file").no_binary_name(true).arg(arg.default_value(text.to_owned()));
        let Err(error) = command.try_get_matches_from(std::iter::empty::<&str>()) else { return Ok(()) };
        let value = match error.get(ContextKind::InvalidValue) {
            Some(ContextValue::String(value)) => value.clone(),
            _ => text.to_owned(),
        };
        Err(match (error.kind(), error.source()) {
            (ErrorKind::InvalidValue, _) => format!("{value:?} is not one of {}", self.words().join(", ")),
            (_, Some(why)) => format!("{value:?} cannot be used: {why}"),
            (_, None) => format!("{value:?} cannot be used"),
        })
    }
}

impl ValueKind {
    fn of(arg: &Arg) -> Self {
        let parses = |types: &[TypeId]| types.iter().any(|it| arg.get_value_parser().type_id() == *it);
        let integers = [
            TypeId::of::<u8>(),
            TypeId::of::<u16>(),
            TypeId::of::<u32>(),
            TypeId::of::<u64>(),
            TypeId::of::<usize>(),
            TypeId::of::<i32>(),
            TypeId::of::<i64>(),
        ];
        let has_words = |values: Vec<PossibleValue>| !values.is_empty();
        if parses(&[TypeId::of::<bool>()]) {
            Self::Boolean
        } else if parses(&integers) {
            Self::Integer
        } else if parses(&[TypeId::of::<Duration>()]) {
            Self::Time
        } else if has_words(arg.get_possible_values()) {
            Self::Word
        } else {
            Self::Text
        }
    }

    const fn expected(self) -> &'static str {
        match self {
            Self::Boolean => "true or false",
            Self::Integer => "a whole number",
            Self::Time => "a time",
            Self::Word => "a word",
            Self::Text => "text",
        }
    }
}

/// Returns a short form of a value.
fn shown(value: &Value) -> String {
    match value {
        Value::Array(_) | Value::Object(_) => "it".to_owned(),
        Value::Null => "the value".to_owned(),
        value => value.to_string(),
    }
}

const fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "missing",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a mapping",
    }
}

/// Turns `gossip-port` into `gossipPort`.
fn camel_case(long: &str) -> String {
    let mut words = long.split('-');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |name, word| {
        let mut letters = word.chars();
        name + &letters.next().map(|letter| letter.to_uppercase().collect::<String>()).unwrap_or_default()
            + letters.as_str()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_become_keys_in_camel_case() {
        for (long, key) in [("interface", "interface"), ("gossip-port", "gossipPort"), ("a-b-c", "aBC")] {
            assert_eq!(camel_case(long), key);
        }
    }
}
