//! What an agent publishes of itself: its items, and the state that its peers put together from them.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use imbl::OrdMap;
use serde::{Deserialize, Deserializer, Serialize, de::Error};
use vipmux_common::abi::Mac;

use crate::model::{NodeName, Vip, name::is_subdomain};

/// Most segments (interfaces, and VLANs of them) whose MAC a node publishes.
pub const MOST_SEGMENTS: u8 = 32;
/// Most items of one node.
pub const MOST_ITEMS: usize = 65_536;

/// One thing that a node publishes of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Item {
    /// Its maps are in sync, and it may lead.
    Ready(bool),
    /// It hands its VIPs over and takes no others.
    Draining(bool),
    /// It leads a VIP.
    Claim {
        /// Which.
        vip: Vip,
        /// Since which change of its leaders.
        epoch: u64,
        /// Why.
        why: Why,
    },
    /// It cannot announce this VIP: no carrier where that would be.
    Unable(Vip),
    /// Its address on a segment.
    Mac {
        /// The segment's number on this node, below [`MOST_SEGMENTS`].
        #[serde(deserialize_with = "segment")]
        segment: u8,
        /// The address.
        #[serde(with = "octets")]
        mac: Mac,
    },
    /// What a health probe found.
    Health {
        /// Of what.
        probed: Probed,
        /// It answers.
        up: bool,
    },
}

/// What an item is about: a node publishes at most one item of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Key {
    /// Of [`Item::Ready`].
    Ready,
    /// Of [`Item::Draining`].
    Draining,
    /// Of [`Item::Claim`].
    Claim(Vip),
    /// Of [`Item::Unable`].
    Unable(Vip),
    /// Of [`Item::Mac`]: the segment.
    Mac(u8),
    /// Of [`Item::Health`].
    Health(Probed),
}

/// A backend's port, and how it is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Probed {
    /// The backend.
    pub address: IpAddr,
    /// The port that is asked.
    pub port: u16,
    /// Which check: a number that all nodes give to the same kind of probe.
    pub check: u64,
}

/// Why a node leads a VIP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Why {
    /// Nobody did before.
    First,
    /// It did before it was started again.
    Resumed,
    /// This leader was found down.
    Down(#[serde(deserialize_with = "node")] NodeName),
    /// This leader handed it over.
    Handed(#[serde(deserialize_with = "node")] NodeName),
    /// Nothing was heard of this leader since this agent started.
    Silent(#[serde(deserialize_with = "node")] NodeName),
    /// The store could not be reached, and a majority was alive.
    Unwritten,
}

/// A change of what a node publishes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Change {
    Set(Item),
    Gone(Key),
}

/// A node's items, as its peers know them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Its maps are in sync, and it may lead.
    pub ready: bool,
    /// It hands its VIPs over and takes no others.
    pub draining: bool,
    /// What it leads.
    pub claims: OrdMap<Vip, Claimed>,
    /// What it cannot announce.
    pub unable: BTreeSet<Vip>,
    /// Its address on each of its segments.
    pub macs: BTreeMap<u8, Mac>,
    /// What its health probes found: `true` is up.
    pub health: BTreeMap<Probed, bool>,
}

/// A peer's claim to a VIP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// Since which change of leaders.
    pub epoch: u64,
    /// Why it leads.
    pub why: Why,
    /// When we learned of it: `CLOCK_BOOTTIME` of this node.
    pub since: Duration,
}

impl Item {
    /// What it is about.
    pub const fn key(&self) -> Key {
        match self {
            Self::Ready(_) => Key::Ready,
            Self::Draining(_) => Key::Draining,
            Self::Claim { vip, .. } => Key::Claim(*vip),
            Self::Unable(vip) => Key::Unable(*vip),
            Self::Mac { segment, .. } => Key::Mac(*segment),
            Self::Health { probed, .. } => Key::Health(*probed),
        }
    }
}

impl State {
    /// Items that take room.
    pub(super) fn len(&self) -> usize {
        self.claims.len() + self.unable.len() + self.macs.len() + self.health.len()
    }

    /// Makes the change, learned at `now`.
    pub(super) fn apply(&mut self, change: Change, now: Duration) {
        match change {
            Change::Set(Item::Ready(ready)) => self.ready = ready,
            Change::Set(Item::Draining(draining)) => self.draining = draining,
            Change::Set(Item::Claim { vip, epoch, why }) => {
                self.claims.insert(vip, Claimed { epoch, why, since: now });
            }
            Change::Set(Item::Unable(vip)) => {
                self.unable.insert(vip);
            }
            Change::Set(Item::Mac { segment, mac }) => {
                self.macs.insert(segment, mac);
            }
            Change::Set(Item::Health { probed, up }) => {
                self.health.insert(probed, up);
            }
            Change::Gone(Key::Ready) => self.ready = false,
            Change::Gone(Key::Draining) => self.draining = false,
            Change::Gone(Key::Claim(vip)) => {
                self.claims.remove(&vip);
            }
            Change::Gone(Key::Unable(vip)) => {
                self.unable.remove(&vip);
            }
            Change::Gone(Key::Mac(segment)) => {
                self.macs.remove(&segment);
            }
            Change::Gone(Key::Health(probed)) => {
                self.health.remove(&probed);
            }
        }
    }

    /// Takes over when claims were learned of that were known `before`, and are the same.
    pub(super) fn recall(&mut self, before: &Self) {
        for (vip, known) in &before.claims {
            if let Some(claimed) = self.claims.get_mut(vip)
                && (known.epoch, &known.why) == (claimed.epoch, &claimed.why)
            {
                claimed.since = known.since;
            }
        }
    }
}

fn node<'de, D: Deserializer<'de>>(deserializer: D) -> Result<NodeName, D::Error> {
    let name = NodeName::deserialize(deserializer)?;
    if is_subdomain(&name.0) { Ok(name) } else { Err(D::Error::custom("no Node's name")) }
}

fn segment<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u8, D::Error> {
    let segment = u8::deserialize(deserializer)?;
    if segment < MOST_SEGMENTS { Ok(segment) } else { Err(D::Error::custom("too many segments")) }
}

/// A MAC address as its six bytes in wire order.
mod octets {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use vipmux_common::abi::Mac;

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
    pub(super) fn serialize<S: Serializer>(mac: &Mac, serializer: S) -> Result<S::Ok, S::Error> {
        mac.bytes().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Mac, D::Error> {
        <[u8; 6]>::deserialize(deserializer).map(Mac::new)
    }
}
