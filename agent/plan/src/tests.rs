//! Tests the order of steps, and particular cases.

mod draining;
mod hashing;
mod shortage;
pub(super) mod treatment;

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU16,
    sync::Arc,
    time::Duration,
};

use vipmux_common::abi::{self, Mac};

use crate::{
    Capacities, MapEntries, Observed, Plan, PlanError, REST, Step, plan,
    simulation::{HZ, SimulatedKernel},
};
use vipmux_model::{
    desired::{
        Desired, DesiredBackend, DesiredNode, DesiredPath, DesiredService, DesiredVip, Reach, Readiness, Treatment,
        Unreachable,
    },
    hashing::Hashing,
};
use vipmux_testing::names::{node_name, service_name, tcp_claim, vip};

const VIP: &str = "192.0.2.1";

/// Returns `10.0.0.last` on `node`; draining if the number is negative.
pub(super) fn backends(list: &[(i16, &str)]) -> Arc<BTreeSet<DesiredBackend>> {
    let backend = |(last, on): &(i16, &str)| DesiredBackend {
        address: [10, 0, 0, u8::try_from(last.unsigned_abs()).unwrap()].into(),
        port: NonZeroU16::new(8080),
        node: Some(node_name(on)),
        readiness: if *last > 0 { Readiness::Ready } else { Readiness::Draining },
    };
    Arc::new(list.iter().map(backend).collect())
}

pub(super) fn desired() -> Desired {
    let node_with_mac = |last, name| {
        let mac = Some(Mac::new([2, 0, 0, 0, 0, last]));
        let path = DesiredPath { mac, ifindex: 2, vlan: None, mtu: 1500, reach: Reach::Attached };
        (node_name(name), DesiredNode { path, by_segment: BTreeMap::new() })
    };
    Desired {
        local: node_name("a"),
        nodes: [node_with_mac(1, "a"), node_with_mac(2, "b")].into(),
        speakers: BTreeMap::new(),
        handover_macs: Arc::default(),
        vips: [(vip(VIP), DesiredVip { leading: true, interfaces: 1, vlan: None, segment: 0, epoch: 1 })].into(),
        services: imbl::OrdMap::new(),
        unreachable: Unreachable::Refuse,
        hashing: Hashing::First,
    }
}

pub(crate) trait Serve {
    fn serve(self, port: u16, owner: &str, backends: &Arc<BTreeSet<DesiredBackend>>) -> Self;
    fn treat(self, port: u16, change: impl FnOnce(&mut Treatment)) -> Self;
}

impl Serve for Desired {
    fn serve(mut self, port: u16, owner: &str, backends: &Arc<BTreeSet<DesiredBackend>>) -> Self {
        let owner = service_name(owner);
        let service = DesiredService { owner, backends: Arc::clone(backends), treatment: Treatment::default() };
        self.services.insert(tcp_claim(vip(VIP), port), service);
        self
    }

    fn treat(mut self, port: u16, change: impl FnOnce(&mut Treatment)) -> Self {
        change(&mut self.services.get_mut(&tcp_claim(vip(VIP), port)).unwrap().treatment);
        self
    }
}

struct World {
    capacities: Capacities,
    kernel: SimulatedKernel,
    observed: Observed,
    now: Duration,
}

impl World {
    fn new() -> Self {
        Self::with_capacities(Capacities::default())
    }

    fn with_capacities(capacities: Capacities) -> Self {
        let config = abi::Config { hz: HZ, ..Default::default() };
        let mut kernel = SimulatedKernel::default();
        kernel.entries.config = config;
        Self { capacities, kernel, observed: Observed::empty(capacities, config), now: Duration::from_secs(1000) }
    }

    fn plan(&self, desired: &Desired) -> Plan {
        plan(desired, &self.observed, self.now).unwrap()
    }

    fn reach(&mut self, desired: &Desired) -> Plan {
        let plan = self.plan(desired);
        for step in &plan.steps {
            self.kernel.apply(step, &self.capacities, self.now);
            self.observed.record(step, self.now);
        }
        if plan.refused.is_empty() {
            self.observed.mark_reached(desired, &plan);
        }
        plan
    }

    fn restart(&mut self) {
        self.restart_with(|_| {});
    }

