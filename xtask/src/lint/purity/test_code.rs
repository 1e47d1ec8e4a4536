//! Code that is compiled for tests alone.

use std::collections::BTreeSet;

use super::lexer::Token;

/// `tokens` without the items that a `#[cfg(test)]` or `#[cfg(all(test, …))]` stands before.
pub(super) fn without<'a>(tokens: &[Token<'a>]) -> Vec<Token<'a>> {
    let (mut kept, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        if is_test_attribute(&tokens[at..]) {
            at += item_length(&tokens[at..]);
        } else {
            kept.push(tokens[at]);
            at += 1;
        }
    }
    kept
}

/// The names of the modules in files of their own that are for tests alone.
pub(super) fn modules(tokens: &[Token<'_>]) -> BTreeSet<String> {
    let starts = (0..tokens.len()).filter(|&at| is_test_attribute(&tokens[at..]));
    starts.filter_map(|at| outlined_module(&tokens[at..at + item_length(&tokens[at..])])).collect()
}

fn is_test_attribute(tokens: &[Token<'_>]) -> bool {
    starts_with(tokens, &["#", "[", "cfg", "(", "test", ")"])
        || starts_with(tokens, &["#", "[", "cfg", "(", "all", "(", "test"])
}

fn starts_with(tokens: &[Token<'_>], texts: &[&str]) -> bool {
    tokens.len() >= texts.len() && tokens.iter().zip(texts).all(|(token, text)| token.text == *text)
}

/// The number of tokens up to the end of the item that `tokens` start with: its `;` or its closing brace, outside
/// brackets.
fn item_length(tokens: &[Token<'_>]) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate() {
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" => depth = depth.saturating_sub(1),
            "}" => {
                depth = depth.saturating_sub(1);
                // `use a::{b};` goes on after its braces.
                let ends = tokens.get(at + 1).is_none_or(|next| next.text != ";");
                if depth == 0 && ends {
                    return at + 1;
                }
            }
            ";" if depth == 0 => return at + 1,
            _ => {}
        }
    }
    tokens.len()
}

/// `name`, of an item that ends in `mod name;`.
fn outlined_module(item: &[Token<'_>]) -> Option<String> {
    match item {
        [.., keyword, name, end] if keyword.text == "mod" && end.text == ";" => Some(name.text.to_owned()),
        _ => None,
    }
}
