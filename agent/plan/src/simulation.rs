//! Simulates a kernel that holds the maps and looks up packets as the programs do, to test the
//! plans.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use vipmux_common::{abi, hash};

use crate::{Capacities, MapEntries, REST, Step, mirror::put};
use vipmux_model::{
    NodeName, PortClaim, PortNumber, ServiceName,
    desired::{Desired, DesiredBackend, DesiredService, Readiness, Unreachable},
    hashing::Endpoint,
};

/// The result of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    NotVip,
    NoService,
    NoBackend(ServiceName),
    SimulatedKernel(ServiceName),
    To(ServiceName, SimulatedTarget),
}

/// The settings in a Service's revision and its state. Each of the two changes at once, and never
/// belongs to another Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ServiceSettings {
    /// Its owner, session affinity in jiffies.
    Revision(ServiceName, u32),
    /// Its owner, an idle flow's life in jiffies, whether nothing is translated, and which of
    /// [`CLIENTS`] are let in.
    State(ServiceName, u32, bool, Vec<IpAddr>),
}

/// Some clients, to test source ranges.
pub(super) const CLIENTS: [IpAddr; 3] = [
    IpAddr::V4(Ipv4Addr::new(198, 51, 100, 7)),
    IpAddr::V4(Ipv4Addr::new(203, 0, 113, 7)),
    IpAddr::V4(Ipv4Addr::new(203, 0, 113, 77)),
];

/// Jiffies per second.
pub(super) const HZ: u32 = 250;

/// A backend, as identified in the whole cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SimulatedTarget {
    pub(super) address: IpAddr,
    pub(super) port: u16,
    pub(super) node: Option<NodeName>,
}

/// One of a Service's two tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Table {
    All,
    Local,
}

/// The contents of a flow's record: VIP id, slot and generation, backend and the newest generation.
pub(super) type Flow = (u32, (u32, u32), (u32, u32));

#[derive(Clone, Debug, Default)]
pub(super) struct SimulatedKernel {
    pub(super) entries: MapEntries,
    arena: BTreeMap<u32, u32>,
    /// The last time at which a packet could use table slots, backend indices and Service slots.
    table_left: BTreeMap<u32, Duration>,
    backend_left: BTreeMap<u32, Duration>,
    slot_left: BTreeMap<u32, Duration>,
    /// The last time at which a state referred to a set of source ranges.
    set_left: BTreeMap<u32, Duration>,
    generations: BTreeMap<(&'static str, u32), u32>,
    newest_epoch: u32,
}

impl SimulatedKernel {
    /// Executes a step, and fails if a packet in flight could notice.
    pub(super) fn apply(&mut self, step: &Step, capacities: &Capacities, now: Duration) {
        match step.clone() {
            Step::Config(config) => self.entries.config = config,
            Step::NodeName(index, name) => put(&mut self.entries.node_names, index, name),
            Step::Node(index, node) => self.set_node(index, node),
            Step::Peer(mac, index) => put(&mut self.entries.peers, mac, index),
            Step::Backend(index, backend) => self.set_backend(index, backend, now),
            Step::Table(offset, table) => self.write_table(offset, &table, now),
            Step::ServiceName(index, name) => put(&mut self.entries.service_names, index, name),
            Step::ServiceState(index, state) => self.set_state(index, state, now),
            Step::Service(key, value) => {
                self.leave_tables(now);
                put(&mut self.entries.services, key, value);
            }
            Step::SourceRange(key, present) => self.set_source_range(key, present, now),
            Step::Vip(address, value) => {
                let id = self.entries.vips.get(&address).map(|value| value.id);
                assert!(value.is_none_or(|value| id.is_none_or(|id| id == value.id)), "a VIP's id changed");
                put(&mut self.entries.vips, address, value);
            }
        }
        self.check_capacities(capacities);
        self.check_references();
    }

    /// Returns the entries that a restarted agent reads.
    pub(super) fn entries(&self) -> MapEntries {
        let mut entries = self.entries.clone();
        let read = |(offset, length)| (offset..offset + length).map(|slot| self.arena[&slot]).collect();
        entries.tables = entries.table_ranges().into_iter().map(|range| (range, read(range))).collect();
        entries
    }

