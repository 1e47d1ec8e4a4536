//! Tests the desired state of the maps.

use std::sync::Arc;

use super::*;
use crate::runtime::interfaces::InterfaceSettings;
use vipmux_datapath::{
    bpf::{
        apply::new_config,
        attach::{HandoverMac, TcAttachMode, XdpAttachMode},
    },
    link::Ethtool,
};
use vipmux_plan::Capacities;
use vipmux_testing::names::{node_name, vip4};

/// The state of these VIPs and nodes.
fn state(vips: &[Vip], nodes: &[(&str, &[IpAddr])]) -> ServingState {
    let nodes = nodes.iter().map(|(node, addresses)| (node_name(node), addresses.to_vec()));
    ServingState {
        leaders: Arc::new(vips.iter().map(|vip| (*vip, None)).collect()),
        nodes: Arc::new(nodes.collect()),
        ..ServingState::default()
    }
}

/// The desired state with the warnings, on node `here` with these neighbors and peers' MACs, and
/// without an interface.
fn desired(
    state: &ServingState,
    neighbors: &ResolvedNeighbors,
    peer_macs: &PeerMacs,
    led: &BTreeMap<Vip, u64>,
) -> (Desired, Vec<String>) {
    let settings = InterfaceSettings {
        node: node_name("here"),
        names: Vec::new(),
        mode: XdpAttachMode::default(),
        handover_mac: HandoverMac::default(),
        tc: TcAttachMode::default(),
    };
    let inputs = DesiredInputs {
        node: &node_name("here"),
        unreachable: Unreachable::Refuse,
        state,
        links: &Links::default(),
        neighbors,
        interfaces: &AttachedInterfaces::new(settings, Ethtool::open().unwrap()),
        peer_macs,
        peer_addresses: &PeerAddresses::new(),
        handover_macs: &Arc::default(),
        observed: &Observed::empty(Capacities::default(), new_config()),
        led,
    };
    let mut warnings = Warnings::new(true);
    let desired = inputs.desired(&mut warnings);
    (desired, warnings.into_texts().into_iter().collect())
}

#[test]
fn a_vip_that_is_led_keeps_its_epoch_and_others_have_none() {
    let led = BTreeMap::from([(vip4(1), 7)]);
    let (desired, warnings) =
        desired(&state(&[vip4(1), vip4(2)], &[]), &ResolvedNeighbors::default(), &PeerMacs::new(), &led);
    let leading = |vip: &DesiredVip| (vip.leading, vip.epoch);
    assert_eq!(desired.vips.values().map(leading).collect::<Vec<_>>(), [(true, 7), (false, 0)]);
    assert!(warnings.is_empty(), "{warnings:?}");
}

#[test]
fn a_node_that_cannot_be_reached_is_a_warning_and_one_that_is_being_resolved_is_none() {
    let [resolving, failed] = [[192, 0, 2, 21], [192, 0, 2, 22]].map(IpAddr::from);
    let nodes = [("here", &[][..]), ("nowhere", &[]), ("resolving", &[resolving]), ("failed", &[failed])];
    let neighbors = ResolvedNeighbors::from([(failed, Neighbor::OffLink)]);
    let (desired, warnings) = desired(&state(&[], &nodes), &neighbors, &PeerMacs::new(), &BTreeMap::new());
    assert_eq!(desired.nodes.keys().map(NodeName::as_str).collect::<Vec<_>>(), ["here", "resolving"]);
    let reach = |name| desired.nodes[&node_name(name)].path.reach;
    assert_eq!([reach("resolving"), reach("here")], [Reach::Detached, Reach::Attached]);
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].starts_with("Node failed gets no packets: its address 192.0.2.22 is "), "{warnings:?}");
    assert_eq!(warnings[1], "Node nowhere gets no packets: it has no InternalIP");
}

#[test]
fn a_node_that_does_not_answer_stays_known_and_gets_no_frames() {
    let address = IpAddr::from([192, 0, 2, 21]);
    let neighbors = ResolvedNeighbors::from([(address, Neighbor::Silent { ifindex: 2 })]);
    let state = state(&[], &[("silent", &[address])]);
    let (desired, warnings) = desired(&state, &neighbors, &PeerMacs::new(), &BTreeMap::new());
    assert_eq!(desired.nodes[&node_name("silent")].path.reach, Reach::Silent);
    assert!(warnings.is_empty(), "{warnings:?}");
}

#[test]
fn peers_speak_by_the_macs_of_their_other_segments() {
    let [first, second] = [1, 2].map(|last| Mac::new([2, 0, 0, 0, 0, last]));
    let peer_macs = PeerMacs::from([(node_name("n2"), BTreeMap::from([(0, first), (1, second)]))]);
    let (desired, _) = desired(&state(&[], &[]), &ResolvedNeighbors::default(), &peer_macs, &BTreeMap::new());
    assert_eq!(desired.speakers, BTreeMap::from([(second, node_name("n2"))]));
}
