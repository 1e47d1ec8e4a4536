//! The options as keys: what each may be, and whose it is.

use std::{any::TypeId, collections::BTreeMap, error::Error as _, time::Duration};

use clap::{
    Arg, ArgAction, Command,
    builder::{PossibleValue, ValueParser},
    error::{ContextKind, ContextValue, ErrorKind},
};
use serde_json::Value;

use super::{OPTION, file::Given, reads};

/// Options that exclude each other, by their ids, which are their names: where objects come from.
pub(super) const ALTERNATIVES: [(&str, &str); 1] = [("manifests", "kubeconfig")];
/// How unlike a key may be for it to be the one that was meant, by [`strsim::jaro_winkler`].
const LIKE: f64 = 0.75;

/// An option.
#[derive(Clone, Debug)]
pub(super) struct Key {
    /// In the file.
    pub(super) name: String,
    /// Among clap's.
    pub(super) id: String,
    /// The option itself; of several commands that have it, that of the one that runs, or the first.
    pub(super) arg: Arg,
    /// The commands that have it.
    pub(super) commands: Vec<String>,
    /// The command that runs does.
    pub(super) own: bool,
    /// What its value is.
    pub(super) kind: Kind,
    /// It can have several.
    pub(super) repeats: bool,
}

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Boolean,
    Integer,
    /// A number of seconds, or one with its unit.
    Time,
    /// One of a few words.
    Word,
    Text,
}

/// All of them, by name.
#[derive(Clone, Debug)]
pub(super) struct Keys(BTreeMap<String, Key>);

impl Keys {
    /// The options of all commands below `all` that have a configuration file of their own. `running`: the one that runs, which
    /// may have some of them too.
    pub(super) fn of(all: &Command, running: &str) -> Self {
        let mut keys = BTreeMap::new();
        let has_file = |command: &&Command| command.get_arguments().any(|arg| arg.get_id() == OPTION);
        let (own, others): (Vec<_>, Vec<_>) =
            all.get_subcommands().filter(has_file).partition(|command| command.get_name() == running);
        for command in own.into_iter().chain(others) {
            for (name, arg) in options(command) {
                let own = command.get_name() == running;
                let key = keys.entry(name.clone()).or_insert_with(|| Key::new(name, arg, own));
                key.commands.push(command.get_name().to_owned());
            }
        }
        let shares = all.find_subcommand(running).filter(|command| !has_file(command) && reads(command));
        for (name, arg) in shares.into_iter().flat_map(options) {
            // What has the same name and another variable, or none, means something else.
            if let Some(key) =
                keys.get_mut(&name).filter(|key| arg.get_env().is_some() && key.arg.get_env() == arg.get_env())
            {
                *key = Key { commands: std::mem::take(&mut key.commands), ..Key::new(name, arg, true) };
            }
        }
        Self(keys)
    }

    pub(super) fn get(&self, name: &str) -> Option<&Key> {
        self.0.get(name)
    }

    /// In the order of their names; without those that are hidden.
    pub(super) fn shown(&self) -> impl Iterator<Item = &Key> {
        self.0.values().filter(|key| !key.arg.is_hide_set())
    }

    /// Those of the command that runs.
    pub(super) fn own(&self) -> impl Iterator<Item = &Key> {
        self.0.values().filter(|key| key.own)
    }

    /// What is said of a key that there is not.
    pub(super) fn unknown(&self, name: &str) -> String {
        if name == OPTION {
            return "config: a file cannot name another one".to_owned();
        }
        // Who writes --gossip-port or GOSSIP_PORT means gossipPort.
        let meant = camel_case(&name.trim_start_matches('-').replace('_', "-"));
        let folded = meant.to_lowercase();
        let likeness = |key: &&Key| strsim::jaro_winkler(&folded, &key.name.to_lowercase());
        let nearest = self.shown().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
        match nearest.filter(|key| likeness(key) >= LIKE) {
            Some(key) => format!("{name}: there is no such key; {} is one", key.name),
            None => format!("{name}: there is no such key; `vipmux agent --help` lists the options"),
        }
    }
}

