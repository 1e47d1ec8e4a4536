//! Reads and shows how nodes are reached: `inspect neighbors`.

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

use serde::Serialize;
use vipmux_common::abi::{
    Mac, NODE_ATTACHED, NODE_SELF, NODE_SILENT, Node, NodeLabel, PEER_HANDOVER, VIP_SEGMENT_SHIFT, capacity,
    node_element,
};

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
    /// The 802.1Q VLAN of frames to it, 0 for untagged; `None`: not known.
    pub vlan: Option<u32>,
    /// That interface's MTU, bytes.
    pub mtu: u32,
    /// The paths for VIPs of one segment, where they differ.
    pub paths: Vec<PathView>,
    /// Its program is attached, so frames may be handed over to it.
    pub attached: bool,
    /// Neither its agent nor its kernel answers.
    pub silent: bool,
    /// It is this node.
    #[serde(rename = "self")]
    pub is_self: bool,
}

/// How this node reaches another one for VIPs of one segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PathView {
    /// The segment's number (`vips` has it too).
    pub segment: u32,
    /// The node's MAC there; `None`: not resolved.
    pub mac: Option<String>,
    /// The interface of this node that leads there; `None`: not known.
    pub interface: Option<String>,
    /// The 802.1Q VLAN of frames, 0 for untagged; `None`: not known.
    pub vlan: Option<u32>,
    /// That interface's MTU, bytes.
    pub mtu: u32,
    /// Frames may be handed over there.
    pub attached: bool,
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

fn interface(node: &Node) -> Option<String> {
    (node.ifindex != 0).then(|| interface_name(node.ifindex))
}

/// Returns the paths to a node that differ from that by its InternalIP. `elements`: `NODES`.
fn paths(elements: &BTreeMap<u32, Node>, index: u32, first: &Node) -> Vec<PathView> {
    let view = |(segment, node): (u32, &Node)| PathView {
        segment,
        mac: resolved(node.mac),
        interface: interface(node),
        vlan: node.vlan(),
        mtu: node.mtu,
        attached: node.flags & NODE_ATTACHED != 0,
    };
    let element = |segment| node_element(segment << VIP_SEGMENT_SHIFT, index);
    let of_segment = |segment| Some((segment, elements.get(&element(segment))?));
    let place = |node: &Node| (node.mac, node.ifindex, node.flags);
    (1..capacity::SEGMENTS).filter_map(of_segment).filter(|(_, node)| place(node) != place(first)).map(view).collect()
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
        for (mac, node) in maps.peers.read()?.into_iter().filter(|(_, node)| node & PEER_HANDOVER == 0) {
            peers.entry(node).or_default().push(mac.to_string());
        }
        for macs in peers.values_mut() {
            macs.sort();
        }
        let elements = maps.nodes.read()?;
        let view = |(index, (label, node)): (u32, (NodeLabel, Node))| NeighborView {
            index,
            node: label.to_string(),
            mac: resolved(node.mac),
            handover_mac: resolved(node.handover),
            peer_macs: peers.remove(&index).unwrap_or_default(),
            interface: interface(&node),
            vlan: node.vlan(),
            mtu: node.mtu,
            paths: paths(&elements, index, &node),
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
        let header = ["NODE", "MAC", "HAND-OVER MAC", "INTERFACE", "VLAN", "MTU", "STATE"];
        let mut table = Table::new(&header).right_aligned(&["VLAN", "MTU"]);
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let number = |number: u32| if number == 0 { String::new() } else { number.to_string() };
        for neighbor in &self.neighbors {
            let state = match neighbor.state() {
                state @ "this node" => Cell::from(state),
                state @ "attached" => Cell::toned(state, Tone::Good),
                state => Cell::toned(state, Tone::Bad),
            };
            table.row([
                neighbor.node.as_str().into(),
                text(&neighbor.mac).into(),
                text(&neighbor.handover_mac).into(),
                text(&neighbor.interface).into(),
                number(neighbor.vlan.unwrap_or_default()).into(),
                number(neighbor.mtu).into(),
                state,
            ]);
            for path in &neighbor.paths {
                let (state, tone) = if path.attached { ("attached", Tone::Good) } else { ("not attached", Tone::Bad) };
                table.row([
                    neighbor.node.as_str().into(),
                    text(&path.mac).into(),
                    text(&neighbor.handover_mac).into(),
                    text(&path.interface).into(),
                    number(path.vlan.unwrap_or_default()).into(),
                    number(path.mtu).into(),
                    Cell::toned(format!("{state}, segment {}", path.segment), tone),
                ]);
            }
        }
        table.print(out, color)
    }
}