    /// Lets time pass in which no packet is in flight: that of a restart.
    pub(super) fn forget_packets_in_flight(&mut self) {
        for left in [&mut self.table_left, &mut self.backend_left, &mut self.slot_left] {
            left.clear();
        }
        self.set_left.values_mut().for_each(|left| *left = Duration::ZERO);
    }

    /// Writes or removes an entry, and checks the set's life: it is written before it is used,
    /// never changed, and removed when no packet needs it any more.
    fn set_source_range(&mut self, key: (u32, abi::Range), present: bool, now: Duration) {
        let set = key.1.set;
        assert!(self.entries.service_states.values().all(|state| state.ranges != set), "set {set} in use was changed");
        if present {
            assert!(!self.set_left.contains_key(&set), "set {set} was used before");
            assert!(self.entries.source_ranges.insert(key), "{key:?} is there already");
        } else {
            check_rest(&self.set_left, set, now);
            assert!(self.entries.source_ranges.remove(&key), "{key:?} is not there");
        }
    }

    fn set_node(&mut self, index: u32, node: abi::Node) {
        let epoch = |index| self.entries.nodes.get(&index).map_or(0, |node: &abi::Node| node.epoch);
        let old = epoch(index);
        if index >= abi::capacity::NODES {
            let of_node = epoch(abi::node_of_element(index));
            assert!(node.epoch == 0 || node.epoch == of_node, "a path has another epoch than its node");
        } else if node.epoch != 0 && node.epoch != old {
            assert!(node.epoch > self.newest_epoch, "epoch {} was there before", node.epoch);
            self.newest_epoch = node.epoch;
        }
        put(&mut self.entries.nodes, index, (node != abi::Node::default()).then_some(node));
    }

    fn set_backend(&mut self, index: u32, backend: abi::Backend, now: Duration) {
        let old = self.entries.backends.get(&index).copied().unwrap_or_default();
        if backend.generation == 0 {
            assert_eq!(backend, abi::Backend::default());
            self.backend_left.insert(index, now);
        } else if old.generation == 0 {
            check_rest(&self.backend_left, index, now);
            self.check_generation(("backend", index), backend.generation);
        } else {
            let flags = old.flags;
            assert_eq!(abi::Backend { flags, ..backend }, old, "a backend in use was overwritten");
        }
        put(&mut self.entries.backends, index, (backend.generation != 0).then_some(backend));
    }

    fn set_state(&mut self, index: u32, state: abi::ServiceState, now: Duration) {
        let old = self.entries.service_states.get(&index).copied().unwrap_or_default();
        if old.ranges != 0 {
            self.set_left.insert(old.ranges, now);
        }
        if state.generation == 0 {
            assert_eq!(state, abi::ServiceState::default());
            self.slot_left.insert(index, now);
        } else if state.generation != old.generation {
            check_rest(&self.slot_left, index, now);
            assert!(!self.entries.service_states.contains_key(&index), "a slot in use was overwritten");
            self.check_generation(("slot", index), state.generation);
        }
        put(&mut self.entries.service_states, index, (state.generation != 0).then_some(state));
    }

