//! Reads and shows how nodes are reached: `inspect neighbors`.

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

use serde::Serialize;
use vipmux_common::abi::{Mac, NODE_ATTACHED, NODE_SELF, NODE_SILENT, Node, NodeLabel, PEER_HANDOVER};

use crate::output::{
    Report,
    table::{Cell, Color, Table, Tone},
};
use vipmux_datapath::{
    bpf::maps::{Maps, MapsError},
    link::interface_name,
};

/// How this node reaches another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NeighborView {
    /// Its index in `NODES`.
    pub index: u32,
    /// The Node's name.
    pub node: String,
    /// Its MAC on the segment; `None`: not resolved.
    pub mac: Option<String>,
    /// The source MAC of frames that it hands over; `None`: not known.
    pub handover_mac: Option<String>,
    /// All MACs that count as this node when it announces a VIP.
    pub peer_macs: Vec<String>,
    /// The interface of this node toward it; `None`: not known.
    pub interface: Option<String>,
    /// That interface's MTU, bytes.
    pub mtu: u32,
    /// Its program is attached, so frames may be handed over to it.
    pub attached: bool,
    /// Neither its agent nor its kernel answers.
    pub silent: bool,
    /// It is this node.
    #[serde(rename = "self")]
    pub is_self: bool,
}

/// All nodes, by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NeighborList {
    /// The nodes.
    pub neighbors: Vec<NeighborView>,
}

fn resolved(mac: Mac) -> Option<String> {
    (mac != Mac::default()).then(|| mac.to_string())
}

impl NeighborView {
    /// Returns whether frames may be handed over to it, or why not.
    pub fn state(&self) -> &'static str {
        match self {
            Self { is_self: true, .. } => "this node",
            Self { attached: true, .. } => "attached",
            Self { silent: true, .. } => "does not answer",
            Self { mac: None, .. } => "not resolved",
            _ => "not attached",
        }
    }
}

impl NeighborList {
    /// Reads the neighbors.
    pub fn read(maps: &Maps) -> Result<Self, MapsError> {
        let mut peers: BTreeMap<u32, Vec<String>> = BTreeMap::new();
        for (mac, node) in maps.read_peers()?.into_iter().filter(|(_, node)| node & PEER_HANDOVER == 0) {
            peers.entry(node).or_default().push(mac.to_string());
        }
        for macs in peers.values_mut() {
            macs.sort();
        }
        let view = |(index, (label, node)): (u32, (NodeLabel, Node))| NeighborView {
            index,
            node: label.to_string(),
            mac: resolved(node.mac),
            handover_mac: resolved(node.handover),
            peer_macs: peers.remove(&index).unwrap_or_default(),
            interface: (node.ifindex != 0).then(|| interface_name(node.ifindex)),
            mtu: node.mtu,
            attached: node.flags & NODE_ATTACHED != 0,
            silent: node.flags & NODE_SILENT != 0,
            is_self: node.flags & NODE_SELF != 0,
        };
        let mut neighbors: Vec<_> = maps.read_nodes()?.into_iter().map(view).collect();
        neighbors.sort_by(|a, b| a.node.cmp(&b.node));
        Ok(Self { neighbors })
    }
}

impl Report for NeighborList {
    const KIND: &'static str = "neighbors";

    fn print(&self, out: &mut impl Write, color: Color) -> io::Result<()> {
        let header = ["NODE", "MAC", "HAND-OVER MAC", "INTERFACE", "MTU", "STATE"];
        let mut table = Table::new(&header).right_aligned(&["MTU"]);
        for neighbor in &self.neighbors {
            let state = match neighbor.state() {
                state @ "this node" => Cell::from(state),
                state @ "attached" => Cell::toned(state, Tone::Good),
                state => Cell::toned(state, Tone::Bad),
            };
            let mtu = if neighbor.mtu == 0 { String::new() } else { neighbor.mtu.to_string() };
            table.row([
                neighbor.node.as_str().into(),
                neighbor.mac.as_deref().unwrap_or_default().into(),
                neighbor.handover_mac.as_deref().unwrap_or_default().into(),
                neighbor.interface.as_deref().unwrap_or_default().into(),
                mtu.into(),
                state,
            ]);
        }
        table.print(out, color)
    }
}
