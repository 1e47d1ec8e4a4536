//! Holds the observed state: the mirror of the maps, and the desired state that was last reached.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    time::Duration,
};

use vipmux_common::abi::{self, Mac};

use crate::{
    capacity::{Capacities, CapacityRefusal, Subject},
    entries::MapEntries,
    mirror::MapMirror,
    reached::ReachedState,
    service_backends::ServiceBackends,
    step::{Plan, Step},
};
use vipmux_model::{NodeName, Vip, desired::Desired, hashing::Hashing};

/// The maps as the agent last read or wrote them.
#[derive(Clone, Debug)]
pub struct Observed {
    pub(super) maps: MapMirror,
    pub(super) reached: ReachedState,
    /// Steps since that state was reached. Writes of VIPs that stay do not count: each plan looks
    /// at all VIPs.
    recorded: usize,
}

impl Observed {
    /// Returns for each map: its name, the entries in use, and the entries that it has room for.
    /// Table slots that only rest are not in use: they are free a second later, although nothing may
    /// happen then that forgets them.
    pub fn fill(&self) -> [(&'static str, usize, usize); 7] {
        let Capacities { vips, services, tables, backends, nodes, peers, source_ranges } = self.maps.capacities;
        let maps = [
            ("VIPS", self.maps.vips.len(), vips),
            ("SERVICES", self.maps.services.len(), services),
            ("TABLES", self.maps.tables.used() as usize, tables),
            ("BACKENDS", self.maps.backends.taken(), backends),
            ("NODES", self.maps.nodes.taken(), nodes),
            ("PEERS", self.maps.peers.len(), peers),
            ("SOURCE_RANGES", self.maps.sources.len(), source_ranges),
        ];
        maps.map(|(map, used, capacity)| (map, used, capacity as usize))
    }

    /// Returns the number of indices of `BACKENDS` up to the highest one that was ever used. No table
    /// names any behind them.
    pub fn reached_backends(&self) -> u32 {
        self.maps.backends.reached()
    }

    /// Returns the mirror of new maps, of which only `CONFIG` has been written.
    pub fn empty(capacities: Capacities, config: abi::Config) -> Self {
        Self::new(MapMirror::empty(capacities, config))
    }

    /// Returns the mirror of maps that another agent left behind. Plans repair them, whatever they
    /// hold.
    pub fn from_entries(capacities: Capacities, entries: MapEntries) -> Self {
        Self::new(MapMirror::from_entries(capacities, entries))
    }

    fn new(maps: MapMirror) -> Self {
        Self { maps, reached: ReachedState::default(), recorded: 0 }
    }

    /// Records that a step was executed at the monotonic time `now`, which is not before the time
    /// of its plan.
    pub fn record(&mut self, step: &Step, now: Duration) {
        self.recorded += usize::from(step.leaves_reached_state());
        self.maps.record(step, now);
    }

    /// Frees memory: forgets ranges that have rested at `now`.
    ///
    /// Call it between plans, never while one is executed.
    pub fn forget_rested(&mut self, now: Duration) {
        self.maps.tables.forget_rested(now);
    }

    /// Takes over the value that `VIPS` holds now for an address. A program may have cleared
    /// [`abi::VIP_LEADING`] and set [`abi::VIP_YIELDED`].
    ///
    /// The next plan writes the desired state. If the yield is to last, change the desired state
    /// first. If the mirror does not have the VIP, the kernel does not have it either, and nothing
    /// happens.
    pub fn refresh_vip(&mut self, address: abi::Address, value: abi::VipValue) {
        if let Some(known) = self.maps.vips.get_mut(&address) {
            *known = value;
        }
    }

    /// Records that all steps of `plan`, for `desired`, were executed, and that the plan refused
    /// nothing.
    ///
    /// Plans are correct without this call. With it the cost of the next plan follows the
    /// difference from this desired state.
    pub fn mark_reached(&mut self, desired: &Desired, plan: &Plan) {
        let exact = self.recorded == plan.steps.iter().filter(|step| step.leaves_reached_state()).count();
        let mut reached = mem::take(&mut self.reached);
        reached.advance(desired, plan, &self.maps, exact);
        self.reached = reached;
        self.recorded = 0;
    }

    /// Returns the backends of each Service port in the state that was last [reached](Self::mark_reached).
    pub fn service_backends(&self) -> &ServiceBackends {
        self.reached.service_backends()
    }

    /// Forgets the reached state, since something other than a plan's steps changed the maps.
    pub(super) fn forget_reached(&mut self) {
        self.reached = ReachedState::default();
    }

    /// Whether nothing was done since the state was [reached](Self::mark_reached).
    pub(super) fn is_at_reached_state(&self) -> bool {
        self.recorded == 0
    }

    /// Whether entries are left that packets in flight may still need. Plan again after
    /// [`REST`](crate::REST), and they are removed.
    pub fn has_leftovers(&self) -> bool {
        self.maps.sources.has_leftovers()
    }

    /// Returns the VIPs of which nothing is served, since nothing found room. `refused`: what the last plan for
    /// the desired state refused ([`Plan::refused`]).
    pub fn unserved(&self, desired: &Desired, refused: &[CapacityRefusal]) -> BTreeSet<Vip> {
        let vips = refused.iter().filter_map(|refusal| match &refusal.subject {
            Subject::Vip(vip) => Some(*vip),
            Subject::Claim(claim) => Some(claim.vip),
            Subject::Node(_) => None,
        });
        let mut unserved: BTreeSet<_> = vips.collect();
        if !unserved.is_empty() {
            let served = desired.services.keys().filter(|claim| self.maps.service(claim).is_some());
            for claim in served {
                unserved.remove(&claim.vip);
            }
        }
        unserved
    }

    /// Returns the newest hashing by which a Service chooses backends; `None`: there is no Service.
    pub fn hashing(&self) -> Option<Hashing> {
        let of_service = |service: &abi::ServiceValue| match service.flags & abi::SERVICE_HASHES_VIP {
            0 => Hashing::First,
            _ => Hashing::Second,
        };
        self.maps.services.values().map(of_service).max()
    }

    /// Whether another node has this MAC.
    pub fn is_peer(&self, mac: Mac) -> bool {
        self.maps.peers.contains_key(&mac)
    }

    /// Returns `VIPS`, by address.
    pub fn vips(&self) -> &BTreeMap<abi::Address, abi::VipValue> {
        &self.maps.vips
    }

    /// Returns `SERVICES`.
    pub fn services(&self) -> &BTreeMap<abi::ServiceKey, abi::ServiceValue> {
        &self.maps.services
    }

    /// Returns a node's index in `NODES`.
    pub fn node_index(&self, name: &NodeName) -> Option<u32> {
        self.maps.node_index(name)
    }

    /// Returns a node's entry in `NODES`.
    pub fn node(&self, name: &NodeName) -> Option<&abi::Node> {
        Some(&self.maps.nodes.get(self.node_index(name)?)?.node)
    }

    /// Returns a node's entry in `NODES` for a segment.
    pub fn path(&self, name: &NodeName, segment: u8) -> Option<&abi::Node> {
        let flags = u32::from(segment) << abi::VIP_SEGMENT_SHIFT;
        self.maps.paths.get(&abi::node_element(flags, self.node_index(name)?))
    }

    /// Returns `CONFIG[0]`.
    pub fn config(&self) -> &abi::Config {
        &self.maps.config
    }
}
