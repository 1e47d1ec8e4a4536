//! Defines the reasons for a Service's state, with their stable names and messages.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The reason for a Service's state. The names are stable: Events and metrics carry them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Reason {
    /// It does not share its address.
    Allocated,
    /// It shares its address.
    Shared,
    /// Another Service holds one of its port claims (rule 1).
    PortConflict,
    /// The address is held by a Service that it may not share with (rule 4).
    SharingMismatch,
    /// The address has another label than the one that it asks for.
    LabelConflict,
    /// Its settings differ from those of its sharing group.
    GroupMismatch,
    /// No free address is left in the pools that it may use.
    PoolExhausted,
    /// No pool gives addresses to this Service, or the pool that it names does not exist.
    NoPool,
    /// The pool that it names, or that contains the address it asks for, does not serve it.
    PoolNotAllowed,
    /// It asks for an address that is in no pool, or not in the pool that it names.
    AddressNotInPool,
    /// It asks for an address that is never assigned: a Node's, a gateway's, the API server's (rule
    /// 14).
    AddressReserved,
    /// The Service or its namespace would have more addresses than allowed (rule 15).
    TooManyAddresses,
    /// Two dialects, or an annotation and a field, contradict each other.
    AmbiguousRequest,
    /// An annotation's value is malformed.
    InvalidAnnotation,
    /// A field of the Service is malformed.
    InvalidService,
    /// It asks for an address of a family that it does not want, or for none of one that it
    /// requires (rule 10).
    UnsupportedFamily,
    /// No controller has assigned it an address yet, or only one that is in no pool.
    Unallocated,
    /// Its `loadBalancerClass` belongs to another controller (rule 12).
    OtherClass,
    /// It is not of type LoadBalancer.
    NotLoadBalancer,
}

impl Reason {
    /// All reasons for which a Service gets no address although it asks for one.
    pub const REFUSALS: [Self; 16] = [
        Self::PortConflict,
        Self::SharingMismatch,
        Self::LabelConflict,
        Self::GroupMismatch,
        Self::PoolExhausted,
        Self::NoPool,
        Self::PoolNotAllowed,
        Self::AddressNotInPool,
        Self::AddressReserved,
        Self::TooManyAddresses,
        Self::AmbiguousRequest,
        Self::InvalidAnnotation,
        Self::InvalidService,
        Self::UnsupportedFamily,
        Self::Unallocated,
        Self::OtherClass,
    ];

    /// Returns what the user can do about it; `None`: the Service has what it asks for.
    pub const fn remedy(self) -> Option<&'static str> {
        Some(match self {
            Self::Allocated | Self::Shared => return None,
            Self::PortConflict => "give one of the two another port, or request another address or none for this one",
            Self::SharingMismatch => {
                "give both the same sharing key of one dialect, and allow their namespaces to share; or request \
                 another address or none for this one"
            }
            Self::LabelConflict => "request the same label for both, or request another address or none for this one",
            Self::GroupMismatch => {
                "use the same settings for all Services of the group, or give this one another sharing key"
            }
            Self::PoolExhausted => {
                "add addresses to the pool, let the Service share one with a sharing key, or remove Services that are \
                 not needed"
            }
            Self::NoPool => "add a pool that serves the Service and assigns automatically, or name an existing pool",
            Self::PoolNotAllowed => {
                "name a pool that serves the Service, or let this pool serve the Service's namespace and labels"
            }
            Self::AddressNotInPool => {
                "request an address of a pool (of the named one, if any), or add the address to the pool"
            }
            Self::AddressReserved => "ask for another address",
            Self::TooManyAddresses => {
                "let Services share addresses with a sharing key, or raise --service-addresses or --namespace-addresses"
            }
            Self::AmbiguousRequest => "keep one of the two",
            Self::InvalidAnnotation => "correct the annotation, or remove it",
            Self::InvalidService => "correct the field",
            Self::UnsupportedFamily => "make spec.ipFamilies, spec.ipFamilyPolicy and the requested addresses agree",
            Self::Unallocated => {
                "make sure that `vipmux allocator` runs, or with --allocator off the controller that assigns addresses"
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

/// The reason why a Service gets no address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// The reason, for programs.
    pub reason: Reason,
    /// The message, for people. It names the cause and the other Service.
    pub message: String,
}

impl Refusal {
    /// Creates a refusal.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

/// A fault that an object's owner should know and that affects nobody else: a bad range in a pool,
/// an endpoint on no Node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Note {
    /// The object, as `Kind namespace/name` or `Kind name`.
    pub object: String,
    /// The fault, and how it was handled.
    pub message: String,
}

impl Note {
    /// Creates a note.
    pub fn new(object: impl Into<String>, message: impl Into<String>) -> Self {
        Self { object: object.into(), message: message.into() }
    }
}

/// Returns a value from a manifest, quoted for a message: escaped, and cut if it is long.
pub fn quoted(value: &str) -> String {
    /// The maximum number of characters; enough for every well-formed value.
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
