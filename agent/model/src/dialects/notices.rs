//! Finds annotations that have no effect, or not the expected one. They stop nothing, but their
//! owner should know.

use std::collections::BTreeMap;

use super::{ALL, Annotations, Dialect, Meaning, PORT, port_of, read::boolean};
use crate::{Protocol, port::Port, reason::quoted, selector::Labels};

/// The maximum length of a key that is compared with others, bytes. Kubernetes allows a subdomain
/// of 253, a slash and 63 more.
const MAX_KEY: usize = 317;
/// The maximum number of notices about one Service. The rest is counted.
const MAX_NOTICES: usize = 16;

/// Returns notices about annotations without effect here, and misspelled ones, of a Service with
/// these ports.
pub fn notices(annotations: &Annotations, ports: &BTreeMap<Port, String>) -> Vec<String> {
    let there = annotations.iter().filter(|(_, value)| !value.is_empty());
    let mut notices: Vec<String> = there.filter_map(|(key, _)| notice(key, annotations, ports)).collect();
    let untold = notices.split_off(notices.len().min(MAX_NOTICES)).len();
    if untold > 0 {
        notices.push(format!("{untold} further annotations have no effect here"));
    }
    notices
}

/// Returns the first annotation that would ask for a key, an address or a pool if the Service were
/// of type LoadBalancer.
pub(crate) fn misplaced(annotations: &Annotations) -> Option<&str> {
    let there = annotations.iter().filter(|(_, value)| !value.is_empty());
    let asking = there.filter_map(|(key, _)| Some((key.as_str(), owner(key)?.meaning(key)?)));
    asking.filter(|(_, meaning)| meaning.is_request() && *meaning != Meaning::Marker).map(|(key, _)| key).next()
}

/// Returns notices about labels that have the key of an annotation.
pub(crate) fn of_labels<'a>(labels: &'a Labels, annotations: &'a Annotations) -> impl Iterator<Item = String> + 'a {
    let mislaid =
        |key: &&String| !annotations.contains_key(*key) && owner(key).is_some_and(|it| it.meaning(key).is_some());
    let message =
        |key: &String| format!("{} has no effect as a label: it belongs under metadata.annotations", quoted(key));
    labels.keys().filter(mislaid).map(message).take(MAX_NOTICES)
}

fn notice(key: &str, annotations: &Annotations, ports: &BTreeMap<Port, String>) -> Option<String> {
    let Some(dialect) = owner(key) else {
        let meant = of_another_prefix(key)?;
        return Some(format!("{} is an unknown annotation and has no effect: did you mean {meant}?", quoted(key)));
    };
    match dialect.meaning(key) {
        Some(Meaning::WithoutEffect(instead) | Meaning::EitherWithoutEffect(instead)) => {
            Some(format!("{key} has no effect here: {instead}"))
        }
        Some(Meaning::PoolInstead) => {
            let condition = dialect.condition().filter(|condition| !is_true(annotations, condition))?;
            Some(format!("{key} has no effect without {condition}: \"true\""))
        }
        Some(meaning) => of_no_port(dialect, key, meaning, ports),
        None => {
            let hint = near(dialect, key).or_else(|| synonym(dialect, key)).map_or_else(
                || "docs/annotations.md lists those with an effect".to_owned(),
                |meant| format!("did you mean {meant}?"),
            );
            Some(format!("{} is an unknown annotation of {} and has no effect: {hint}", quoted(key), dialect.name))
        }
    }
}

/// Returns the notice about a port that the Service does not have.
fn of_no_port(dialect: &Dialect, key: &str, meaning: Meaning, ports: &BTreeMap<Port, String>) -> Option<String> {
    let port = spellings(dialect).find_map(|spelling| port_of(spelling, key))?;
    // UDP and SCTP ports are not probed.
    let counts = |of: &Port| meaning != Meaning::Probe || of.protocol == Protocol::Tcp;
    let named = |of: &Port| u16::from(of.number).to_string() == port;
    let of_service = ports.keys().any(|of| counts(of) && named(of));
    let what = if meaning == Meaning::Probe { "TCP port" } else { "port" };
    (!of_service).then(|| format!("{} has no effect: the Service has no {what} {}", quoted(key), quoted(port)))
}

fn is_true(annotations: &Annotations, key: &str) -> bool {
    annotations.get(key).is_some_and(|value| boolean(key, value) == Ok(true))
}

