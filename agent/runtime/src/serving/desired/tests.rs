//! Tests the desired state of the maps.

use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use super::*;
use crate::serving::interfaces::InterfaceSettings;
use vipmux_datapath::{
    bpf::{
        apply::new_config,
        attach::{HandoverMac, TcAttachMode, XdpAttachMode},
    },
    link::Ethtool,
};
use vipmux_plan::{Capacities, Step};
use vipmux_testing::{
    names::{node_name, vip4},
    netns::Namespace,
};

/// The state of these VIPs and nodes.
fn state(vips: &[Vip], nodes: &[(&str, &[IpAddr])]) -> ServingState {
    let nodes = nodes.iter().map(|(node, addresses)| (node_name(node), addresses.to_vec()));
    ServingState {
        leaders: Arc::new(vips.iter().map(|vip| (*vip, None)).collect()),
        nodes: Arc::new(nodes.collect()),
        ..ServingState::default()
    }
}

fn interfaces() -> AttachedInterfaces {
    let settings = InterfaceSettings {
        node: node_name("here"),
        names: Vec::new(),
        mode: XdpAttachMode::default(),
        handover_mac: HandoverMac::default(),
        tc: TcAttachMode::default(),
    };
    AttachedInterfaces::new(settings, Ethtool::open().unwrap())
}

/// The desired state with the warnings, on node `here` with these neighbors and peers' MACs, and
/// without an interface.
fn desired(
    state: &ServingState,
    neighbors: &ResolvedNeighbors,
    peer_macs: &PeerMacs,
    led: &BTreeMap<Vip, u64>,
) -> (Desired, Vec<String>) {
    let inputs = DesiredInputs {
        node: &node_name("here"),
        unreachable: Unreachable::Refuse,
        hashing: Hashing::Second,
        state,
        links: &Links::default(),
        neighbors,
        interfaces: &interfaces(),
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
fn peers_speak_by_the_macs_of_all_their_segments() {
    let [first, second] = [1, 2].map(|last| Mac::new([2, 0, 0, 0, 0, last]));
    let peer_macs = PeerMacs::from([(node_name("n2"), BTreeMap::from([(0, first), (1, second)]))]);
    let (desired, _) = desired(&state(&[], &[]), &ResolvedNeighbors::default(), &peer_macs, &BTreeMap::new());
    assert_eq!(desired.speakers, BTreeMap::from([first, second].map(|mac| (mac, node_name("n2")))));
}

/// Two segments: `far` has its InternalIP on the first one.
struct TwoSegments {
    links: Links,
    interfaces: AttachedInterfaces,
}

impl TwoSegments {
    fn new(links: Links) -> Self {
        let mut interfaces = interfaces();
        for name in ["eth0", "eth1"] {
            interfaces.segments.add(&links, links.segment(links.named(name).unwrap()).unwrap()).unwrap();
        }
        Self { links, interfaces }
    }

    fn index(&self, name: &str) -> u32 {
        self.links.named(name).unwrap().ifindex
    }

    /// Returns the path to `far` by default, and that on the second segment, with these neighbors for its
    /// addresses, and those that it has published.
    fn paths(
        &self,
        internal: Neighbor,
        beside: Neighbor,
        published: Option<BTreeSet<IpAddr>>,
    ) -> Result<(DesiredPath, DesiredPath), Vec<String>> {
        let state = state(&[], &[("far", &[FAR.0])]);
        let inputs = DesiredInputs {
            node: &node_name("here"),
            unreachable: Unreachable::Refuse,
            hashing: Hashing::Second,
            state: &state,
            links: &self.links,
            neighbors: &ResolvedNeighbors::from([(FAR.0, internal), (FAR.1, beside)]),
            interfaces: &self.interfaces,
            peer_macs: &PeerMacs::from([(node_name("far"), BTreeMap::from([(0, MACS[0]), (1, MACS[1])]))]),
            peer_addresses: &published.into_iter().map(|all| (node_name("far"), all)).collect(),
            handover_macs: &Arc::default(),
            observed: &Observed::empty(Capacities::default(), new_config()),
            led: &BTreeMap::new(),
        };
        let mut warnings = Warnings::new(true);
        let mut desired = inputs.desired(&mut warnings);
        let Some(node) = desired.nodes.remove(&node_name("far")) else {
            return Err(warnings.into_texts().into_iter().collect());
        };
        assert_eq!(node.by_segment.keys().copied().collect::<Vec<_>>(), [1, 2]);
        assert_eq!(node.by_segment[&1], node.path, "its InternalIP is on the first one, or on none");
        Ok((node.path, node.by_segment[&2]))
    }
}

#[test]
fn a_node_that_is_resolved_by_another_card_in_the_subnet_is_reached_by_it_meanwhile() {
    let Some([here, lan]) = Namespace::new() else { return };
    for (name, peer, address) in
        [("eth0", "lan0", "192.0.2.1"), ("eth1", "lan1", "192.0.2.3"), ("eth2", "lan2", "203.0.113.1")]
    {
        here.veth(name, &lan, peer);
        here.address(name, address, 24);
    }
    here.run(async |_| {
        let links = Links::read().await.unwrap();
        let index = |name| links.named(name).unwrap().ifindex;
        let mut interfaces = interfaces();
        for name in ["eth0", "eth1", "eth2"] {
            interfaces.segments.add(&links, links.segment(links.named(name).unwrap()).unwrap()).unwrap();
        }
        let mut observed = Observed::empty(Capacities::default(), new_config());
        let before = abi::Node { mac: MACS[0], ifindex: index("eth0"), flags: NODE_ATTACHED, ..Default::default() };
        for step in [Step::NodeName(0, Some("far".to_owned())), Step::Node(0, before)] {
            observed.record(&step, Duration::ZERO);
        }
        for (card, expected) in [("eth1", Reach::Attached), ("eth2", Reach::Detached)] {
            let inputs = DesiredInputs {
                node: &node_name("here"),
                unreachable: Unreachable::Refuse,
                hashing: Hashing::Second,
                state: &state(&[], &[("far", &[FAR.0])]),
                links: &links,
                neighbors: &ResolvedNeighbors::from([(FAR.0, Neighbor::Pending { ifindex: index(card) })]),
                interfaces: &interfaces,
                peer_macs: &PeerMacs::new(),
                peer_addresses: &PeerAddresses::new(),
                handover_macs: &Arc::default(),
                observed: &observed,
                led: &BTreeMap::new(),
            };
            let path = inputs.desired(&mut Warnings::new(true)).nodes[&node_name("far")].path;
            assert_eq!((path.reach, path.ifindex), (expected, index(card)));
            assert_eq!(path.mac, (expected == Reach::Attached).then_some(MACS[0]), "{card}");
        }
    });
}

/// The addresses of `far` on both segments.
const FAR: (IpAddr, IpAddr) = (IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)), IpAddr::V4(Ipv4Addr::new(203, 0, 113, 2)));
const MACS: [Mac; 2] = [Mac::new([2, 0, 0, 0, 0, 2]), Mac::new([2, 0, 0, 0, 1, 2])];

