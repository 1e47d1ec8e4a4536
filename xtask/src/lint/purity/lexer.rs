//! Just enough of Rust's lexical structure to tell code from comments and literals.

/// A word, a number, `::`, or any other single character of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token<'a> {
    pub(super) text: &'a str,
    /// Counted from 1.
    pub(super) line: u32,
}

/// The tokens of `source`, without comments, strings, characters and lifetimes.
pub(super) fn tokens(source: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let (mut rest, mut line) = (source, 1);
    while let Some(first) = rest.chars().next() {
        let (length, is_code) = lexeme(rest, first);
        // Every lexeme is at least one character long, so this ends; the end is on a character's boundary.
        let (text, after) = rest.split_at(length.clamp(first.len_utf8(), rest.len()));
        if is_code {
            found.push(Token { text, line });
        }
        line += u32::try_from(text.matches('\n').count()).unwrap_or(u32::MAX);
        rest = after;
    }
    found
}

/// The length in bytes of what `rest` starts with, and whether it is code.
fn lexeme(rest: &str, first: char) -> (usize, bool) {
    if first.is_whitespace() {
        (first.len_utf8(), false)
    } else if rest.starts_with("//") {
        (rest.find('\n').unwrap_or(rest.len()), false)
    } else if rest.starts_with("/*") {
        (block_comment(rest), false)
    } else if first == '"' {
        (1 + closing(&rest[1..], '"'), false)
    } else if first == '\'' {
        (quote(rest), false)
    } else if let Some(length) = raw_string(rest) {
        (length, false)
    } else if is_word(first) {
        (word(rest), true)
    } else if rest.starts_with("::") {
        (2, true)
    } else {
        (first.len_utf8(), true)
    }
}

fn is_word(character: char) -> bool {
    character == '_' || character.is_alphanumeric()
}

fn word(rest: &str) -> usize {
    rest.find(|character| !is_word(character)).unwrap_or(rest.len())
}

/// Block comments nest.
fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        let tail = &rest.as_bytes()[at..];
        if tail.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if tail.starts_with(b"*/") {
            depth -= 1;
            at += 2;
        } else {
            at += 1;
        }
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

/// The length up to and with the closing `quote`, past escaped ones.
fn closing(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, character) in rest.char_indices() {
        if !escaped && character == quote {
            return at + quote.len_utf8();
        }
        escaped = !escaped && character == '\\';
    }
    rest.len()
}

/// A character literal, or a lifetime.
fn quote(rest: &str) -> usize {
    let mut characters = rest[1..].chars();
    let (first, second) = (characters.next(), characters.next());
    if first == Some('\\') || second == Some('\'') { 1 + closing(&rest[1..], '\'') } else { 1 + word(&rest[1..]) }
}

/// A raw string of any kind (`r"…"`, `br#"…"#`, `cr"…"`), if `rest` starts with one.
fn raw_string(rest: &str) -> Option<usize> {
    let prefix = ["r", "br", "cr"].into_iter().find(|prefix| {
        let after = rest.strip_prefix(prefix).unwrap_or_default();
        after.trim_start_matches('#').starts_with('"')
    })?;
    let hashes = rest[prefix.len()..].chars().take_while(|&character| character == '#').count();
    let start = prefix.len() + hashes + 1;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(rest[start..].find(&end).map_or(rest.len(), |at| start + at + end.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(source: &str) -> Vec<&str> {
        tokens(source).into_iter().map(|token| token.text).collect()
    }

    #[test]
    fn literals_and_comments_are_left_out() {
        assert_eq!(texts("a /* b /* c */ d */ e // f\ng"), ["a", "e", "g"]);
        assert_eq!(texts(r#"a "b \" c" d b"e" 'f' '\'' g"#), ["a", "d", "b", "g"]);
        assert_eq!(texts("r\"a\" br##\"b \"# c\"## d r#type"), ["d", "r", "#", "type"]);
    }

    #[test]
    fn lifetimes_do_not_open_a_literal() {
        assert_eq!(texts("&'a str, 'b: x 'c' d"), ["&", "str", ",", ":", "x", "d"]);
    }

    #[test]
    fn lines_are_counted_through_literals() {
        let lines: Vec<_> = tokens("a\n\"\n\n\" b\n/*\n*/ c").into_iter().map(|token| token.line).collect();
        assert_eq!(lines, [1, 4, 6]);
    }

    #[test]
    fn what_is_cut_off_ends_the_source() {
        for source in ["\"a", "r#\"a", "/* a", "'\\", "'", "é", "b'"] {
            assert!(tokens(source).len() <= 2, "{source}");
        }
    }
}
