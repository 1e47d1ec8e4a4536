//! Generates the reference of the configuration file from the options: a JSON Schema for editors,
//! and the table of docs/configuration.md.

use std::fmt::Write as _;

use clap::{Arg, Command, CommandFactory};
use serde_json::{Map, Value, json};

use super::keys::{OptionKey, OptionKeys, ValueKind};

/// Returns the JSON Schema (draft 2020-12) of the configuration file.
pub fn schema<C: CommandFactory>() -> Value {
    let keys = keys(&C::command());
    let properties: Map<_, _> = keys.shown().map(|key| (key.name.clone(), property(key))).collect();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "vipmux configuration",
        "description": "The file of --config: every long option as a key. Flags and environment variables take precedence over it.",
        "type": "object",
        "additionalProperties": false,
        "properties": properties,
    })
}

fn keys(command: &Command) -> OptionKeys {
    let mut command = command.clone();
    command.build();
    OptionKeys::of(&command, "")
}

fn property(key: &OptionKey) -> Value {
    let mut one = match key.kind {
        ValueKind::Boolean => json!({"type": "boolean"}),
        ValueKind::Integer => json!({"type": "integer"}),
        ValueKind::Time => json!({"type": ["string", "integer"], "pattern": "^[0-9]+(ms|s|m)?$"}),
        ValueKind::Word => json!({"type": "string", "enum": key.words()}),
        ValueKind::Text => json!({"type": "string"}),
    };
    if key.repeats {
        one = json!({"oneOf": [{"type": "array", "items": one}, one]});
    }
    one["description"] = format!("{} (vipmux {})", help(&key.arg), key.commands.join(", vipmux ")).into();
    if let Some(default) = default(&key.arg) {
        one["default"] = match key.kind {
            ValueKind::Boolean | ValueKind::Integer => serde_json::from_str(&default).unwrap_or(Value::String(default)),
            ValueKind::Time | ValueKind::Word | ValueKind::Text => Value::String(default),
        };
    }
    one
}

/// Returns the table of all options, in Markdown.
pub fn table<C: CommandFactory>() -> String {
    let keys = keys(&C::command());
    let mut text =
        "| key | flag | environment | default | meaning | command |\n| --- | --- | --- | --- | --- | --- |\n"
            .to_owned();
    for key in keys.shown() {
        let arg = &key.arg;
        let environment = arg.get_env().map(|name| format!("`{}`", name.to_string_lossy())).unwrap_or_default();
        let default = default(arg).map(|value| format!("`{value}`")).unwrap_or_default();
        let meaning = match key.kind {
            ValueKind::Word => format!("{} One of {}.", help(arg), code(&key.words())),
            _ => help(arg),
        };
        let meaning = meaning.replace('|', "\\|");
        let flag = format!("--{}{}", arg.get_long().unwrap_or_default(), value_name(arg));
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| `{}` | `{flag}` | {environment} | {default} | {meaning} | {} |",
            key.name,
            key.commands.join(", ")
        );
    }
    text
}

fn code(words: &[String]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

fn value_name(arg: &Arg) -> String {
    let names = arg.get_value_names().filter(|_| arg.get_action().takes_values()).unwrap_or_default();
    names.iter().fold(String::new(), |text, name| text + " " + name)
}

/// Returns the help text of an option in one line that ends with a period.
fn help(arg: &Arg) -> String {
    let text = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if text.is_empty() || text.ends_with(['.', '?', '!']) { text } else { text + "." }
}

fn default(arg: &Arg) -> Option<String> {
    let values: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    (!values.is_empty()).then(|| values.join(","))
}