/// Runs `check` where the node has two segments.
fn on_two_segments(check: impl FnOnce(&TwoSegments) + Send) {
    let Some([here, lan]) = Namespace::new() else { return };
    for (name, peer, address) in [("eth0", "lan0", "192.0.2.1"), ("eth1", "lan1", "203.0.113.1")] {
        here.veth(name, &lan, peer);
        here.address(name, address, 24);
    }
    here.run(async |_| check(&TwoSegments::new(Links::read().await.unwrap())));
}

#[test]
fn a_node_is_reached_on_a_segment_by_a_mac_that_it_published_and_otherwise_by_its_internal_ip() {
    on_two_segments(|segments| {
        let (first, second) = (segments.index("eth0"), segments.index("eth1"));
        let internal = Neighbor::Resolved { ifindex: first, mac: MACS[0], port: None };
        let published = || Some(BTreeSet::from([FAR.1]));
        let resolved = |mac| Neighbor::Resolved { ifindex: second, mac, port: None };
        let (default, path) = segments.paths(internal, resolved(MACS[1]), published()).unwrap();
        assert_eq!(path, DesiredPath { mac: Some(MACS[1]), ifindex: second, ..default });
        assert_eq!((path.vlan, path.reach), (Some(0), Reach::Attached));
        let forged = Mac::new([2, 0, 0, 0, 9, 9]);
        for (beside, published, why) in [
            (resolved(forged), published(), "anybody can answer for its address"),
            (resolved(MACS[1]), Some(BTreeSet::new()), "it has no address there any more"),
            (Neighbor::Unresolved { ifindex: second }, published(), "it does not answer there"),
            (Neighbor::OffLink, published(), "its address is elsewhere"),
            (Neighbor::Pending { ifindex: second }, published(), "it was not reached there before"),
            (resolved(MACS[1]), None, "nor was it, and it was not heard"),
        ] {
            let (default, path) = segments.paths(internal, beside, published).unwrap();
            assert_eq!(path, default, "{why}");
        }
    });
}

#[test]
fn the_network_of_the_internal_ips_does_not_decide_whether_a_node_is_reached() {
    on_two_segments(|segments| {
        let (first, second) = (segments.index("eth0"), segments.index("eth1"));
        let published = || Some(BTreeSet::from([FAR.1]));
        let answers = Neighbor::Resolved { ifindex: second, mac: MACS[1], port: None };
        for internal in [Neighbor::Silent { ifindex: first }, Neighbor::OffLink] {
            let (default, path) = segments.paths(internal, answers, published()).unwrap();
            assert_eq!((path.mac, path.ifindex, path.reach), (Some(MACS[1]), second, Reach::Attached), "{internal}");
            assert_eq!(default, path, "{internal}");
        }
        let silent = Neighbor::Silent { ifindex: second };
        for internal in [Neighbor::Silent { ifindex: first }, Neighbor::OffLink] {
            let (default, path) = segments.paths(internal, silent, published()).unwrap();
            assert_eq!([default.reach, path.reach], [Reach::Silent; 2], "{internal}");
        }
        let (default, _) =
            segments.paths(Neighbor::OffLink, Neighbor::Unresolved { ifindex: second }, published()).unwrap();
        assert_eq!(default.reach, Reach::Detached);
        for published in [None, Some(BTreeSet::new())] {
            let warnings = segments.paths(Neighbor::OffLink, answers, published).unwrap_err();
            assert!(
                warnings[0].starts_with("Node far gets no packets: its address 192.0.2.2 is not on"),
                "{warnings:?}"
            );
        }
    });
}
