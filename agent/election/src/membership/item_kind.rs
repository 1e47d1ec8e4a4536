//! How many items of each kind a node may publish.
//!
//! Each kind has room of its own, for this node and for what it keeps of a peer. So a VIP's claim finds
//! room whatever else there is, and a peer that publishes without end takes bounded memory.

use std::fmt;

use vipmux_common::abi::capacity;

/// The most segments (interfaces, and VLANs of them) whose MAC a node publishes.
pub const MOST_SEGMENTS: u8 = 32;
/// The most addresses that a node publishes.
pub const MOST_ADDRESSES: usize = 64;

/// A kind of item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ItemKind {
    /// Items of which a node has one each.
    Single,
    /// VIPs that it leads.
    Claim,
    /// VIPs that it cannot announce.
    Unable,
    /// MACs of its segments.
    Mac,
    /// Results of health probes.
    Health,
    /// Addresses on its segments.
    Address,
    /// How it reaches others on its segments.
    Reach,
}

/// The number of items that older agents accept of a peer, over all kinds.
const ALL: usize = 65_536;

impl ItemKind {
    /// The kinds of which a node may have several items.
    pub(super) const MANY: [Self; 6] = [Self::Claim, Self::Unable, Self::Mac, Self::Health, Self::Address, Self::Reach];

    /// Returns the most items of this kind.
    pub(super) const fn most(self) -> usize {
        // More than a kernel serves, so these never run out of room.
        const VIPS: usize = capacity::VIPS as usize * 3 / 2;
        match self {
            Self::Single => usize::MAX,
            Self::Claim | Self::Unable => VIPS,
            Self::Mac => MOST_SEGMENTS as usize,
            Self::Address | Self::Reach => MOST_ADDRESSES,
            // A node makes a quarter as many probes.
            Self::Health => 16_000,
        }
    }
}

const _: () = {
    let (mut sum, mut at) = (0, 0);
    while at < ItemKind::MANY.len() {
        sum += ItemKind::MANY[at].most();
        at += 1;
    }
    assert!(sum <= ALL);
};

impl fmt::Display for ItemKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Single => "single items",
            Self::Claim => "claims",
            Self::Unable => "VIPs that it cannot announce",
            Self::Mac => "MACs",
            Self::Health => "health results",
            Self::Address => "addresses",
            Self::Reach => "reaches",
        })
    }
}
