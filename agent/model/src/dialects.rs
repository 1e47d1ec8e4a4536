//! Reads dialects: the annotations of other load balancers, with the meaning that their users
//! expect.
//!
//! A dialect is a [`Dialect`] value in a module of its own and a line in [`ALL`].

mod ako;
pub(crate) mod azure;
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

pub use self::{notices::notices, read::request};
pub(super) use self::{
    notices::{misplaced, of_labels, tolerated},
    read::{agreed, boolean, invalid, listed, spelling, whole},
};
use crate::Family;

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

/// An annotation: its spellings, the current one first, and its meaning. `{port}` in a spelling
/// stands for a Service port.
pub type Row = (&'static [&'static str], Meaning);

/// The annotations that a load balancer reads, and their meaning there.
#[derive(Clone, Copy, Debug)]
pub struct Dialect {
    /// Its name, in messages and in the assignments.
    pub name: &'static str,
    /// The prefixes of its annotations' keys. No other annotation has them, so a key that is in no
    /// row is misspelled.
    pub prefixes: &'static [&'static str],
    /// Its annotations.
    pub annotations: &'static [Row],
    /// The namespaces that its sharing key reaches.
    pub scope: KeyScope,
    /// Whether a clash within a group is a refusal, never a second address.
    pub never_spills: bool,
    /// Whether a request for an address is also a request to share it (rule 3).
    pub shares_by_address: bool,
    /// Whether any of its annotations makes a Service one of this dialect, not only an annotation
    /// that requests something. Only the Service's owner writes them.
    pub marked_by_any: bool,
    /// The requests that it does not allow.
    pub limits: Limits,
}

/// The requests that a dialect does not allow.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The maximum number of addresses of one family.
    pub per_family: usize,
    /// Refuses an address in an annotation together with `spec.loadBalancerIP`, even if they are
    /// equal.
    pub excludes_field: bool,
    /// Refuses a group whose members ask for different addresses, or of which only some ask for
    /// one.
    pub one_address_request: bool,
}

/// The namespaces that a dialect's keys reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyScope {
    /// All namespaces.
    Cluster,
    /// The Service's namespace, and the namespaces of [`Meaning::Namespaces`].
    Namespace,
}

/// The meaning of an annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The sharing key.
    SharingKey,
    /// Namespaces, separated by commas, that the key also reaches (`*`: all), if they reach back.
    Namespaces,
    /// The addresses that the Service wants, separated by commas.
    Addresses,
    /// The one address of this family that the Service wants.
    Address(Family),
    /// Addresses that the Service wants in addition, separated by commas.
    Additional,
    /// The name of an address that the Service wants.
    AddressName,
    /// The pool that the Service wants its addresses from.
    Pool,
    /// As [`Meaning::Pool`], with the pool as the last segment of a path.
    PoolPath,
    /// `true`: the Service wants its addresses from the pool of this name, unless
    /// [`Meaning::PoolInstead`] names another.
    PoolIfTrue(&'static str),
    /// The pool to use instead, if [`Meaning::PoolIfTrue`] is set and true.
    PoolInstead,
    /// `__auto__`: the Service wants its addresses from the pool with the fewest claims, if it
    /// names no pool. Other values: as [`Meaning::Pool`].
    PoolMode,
    /// A setting that must be equal for all members of the group, or set for none of them.
    Alike,
    /// The label of the Service's addresses.
    Label,
    /// It only marks the Service as one of this dialect.
    Marker,
    /// The treatment of the Service's packets. Other modules read it (`policy`, `service`).
    Treatment,
    /// The health probes of the Service's backends. Another module reads it (`probe`).
    Probe,
    /// It has no effect here. The text says what to do instead.
    WithoutEffect(&'static str),
    /// `true` or `false`. Neither has an effect here. The text says what to do instead.
    EitherWithoutEffect(&'static str),
    /// A feature that does not exist here. Without it, the Service would not be what its owner
    /// meant.
    Unsupported {
        /// The values that need no more than what exists here.
        harmless: &'static [&'static str],
        /// The advice on what to use instead.
        remedy: &'static str,
    },
}

impl Meaning {
    /// Whether it asks for an address, or to share one.
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
    /// Whether only this dialect uses the key.
    fn owns(&self, key: &str) -> bool {
        self.prefixes.iter().any(|prefix| key.starts_with(prefix))
    }

    /// Returns the meaning of an annotation with this key.
    fn meaning(&self, key: &str) -> Option<Meaning> {
        let row = self.annotations.iter().find(|(spellings, _)| spellings.iter().any(|one| is_spelling(one, key)));
        row.map(|(_, meaning)| *meaning)
    }

    /// Whether one of these annotations makes the Service one of this dialect.
    fn marks(&self, annotations: &Annotations) -> bool {
        let known =
            |(key, value): (&String, &String)| !value.is_empty() && self.owns(key) && self.meaning(key).is_some();
        self.marked_by_any && annotations.iter().any(known)
    }
}

/// The placeholder for a Service port in a spelling.
const PORT: &str = "{port}";

/// Whether there is an annotation with this prefix. Most Services have none about their ports, and
/// this check is all that they cost.
pub(super) fn any_begins(annotations: &Annotations, with: &str) -> bool {
    let mut from_there_on = annotations.range::<str, _>((Bound::Included(with), Bound::Unbounded));
    from_there_on.next().is_some_and(|(key, _)| key.starts_with(with))
}

/// Returns the spelling with a Service port's number in it.
pub(super) fn of_port(spelling: &str, number: u16) -> String {
    spelling.replace(PORT, &number.to_string())
}

/// Whether the key is this spelling, with any text in place of the port.
fn is_spelling(spelling: &str, key: &str) -> bool {
    if spelling.contains(PORT) { port_of(spelling, key).is_some() } else { spelling == key }
}

/// Returns the text that the key has in place of the spelling's port.
fn port_of<'a>(spelling: &str, key: &'a str) -> Option<&'a str> {
    let (before, after) = spelling.split_once(PORT)?;
    key.strip_prefix(before)?.strip_suffix(after).filter(|port| !port.is_empty())
}

#[cfg(test)]
mod tests;
