//! What a Service asks for, in whatever dialect, and with whom it may share (rules 2 to 4).

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::model::{Vip, pool::PoolSharing, reason::quoted};

/// What a Service asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// [`crate::model::dialects::Dialect::name`] of those in which something is asked for.
    pub dialects: BTreeSet<&'static str>,
    /// The addresses it wants, all of them or none; empty: one from a pool, of each family.
    pub addresses: BTreeSet<Vip>,
    /// Addresses that it wants beside those, whether they are named or from a pool: all of them or none (rule 10).
    pub additional: BTreeSet<Vip>,
    /// Names of addresses that it wants, beside those; pools say which they are.
    pub address_names: BTreeSet<String>,
    /// The pool it wants its address from.
    pub pool: PoolChoice,
    /// With whom it may share.
    pub sharing: Sharing,
    /// Its dialect does not let a group have a second address: a clash is a refusal (rule 8).
    pub never_spills: bool,
    /// What all members of its group must say alike, by the annotation or field that says it. Where members that hold
    /// nothing differ, none of them is served.
    pub alike: BTreeMap<&'static str, String>,
    /// A label that its addresses are to carry; each address has one at most.
    pub label: Option<String>,
}

/// The pool that a Service wants its addresses from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PoolChoice {
    /// The best that serves it (rule 6).
    #[default]
    Best,
    /// The one with this name or alias.
    Named(String),
    /// Of those that serve it the one with the fewest port claims.
    FewestClaims,
}

impl PoolChoice {
    /// The pool's name, where it names one.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Named(name) => Some(name),
            Self::Best | Self::FewestClaims => None,
        }
    }
}

/// With whom a Service may share an address.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sharing {
    /// By key.
    pub key: Option<SharingKey>,
    /// By address.
    pub by_address: ByAddress,
}

/// Rule 3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ByAddress {
    /// It carries annotations of dialects that share by key only.
    #[default]
    Never,
    /// It carries no dialect's annotation.
    Plain,
    /// It asks for its address in a dialect where that is the request to share.
    Explicit,
}

/// A sharing key; equal keys of one dialect, within mutual scope, share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SharingKey {
    /// [`crate::model::dialects::Dialect::name`].
    pub dialect: String,
    /// The key.
    pub key: String,
    /// How far it reaches.
    #[serde(default, skip_serializing_if = "Scope::is_namespace")]
    pub scope: Scope,
}

/// How far a key reaches beyond its Service's namespace. Both sides must reach each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// To these namespaces too.
    Namespaces(BTreeSet<String>),
    /// To every namespace.
    Cluster,
}

impl Default for Scope {
    fn default() -> Self {
        Self::Namespaces(BTreeSet::new())
    }
}

impl Scope {
    fn is_namespace(&self) -> bool {
        *self == Self::default()
    }

    fn reaches(&self, namespace: &str) -> bool {
        match self {
            Self::Namespaces(namespaces) => namespaces.contains(namespace),
            Self::Cluster => true,
        }
    }
}

/// One side of the question who may share: a Service's namespace and what it says about sharing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Party<'a> {
    /// The Service's namespace.
    pub namespace: &'a str,
    /// What it says.
    pub sharing: &'a Sharing,
}

/// Why two Services may not share an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch<'a> {
    /// [`PoolSharing::None`].
    #[error("the pool lets nobody share")]
    PoolForbids,
    /// [`PoolSharing::SameNamespace`].
    #[error("the pool lets Services of one namespace share only")]
    PoolOneNamespace,
    /// Neither has a key.
    #[error("neither has a sharing key")]
    NoKeys,
    /// One of them has a key.
    #[error("only one of them has a sharing key ({})", .0.shown())]
    OneKey(&'a SharingKey),
    /// Their keys differ; the lower one first.
    #[error("their sharing keys differ ({} and {})", .0.shown(), .1.shown())]
    KeysDiffer(&'a SharingKey, &'a SharingKey),
    /// Their keys do not reach each other's namespace; the lower one first.
    #[error("namespaces {0} and {1} do not both let the other share")]
    NotMutual(&'a str, &'a str),
}

impl<'a> Party<'a> {
    /// Whether the two may share an address of a pool with this setting (rule 4); `Err` says why not. Symmetric.
    pub fn may_share(self, other: Self, pool: PoolSharing) -> Result<(), Mismatch<'a>> {
        match pool {
            PoolSharing::None => return Err(Mismatch::PoolForbids),
            PoolSharing::SameNamespace if self.namespace != other.namespace => return Err(Mismatch::PoolOneNamespace),
            _ => {}
        }
        let by_address = match (self.sharing.by_address, other.sharing.by_address) {
            (ByAddress::Never, _) | (_, ByAddress::Never) => false,
            (ByAddress::Plain, ByAddress::Plain) => pool == PoolSharing::ByAddress,
            (ByAddress::Explicit, _) | (_, ByAddress::Explicit) => pool != PoolSharing::KeyOnly,
        };
        if by_address { Ok(()) } else { self.by_key(other) }
    }

    /// Whether the two are of one sharing group (rule 2): an equal key of one dialect, within mutual scope.
    pub fn is_of_group_with(self, other: Self) -> bool {
        self.by_key(other).is_ok()
    }

    fn by_key(self, other: Self) -> Result<(), Mismatch<'a>> {
        match (&self.sharing.key, &other.sharing.key) {
            (None, None) => Err(Mismatch::NoKeys),
            (Some(only), None) | (None, Some(only)) => Err(Mismatch::OneKey(only)),
            (Some(mine), Some(theirs)) if (&mine.dialect, &mine.key) != (&theirs.dialect, &theirs.key) => {
                let (low, high) = if mine <= theirs { (mine, theirs) } else { (theirs, mine) };
                Err(Mismatch::KeysDiffer(low, high))
            }
            (Some(mine), Some(theirs)) => {
                let mutual = self.namespace == other.namespace
                    || mine.scope.reaches(other.namespace) && theirs.scope.reaches(self.namespace);
                let (low, high) = (self.namespace.min(other.namespace), self.namespace.max(other.namespace));
                if mutual { Ok(()) } else { Err(Mismatch::NotMutual(low, high)) }
            }
        }
    }
}