    fn restart_with(&mut self, damage: impl FnOnce(&mut MapEntries)) {
        damage(&mut self.kernel.entries);
        self.observed = Observed::from_entries(self.capacities, self.kernel.entries());
        self.kernel.forget_packets_in_flight();
    }

    fn service(&self, port: u16) -> abi::ServiceValue {
        let vip = self.kernel.entries.vips[&vip(VIP).address().into()].id;
        let key = abi::ServiceKey { vip, port: port.to_be(), protocol: 6, padding: 0 };
        self.kernel.entries.services[&key]
    }

    fn backend(&self, last: u8) -> Option<(u32, abi::Backend)> {
        let address = abi::Address::v4(u32::from_ne_bytes([10, 0, 0, last]));
        let mut backends = self.kernel.entries.backends.iter();
        backends.find(|(_, backend)| backend.address == address).map(|(index, backend)| (*index, *backend))
    }
}

/// Returns the map that each step writes to, with a minus if it removes an entry.
fn kinds(plan: &Plan) -> Vec<&'static str> {
    let kind = |step: &Step| match step {
        Step::Config(_) => "config",
        Step::NodeName(_, None) => "-node name",
        Step::NodeName(..) => "node name",
        Step::Node(_, node) if *node == abi::Node::default() => "-node",
        Step::Node(..) => "node",
        Step::Peer(_, None) => "-peer",
        Step::Peer(..) => "peer",
        Step::Backend(_, backend) if backend.generation == 0 => "-backend",
        Step::Backend(..) => "backend",
        Step::Table(..) => "table",
        Step::ServiceName(_, None) => "-service name",
        Step::ServiceName(..) => "service name",
        Step::ServiceState(_, state) if state.generation == 0 => "-service state",
        Step::ServiceState(..) => "service state",
        Step::Service(_, None) => "-service",
        Step::Service(..) => "service",
        Step::SourceRange(_, false) => "-source range",
        Step::SourceRange(..) => "source range",
        Step::Vip(_, None) => "-vip",
        Step::Vip(..) => "vip",
    };
    plan.steps.iter().map(kind).collect()
}

/// The agent writes the time of a removal beside the plan. If the reached state were lost, each change of one
/// Service would cost as much as all Services.
#[test]
fn the_time_of_a_removal_leaves_the_resolutions_of_other_services_as_they_are() {
    let mut world = World::new();
    let other = backends(&[(3, "c")]);
    world.reach(&desired().serve(80, "web", &backends(&[(1, "a"), (2, "b")])).serve(81, "other", &other));
    let next = desired().serve(80, "web", &backends(&[(1, "a")])).serve(81, "other", &other);
    let resolution = |world: &World| world.observed.reached.known(&other, &world.observed.maps).cloned().unwrap();
    let before = resolution(&world);

    let plan = world.plan(&next);
    for step in &plan.steps {
        world.kernel.apply(step, &world.capacities, world.now);
        world.observed.record(step, world.now);
    }
    let config = abi::Config { removed: 7, ..*world.observed.config() };
    world.observed.record(&Step::Config(config), world.now);
    world.observed.mark_reached(&next, &plan);
    assert!(Arc::ptr_eq(&before, &resolution(&world)), "the resolution was made again");
}

#[test]
fn a_vip_appears_after_all_that_it_leads_to() {
    let plan = World::new().reach(&desired().serve(80, "web", &backends(&[(1, "a"), (2, "b")])));
    let nodes = ["node name", "node", "node name", "node", "peer"];
    let services = ["backend", "backend", "table", "table", "service name", "service state", "service", "vip"];
    assert_eq!(kinds(&plan), [&["config"], &nodes[..], &services[..], &["node", "node"]].concat());
}

#[test]
fn a_vip_goes_before_all_that_it_leads_to() {
    let mut world = World::new();
    world.reach(&desired().serve(80, "web", &backends(&[(2, "b")])));
    let mut nothing = desired();
    nothing.vips.clear();
    nothing.nodes.clear();
    let plan = world.reach(&nothing);
    let services = ["-peer", "-vip", "-service", "node", "-service state", "-service name", "-backend"];
    assert_eq!(kinds(&plan), [&services[..], &["-node", "-node name", "-node", "-node name"]].concat());
}