    fn check_generation(&mut self, index: (&'static str, u32), generation: u32) {
        let before = self.generations.insert(index, generation).unwrap_or(0);
        assert!(generation > before, "{index:?} came from generation {before} to {generation}");
    }

    fn write_table(&mut self, offset: u32, table: &[u32], now: Duration) {
        for (slot, value) in (offset..).zip(table) {
            let used = self.entries.services.values().flat_map(ranges).any(|range| range.contains(&slot));
            assert!(!used, "slot {slot} of a table in use was overwritten");
            check_rest(&self.table_left, slot, now);
            self.arena.insert(slot, *value);
        }
    }

    fn leave_tables(&mut self, now: Duration) {
        for slot in self.entries.services.values().flat_map(ranges).flatten() {
            self.table_left.insert(slot, now);
        }
    }

    fn check_capacities(&self, capacities: &Capacities) {
        let MapEntries { vips, services, service_states, backends, nodes, peers, .. } = &self.entries;
        assert!(vips.len() <= capacities.vips as usize);
        assert!(services.len() <= capacities.services as usize);
        assert!(peers.len() <= capacities.peers as usize);
        assert!(self.entries.source_ranges.len() <= capacities.source_ranges as usize);
        let below = |last: Option<&u32>, capacity| last.is_none_or(|last| *last < capacity);
        assert!(below(service_states.keys().last(), capacities.services));
        assert!(below(backends.keys().last(), capacities.backends));
        assert!(nodes.keys().all(|element| abi::node_of_element(*element) < capacities.nodes));
        assert!(below(self.arena.keys().last(), capacities.tables));
    }

    /// Checks that all references that a packet may follow lead to existing entries.
    fn check_references(&self) {
        for value in self.entries.services.values() {
            let state = self.entries.service_states.get(&value.slot).copied().unwrap_or_default();
            assert_eq!(state.generation, value.generation, "a revision of a stale slot");
            assert!(self.entries.service_names.contains_key(&value.slot), "a revision without an owner");
            let members = |range: std::ops::Range<u32>| range.map(|slot| self.arena[&slot]).collect::<BTreeSet<_>>();
            let [all, local] = ranges(value).map(members);
            for index in all.union(&local) {
                let backend = self.entries.backends.get(index).expect("a table leads to a freed backend");
                let ready = backend.flags & abi::BACKEND_READY != 0;
                let spare = value.flags & abi::SERVICE_SPARE != 0 && !all.contains(index);
                assert!(ready || spare, "a table leads to a backend that takes no new flows");
                assert!(self.entries.nodes.contains_key(&backend.node), "a backend on a freed node");
                assert!(self.entries.node_names.contains_key(&backend.node), "a backend on a node without a name");
            }
        }
    }

    /// Returns the claim's own revision, or the one of every port.
    fn revision(&self, vip: &abi::VipValue, claim: &PortClaim) -> Option<&abi::ServiceValue> {
        let (port, protocol) = (u16::from(claim.port).to_be(), claim.protocol.number());
        let key = abi::ServiceKey { vip: vip.id, port, protocol, padding: 0 };
        let every = || {
            let every = abi::ServiceKey { port: 0, ..key };
            self.entries.services.get(&every).filter(|_| vip.flags & abi::VIP_ALL_PORTS != 0)
        };
        self.entries.services.get(&key).or_else(every)
    }

    /// Returns the settings in a claim's revision and its state.
    pub(super) fn settings(&self, claim: &PortClaim) -> Option<[ServiceSettings; 2]> {
        let value = self.revision(self.entries.vips.get(&claim.vip.address().into())?, claim)?;
        let owner = self.entries.service_names[&value.slot].clone();
        let state = self.entries.service_states[&value.slot];
        let admitted = CLIENTS.into_iter().filter(|client| state.ranges == 0 || self.matches(state.ranges, *client));
        let direct = state.flags & abi::SERVICE_DIRECT != 0;
        let of_state = ServiceSettings::State(owner.clone(), state.idle, direct, admitted.collect());
        Some([ServiceSettings::Revision(owner, value.affinity), of_state])
    }

    /// Whether a prefix of the set matches. Compares bit by bit, as the trie does.
    fn matches(&self, set: u32, client: IpAddr) -> bool {
        let bits = |range: &abi::Range| -> Vec<u8> {
            [range.set, range.w0, range.w1, range.w2, range.w3].into_iter().flat_map(u32::to_ne_bytes).collect()
        };
        let abi::Address { w0, w1, w2, w3 } = client.into();
        let asked = bits(&abi::Range { set, w0, w1, w2, w3 });
        self.entries.source_ranges.iter().any(|(length, range)| {
            let bit = |bytes: &[u8], i: u32| bytes[i as usize / 8] >> (7 - i % 8) & 1;
            let own = bits(range);
            (0..*length).all(|i| bit(&own, i) == bit(&asked, i))
        })
    }

    /// Returns the result of a packet to this claim with this hash, and the flow that it records.
    pub(super) fn look_up(&self, claim: &PortClaim, hash: u32, table: Table) -> (Answer, Option<Flow>) {
        let Some(vip) = self.entries.vips.get(&claim.vip.address().into()) else { return (Answer::NotVip, None) };
        let Some(value) = self.revision(vip, claim) else { return (Answer::NoService, None) };
        let owner = self.entries.service_names[&value.slot].clone();
        if value.flags & abi::SERVICE_KERNEL != 0 {
            return (Answer::SimulatedKernel(owner), None);
        }
        let range = ranges(value)[usize::from(table == Table::Local)].clone();
        if range.is_empty() {
            return (Answer::NoBackend(owner), None);
        }
        let length = range.end - range.start;
        let hash = flow_hash(hash, value.flags & abi::SERVICE_HASHES_VIP != 0);
        let index = self.arena[&(range.start + hash::slot(hash, length))];
        let flow = (vip.id, (value.slot, value.generation), (index, self.entries.config.next_generation - 1));
        (Answer::To(owner, self.target(index)), Some(flow))
    }

    /// Returns the answer for a recorded flow, if its record is valid.
    pub(super) fn follow(&self, flow: &Flow) -> Option<Answer> {
        let (_, (slot, slot_generation), (index, generation)) = *flow;
        let valid = self.entries.service_states.get(&slot)?.generation == slot_generation
            && self.entries.backends.get(&index)?.is_of(generation);
        let owner = || self.entries.service_names[&slot].clone();
        valid.then(|| Answer::To(owner(), self.target(index)))
    }

    /// Returns the node and epoch that a recorded flow's record may also get from a packet now:
    /// those of its backend.
    pub(super) fn vouch(&self, flow: &Flow) -> Option<(u32, u32)> {
        self.follow(flow)?;
        let backend = self.entries.backends[&flow.2.0];
        let epoch = self.entries.nodes.get(&backend.node)?.epoch;
        (is_vouched_for(&backend) && epoch != 0).then_some((backend.node, epoch))
    }

    /// Fails if a record with an epoch leads to another answer than one without.
    pub(super) fn check_vouched(&self, flow: &Flow, (node, epoch): (u32, u32)) {
        let (_, (slot, slot_generation), (index, generation)) = *flow;
        let owned = self.entries.service_states.get(&slot).is_some_and(|state| state.generation == slot_generation);
        let mut elements = self.entries.nodes.iter().filter(|(element, _)| abi::node_of_element(**element) == node);
        if owned && elements.any(|(_, node)| node.epoch == epoch) {
            let same =
                |backend: &abi::Backend| backend.is_of(generation) && backend.node == node && is_vouched_for(backend);
            assert!(self.entries.backends.get(&index).is_some_and(same), "an epoch vouches for another backend");
        }
    }

    /// Returns the backends that have a flag.
    pub(super) fn flagged(&self, flag: u16) -> BTreeSet<SimulatedTarget> {
        let flagged = self.entries.backends.iter().filter(|(_, backend)| backend.flags & flag != 0);
        flagged.map(|(index, _)| self.target(*index)).collect()
    }

    fn target(&self, index: u32) -> SimulatedTarget {
        let backend = self.entries.backends[&index];
        let node = NodeName::new(self.entries.node_names[&backend.node].as_str()).ok();
        SimulatedTarget { address: backend.address.into(), port: u16::from_be(backend.port), node }
    }
}

/// Returns the hash of a packet: another one if it covers the VIP's address.
fn flow_hash(hash: u32, covers_vip: bool) -> u32 {
    if covers_vip { hash::next(hash) } else { hash }
}

/// Returns the answers that a desired state allows, by claim, hash and table.
pub(super) fn expected(desired: &Desired, claim: &PortClaim, hash: u32, table: Table) -> Answer {
    if !desired.vips.contains_key(&claim.vip) {
        return Answer::NotVip;
    }
    let Some(service) = service(desired, claim) else { return Answer::NoService };
    if is_left_to_the_stack(desired, service) {
        return Answer::SimulatedKernel(service.owner.clone());
    }
    let reachable = |backend: &&DesiredBackend| desired.reaches(backend);
    let endpoint = |backend: &DesiredBackend| Endpoint::new(backend.address.into(), backend.port_number().to_be());
    let mut eligible: BTreeMap<Endpoint, &DesiredBackend> = BTreeMap::new();
    for backend in service.backends.iter().filter(reachable).filter(|backend| backend.readiness.is_ready()) {
        eligible.entry(endpoint(backend)).or_insert(backend);
    }
    if table == Table::Local && !eligible.is_empty() {
        let is_local = |backend: &&DesiredBackend| backend.node.as_ref() == Some(&desired.local);
        eligible.retain(|_, backend| is_local(backend));
        if eligible.is_empty() {
            let here = service.backends.iter().filter(reachable).filter(is_local);
            let of = |readiness| {
                let such = here.clone().filter(move |backend| backend.readiness == readiness);
                such.map(|backend| (endpoint(backend), backend)).collect::<BTreeMap<_, _>>()
            };
            let others = [Readiness::Draining, Readiness::NotReady].map(of);
            eligible = others.into_iter().find(|others| !others.is_empty()).unwrap_or_default();
        }
    }
    let backends: Vec<_> = eligible.values().collect();
    let slots = desired.hashing.table(eligible.keys().copied().zip(0..));
    let Some(length) = u32::try_from(slots.len()).ok().filter(|length| *length > 0) else {
        return Answer::NoBackend(service.owner.clone());
    };
    let hash = flow_hash(hash, desired.hashing.covers_vip());
    let backend = backends[slots[hash::slot(hash, length) as usize] as usize];
    let target = target(backend);
    Answer::To(service.owner.clone(), target)
}

fn target(backend: &DesiredBackend) -> SimulatedTarget {
    SimulatedTarget { address: backend.address, port: backend.port_number(), node: backend.node.clone() }
}

fn is_left_to_the_stack(desired: &Desired, service: &DesiredService) -> bool {
    let mut ready = service.backends.iter().filter(|backend| backend.readiness.is_ready()).peekable();
    let out_of_reach = ready.peek().is_some() && ready.all(|backend| !desired.reaches(backend));
    service.treatment.kernel || out_of_reach && desired.unreachable == Unreachable::Kernel
}

/// Returns the backends with an entry whose readiness is like this in a desired state.
pub(super) fn expected_like(
    desired: &Desired,
    kernel: &SimulatedKernel,
    like: fn(Readiness) -> bool,
) -> BTreeSet<SimulatedTarget> {
    let mut found = BTreeSet::new();
    for service in desired.services.values().filter(|service| !is_left_to_the_stack(desired, service)) {
        let mut ready = BTreeMap::new();
        for backend in service.backends.iter().filter(|backend| desired.reaches(backend)) {
            // If an endpoint is on two nodes, the first one counts.
            let endpoint = (backend.address, backend.port);
            let taken =
                !backend.readiness.is_ready() || *ready.entry(endpoint).or_insert(&backend.node) == &backend.node;
            found.extend((like(backend.readiness) && taken).then(|| target(backend)));
        }
    }
    let there: BTreeSet<_> = kernel.entries.backends.keys().map(|index| kernel.target(*index)).collect();
    found.intersection(&there).cloned().collect()
}

pub(super) fn service<'a>(desired: &'a Desired, claim: &PortClaim) -> Option<&'a DesiredService> {
    let every = || desired.services.get(&PortClaim { port: PortNumber::Every, ..*claim });
    desired.services.get(claim).or_else(every)
}