impl Dialect {
    /// Returns the annotation that must be true for [`Meaning::PoolInstead`] to have an effect.
    fn condition(&self) -> Option<&'static str> {
        let row = self.annotations.iter().find(|(_, meaning)| matches!(meaning, Meaning::PoolIfTrue(_)))?;
        row.0.first().copied()
    }
}

fn owner(key: &str) -> Option<&'static Dialect> {
    ALL.iter().find(|dialect| dialect.owns(key)).copied()
}

fn spellings(dialect: &Dialect) -> impl Iterator<Item = &'static str> {
    dialect.annotations.iter().flat_map(|(spellings, _)| spellings.iter().copied())
}

/// Returns the spelling that is nearest to the key, with the key's port, if one is near enough.
fn near(dialect: &Dialect, key: &str) -> Option<String> {
    if key.len() > MAX_KEY {
        return None;
    }
    let (general, port) = without_port(key);
    let name = general.rsplit('/').next().unwrap_or_default();
    let most = tolerated(name.len());
    let distance = |spelling| strsim::osa_distance(&general.to_ascii_lowercase(), &str::to_ascii_lowercase(spelling));
    let alike = spellings(dialect).filter(|spelling| spelling.len().abs_diff(general.len()) <= most);
    let (_, nearest) = alike.map(|one| (distance(one), one)).filter(|(distance, _)| *distance <= most).min()?;
    Some(port.map_or_else(|| nearest.to_owned(), |port| nearest.replace(PORT, port)))
}

/// Returns the first spelling that has the last word of the key's name, or all of its words, at its
/// end; else a spelling of another dialect with the key's name.
fn synonym(dialect: &Dialect, key: &str) -> Option<String> {
    /// Fewer letters are in too many names.
    const LEAST: usize = 4;
    if key.len() > MAX_KEY {
        return None;
    }
    let name = name_in(dialect, key);
    let last_word = name.rsplit('-').next().filter(|word| word.len() >= LEAST);
    let ends =
        |one: &str, other: &str| one.strip_suffix(other).is_some_and(|rest| rest.is_empty() || rest.ends_with('-'));
    let alike =
        |other: &str| other.contains('-') && ends(other, name) || last_word.is_some_and(|word| ends(other, word));
    let own = spellings(dialect).find(|spelling| !name.is_empty() && alike(name_in(dialect, spelling)));
    let mut others = ALL.iter().flat_map(|other| spellings(other).map(move |spelling| (*other, spelling)));
    let namesake = || others.find(|(other, spelling)| name_in(other, spelling) == name).map(|(_, spelling)| spelling);
    own.or_else(namesake).map(str::to_owned)
}

/// Returns the key without the prefix of its dialect.
fn name_in<'a>(dialect: &Dialect, key: &'a str) -> &'a str {
    dialect.prefixes.iter().find_map(|prefix| key.strip_prefix(prefix)).unwrap_or(key)
}

/// Returns how many letters of a name of this length may be wrong, missing, extra or swapped.
pub(crate) fn tolerated(length: usize) -> usize {
    (1 + length / 6).min(3)
}

/// Returns the key with `{port}` instead of the number in `port_80_`, and the number.
fn without_port(key: &str) -> (String, Option<&str>) {
    let found = || {
        let (before, rest) = key.split_once("/port_")?;
        let (port, after) = rest.split_once('_')?;
        let is_port = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        is_port.then(|| (format!("{before}/port_{PORT}_{after}"), Some(port)))
    };
    found().unwrap_or_else(|| (key.to_owned(), None))
}

/// Returns a known annotation with the key's name and a prefix that is near to the key's prefix.
fn of_another_prefix(key: &str) -> Option<&'static str> {
    /// As between `metallb.universe.io` and `metallb.universe.tf`.
    const MOST: usize = 2;
    let (prefix, name) = key.split_once('/').filter(|_| key.len() <= MAX_KEY)?;
    // Most annotations of a cluster are unknown here. A comparison of their last letters rules them
    // out.
    let other_prefix = |one: &'static str| Some((one.strip_suffix(name)?.strip_suffix('/')?, one));
    let named = ALL.iter().flat_map(|dialect| spellings(dialect)).filter_map(other_prefix);
    let alike = named.filter(|(other, _)| other.len().abs_diff(prefix.len()) <= MOST);
    let (distance, nearest) = alike.map(|(other, one)| (strsim::osa_distance(prefix, other), one)).min()?;
    (distance <= MOST).then_some(nearest)
}
