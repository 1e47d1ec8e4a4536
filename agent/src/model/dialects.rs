//! Dialects: the annotations of other load balancers, understood as their users meant them.
//!
//! A dialect is a [`Dialect`] value in a module of its own and a line in [`ALL`].

mod ako;
mod azure;
mod cilium;
mod kube_vip;
mod loxilb;
mod metallb;
mod notices;
mod openelb;
mod purelb;
mod read;
mod vipmux;

use std::{collections::BTreeMap, ops::Bound};

pub(super) use self::{
    notices::misplaced,
    read::{agreed, boolean, invalid, spelling, whole},
};
pub use self::{notices::notices, read::request};
use crate::model::Family;

/// All dialects.
pub const ALL: &[&Dialect] = &[
    &vipmux::DIALECT,
    &metallb::DIALECT,
    &ako::DIALECT,
    &azure::DIALECT,
    &cilium::DIALECT,
    &kube_vip::DIALECT,
    &purelb::DIALECT,
    &openelb::DIALECT,
    &loxilb::DIALECT,
];

/// An object's annotations.
pub type Annotations = BTreeMap<String, String>;

/// An annotation: its spellings, the current one first, and what it means. `{port}` in a spelling stands for a Service
/// port.
pub type Row = (&'static [&'static str], Meaning);

/// Which annotations a load balancer reads, and what they mean there.
#[derive(Clone, Copy, Debug)]
pub struct Dialect {
    /// Its name, in messages and in the assignments.
    pub name: &'static str,
    /// How the keys of its annotations begin. No other annotation does: one that is in no row is misspelt.
    pub prefixes: &'static [&'static str],
    /// Its annotations.
    pub annotations: &'static [Row],
    /// How far its sharing key reaches.
    pub scope: KeyScope,
    /// A clash within a group is a refusal, never a second address.
    pub never_spills: bool,
    /// Naming an address is the request to share it (rule 3).
    pub shares_by_address: bool,
    /// A Service with any of its annotations is one of its own, and not only one that asks for something by them: nobody but
    /// the Service's owner writes them.
    pub marked_by_any: bool,
    /// What it does not allow.
    pub limits: Limits,
}

/// What a dialect does not allow.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// More addresses of one family than this.
    pub per_family: usize,
    /// An address in an annotation and in `spec.loadBalancerIP` at once, even where they are equal.
    pub excludes_field: bool,
    /// That members of a group ask for different addresses, or only some of them for one.
    pub one_address_request: bool,
}

/// How far a dialect's keys reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyScope {
    /// All namespaces.
    Cluster,
    /// The Service's namespace, and what [`Meaning::Namespaces`] adds to it.
    Namespace,
}

/// What an annotation means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The sharing key.
    SharingKey,
    /// Namespaces, separated by commas, that the key reaches too (`*`: all), if they reach back.
    Namespaces,
    /// The addresses that it wants, separated by commas.
    Addresses,
    /// The one address of this family that it wants.
    Address(Family),
    /// Addresses that it wants beside those, separated by commas.
    Additional,
    /// The name of an address that it wants.
    AddressName,
    /// The pool that it wants its addresses from.
    Pool,
    /// The same, as the last segment of a path.
    PoolPath,
    /// `true`: it wants its addresses from the pool of this name, unless [`Meaning::PoolInstead`] names another.
    PoolIfTrue(&'static str),
    /// The pool that is meant in its place, where [`Meaning::PoolIfTrue`] is there and true.
    PoolInstead,
    /// `__auto__`: it wants its addresses from the pool with the fewest claims, if it names none; else as [`Meaning::Pool`].
    PoolMode,
    /// What all members of its group must say alike, or none of them at all.
    Alike,
    /// The label of its addresses.
    Label,
    /// That the Service is one of this dialect's, and nothing more.
    Marker,
    /// How its packets are treated: read there, not here.
    Treatment,
    /// How its backends are probed: read there, not here.
    Probe,
    /// Nothing here, and what to do instead.
    WithoutEffect(&'static str),
    /// `true` or `false`, and neither means anything here; and what to do instead.
    EitherWithoutEffect(&'static str),
    /// Something that is not to be had here, and without which the Service would be another than was meant.
    Unsupported {
        /// Values that ask for nothing more than what is here.
        harmless: &'static [&'static str],
        /// What to do instead.
        remedy: &'static str,
    },
}

impl Meaning {
    /// Whether it asks for an address, or for company on it.
    const fn is_request(self) -> bool {
        !matches!(
            self,
            Self::Treatment
                | Self::Probe
                | Self::WithoutEffect(_)
                | Self::EitherWithoutEffect(_)
                | Self::Unsupported { .. }
        )
    }
}

impl Dialect {
    /// Whether the key is one that this dialect alone uses.
    fn owns(&self, key: &str) -> bool {
        self.prefixes.iter().any(|prefix| key.starts_with(prefix))
    }

    /// What an annotation with this key means.
    fn meaning(&self, key: &str) -> Option<Meaning> {
        let row = self.annotations.iter().find(|(spellings, _)| spellings.iter().any(|one| is_spelling(one, key)));
        row.map(|(_, meaning)| *meaning)
    }

    /// Whether the Service is one of its own by any annotation of its.
    fn marks(&self, annotations: &Annotations) -> bool {
        let known =
            |(key, value): (&String, &String)| !value.is_empty() && self.owns(key) && self.meaning(key).is_some();
        self.marked_by_any && annotations.iter().any(known)
    }
}

/// What stands for a Service port in a spelling.
const PORT: &str = "{port}";

/// Whether there is an annotation that begins so. Most Services have none that is about their ports: they pay no more than
/// this.
pub(super) fn any_begins(annotations: &Annotations, with: &str) -> bool {
    let mut from_there_on = annotations.range::<str, _>((Bound::Included(with), Bound::Unbounded));
    from_there_on.next().is_some_and(|(key, _)| key.starts_with(with))
}

/// The spelling with a Service port's number in it.
pub(super) fn of_port(spelling: &str, number: u16) -> String {
    spelling.replace(PORT, &number.to_string())
}

/// Whether the key is this spelling, with whatever in the place of a port.
fn is_spelling(spelling: &str, key: &str) -> bool {
    if spelling.contains(PORT) { port_of(spelling, key).is_some() } else { spelling == key }
}

/// What the key has in the place of the spelling's port.
fn port_of<'a>(spelling: &str, key: &'a str) -> Option<&'a str> {
    let (before, after) = spelling.split_once(PORT)?;
    key.strip_prefix(before)?.strip_suffix(after).filter(|port| !port.is_empty())
}

#[cfg(test)]
mod tests;