/// Returns the settings that a desired state asks for.
pub(super) fn expected_settings(desired: &Desired, claim: &PortClaim) -> Option<[ServiceSettings; 2]> {
    desired.vips.get(&claim.vip)?;
    let DesiredService { owner, treatment, .. } = service(desired, claim)?;
    let jiffies = |seconds: Option<u32>| seconds.unwrap_or(0) * HZ;
    let lets_in = |client: &IpAddr| {
        treatment.sources.as_ref().is_none_or(|sources| sources.iter().any(|prefix| prefix.contains(*client)))
    };
    let clients = CLIENTS.into_iter().filter(lets_in).collect();
    let state = ServiceSettings::State(owner.clone(), jiffies(treatment.idle), treatment.direct, clients);
    Some([ServiceSettings::Revision(owner.clone(), jiffies(treatment.affinity)), state])
}

fn ranges(value: &abi::ServiceValue) -> [std::ops::Range<u32>; 2] {
    let range = |offset, length| offset..offset + length;
    [range(value.table, value.table_length), range(value.local_table, value.local_length)]
}

/// Whether a record gets an epoch for this backend, as in `ebpf/src/flow.rs`.
fn is_vouched_for(backend: &abi::Backend) -> bool {
    backend.flags & abi::BACKEND_READY != 0 && backend.flags & abi::BACKEND_LOCAL == 0
}

fn check_rest(left: &BTreeMap<u32, Duration>, index: u32, now: Duration) {
    let rested = left.get(&index).is_none_or(|left| now >= *left + REST);
    assert!(rested, "index or slot {index} was used again before it had rested");
}
