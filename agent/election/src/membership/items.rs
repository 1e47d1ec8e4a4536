//! The items that an agent publishes, and the state that its peers build from them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
    time::Duration,
};

use imbl::OrdMap;
use serde::{Deserialize, Deserializer, Serialize, de::Error};
use vipmux_common::abi::Mac;

use super::{
    item_kind::{ItemKind, MOST_SEGMENTS},
    payload::delimited,
    sealing::VERSION,
};
use crate::lease::StoreId;
use vipmux_model::{NodeName, Vip, reach::SegmentReach};

/// The longest version of a build that a peer publishes, bytes.
const MOST_VERSION: usize = 64;
/// The longest `--lease`.
pub const MOST_LEASE: Duration = Duration::from_secs(30);

/// An item that a node publishes of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Item {
    /// Its maps are in sync, and it may lead.
    Ready(bool),
    /// It transfers its VIPs and takes no others. If it is not [`Ready`](Item::Ready), it is unstable: its
    /// deadline passes again and again. Earlier agents do not tell the two.
    Draining(bool),
    /// It leads a VIP.
    Claim {
        /// The VIP.
        vip: Vip,
        /// The epoch of the leadership.
        epoch: u64,
        /// The reason; `None`: a later version's. The claim counts all the same.
        #[serde(with = "delimited")]
        why: Option<Why>,
    },
    /// It cannot announce this VIP: no interface for it has a carrier and sends answers that
    /// arrive.
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
    /// The result of a health probe.
    Health {
        /// The probed port.
        probed: ProbedPort,
        /// It answers.
        up: bool,
    },
    /// One of its IP addresses on a segment that it announces VIPs on.
    Address(IpAddr),
    /// Its agent.
    Agent(AgentInfo),
    /// How it reaches others on the segment of one of its IP addresses.
    Reach {
        /// Its address.
        address: IpAddr,
        /// How it reaches them.
        reach: SegmentReach,
    },
    /// How it chooses backends for new flows.
    Hashing(HashingInfo),
    /// Its kernel's deadline has passed, and its event loop hangs or has no objects: it answers for nothing that
    /// it claims. It sees to the Leases before it answers again.
    Lapsed,
    /// Its Leases are in the directory with this id.
    Store(StoreId),
}

/// How a node chooses backends for new flows: numbers of [`vipmux_model::hashing::Hashing`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HashingInfo {
    /// The newest hashing that it can use.
    pub newest: u32,
    /// The one that it uses.
    pub used: u32,
}

/// What an agent says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentInfo {
    /// The version of its build, as `vipmux --version` shows it.
    #[serde(deserialize_with = "version")]
    pub version: String,
    /// The versions of gossip that it reads.
    pub wire: WireVersions,
    /// The time for which its kernel answers after the last evidence (`--lease`), [`MOST_LEASE`] at
    /// most.
    #[serde(deserialize_with = "lease")]
    pub lease: Duration,
}

/// A range of versions of gossip, with both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireVersions {
    /// The oldest one.
    pub oldest: u8,
    /// The newest one.
    pub newest: u8,
}

impl WireVersions {
    /// The versions of this build.
    pub const OWN: Self = Self { oldest: VERSION, newest: VERSION };
}

impl fmt::Display for WireVersions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.oldest == self.newest {
            return write!(f, "{}", self.newest);
        }
        write!(f, "{}-{}", self.oldest, self.newest)
    }
}

/// The key of an item. A node publishes at most one item with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ItemKey {
    /// The key of [`Item::Ready`].
    Ready,
    /// The key of [`Item::Draining`].
    Draining,
    /// The key of [`Item::Claim`].
    Claim(Vip),
    /// The key of [`Item::Unable`].
    Unable(Vip),
    /// The key of [`Item::Mac`]: the segment.
    Mac(u8),
    /// The key of [`Item::Health`].
    Health(ProbedPort),
    /// The key of [`Item::Address`].
    Address(IpAddr),
    /// The key of [`Item::Agent`].
    Agent,
    /// The key of [`Item::Reach`].
    Reach(IpAddr),
    /// The key of [`Item::Hashing`].
    Hashing,
    /// The key of [`Item::Lapsed`].
    Lapsed,
    /// The key of [`Item::Store`].
    Store,
}