#[test]
fn an_endpoint_more_costs_one_backend_one_table_and_one_switch() {
    let mut world = World::new();
    let others = desired().serve(443, "other", &backends(&[(7, "b")]));
    world.reach(&others.clone().serve(80, "web", &backends(&[(1, "b")])));
    let plan = world.reach(&others.serve(80, "web", &backends(&[(1, "b"), (2, "b")])));
    assert_eq!(kinds(&plan), ["config", "backend", "table", "service"]);
}

#[test]
fn the_usage_of_the_maps_follows_their_entries() {
    let mut world = World::new();
    assert!(world.observed.fill().iter().all(|(_, used, capacity)| *used == 0 && *capacity > 0));
    let web = desired().serve(80, "web", &backends(&[(1, "a"), (2, "b")]));
    world.reach(&web.serve(443, "other", &backends(&[(7, "b")])));
    let entries = world.kernel.entries();
    let slots: u32 = entries.table_ranges().iter().map(|(_, length)| length).sum();
    assert!(slots > 0);
    let used = [1, 2, slots as usize, 3, 2, entries.peers.len(), 0];
    assert_eq!(world.observed.fill().map(|(_, used, _)| used), used);
    let mut nothing = desired();
    nothing.vips.clear();
    world.reach(&nothing);
    let left = world.observed.fill().map(|(map, used, _)| (map, used));
    assert!(
        [("VIPS", 0), ("SERVICES", 0), ("TABLES", 0), ("BACKENDS", 0)].iter().all(|gone| left.contains(gone)),
        "{left:?}"
    );
}

#[test]
fn the_loss_of_leadership_comes_first() {
    let mut world = World::new();
    world.reach(&desired().serve(80, "web", &backends(&[(1, "b")])));
    let mut next = desired().serve(80, "web", &backends(&[(1, "b")])).serve(443, "web", &backends(&[(2, "b")]));
    next.vips.get_mut(&vip(VIP)).unwrap().leading = false;
    assert_eq!(kinds(&world.reach(&next))[..2], ["config", "vip"]);
}

#[test]
fn another_owner_gets_another_slot_and_generation() {
    let mut world = World::new();
    let set = backends(&[(1, "b")]);
    world.reach(&desired().serve(80, "old", &set));
    let before = world.service(80);
    let plan = world.reach(&desired().serve(80, "new", &set));
    let after = world.service(80);
    assert_eq!(kinds(&plan)[1..], ["service name", "service state", "service", "-service state", "-service name"]);
    assert_ne!(before.slot, after.slot);
    assert!(after.generation > before.generation);
    assert_eq!(before.table, after.table);
}

#[test]
fn equal_sets_share_one_table() {
    let mut world = World::new();
    world.reach(&desired().serve(80, "web", &backends(&[(1, "a")])));
    let (service, local) = (world.service(80), world.service(80).local_table);
    assert_eq!(service.table, local, "all backends are local");
    world.restart();
    // Equal in content, not by pointer.
    let plan = world.reach(&desired().serve(80, "web", &backends(&[(1, "a")])).serve(81, "b", &backends(&[(1, "a")])));
    assert!(!kinds(&plan).contains(&"table"));
    assert_eq!(world.service(81).table, service.table);
}

impl World {
    fn epochs(&self) -> Vec<u32> {
        self.kernel.entries.nodes.values().map(|node| node.epoch).collect()
    }
}

#[test]
fn every_node_has_an_epoch_of_its_own() {
    let mut world = World::new();
    world.reach(&desired().serve(80, "web", &backends(&[(1, "b")])));
    let epochs = world.epochs();
    assert!(epochs[0] != 0 && epochs[1] != 0 && epochs[0] != epochs[1], "{epochs:?}");
    world.restart();
    world.reach(&desired().serve(80, "web", &backends(&[(1, "b"), (2, "b"), (3, "a")])));
    assert_eq!(world.epochs(), epochs, "arrivals change nothing for the flows that are");
}

#[test]
fn a_backend_that_goes_or_drains_ends_the_epoch_of_its_node_alone() {
    for less in [backends(&[(1, "b"), (-2, "b")]), backends(&[(1, "b")])] {
        let mut world = World::new();
        world.reach(&desired().serve(80, "web", &backends(&[(1, "b"), (2, "b")])));
        let before = world.epochs();
        world.reach(&desired().serve(80, "web", &less));
        let after = world.epochs();
        assert_eq!(before[0], after[0]);
        assert!(after[1] > before[1]);
    }
}

