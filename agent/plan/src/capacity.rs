//! Defines the capacities of the maps, and refusals when a map is full.

use std::fmt;

use vipmux_common::abi::capacity;

use vipmux_model::{NodeName, PortClaim, Vip};

/// The number of entries that each map has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacities {
    /// `VIPS`.
    pub vips: u32,
    /// `SERVICES`, `SERVICE_STATES` and `SERVICE_NAMES`.
    pub services: u32,
    /// `TABLES`, slots.
    pub tables: u32,
    /// `BACKENDS`.
    pub backends: u32,
    /// `NODES` and `NODE_NAMES`.
    pub nodes: u32,
    /// `PEERS`.
    pub peers: u32,
    /// `SOURCE_RANGES`.
    pub source_ranges: u32,
}

impl Default for Capacities {
    /// The capacities of the BPF object ([`abi::capacity`](capacity)).
    fn default() -> Self {
        Self {
            vips: capacity::VIPS,
            services: capacity::SERVICES,
            tables: capacity::TABLES,
            backends: capacity::BACKENDS,
            nodes: capacity::NODES,
            peers: capacity::PEERS,
            source_ranges: capacity::SOURCE_RANGES,
        }
    }
}

/// An item that found no room in a map.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{subject} is not served as wanted: {shortage}")]
pub struct CapacityRefusal {
    /// The item.
    pub subject: Subject,
    /// The room that it lacks.
    #[source]
    pub shortage: Shortage,
}

/// The item that a [`CapacityRefusal`] is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// A node. Its endpoints are left out of the tables, or its announcements count as those of a
    /// foreign speaker.
    Node(NodeName),
    /// A VIP. None of its port claims is served.
    Vip(Vip),
    /// A port claim. A new one is not served.
    Claim(PortClaim),
}

/// A map that is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the map {map} lacks room: {needed} needed, {free} free of {capacity}")]
pub struct Shortage {
    /// The map.
    pub map: CapacityMap,
    /// The number of its entries.
    pub capacity: u32,
    /// The number of entries that are free and have rested. In `TABLES` they may lie scattered.
    pub free: u32,
    /// The number of entries that are needed at once.
    pub needed: u32,
}

/// A map that can be full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CapacityMap {
    /// `VIPS`.
    Vips,
    /// `SERVICES` and the arrays indexed by slot.
    Services,
    /// `TABLES`.
    Tables,
    /// `BACKENDS`.
    Backends,
    /// `NODES`.
    Nodes,
    /// `PEERS`.
    Peers,
    /// `SOURCE_RANGES`.
    SourceRanges,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(name) => write!(f, "node {name}"),
            Self::Vip(vip) => write!(f, "VIP {vip}"),
            Self::Claim(claim) => claim.fmt(f),
        }
    }
}

impl fmt::Display for CapacityMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Vips => "VIPS",
            Self::Services => "SERVICES",
            Self::Tables => "TABLES",
            Self::Backends => "BACKENDS",
            Self::Nodes => "NODES",
            Self::Peers => "PEERS",
            Self::SourceRanges => "SOURCE_RANGES",
        })
    }
}