/// A backend's port, and how it is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProbedPort {
    /// The backend.
    pub address: IpAddr,
    /// The probed port.
    pub port: u16,
    /// The kind of probe, by a number that is the same on all nodes.
    pub check: u64,
}

/// The reason why a node leads a VIP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Why {
    /// No node led it before.
    First,
    /// The node led it before it was restarted.
    Resumed,
    /// This leader was found down.
    Down(NodeName),
    /// This leader transferred it.
    Handed(NodeName),
    /// This leader was not heard of since this agent started.
    Silent(NodeName),
    /// The store could not be reached, and a majority was alive.
    Unwritten,
    /// This leader was alive and stopped answering: [`Item::Lapsed`].
    Lapsed(NodeName),
    /// A reason of a later version.
    Other,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::First => f.write_str("nobody led it before"),
            Self::Resumed => f.write_str("it led it before, and came back in time"),
            Self::Down(node) => write!(f, "{node} was down"),
            Self::Handed(node) => write!(f, "{node} handed it over"),
            Self::Silent(node) => write!(f, "{node} held it and was not heard of"),
            Self::Unwritten => f.write_str("nobody led it, and the Leases could not be read"),
            Self::Lapsed(node) => write!(f, "{node} was alive and stopped answering"),
            Self::Other => f.write_str("its version is newer than this one, and its reason is not known here"),
        }
    }
}

/// A change of the items that a node publishes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ItemChange {
    Set(Item),
    Gone(ItemKey),
}

/// The items of a node, as its peers know them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Its maps are in sync, and it may lead.
    pub ready: bool,
    /// It transfers its VIPs and takes no others: [`Item::Draining`].
    pub draining: bool,
    /// The VIPs that it leads, or led until it lapsed.
    pub claims: OrdMap<Vip, Claimed>,
    /// It answers for none of them: [`Item::Lapsed`].
    pub lapsed: bool,
    /// The VIPs that it cannot announce.
    pub unable: BTreeSet<Vip>,
    /// Its address on each of its segments.
    pub macs: BTreeMap<u8, Mac>,
    /// Its IP addresses on its segments, if it has several.
    pub addresses: BTreeSet<IpAddr>,
    /// The results of its health probes: `true` is up.
    pub health: BTreeMap<ProbedPort, bool>,
    /// Its agent.
    pub agent: Option<AgentInfo>,
    /// How it reaches others on the segment of each of its addresses, as far as it knows.
    pub reach: BTreeMap<IpAddr, SegmentReach>,
    /// How it chooses backends. Agents that publish nothing of this use the first hashing.
    pub hashing: HashingInfo,
    /// The id of its store of Leases. API servers have none, and no agent knows that of its directory at once.
    pub store: Option<StoreId>,
}

/// A peer's claim to a VIP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// The epoch of the leadership.
    pub epoch: u64,
    /// The reason why it leads.
    pub why: Why,
    /// The time at which this node learned of it, `CLOCK_BOOTTIME`.
    pub since: Duration,
}

impl Item {
    /// Returns the key of the item.
    pub const fn key(&self) -> ItemKey {
        match self {
            Self::Ready(_) => ItemKey::Ready,
            Self::Draining(_) => ItemKey::Draining,
            Self::Claim { vip, .. } => ItemKey::Claim(*vip),
            Self::Unable(vip) => ItemKey::Unable(*vip),
            Self::Mac { segment, .. } => ItemKey::Mac(*segment),
            Self::Health { probed, .. } => ItemKey::Health(*probed),
            Self::Address(address) => ItemKey::Address(*address),
            Self::Agent(_) => ItemKey::Agent,
            Self::Reach { address, .. } => ItemKey::Reach(*address),
            Self::Hashing(_) => ItemKey::Hashing,
            Self::Lapsed => ItemKey::Lapsed,
            Self::Store(_) => ItemKey::Store,
        }
    }
}