#[test]
fn an_agent_that_dies_while_backends_change_leaves_no_epoch_behind() {
    let mut world = World::new();
    world.reach(&desired().serve(80, "web", &backends(&[(1, "b"), (2, "b")])));
    let before = world.epochs();
    let less = desired().serve(80, "web", &backends(&[(1, "b")]));
    let plan = world.plan(&less);
    let gone = plan.steps.iter().position(|step| matches!(step, Step::Backend(..))).unwrap();
    for step in &plan.steps[..=gone] {
        world.kernel.apply(step, &world.capacities, world.now);
    }
    assert_eq!(world.epochs()[1], 0);
    world.restart();
    assert_eq!(kinds(&world.reach(&less)), ["config", "node"]);
    assert!(world.epochs()[1] > before[1]);
}

#[test]
fn a_backend_that_was_never_ready_gets_no_index() {
    let mut world = World::new();
    world.reach(&desired().serve(80, "web", &backends(&[(-1, "b")])));
    assert_eq!((world.backend(1), world.service(80).table_length), (None, 0));
}

#[test]
fn a_backend_that_comes_back_has_another_generation() {
    let mut world = World::new();
    let with = desired().serve(80, "web", &backends(&[(1, "b")]));
    world.reach(&with);
    let (index, first) = world.backend(1).unwrap();
    world.reach(&desired());
    assert_eq!(world.backend(1), None);
    world.restart();
    world.reach(&with);
    let (again, second) = world.backend(1).unwrap();
    assert_eq!(again, index);
    assert!(second.generation > first.generation, "even for an agent that never saw the first");
}

#[test]
fn freed_indices_slots_and_ranges_rest() {
    let mut world = World::new();
    world.reach(&desired().serve(80, "web", &backends(&[(1, "b")])));
    world.reach(&desired());
    world.reach(&desired().serve(80, "web", &backends(&[(2, "b")])));
    let service = world.service(80);
    assert_eq!((service.slot, service.table, world.backend(2).unwrap().0), (1, 251, 1));
    world.now += REST;
    world.reach(&desired().serve(80, "other", &backends(&[(3, "b")])));
    let service = world.service(80);
    assert_eq!((service.slot, service.table, world.backend(3).unwrap().0), (0, 0, 0));
}

#[test]
fn a_node_has_an_element_with_its_epoch_for_each_segment() {
    let mut world = World::new();
    let two = backends(&[(1, "a"), (2, "b")]);
    let mut wanted = desired().serve(80, "shop/web", &two);
    let node = wanted.nodes.get_mut(&node_name("b")).unwrap();
    let beside = Mac::new([2, 0, 0, 0, 1, 2]);
    node.by_segment = [(1, node.path), (2, DesiredPath { mac: Some(beside), vlan: Some(7), ..node.path })].into();
    wanted.vips.get_mut(&vip(VIP)).unwrap().segment = 2;
    world.reach(&wanted);
    let index = world.observed.node_index(&node_name("b")).unwrap();
    let nodes = |world: &World| {
        let element = |segment: u32| abi::node_element(segment << abi::VIP_SEGMENT_SHIFT, index);
        [0, 1, 2].map(|segment| world.kernel.entries.nodes.get(&element(segment)).copied().unwrap_or_default())
    };
    let [first, same, other] = nodes(&world);
    assert_eq!((first, first.vlan(), other.vlan()), (same, None, Some(7)));
    assert_eq!(other, abi::Node { mac: beside, flags: other.flags, ..first });
    let flags = world.kernel.entries.vips[&vip(VIP).address().into()].flags;
    assert_eq!(world.kernel.entries.nodes[&abi::node_element(flags, index)], other);

    // A backend that goes ends the epoch of all elements.
    world.reach(&wanted.clone().serve(80, "shop/web", &backends(&[(1, "a")])));
    let epochs = nodes(&world).map(|node| node.epoch);
    assert!(epochs.iter().all(|epoch| *epoch == epochs[0] && *epoch > first.epoch), "{epochs:?}");

    let node = wanted.nodes.get_mut(&node_name("b")).unwrap();
    node.by_segment.clear();
    world.reach(&wanted);
    assert_eq!(nodes(&world)[1..], [abi::Node::default(); 2]);
    world.reach(&desired());
    wanted.nodes.remove(&node_name("b"));
    world.reach(&Desired { nodes: wanted.nodes, ..desired() });
    assert_eq!(nodes(&world), [abi::Node::default(); 3]);
}

