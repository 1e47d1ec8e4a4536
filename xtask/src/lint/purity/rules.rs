//! What a pure module must not mention.

use super::{PURE, Violation, lexer::Token};

const IO: &str = "I/O belongs to the runtime's modules";
const CLOCK: &str = "time is an argument";
const RUNTIME: &str = "the core runs on no runtime";
const CLUSTER: &str = "objects arrive through `source`, read by others";
const KERNEL: &str = "the kernel is talked to by `datapath`, `link`, `announce` and `snat`";
const ORDER: &str = "hash order leaks into results; use a BTreeMap or BTreeSet";
const RANDOM: &str = "the same input gives the same result";
const IMPURE: &str = "a pure module cannot use one that is not";

/// Crates.
const CRATES: [(&str, &str); 14] = [
    ("tokio", RUNTIME),
    ("futures_util", RUNTIME),
    ("kube", CLUSTER),
    ("aya", KERNEL),
    ("aya_obj", KERNEL),
    ("rtnetlink", KERNEL),
    ("pnet", KERNEL),
    ("libc", KERNEL),
    ("nix", KERNEL),
    ("notify", IO),
    ("tempfile", IO),
    ("rand", RANDOM),
    ("getrandom", RANDOM),
    ("fastrand", RANDOM),
];

/// Modules of `std`.
const STD: [(&str, &str); 6] = [("fs", IO), ("io", IO), ("process", IO), ("env", IO), ("os", IO), ("thread", RUNTIME)];

/// Names that mean the same wherever they come from.
const NAMES: [(&str, &str); 15] = [
    ("Instant", CLOCK),
    ("SystemTime", CLOCK),
    ("HashMap", ORDER),
    ("HashSet", ORDER),
    ("RandomState", ORDER),
    ("TcpListener", IO),
    ("TcpStream", IO),
    ("UdpSocket", IO),
    ("UnixDatagram", IO),
    ("UnixListener", IO),
    ("UnixStream", IO),
    ("print", IO),
    ("println", IO),
    ("eprint", IO),
    ("eprintln", IO),
];

/// The violations in `tokens`, in their order.
pub(super) fn violations(tokens: &[Token<'_>]) -> Vec<Violation> {
    (0..tokens.len()).flat_map(|at| at_token(tokens, at)).collect()
}

fn at_token(tokens: &[Token<'_>], at: usize) -> Vec<Violation> {
    let text = tokens[at].text;
    if !begins_path(tokens, at) {
        let now = text == "now" && before(tokens, at) == "::";
        let why = if now { Some(CLOCK) } else { listed(&NAMES, text) };
        return why.into_iter().map(|why| violation(&tokens[at], text, why)).collect();
    }
    match text {
        "std" => segments(tokens, at, |name| listed(&STD, name)),
        "crate" => segments(tokens, at, own_reason),
        _ => {
            let is_crate = after(tokens, at, 1) == "::" || before(tokens, at) == "use";
            let why = listed(&NAMES, text).or_else(|| is_crate.then(|| crate_reason(text)).flatten());
            why.into_iter().map(|why| violation(&tokens[at], text, why)).collect()
        }
    }
}

fn crate_reason(name: &str) -> Option<&'static str> {
    let netlink = name.starts_with("netlink_") || name.starts_with("pnet_");
    if netlink { Some(KERNEL) } else { listed(&CRATES, name) }
}

/// Modules of the agent; of those that are not pure, `api` and `source` have the types of what is read.
fn own_reason(name: &str) -> Option<&'static str> {
    (!PURE.contains(&name) && !["api", "source"].contains(&name)).then_some(IMPURE)
}

/// Whether the token at `at` is the first of a path: not a method or field, and not below another segment.
fn begins_path(tokens: &[Token<'_>], at: usize) -> bool {
    match before(tokens, at) {
        "." => false,
        // `::std` is a path from the root, unless the colons follow a segment or generic arguments.
        "::" => at < 2 || !(is_word(tokens[at - 2].text) || tokens[at - 2].text == ">"),
        _ => true,
    }
}

/// Those modules with a `reason` against them that the path or the group of paths after `tokens[at]` leads into.
fn segments(tokens: &[Token<'_>], at: usize, reason: impl Fn(&str) -> Option<&'static str>) -> Vec<Violation> {
    let firsts = if after(tokens, at, 1) != "::" {
        Vec::new()
    } else if after(tokens, at, 2) == "{" {
        group(tokens, at + 2)
    } else {
        tokens.get(at + 2).into_iter().collect()
    };
    let found = firsts.into_iter().filter_map(|token| reason(token.text).map(|why| (token, why)));
    found.map(|(token, why)| violation(token, &format!("{}::{}", tokens[at].text, token.text), why)).collect()
}

/// The first segments of the paths in the braces that open at `open`.
fn group<'t, 'a>(tokens: &'t [Token<'a>], open: usize) -> Vec<&'t Token<'a>> {
    let (mut depth, mut firsts) = (0, Vec::new());
    for at in open..tokens.len() {
        match tokens[at].text {
            "{" => depth += 1,
            "}" if depth == 1 => break,
            "}" => depth -= 1,
            _ if depth == 1 && matches!(before(tokens, at), "{" | ",") => firsts.push(&tokens[at]),
            _ => {}
        }
    }
    firsts
}

fn is_word(text: &str) -> bool {
    text.starts_with(|character: char| character == '_' || character.is_alphanumeric())
}

fn before<'a>(tokens: &[Token<'a>], at: usize) -> &'a str {
    at.checked_sub(1).map_or("", |index| tokens[index].text)
}

fn after<'a>(tokens: &[Token<'a>], at: usize, distance: usize) -> &'a str {
    tokens.get(at + distance).map_or("", |token| token.text)
}

fn listed(list: &[(&str, &'static str)], name: &str) -> Option<&'static str> {
    list.iter().find(|(listed, _)| *listed == name).map(|(_, why)| *why)
}

fn violation(token: &Token<'_>, what: &str, why: &'static str) -> Violation {
    Violation { line: token.line, what: what.to_owned(), why }
}