impl Sharing {
    /// Whether one who says this gets the same answer from all who say the other, in whatever namespaces they are.
    pub fn is_alike_everywhere(&self, other: &Self, pool: PoolSharing) -> bool {
        let cluster_wide = |sharing: &Self| sharing.key.as_ref().is_none_or(|key| key.scope == Scope::Cluster);
        pool != PoolSharing::SameNamespace && cluster_wide(self) && cluster_wide(other)
    }
}

impl SharingKey {
    /// The key as messages show it: quoted, with its dialect.
    pub fn shown(&self) -> String {
        format!("{} of {}", quoted(&self.key), self.dialect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(dialect: &str, key: &str, scope: Scope) -> Sharing {
        let key = SharingKey { dialect: dialect.to_owned(), key: key.to_owned(), scope };
        Sharing { key: Some(key), by_address: ByAddress::Never }
    }

    fn address(by_address: ByAddress) -> Sharing {
        Sharing { key: None, by_address }
    }

    fn may(a: (&str, &Sharing), b: (&str, &Sharing), pool: PoolSharing) -> bool {
        let a = Party { namespace: a.0, sharing: a.1 };
        let b = Party { namespace: b.0, sharing: b.1 };
        assert_eq!(a.may_share(b, pool), b.may_share(a, pool), "may_share is symmetric");
        a.may_share(b, pool).is_ok()
    }

    fn namespaces(names: &[&str]) -> Scope {
        Scope::Namespaces(names.iter().map(|&name| name.to_owned()).collect())
    }

    #[test]
    fn a_key_of_another_dialect_never_matches() {
        let (ours, theirs) = (key("vipmux", "web", Scope::Cluster), key("metallb", "web", Scope::Cluster));
        assert!(!may(("shop", &ours), ("shop", &theirs), PoolSharing::Any));
        assert!(may(("shop", &ours), ("shop", &ours), PoolSharing::Any));
    }

    #[test]
    fn a_key_reaches_another_namespace_only_by_mutual_consent() {
        let home = key("vipmux", "web", namespaces(&[]));
        let to_b = key("vipmux", "web", namespaces(&["b"]));
        let to_a = key("vipmux", "web", namespaces(&["a"]));
        let to_all = key("vipmux", "web", Scope::Cluster);
        assert!(!may(("a", &home), ("b", &home), PoolSharing::Any));
        assert!(!may(("a", &to_b), ("b", &home), PoolSharing::Any));
        assert!(may(("a", &to_b), ("b", &to_a), PoolSharing::Any));
        assert!(may(("a", &to_b), ("b", &to_all), PoolSharing::Any));
        assert!(!may(("c", &to_all), ("b", &to_a), PoolSharing::Any));
    }

    #[test]
    fn naming_the_address_shares_with_the_same_kind_and_with_plain_ones() {
        let (explicit, plain, never) =
            (address(ByAddress::Explicit), address(ByAddress::Plain), address(ByAddress::Never));
        assert!(may(("a", &explicit), ("b", &explicit), PoolSharing::Any));
        assert!(may(("a", &explicit), ("b", &plain), PoolSharing::Any));
        assert!(!may(("a", &explicit), ("b", &never), PoolSharing::Any));
        assert!(!may(("a", &plain), ("b", &plain), PoolSharing::Any));
        assert!(may(("a", &plain), ("b", &plain), PoolSharing::ByAddress));
        assert!(!may(("a", &explicit), ("b", &key("vipmux", "web", Scope::Cluster)), PoolSharing::Any));
    }

    #[test]
    fn a_pool_narrows_sharing() {
        let web = key("metallb", "web", Scope::Cluster);
        let explicit = address(ByAddress::Explicit);
        for (pool, one_namespace, two_namespaces, by_address) in [
            (PoolSharing::Any, true, true, true),
            (PoolSharing::ByAddress, true, true, true),
            (PoolSharing::SameNamespace, true, false, true),
            (PoolSharing::KeyOnly, true, true, false),
            (PoolSharing::None, false, false, false),
        ] {
            assert_eq!(may(("a", &web), ("a", &web), pool), one_namespace, "{pool:?}");
            assert_eq!(may(("a", &web), ("b", &web), pool), two_namespaces, "{pool:?}");
            assert_eq!(may(("a", &explicit), ("a", &explicit), pool), by_address, "{pool:?}");
        }
    }
}
