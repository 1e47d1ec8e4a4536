//! Encodes the request that a Service got its addresses for as text for its status.
//!
//! A cluster remembers a decision in the Service's status alone. With this text, an allocator that starts knows
//! as much as one that has run all the time (docs/status.md).
//!
//! ```text
//! 1 key=vipmux:web:* pool=lan ports=80/TCP,443/TCP
//! ```
//!
//! The first word is the version. Further fields are `by-address`, `additional`, `alike`, `label` and `spill`, as
//! in `assignments.yaml`. A field that does not apply is left out. If the text would be too long, the longest values
//! become digests: `#` and 16 hexadecimal digits of their SHA-256.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    str::FromStr,
};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use sha2::{Digest as _, Sha256};

use crate::request_snapshot::{GroupSettings, RequestSnapshot};
use vipmux_model::{
    Vip,
    request::{ByAddress, Scope, Sharing, SharingKey},
};

/// The version of the format.
const VERSION: &str = "1";
/// The most bytes of the text. Six digests, `by-address` and `spill` fit.
pub(crate) const MOST_BYTES: usize = 180;
const DIGEST_BYTES: usize = 17;
/// The first character of a digest. In values it is encoded.
const DIGEST: char = '#';
/// Characters of values that are encoded, since others are delimiters, or not printed.
const ENCODED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'/').remove(b'@').remove(b'+');

/// Returns the text.
pub(crate) fn encode(request: &RequestSnapshot) -> String {
    let mut fields = fields(request);
    loop {
        let text = fields.iter().fold(VERSION.to_owned(), |text, (name, value)| format!("{text} {name}={value}"));
        let longest = fields.values_mut().filter(|value| value.len() > DIGEST_BYTES).max_by_key(|value| value.len());
        match longest {
            Some(longest) if text.len() > MOST_BYTES => *longest = digest(longest),
            _ => return text,
        }
    }
}

/// Returns the request; `None`: the text is of another version, or damaged. `now` is the present request: the value
/// of a digest is the present one, or it is not known and differs from every other one.
pub(crate) fn decode(text: &str, now: Option<&RequestSnapshot>) -> Option<RequestSnapshot> {
    let now = now.map(fields).unwrap_or_default();
    let mut words = text.split(' ');
    words.next().filter(|version| *version == VERSION)?;
    let mut request = RequestSnapshot::default();
    let mut by_address = None;
    for word in words {
        let (name, value) = word.split_once('=')?;
        let present = now.get(name).filter(|present| digest(present) == value);
        let value = present.map_or(value, String::as_str);
        let is_unknown = value.starts_with(DIGEST);
        match name {
            "ports" | "additional" if is_unknown => {}
            "ports" => request.ports = list(value)?,
            "key" if is_unknown => {
                let scope = Scope::default();
                request.sharing.key = Some(SharingKey { dialect: String::new(), key: value.to_owned(), scope });
            }
            "key" => request.sharing.key = Some(sharing_key(value)?),
            "by-address" => {
                let kinds = [ByAddress::Never, ByAddress::Plain, ByAddress::Explicit];
                by_address = Some(kinds.into_iter().find(|kind| by_address_text(*kind) == value)?);
            }
            "pool" => request.pool = Some(decoded(value)?),
            "additional" => request.additional = list::<IpAddr>(value)?.into_iter().map(Vip::new).collect(),
            "alike" if is_unknown => request.alike = [(value.to_owned(), String::new())].into(),
            "alike" => request.alike = settings(value)?,
            "label" => request.label = Some(decoded(value)?),
            "spill" => request.spill = value.parse().ok()?,
            _ => return None,
        }
    }
    request.sharing.by_address = by_address.unwrap_or_else(|| implied(&request.sharing));
    Some(request)
}

/// Returns the fields that apply.
fn fields(request: &RequestSnapshot) -> BTreeMap<&'static str, String> {
    let RequestSnapshot { ports, sharing, pool, additional, alike, label, spill } = request;
    let joined = |values: Vec<String>| (!values.is_empty()).then(|| values.join(","));
    let key = sharing.key.as_ref().map(|SharingKey { dialect, key, scope }| {
        let scope = match scope {
            Scope::Cluster => "*".to_owned(),
            Scope::Namespaces(names) => names.iter().map(|name| encoded(name)).collect::<Vec<_>>().join(","),
        };
        format!("{}:{}:{scope}", encoded(dialect), encoded(key))
    });
    let by_address = (sharing.by_address != implied(sharing)).then(|| by_address_text(sharing.by_address).to_owned());
    [
        ("ports", joined(ports.iter().map(ToString::to_string).collect())),
        ("key", key),
        ("by-address", by_address),
        ("pool", pool.as_deref().map(encoded)),
        ("additional", joined(additional.iter().map(ToString::to_string).collect())),
        ("alike", joined(alike.iter().map(|(what, value)| format!("{}:{}", encoded(what), encoded(value))).collect())),
        ("label", label.as_deref().map(encoded)),
        ("spill", spill.then(|| spill.to_string())),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name, value?)))
    .collect()
}

/// Returns the value that the text leaves out.
fn implied(sharing: &Sharing) -> ByAddress {
    if sharing.key.is_some() { ByAddress::Never } else { ByAddress::Plain }
}

const fn by_address_text(kind: ByAddress) -> &'static str {
    match kind {
        ByAddress::Never => "never",
        ByAddress::Plain => "plain",
        ByAddress::Explicit => "explicit",
    }
}

fn sharing_key(value: &str) -> Option<SharingKey> {
    let [dialect, key, scope] = value.split(':').collect::<Vec<_>>().try_into().ok()?;
    let scope = match scope {
        "*" => Scope::Cluster,
        "" => Scope::default(),
        names => Scope::Namespaces(names.split(',').map(decoded).collect::<Option<_>>()?),
    };
    Some(SharingKey { dialect: decoded(dialect)?, key: decoded(key)?, scope })
}

fn settings(value: &str) -> Option<GroupSettings> {
    let setting = |text: &str| {
        let (what, value) = text.split_once(':')?;
        Some((decoded(what)?, decoded(value)?))
    };
    value.split(',').map(setting).collect()
}

fn list<T: FromStr + Ord>(value: &str) -> Option<BTreeSet<T>> {
    value.split(',').map(|item| item.parse().ok()).collect()
}

fn encoded(value: &str) -> String {
    utf8_percent_encode(value, ENCODED).to_string()
}

fn decoded(value: &str) -> Option<String> {
    Some(percent_decode_str(value).decode_utf8().ok()?.into_owned())
}

fn digest(value: &str) -> String {
    let hash = Sha256::digest(value);
    hash.iter().take(8).fold(DIGEST.to_string(), |text, byte| format!("{text}{byte:02x}"))
}

#[cfg(test)]
mod tests;
