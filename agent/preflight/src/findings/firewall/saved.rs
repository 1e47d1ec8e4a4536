//! Parses the output of `iptables-save`.

use super::{Chain, Conditions, Does, Hook, RuleObservation, TableObservation};

/// Parses the tables named `filter` in the output of `iptables-save` or, if `ipv6`, of
/// `ip6tables-save`. `name`: the table's name for people.
pub fn parse(name: &str, ipv6: bool, text: &str) -> Vec<TableObservation> {
    let mut tables = Vec::new();
    for line in text.lines() {
        if let Some(table) = line.strip_prefix('*') {
            tables.push((table == "filter", TableObservation { name: name.to_owned(), ipv6, chains: Vec::new() }));
        }
        let Some((true, table)) = tables.last_mut() else { continue };
        if let Some(chain) = line.strip_prefix(':') {
            table.chains.push(declared(chain));
        } else if let Some(rule) = line.strip_prefix("-A ") {
            let words: Vec<_> = rule.split_ascii_whitespace().collect();
            let chain = table.chains.iter_mut().find(|chain| words.first() == Some(&chain.name.as_str()));
            if let Some(chain) = chain {
                chain.rules.push(saved_rule(&words[1..]));
            }
        }
    }
    tables.into_iter().filter(|(is_filter, _)| *is_filter).map(|(_, table)| table).collect()
}

/// Parses a chain such as `FORWARD DROP [0:0]`.
fn declared(text: &str) -> Chain {
    let mut words = text.split_ascii_whitespace();
    let name = words.next().unwrap_or_default();
    let hook = match name {
        "INPUT" => Some(Hook::Input),
        "FORWARD" => Some(Hook::Forward),
        _ => None,
    };
    Chain { name: name.to_owned(), hook, drops: words.next() == Some("DROP"), rules: Vec::new() }
}

/// Parses the words of a rule after its chain's name.
fn saved_rule(words: &[&str]) -> RuleObservation {
    let mut asked = Conditions::default();
    let mut does = Does::Nothing;
    let mut words = words.iter().copied();
    while let Some(word) = words.next() {
        match word {
            // A negation is a condition that is not understood.
            "!" => {
                asked.others = true;
                words.by_ref().take(2).for_each(drop);
            }
            // Only the options of a match matter, not its name.
            "-m" | "--comment" | "--reject-with" => skip_quoted(&mut words),
            "-p" => match words.next() {
                Some("udp") => asked.udp = true,
                Some("all") => {}
                _ => asked.other_protocol = true,
            },
            "-i" => match words.next() {
                Some("lo") => asked.loopback = true,
                _ => asked.others = true,
            },
            "--ctstate" | "--state" => match words.next() {
                Some(states) if !states.split(',').any(|state| state == "NEW") => asked.not_new = true,
                _ => asked.others = true,
            },
            "--dport" => asked.ports = words.next().and_then(range),
            "-j" => does = target(words.next().unwrap_or_default(), false),
            "-g" => does = target(words.next().unwrap_or_default(), true),
            _ => asked.others = true,
        }
    }
    RuleObservation { when: asked.when(), does }
}

/// Skips one word, or several in quotes.
fn skip_quoted<'a>(words: &mut impl Iterator<Item = &'a str>) {
    let Some(first) = words.next() else { return };
    let closes = |word: &str| word.ends_with('"') && !word.ends_with("\\\"");
    if first.starts_with('"') && !(first.len() > 1 && closes(first)) {
        let _ = words.find(|word| closes(word));
    }
}

/// Parses `7944` or `7000:8000`.
fn range(text: &str) -> Option<(u16, u16)> {
    let (first, last) = text.split_once(':').unwrap_or((text, text));
    Some((first.parse().ok()?, last.parse().ok()?))
}

/// Returns what a target of iptables does.
pub fn target(name: &str, goes: bool) -> Does {
    match name {
        "ACCEPT" => Does::Accept,
        "DROP" | "REJECT" => Does::Drop,
        "RETURN" => Does::Return,
        "LOG" | "NFLOG" | "MARK" | "CONNMARK" | "TCPMSS" | "CT" | "" => Does::Nothing,
        chain if goes => Does::Goto(chain.to_owned()),
        chain => Does::Jump(chain.to_owned()),
    }
}
