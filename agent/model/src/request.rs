//! Defines the request of a Service in any dialect, and decides which Services may share an address
//! (rules 2 to 4 of docs/allocation-rules.md).

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{Vip, pool::PoolSharing, reason::quoted};

/// The request of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The dialects ([`crate::dialects::Dialect::name`]) that contain a request.
    pub dialects: BTreeSet<&'static str>,
    /// The addresses that it wants, all of them or none. Empty: one address of each family from a
    /// pool.
    pub addresses: BTreeSet<Vip>,
    /// Further addresses that it wants, whether the others are named or from a pool: all of them or
    /// none (rule 10).
    pub additional: BTreeSet<Vip>,
    /// Names of further addresses that it wants. Pools define them.
    pub address_names: BTreeSet<String>,
    /// The pool it wants its address from.
    pub pool: PoolChoice,
    /// The Services that it may share with.
    pub sharing: Sharing,
    /// Whether its dialect forbids a second address for a group. Then a clash is a refusal (rule
    /// 8).
    pub never_spills: bool,
    /// The settings that must be equal for all members of its group, by annotation or field. If
    /// members that hold nothing differ, none of them is served.
    pub alike: BTreeMap<&'static str, String>,
    /// The label that its addresses shall have. Each address has at most one.
    pub label: Option<String>,
}

/// The pool that a Service wants its addresses from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PoolChoice {
    /// The best pool that serves it (rule 6).
    #[default]
    Best,
    /// The pool with this name or alias.
    Named(String),
    /// The pool with the fewest port claims, among those that serve it.
    FewestClaims,
}

impl PoolChoice {
    /// Returns the pool's name, if it names one.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Named(name) => Some(name),
            Self::Best | Self::FewestClaims => None,
        }
    }
}

/// The Services that a Service may share an address with.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sharing {
    /// The key for sharing by key.
    pub key: Option<SharingKey>,
    /// How it shares by address.
    pub by_address: ByAddress,
}

/// Sharing by address (rule 3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ByAddress {
    /// It carries annotations of dialects that share by key only.
    #[default]
    Never,
    /// It carries no dialect's annotation.
    Plain,
    /// It asks for its address in a dialect where that is a request to share.
    Explicit,
}

/// A sharing key. Services with equal keys of one dialect share, if each key reaches the other's
/// namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SharingKey {
    /// The name of the dialect ([`crate::dialects::Dialect::name`]).
    pub dialect: String,
    /// The key.
    pub key: String,
    /// The namespaces that it reaches.
    #[serde(default, skip_serializing_if = "Scope::is_namespace")]
    pub scope: Scope,
}

/// The namespaces that a key reaches beyond its Service's own. Both keys must reach each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// Also these namespaces.
    Namespaces(BTreeSet<String>),
    /// All namespaces.
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

/// One of two Services that may share an address: its namespace and its sharing settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sharer<'a> {
    /// The Service's namespace.
    pub namespace: &'a str,
    /// Its sharing request.
    pub sharing: &'a Sharing,
}

/// The reason why two Services may not share an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch<'a> {
    /// [`PoolSharing::None`].
    #[error("the pool does not allow sharing")]
    PoolForbids,
    /// [`PoolSharing::SameNamespace`].
    #[error("the pool allows sharing only within one namespace")]
    PoolOneNamespace,
    /// One of them names its address, and the other one, in another namespace, did not ask to share.
    /// The lower namespace first.
    #[error("namespaces {0} and {1} differ, and only one of the two asks to share its address")]
    OneAsks(&'a str, &'a str),
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
    #[error("namespaces {0} and {1} do not both allow the other to share")]
    NotMutual(&'a str, &'a str),
}

impl<'a> Sharer<'a> {
    /// Checks whether the two may share an address of a pool with this setting (rule 4). `Err` has
    /// the reason why not. The check is symmetric.
    pub fn may_share(self, other: Self, pool: PoolSharing) -> Result<(), Mismatch<'a>> {
        match pool {
            PoolSharing::None => return Err(Mismatch::PoolForbids),
            PoolSharing::SameNamespace if self.namespace != other.namespace => return Err(Mismatch::PoolOneNamespace),
            _ => {}
        }
        let by_address = match (self.sharing.by_address, other.sharing.by_address) {
            (ByAddress::Never, _) | (_, ByAddress::Never) => false,
            (ByAddress::Plain, ByAddress::Plain) => pool == PoolSharing::ByAddress,
            (ByAddress::Explicit, ByAddress::Explicit) => pool != PoolSharing::KeyOnly,
            // Across namespaces this needs the pool's word, since one of the two did not ask.
            _ => pool == PoolSharing::ByAddress || pool == PoolSharing::Any && self.namespace == other.namespace,
        };
        if by_address {
            return Ok(());
        }
        let (low, high) = self.namespaces(other);
        self.by_key(other).map_err(|why| {
            if self.sharing.one_asks(other.sharing) && pool == PoolSharing::Any && low != high {
                Mismatch::OneAsks(low, high)
            } else {
                why
            }
        })
    }

    /// Returns both namespaces, the lower one first.
    fn namespaces(self, other: Self) -> (&'a str, &'a str) {
        (self.namespace.min(other.namespace), self.namespace.max(other.namespace))
    }

    /// Whether the two are in one sharing group (rule 2): their keys are equal, of one dialect, and
    /// reach each other.
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
                let (low, high) = self.namespaces(other);
                if mutual { Ok(()) } else { Err(Mismatch::NotMutual(low, high)) }
            }
        }
    }
}

impl Sharing {
    /// Whether all Services with this setting get the same answer from all Services with the other
    /// setting, in any namespaces.
    pub fn is_alike_everywhere(&self, other: &Self, pool: PoolSharing) -> bool {
        let cluster_wide = |sharing: &Self| sharing.key.as_ref().is_none_or(|key| key.scope == Scope::Cluster);
        let of_any = pool != PoolSharing::SameNamespace && (pool == PoolSharing::ByAddress || !self.one_asks(other));
        of_any && cluster_wide(self) && cluster_wide(other)
    }

    /// Whether one of the two asks to share by address, and the other one asks for nothing.
    fn one_asks(&self, other: &Self) -> bool {
        let of = [self.by_address, other.by_address];
        of.contains(&ByAddress::Explicit) && of.contains(&ByAddress::Plain)
    }
}

impl SharingKey {
    /// Returns the key as in messages: quoted, with its dialect.
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
        let a = Sharer { namespace: a.0, sharing: a.1 };
        let b = Sharer { namespace: b.0, sharing: b.1 };
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
        assert!(may(("a", &explicit), ("a", &plain), PoolSharing::Any));
        assert!(!may(("a", &explicit), ("b", &plain), PoolSharing::Any));
        assert!(may(("a", &explicit), ("b", &plain), PoolSharing::ByAddress));
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
