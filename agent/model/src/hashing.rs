//! Builds the tables that map a packet's hash to a backend.
//!
//! Every node and every version in a cluster must build the same table from the same endpoints.
//! Otherwise a new leader would break connections. So this is part of the protocol between the
//! nodes, and test vectors keep it unchanged. A change is another [`Hashing`], which the nodes use
//! once all of them can.

mod first;
mod second;

use std::hash::Hasher as _;

use twox_hash::XxHash64;
use vipmux_common::abi;

/// How tables are built, and what the hash of a flow covers. A later one is greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hashing {
    /// Maglev tables of a few lengths. The hash leaves the VIP's address out.
    #[default]
    First,
    /// Tables that differ little when an endpoint comes or goes. The hash covers the VIP's address.
    Second,
}

impl Hashing {
    /// All, ascending.
    pub const ALL: [Self; 2] = [Self::First, Self::Second];

    /// Returns the hashing that is in force if a node names this number: that of its newest hashing, or of
    /// the one that it uses. Later builds may name greater numbers.
    pub const fn from_number(number: u32) -> Self {
        if number == 0 { Self::First } else { Self::Second }
    }

    /// Returns its number in the gossip, from 0.
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// Whether flows are hashed with the VIP's address ([`abi::SERVICE_HASHES_VIP`]).
    pub const fn covers_vip(self) -> bool {
        matches!(self, Self::Second)
    }

    /// Returns the most endpoints that get slots: the first ones in their order.
    pub const fn most_endpoints(self) -> usize {
        match self {
            Self::First => first::LONGEST as usize,
            Self::Second => second::LONGEST as usize,
        }
    }

    /// Returns the length of the table of this number of backends; 0 for no backends. No two hashings
    /// have a length in common.
    pub fn length(self, backends: usize) -> u32 {
        match (backends, self) {
            (0, _) => 0,
            (_, Self::First) => first::length(backends),
            (_, Self::Second) => second::length(backends),
        }
    }

    /// Returns the table of these backends. Each slot holds the value of an endpoint. The order of the
    /// input does not matter. An endpoint that comes twice counts once, with the lower value.
    pub fn table(self, backends: impl IntoIterator<Item = (Endpoint, u32)>) -> Vec<u32> {
        let mut backends: Vec<_> = backends.into_iter().collect();
        backends.sort_unstable();
        backends.dedup_by_key(|(endpoint, _)| *endpoint);
        backends.truncate(self.most_endpoints());
        match (&*backends, self) {
            ([], _) => Vec::new(),
            (backends, Self::First) => first::table(backends),
            (backends, Self::Second) => second::table(backends),
        }
    }
}

/// A backend's identity in the whole cluster: its address (16 bytes, IPv4 mapped) and its port, in
/// wire order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoint([u8; 18]);

impl Endpoint {
    /// Returns the endpoint with this address and this port. The port is as in a packet (*wire*).
    pub fn new(address: abi::Address, port: u16) -> Self {
        let mut bytes = [0; 18];
        for (part, word) in bytes.chunks_exact_mut(4).zip([address.w0, address.w1, address.w2, address.w3]) {
            part.copy_from_slice(&word.to_ne_bytes());
        }
        bytes[16..].copy_from_slice(&port.to_ne_bytes());
        Self(bytes)
    }
}

/// Returns a number that distinguishes tables; local to one node.
pub fn digest(table: &[u32]) -> u64 {
    let mut hasher = XxHash64::with_seed(0);
    for slot in table {
        hasher.write_u32(*slot);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests;