#[test]
fn backends_on_unknown_nodes_are_left_out() {
    let mut world = World::new();
    world.reach(&desired().serve(80, "web", &backends(&[(1, "b"), (2, "elsewhere")])));
    assert_eq!(world.backend(2), None);
    assert_eq!(world.kernel.entries().tables.len(), 1);
}

#[test]
fn nodes_are_peers_by_all_their_macs_as_long_as_they_have_them() {
    let mut world = World::new();
    let mac = |last| Mac::new([2, 0, 0, 0, 0, last]);
    // The MACs of this node, of a node whose MAC another node has already, and of an unknown node.
    let speakers = [
        (mac(3), node_name("b")),
        (mac(4), node_name("a")),
        (mac(2), node_name("elsewhere")),
        (mac(5), node_name("elsewhere")),
    ];
    world.reach(&Desired { speakers: speakers.into(), ..desired() });
    assert_eq!(world.kernel.entries.peers, [(mac(2), 1), (mac(3), 1)].into());
    world.reach(&Desired { speakers: [(mac(6), node_name("b"))].into(), ..desired() });
    assert_eq!(world.kernel.entries.peers, [(mac(2), 1), (mac(6), 1)].into());
}

#[test]
fn peers_have_all_their_hand_over_macs_and_this_node_uses_its_first() {
    let mut world = World::new();
    let mac = |last| Mac::new([abi::HANDOVER_PREFIX, 0, 0, 0, 0, last]);
    let macs = [(node_name("a"), vec![mac(1), mac(2)]), (node_name("b"), vec![mac(3), mac(4)])];
    world.reach(&Desired { handover_macs: Arc::new(macs.into()), ..desired() });
    let peer = 1 | abi::PEER_HANDOVER;
    assert_eq!(world.kernel.entries.peers, [(Mac::new([2, 0, 0, 0, 0, 2]), 1), (mac(3), peer), (mac(4), peer)].into());
    assert_eq!(world.kernel.entries.config.handover, mac(1));
    let handovers: Vec<_> = world.kernel.entries.nodes.values().map(|node| node.handover).collect();
    assert_eq!(handovers, [mac(1), mac(3)]);
    world.reach(&desired());
    assert_eq!((world.kernel.entries.peers.len(), world.kernel.entries.config.handover), (1, Mac::default()));
}

#[test]
fn this_node_is_no_peer_of_its_own() {
    let mut world = World::new();
    world.reach(&desired());
    assert_eq!(world.kernel.entries.peers, [(Mac::new([2, 0, 0, 0, 0, 2]), 1)].into());
    let flags: Vec<_> = world.kernel.entries.nodes.values().map(|node| node.flags).collect();
    assert_eq!(flags, [abi::NODE_ATTACHED | abi::NODE_SELF, abi::NODE_ATTACHED]);
}

#[test]
fn a_node_that_does_not_answer_is_not_attached_and_keeps_its_mac_and_epoch() {
    let mut world = World::new();
    world.reach(&desired());
    let before: Vec<_> = world.kernel.entries.nodes.values().copied().collect();
    let mut dead = desired();
    dead.nodes.get_mut(&node_name("b")).unwrap().path.reach = Reach::Silent;
    world.reach(&dead);
    let after: Vec<_> = world.kernel.entries.nodes.values().copied().collect();
    assert_eq!(after, [before[0], abi::Node { flags: abi::NODE_SILENT, ..before[1] }]);
}

#[test]
fn a_yielded_vip_is_led_again_only_if_it_is_desired() {
    for leading in [true, false] {
        let mut world = World::new();
        world.reach(&desired());
        let address = vip(VIP).address().into();
        let led = world.kernel.entries.vips[&address];
        world.observed.refresh_vip(address, abi::VipValue { flags: abi::VIP_YIELDED, ..led });
        let mut next = desired();
        next.vips.get_mut(&vip(VIP)).unwrap().leading = leading;
        let flags = if leading { abi::VIP_LEADING } else { 0 };
        assert_eq!(world.reach(&next).steps, [Step::Vip(address, Some(abi::VipValue { flags, ..led }))]);
    }
}

