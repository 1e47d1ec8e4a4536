//! Why a Service got what it got, or did not: machine-readable names and sentences.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Why a Service is in the state that it is in; the names are stable, Events and metrics carry them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Reason {
    /// It has its address to itself.
    Allocated,
    /// It shares its address.
    Shared,
    /// Another Service holds one of its port claims (rule 1).
    PortConflict,
    /// The address is held by a Service that it may not share with (rule 4).
    SharingMismatch,
    /// The address carries another label than the one that it asks for.
    LabelConflict,
    /// It does not say what its sharing group has to say alike.
    GroupMismatch,
    /// No free address is left in the pools that it may use.
    PoolExhausted,
    /// No pool gives addresses to this Service, or the pool that it names does not exist.
    NoPool,
    /// The pool that it names, or that has the address it asks for, does not serve it.
    PoolNotAllowed,
    /// It asks for an address that is in no pool, or not in the pool that it names.
    AddressNotInPool,
    /// It asks for an address that is never assigned: a Node's, a gateway's, the API server's (rule 14).
    AddressReserved,
    /// Two dialects, or an annotation and a field, contradict each other.
    AmbiguousRequest,
    /// An annotation's value is malformed.
    InvalidAnnotation,
    /// A field of the Service is malformed.
    InvalidService,
    /// It asks for an address of a family that it does not want, or for none of one that it requires (rule 10).
    UnsupportedFamily,
    /// Nobody has given it an address yet, or one that is in no pool.
    Unallocated,
    /// Its `loadBalancerClass` is another's (rule 12).
    OtherClass,
    /// It is not of type LoadBalancer.
    NotLoadBalancer,
}

impl Reason {
    /// All for which a Service gets no address though it asks for one.
    pub const REFUSALS: [Self; 15] = [
        Self::PortConflict,
        Self::SharingMismatch,
        Self::LabelConflict,
        Self::GroupMismatch,
        Self::PoolExhausted,
        Self::NoPool,
        Self::PoolNotAllowed,
        Self::AddressNotInPool,
        Self::AddressReserved,
        Self::AmbiguousRequest,
        Self::InvalidAnnotation,
        Self::InvalidService,
        Self::UnsupportedFamily,
        Self::Unallocated,
        Self::OtherClass,
    ];

    /// What to do about it, whoever the other party is; `None`: it is as it was asked for.
    pub const fn remedy(self) -> Option<&'static str> {
        Some(match self {
            Self::Allocated | Self::Shared => return None,
            Self::PortConflict => {
                "give one of the two another port, or let this one ask for another address, or for none"
            }
            Self::SharingMismatch => {
                "give both the same sharing key of one dialect, and let their namespaces reach each other; or let this one ask \
                 for another address, or for none"
            }
            Self::LabelConflict => {
                "let the two ask for the same label, or let this one ask for another address, or for none"
            }
            Self::GroupMismatch => "let all Services of the group say the same, or give this one another sharing key",
            Self::PoolExhausted => {
                "add addresses to the pool, let the Service share one by a sharing key, or remove Services that are not needed"
            }
            Self::NoPool => "add a pool that serves the Service and assigns by itself, or name one that exists",
            Self::PoolNotAllowed => {
                "name a pool that serves the Service, or let this one serve its namespace and labels"
            }
            Self::AddressNotInPool => {
                "ask for an address of a pool, and of the one that is named if one is; or add it there"
            }
            Self::AddressReserved => "ask for another address",
            Self::AmbiguousRequest => "keep one of the two",
            Self::InvalidAnnotation => "correct the annotation, or remove it",
            Self::InvalidService => "correct the field",
            Self::UnsupportedFamily => {
                "let spec.ipFamilies, spec.ipFamilyPolicy and the addresses that the Service asks for agree"
            }
            Self::Unallocated => {
                "see that `vipmux allocator` runs, or with --allocator off the controller that gives addresses"
            }
            Self::OtherClass => "change or remove spec.loadBalancerClass if vipmux is to serve it",
            Self::NotLoadBalancer => "set spec.type to LoadBalancer if it is to have a VIP",
        })
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The derived name is the stable name: one spelling for people, Events and JSON.
        f.pad(&format!("{self:?}"))
    }
}

/// A Service gets nothing, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// For machines.
    pub reason: Reason,
    /// For people: names the cause and the other party.
    pub message: String,
}

impl Refusal {
    /// A refusal.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

/// Something that its owner should know and that stops nobody else: a bad range in a pool, an endpoint on no Node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Note {
    /// The object, as `Kind namespace/name` or `Kind name`.
    pub object: String,
    /// What is wrong with it, and what was done about it.
    pub message: String,
}

impl Note {
    /// A note.
    pub fn new(object: impl Into<String>, message: impl Into<String>) -> Self {
        Self { object: object.into(), message: message.into() }
    }
}

/// A value from a manifest as it is quoted in messages: escaped, and cut where it is long.
pub fn quoted(value: &str) -> String {
    /// Characters; enough for every well-formed value.
    const SHOWN: usize = 80;
    match value.char_indices().nth(SHOWN) {
        Some((cut, _)) => format!("{:?}...", &value[..cut]),
        None => format!("{value:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_has_one_spelling() {
        assert_eq!(Reason::PortConflict.to_string(), "PortConflict");
        assert_eq!(serde_json::to_string(&Reason::PortConflict).unwrap(), "\"PortConflict\"");
    }

    #[test]
    fn a_quoted_value_is_escaped_and_bounded() {
        assert_eq!(quoted("a\nb"), "\"a\\nb\"");
        assert_eq!(quoted(&"ä".repeat(1_000)).chars().count(), 85);
    }
}