/// The options of a command that can be keys, with their names there.
fn options(command: &Command) -> impl Iterator<Item = (String, &Arg)> {
    let named = command.get_arguments().filter(|arg| !matches!(arg.get_long(), Some(OPTION | "help" | "version")));
    named.filter_map(|arg| Some((camel_case(arg.get_long()?), arg)))
}

impl Key {
    fn new(name: String, arg: &Arg, own: bool) -> Self {
        let repeats = matches!(arg.get_action(), ArgAction::Append)
            || arg.get_num_args().is_some_and(|number| number.max_values() > 1);
        Self {
            name,
            id: arg.get_id().as_str().to_owned(),
            arg: arg.clone(),
            commands: Vec::new(),
            own,
            kind: Kind::of(arg),
            repeats,
        }
    }

    /// Whether the two options cannot be used together.
    pub(super) fn excludes(&self, other: &Self) -> bool {
        let pair = (self.id.as_str(), other.id.as_str());
        ALTERNATIVES.into_iter().any(|(one, another)| pair == (one, another) || pair == (another, one))
    }

    /// The words that it may be, where these are all.
    pub(super) fn words(&self) -> Vec<String> {
        let possible = self.arg.get_possible_values();
        possible.iter().filter(|value| !value.is_hide_set()).map(|value| value.get_name().to_owned()).collect()
    }

    /// The texts of a value, as on the command line, and what is wrong with it.
    pub(super) fn read(&self, given: Given) -> (Vec<String>, Vec<String>) {
        let items = match given {
            Value::Array(items) if self.repeats => items,
            Value::Array(_) => return (Vec::new(), vec!["is a list, and one value is wanted".to_owned()]),
            one => vec![one],
        };
        let (mut texts, mut problems) = (Vec::new(), Vec::new());
        for item in &items {
            match self.text(item).and_then(|text| self.judge(&text).map(|()| text)) {
                Ok(text) => texts.push(text),
                Err(problem) => problems.push(problem),
            }
        }
        (texts, problems)
    }

    /// A value as on the command line.
    fn text(&self, value: &Value) -> Result<String, String> {
        let words = self.words();
        match (self.kind, value) {
            (Kind::Boolean, Value::Bool(_)) | (Kind::Integer | Kind::Time, Value::Number(_)) => Ok(value.to_string()),
            (Kind::Time | Kind::Word | Kind::Text, Value::String(text)) => Ok(text.clone()),
            // What YAML 1.1 makes of the words, and so most tools that write it.
            (Kind::Word, Value::Bool(false)) if words.iter().any(|word| word == "off") => Ok("off".to_owned()),
            (Kind::Word, Value::Bool(true)) if words.iter().any(|word| word == "on") => Ok("on".to_owned()),
            (Kind::Text, Value::Bool(_) | Value::Number(_)) => {
                Err(format!("{} is {}, and text is wanted: put it in quotes", value, kind_of(value)))
            }
            (kind, value) => Err(format!("{} is {}, and {} is wanted", shown(value), kind_of(value), kind.wanted())),
        }
    }

    /// Whether the option takes it.
    fn judge(&self, text: &str) -> Result<(), String> {
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
            (ErrorKind::InvalidValue, _) => format!("{value:?} is none of {}", self.words().join(", ")),
            (_, Some(why)) => format!("{value:?} cannot be used: {why}"),
            (_, None) => format!("{value:?} cannot be used"),
        })
    }
}

impl Kind {
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
        match () {
            () if parses(&[TypeId::of::<bool>()]) => Self::Boolean,
            () if parses(&integers) => Self::Integer,
            () if parses(&[TypeId::of::<Duration>()]) => Self::Time,
            () if has_words(arg.get_possible_values()) => Self::Word,
            () => Self::Text,
        }
    }

    const fn wanted(self) -> &'static str {
        match self {
            Self::Boolean => "true or false",
            Self::Integer => "a whole number",
            Self::Time => "a time",
            Self::Word => "a word",
            Self::Text => "text",
        }
    }
}

/// A value in short.
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

/// `gossip-port` as `gossipPort`.
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