impl ItemKey {
    /// Returns the kind of its item.
    pub(super) const fn kind(&self) -> ItemKind {
        match self {
            Self::Ready | Self::Draining | Self::Agent | Self::Hashing | Self::Lapsed | Self::Store => ItemKind::Single,
            Self::Claim(_) => ItemKind::Claim,
            Self::Unable(_) => ItemKind::Unable,
            Self::Mac(_) => ItemKind::Mac,
            Self::Health(_) => ItemKind::Health,
            Self::Address(_) => ItemKind::Address,
            Self::Reach(_) => ItemKind::Reach,
        }
    }
}

impl State {
    /// Returns the number of items of a kind of which there may be several.
    fn count(&self, kind: ItemKind) -> usize {
        match kind {
            ItemKind::Single => 0,
            ItemKind::Claim => self.claims.len(),
            ItemKind::Unable => self.unable.len(),
            ItemKind::Mac => self.macs.len(),
            ItemKind::Health => self.health.len(),
            ItemKind::Address => self.addresses.len(),
            ItemKind::Reach => self.reach.len(),
        }
    }

    /// Applies a change that was learned at `now`. Returns an error if there is no room for its item.
    pub(super) fn apply(&mut self, change: ItemChange, now: Duration) -> Result<(), ItemKind> {
        let (key, kind) = match change {
            ItemChange::Gone(key) => {
                self.remove(&key);
                return Ok(());
            }
            ItemChange::Set(item) => {
                let key = item.key();
                self.put(item, now);
                (key, key.kind())
            }
        };
        if self.count(kind) > kind.most() {
            self.remove(&key);
            return Err(kind);
        }
        Ok(())
    }

    fn put(&mut self, item: Item, now: Duration) {
        match item {
            Item::Ready(ready) => self.ready = ready,
            Item::Draining(draining) => self.draining = draining,
            Item::Claim { vip, epoch, why } => {
                let why = why.unwrap_or(Why::Other);
                self.claims.insert(vip, Claimed { epoch, why, since: now });
            }
            Item::Unable(vip) => drop(self.unable.insert(vip)),
            Item::Mac { segment, mac } => drop(self.macs.insert(segment, mac)),
            Item::Health { probed, up } => drop(self.health.insert(probed, up)),
            Item::Address(address) => drop(self.addresses.insert(address)),
            Item::Agent(agent) => self.agent = Some(agent),
            Item::Reach { address, reach } => drop(self.reach.insert(address, reach)),
            Item::Hashing(hashing) => self.hashing = hashing,
            Item::Lapsed => self.lapsed = true,
            Item::Store(store) => self.store = Some(store),
        }
    }

    fn remove(&mut self, key: &ItemKey) {
        match key {
            ItemKey::Agent => self.agent = None,
            ItemKey::Ready => self.ready = false,
            ItemKey::Draining => self.draining = false,
            ItemKey::Claim(vip) => drop(self.claims.remove(vip)),
            ItemKey::Unable(vip) => drop(self.unable.remove(vip)),
            ItemKey::Mac(segment) => drop(self.macs.remove(segment)),
            ItemKey::Health(probed) => drop(self.health.remove(probed)),
            ItemKey::Address(address) => drop(self.addresses.remove(address)),
            ItemKey::Reach(address) => drop(self.reach.remove(address)),
            ItemKey::Hashing => self.hashing = HashingInfo::default(),
            ItemKey::Lapsed => self.lapsed = false,
            ItemKey::Store => self.store = None,
        }
    }

    /// Returns whether it leads a VIP.
    pub fn leads(&self, vip: Vip) -> bool {
        !self.lapsed && self.claims.contains_key(&vip)
    }

    /// Takes over from `before` when equal claims were learned.
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

fn segment<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u8, D::Error> {
    let segment = u8::deserialize(deserializer)?;
    if segment < MOST_SEGMENTS { Ok(segment) } else { Err(D::Error::custom("too many segments")) }
}

/// Bounds the text of a peer, which is shown.
fn version<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let version = String::deserialize(deserializer)?;
    let is_shown = version.len() <= MOST_VERSION && version.bytes().all(|byte| byte.is_ascii_graphic());
    if is_shown { Ok(version) } else { Err(D::Error::custom("not a version")) }
}

/// Bounds the time for which a node's VIPs are left alone.
fn lease<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let lease = Duration::deserialize(deserializer)?;
    if lease <= MOST_LEASE { Ok(lease) } else { Err(D::Error::custom("too long a lease")) }
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