#[test]
fn a_vip_that_is_gone_is_not_brought_back_by_late_news() {
    let mut world = World::new();
    world.observed.refresh_vip(vip(VIP).address().into(), abi::VipValue::default());
    assert!(world.observed.vips().is_empty());
    let mut nothing = desired();
    nothing.vips.clear();
    assert!(!kinds(&world.reach(&nothing)).contains(&"-vip"));
}

#[test]
fn vip_ids_are_never_used_twice() {
    let mut world = World::new();
    world.reach(&desired());
    let mut nothing = desired();
    nothing.vips.clear();
    world.reach(&nothing);
    world.restart();
    world.reach(&desired());
    assert_eq!(world.kernel.entries.vips[&vip(VIP).address().into()].id, 2);
    assert_eq!(world.kernel.entries.config.next_vip, 3);
}

#[test]
fn a_claim_needs_its_vip() {
    let mut broken = desired().serve(80, "web", &backends(&[]));
    broken.vips.clear();
    let error = plan(&broken, &World::new().observed, Duration::ZERO).unwrap_err();
    assert_eq!(error, PlanError::UnknownVip { claim: tcp_claim(vip(VIP), 80) });
    assert_eq!(error.to_string(), "port 80/TCP on 192.0.2.1 is wanted, but not its VIP");
}

#[test]
fn counters_never_wrap() {
    let wanted = desired().serve(80, "web", &backends(&[(1, "b")]));
    let with = |next_vip, next_generation| {
        let config = abi::Config { next_vip, next_generation, ..Default::default() };
        plan(&wanted, &Observed::empty(Capacities::default(), config), Duration::ZERO)
    };
    assert_eq!(with(u32::MAX, 1), Err(PlanError::VipIdsExhausted));
    assert_eq!(with(1, u32::MAX), Err(PlanError::GenerationsExhausted));
    // One for the new entries, and one for each of two nodes.
    assert_eq!(with(1, u32::MAX - 2), Err(PlanError::GenerationsExhausted));
    assert!(with(u32::MAX - 1, u32::MAX - 3).is_ok());
    let restricted = wanted.treat(80, |it| it.sources = Some(treatment::sources(&["192.0.2.0/24"])));
    let config = abi::Config { next_vip: 1, next_generation: u32::MAX - 1, ..Default::default() };
    let observed = Observed::empty(Capacities::default(), config);
    assert_eq!(plan(&restricted, &observed, Duration::ZERO), Err(PlanError::GenerationsExhausted));
}

#[test]
fn two_claims_of_one_owner_never_share_a_slot() {
    let set = backends(&[(1, "b")]);
    let wanted = desired().serve(80, "web", &set).serve(81, "web", &set);
    let mut world = World::new();
    world.reach(&wanted);
    world.restart_with(|entries| {
        entries.services.values_mut().for_each(|value| (value.slot, value.generation) = (1, 1));
    });
    world.reach(&wanted);
    assert_ne!(world.service(80).slot, world.service(81).slot);
}

#[test]
fn damage_is_repaired() {
    let wanted = desired().serve(80, "web", &backends(&[(1, "b"), (2, "b")])).serve(81, "b", &backends(&[(3, "b")]));
    let damages: [fn(&mut MapEntries); 4] = [
        |entries| *entries.service_names.get_mut(&0).unwrap() = entries.service_names[&1].clone(),
        |entries| entries.services.values_mut().for_each(|value| (value.slot, value.generation) = (1, 1)),
        |entries| entries.services.values_mut().for_each(|value| value.table = 0),
        |entries| entries.config = abi::Config::default(),
    ];
    for damage in damages {
        let mut world = World::new();
        world.reach(&wanted);
        let sound = world.kernel.clone();
        world.restart_with(damage);
        world.now += REST;
        world.reach(&wanted);
        assert_eq!(world.plan(&wanted), Plan::default());
        assert_ne!(world.service(80).slot, world.service(81).slot);
        assert_eq!(world.kernel.entries.backends, sound.entries.backends);
    }
}

#[test]
fn a_table_that_hashing_would_not_build_is_replaced() {
    let wanted = desired().serve(80, "web", &backends(&[(1, "b"), (2, "b")]));
    let mut world = World::new();
    world.reach(&wanted);
    let mut entries = world.kernel.entries();
    entries.tables.values_mut().for_each(|table| table.reverse());
    world.observed = Observed::from_entries(world.capacities, entries);
    assert_eq!(kinds(&world.plan(&wanted)), ["table", "service"]);
}
