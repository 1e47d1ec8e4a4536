//! Counts events of the event loop and of the tasks beside it.

use std::{collections::BTreeMap, sync::atomic::AtomicU64, time::Duration};

use prometheus_client::{
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use vipmux_cluster::store::{Deleted, StoreError, StoreOperation, StoreOutcome, Swapped};
use vipmux_datapath::{announce::SendError, link::SegmentReaches};
use vipmux_election::{AddressOwner, Lost, membership::Why};
use vipmux_model::{reach::SegmentReach, reason::Reason};

type Label = [(&'static str, &'static str); 1];
type Seconds = Gauge<f64, AtomicU64>;

/// A map, the number of its entries, and its capacity.
pub type MapUsage = (&'static str, usize, usize);

/// The numbers of Services by result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceCounts {
    /// Services with addresses.
    pub allocated: usize,
    /// Services that cannot be read any more. Their addresses are kept for them.
    pub withheld: usize,
    /// Services without an address, by reason.
    pub refused: BTreeMap<Reason, usize>,
}

/// The metrics of the event loop. A clone shares the values.
#[derive(Clone, Debug)]
pub struct Meters {
    election: ElectionMeters,
    sync: SyncMeters,
    services: ServiceMeters,
    maps: MapMeters,
}

/// The metrics of leadership, address conflicts and announcements.
#[derive(Clone, Debug, Default)]
struct ElectionMeters {
    gained: Family<Label, Counter>,
    lost: Family<Label, Counter>,
    lapses: Counter,
    unstable: Gauge,
    store_evidence: Gauge,
    leases: Family<[(&'static str, &'static str); 2], Counter>,
    conflicts: Counter,
    contested: Gauge,
    forged: Counter,
    lossy: Gauge,
    bypassed: Gauge,
    segments: Family<Label, Gauge>,
    nodes: Gauge,
    versions: Family<[(&'static str, String); 1], Gauge>,
    announcements: Family<Label, Counter>,
    probes: Family<Label, Counter>,
}

/// The metrics of the pipeline, the plans and the self-check.
#[derive(Clone, Debug)]
struct SyncMeters {
    steps: Counter,
    applies: Histogram,
    last_apply: Seconds,
    settles: Histogram,
    delays: Histogram,
    checks: Counter,
    repairs: Family<[(&'static str, String); 1], Counter>,
    not_first: Gauge,
}

/// The numbers of Services by result.
#[derive(Clone, Debug, Default)]
struct ServiceMeters {
    states: Family<Label, Gauge>,
    refused: Family<[(&'static str, String); 1], Gauge>,
}

/// The room in the maps.
#[derive(Clone, Debug, Default)]
struct MapMeters {
    entries: Family<Label, Gauge>,
    capacities: Family<Label, Gauge>,
    unplaced: Gauge,
}

impl Default for Meters {
    fn default() -> Self {
        let (election, sync, services, maps) = Default::default();
        let meters = Self { election, sync, services, maps };
        meters.election.initialize();
        meters.services(&ServiceCounts::default());
        meters
    }
}

impl ElectionMeters {
    /// Initializes known label values to 0: otherwise the first change of each would not be seen.
    fn initialize(&self) {
        for why in ["first", "resumed", "down", "handed", "silent", "unwritten", "lapsed"] {
            drop(self.gained.get_or_create(&[("why", why)]));
        }
        for why in [
            "handed",
            "taken",
            "announced",
            "fenced",
            "disowned",
            "displaced",
            "unwanted",
            "unrecorded",
            "forbidden",
            "lossy",
            "outranked",
        ] {
            drop(self.lost.get_or_create(&[("why", why)]));
        }
        for operation in ["read", "swap", "delete", "survey", "read_record", "swap_record"] {
            for result in ["done", "failed"] {
                drop(self.leases.get_or_create(&[("operation", operation), ("result", result)]));
            }
        }
        for result in ["sent", "failed"] {
            drop(self.announcements.get_or_create(&[("result", result)]));
        }
        for result in ["nobody", "unknown", "node", "foreign"] {
            drop(self.probes.get_or_create(&[("result", result)]));
        }
    }

    fn register(&self, registry: &mut Registry) {
        let help = "VIPs that this node came to lead, by reason";
        registry.register("vipmux_leaderships_gained", help, self.gained.clone());
        let help = "VIPs that this node stopped answering for, by reason";
        registry.register("vipmux_leaderships_lost", help, self.lost.clone());
        registry.register("vipmux_fence_lapses", "Times that the fence deadline passed", self.lapses.clone());
        let help = "1 while this node transfers its VIPs, since its fence deadline passes again and again";
        registry.register("vipmux_unstable", help, self.unstable.clone());
        let help = "1 while only the Leases say that this node may answer";
        registry.register("vipmux_store_evidence", help, self.store_evidence.clone());
        let help = "Operations on Leases, by result";
        registry.register("vipmux_lease_operations", help, self.leases.clone());
        let help = "Times that a foreign speaker had an address before it was put into service";
        registry.register("vipmux_address_conflicts", help, self.conflicts.clone());
        let help = "VIPs led here that a foreign speaker on the LAN answers for too";
        registry.register("vipmux_contested_addresses", help, self.contested.clone());
        let help = "Times that a peer denied announcements of a VIP with its MAC";
        registry.register("vipmux_forged_announcements", help, self.forged.clone());
        let help = "Interfaces where the frames that the programs send are lost";
        registry.register("vipmux_lossy_interfaces", help, self.lossy.clone());
        let help = "Interfaces whose frames bypass the XDP program, although it is attached";
        registry.register("vipmux_bypassed_interfaces", help, self.bypassed.clone());
        let help = "Segments by how this node reaches others there, and those where its path is cut";
        registry.register("vipmux_segments", help, self.segments.clone());
        registry.register("vipmux_nodes", "Nodes of the cluster that have an address", self.nodes.clone());
        let help = "Living nodes with an agent, by its version";
        registry.register("vipmux_agent_versions", help, self.versions.clone());
        let help = "Gratuitous ARP, neighbor advertisements, and probes for addresses";
        registry.register("vipmux_announcements", help, self.announcements.clone());
        let help = "Questions to the LAN who has a VIP, by answer";
        registry.register("vipmux_address_probes", help, self.probes.clone());
    }
}

impl Default for SyncMeters {
    fn default() -> Self {
        Self {
            steps: Counter::default(),
            // From 0.1 ms to 6.6 s.
            applies: Histogram::new(exponential_buckets(1e-4, 4.0, 9)),
            last_apply: Seconds::default(),
            settles: Histogram::new(exponential_buckets(1e-4, 4.0, 9)),
            // From 1 ms to 8 s.
            delays: Histogram::new(exponential_buckets(1e-3, 2.0, 14)),
            checks: Counter::default(),
            repairs: Family::default(),
            not_first: Gauge::default(),
        }
    }
}

impl SyncMeters {
    fn register(&self, registry: &mut Registry) {
        registry.register("vipmux_plan_steps", "Writes to the maps by plans", self.steps.clone());
        let help = "Time from the beginning of a plan to its last step, in seconds";
        registry.register("vipmux_apply_duration_seconds", help, self.applies.clone());
        let help = "Time that the last plan took, in seconds";
        registry.register("vipmux_apply_last_duration_seconds", help, self.last_apply.clone());
        let help = "Time to compute the desired state, in seconds";
        registry.register("vipmux_settle_duration_seconds", help, self.settles.clone());
        let help = "Time from an event of the source to the maps, in seconds";
        registry.register("vipmux_event_to_kernel_seconds", help, self.delays.clone());
        registry.register(
            "vipmux_self_checks",
            "Comparisons of the kernel with the desired state",
            self.checks.clone(),
        );
        let help = "Drift that the self-check repaired, by kind";
        registry.register("vipmux_self_check_repairs", help, self.repairs.clone());
        let help = "Classifiers of vipmux that run after other programs of their interface";
        registry.register("vipmux_classifiers_not_first", help, self.not_first.clone());
    }
}

impl ServiceMeters {
    fn register(&self, registry: &mut Registry) {
        registry.register(
            "vipmux_services",
            "Services of type LoadBalancer that belong to vipmux, by state",
            self.states.clone(),
        );
        registry.register(
            "vipmux_services_refused",
            "Services that get no address, by the reason that Events and vipmux plan give",
            self.refused.clone(),
        );
    }
}

impl MapMeters {
    fn register(&self, registry: &mut Registry) {
        registry.register("vipmux_map_entries", "Entries in use in the kernel's maps", self.entries.clone());
        let help = "Entries that fit into the kernel's maps";
        registry.register("vipmux_map_capacity_entries", help, self.capacities.clone());
        let help = "Things that did not fit into the maps at the last plan";
        registry.register("vipmux_map_refusals", help, self.unplaced.clone());
    }
}

impl Meters {
    /// Adds the metrics to a registry.
    pub fn register(&self, registry: &mut Registry) {
        self.election.register(registry);
        self.sync.register(registry);
        self.services.register(registry);
        self.maps.register(registry);
    }

    /// Counts a VIP that this node leads now.
    pub fn gained(&self, why: &Why) {
        let why = match why {
            Why::First => "first",
            Why::Resumed => "resumed",
            Why::Down(_) => "down",
            Why::Handed(_) => "handed",
            Why::Silent(_) => "silent",
            Why::Unwritten => "unwritten",
            Why::Lapsed(_) => "lapsed",
            // No leadership of this node: only peers have reasons that it does not know.
            Why::Other => return,
        };
        self.election.gained.get_or_create(&[("why", why)]).inc();
    }

    /// Counts a VIP that this node no longer leads.
    pub fn lost(&self, why: &Lost) {
        let why = match why {
            Lost::Handed(_) => "handed",
            Lost::Taken(_) => "taken",
            Lost::Announced => "announced",
            Lost::Fenced => "fenced",
            Lost::Disowned => "disowned",
            Lost::Displaced(_) => "displaced",
            Lost::Unwanted => "unwanted",
            Lost::Unrecorded => "unrecorded",
            Lost::Forbidden => "forbidden",
            Lost::Unable => "unable",
            Lost::Lossy => "lossy",
            Lost::Outranked => "outranked",
        };
        self.election.lost.get_or_create(&[("why", why)]).inc();
    }

    /// Counts an address that a foreign speaker had before it was put into service.
    pub fn address_conflict(&self) {
        self.election.conflicts.inc();
    }

    /// Sets the number of VIPs led here that foreign speakers announce as well.
    pub fn contested(&self, addresses: usize) {
        self.election.contested.set(whole(addresses));
    }

    /// Counts announcements with a peer's MAC that the peer denies.
    pub fn announcement_forged(&self) {
        self.election.forged.inc();
    }

    /// Sets the number of interfaces where the frames that the programs send are lost.
    pub fn lossy(&self, interfaces: usize) {
        self.election.lossy.set(whole(interfaces));
    }

    /// Sets the number of interfaces whose frames bypass the XDP program.
    pub fn bypassed(&self, interfaces: usize) {
        self.election.bypassed.set(whole(interfaces));
    }

    /// Sets the numbers of segments by how this node reaches others there, and of those where its path
    /// is cut.
    pub fn segments(&self, reaches: &SegmentReaches, cut: usize) {
        let set = |reach, segments| self.election.segments.get_or_create(&[("reach", reach)]).set(whole(segments));
        for (name, reach) in
            [("answered", SegmentReach::Answered), ("heard", SegmentReach::Heard), ("deaf", SegmentReach::Deaf)]
        {
            set(name, reaches.values().filter(|found| **found == reach).count());
        }
        set("cut", cut);
    }

    /// Sets the number of Nodes of the cluster that have an address.
    pub fn nodes(&self, nodes: usize) {
        self.election.nodes.set(whole(nodes));
    }

    /// Sets the numbers of living nodes by the version of their agents.
    pub fn versions<'a>(&self, counts: impl IntoIterator<Item = (&'a String, &'a usize)>) {
        self.election.versions.clear();
        for (version, nodes) in counts {
            self.election.versions.get_or_create(&[("version", version.clone())]).set(whole(*nodes));
        }
    }

    /// Counts a frame that was sent, or was not.
    pub fn announced(&self, sent: &Result<(), SendError>) {
        let result = if sent.is_ok() { "sent" } else { "failed" };
        self.election.announcements.get_or_create(&[("result", result)]).inc();
    }

    /// Counts a question to the LAN.
    pub fn address_probed(&self, owner: &AddressOwner) {
        let result = match owner {
            AddressOwner::Nobody => "nobody",
            AddressOwner::Unknown => "unknown",
            AddressOwner::Peer => "node",
            AddressOwner::ForeignSpeaker(_) => "foreign",
        };
        self.election.probes.get_or_create(&[("result", result)]).inc();
    }

    /// Counts a self-check.
    pub fn checked(&self) {
        self.sync.checks.inc();
    }

    /// Sets the number of classifiers that run after other programs of their interface.
    pub fn classifiers_not_first(&self, classifiers: usize) {
        self.sync.not_first.set(whole(classifiers));
    }

    /// Counts a repair.
    pub fn repaired(&self, what: &str) {
        self.sync.repairs.get_or_create(&[("what", what.to_owned())]).inc();
    }

    /// Counts an executed plan.
    pub fn applied(&self, steps: usize, unplaced: usize, took: Duration) {
        self.sync.steps.inc_by(steps as u64);
        self.maps.unplaced.set(whole(unplaced));
        self.sync.applies.observe(took.as_secs_f64());
        self.sync.last_apply.set(took.as_secs_f64());
    }

    /// Counts a run of the pipeline.
    pub fn pipeline_run(&self, took: Duration) {
        self.sync.settles.observe(took.as_secs_f64());
    }

    /// Counts a change of the source that came to the maps in this time.
    pub fn event_to_kernel(&self, since: Duration) {
        self.sync.delays.observe(since.as_secs_f64());
    }

    /// Counts lapses of the fence: its deadline passed.
    pub fn fence_lapsed(&self, lapses: u64) {
        self.election.lapses.inc_by(lapses);
    }

    /// Sets whether this node is unstable: its deadline passes again and again.
    pub fn unstable(&self, unstable: bool) {
        self.election.unstable.set(i64::from(unstable));
    }

    /// Sets whether this node may answer only because the Leases say so.
    pub fn store_evidence(&self, used: bool) {
        self.election.store_evidence.set(i64::from(used));
    }

    /// Counts an operation on a Lease.
    pub fn lease_operation(&self, operation: &StoreOperation, result: &Result<StoreOutcome, StoreError>) {
        let operation = match operation {
            StoreOperation::Read(_) => "read",
            StoreOperation::Swap { .. } => "swap",
            StoreOperation::Delete { .. } => "delete",
            StoreOperation::ReadRecord { .. } => "read_record",
            StoreOperation::SwapRecord { .. } => "swap_record",
            StoreOperation::Survey => "survey",
        };
        let result = match result {
            Ok(StoreOutcome::Swapped(Swapped::Conflict) | StoreOutcome::Deleted(Deleted::Conflict)) => "conflict",
            Ok(_) => "done",
            Err(_) => "failed",
        };
        self.election.leases.get_or_create(&[("operation", operation), ("result", result)]).inc();
    }

    /// Sets the numbers of Services by result.
    pub fn services(&self, ServiceCounts { allocated, withheld, refused }: &ServiceCounts) {
        let all = [("allocated", *allocated), ("withheld", *withheld), ("refused", refused.values().sum())];
        for (state, count) in all {
            self.services.states.get_or_create(&[("state", state)]).set(whole(count));
        }
        // Reasons without a Service stay as 0: a series that ends looks like one that is not
        // scraped.
        for reason in Reason::REFUSALS {
            let count = refused.get(&reason).copied().unwrap_or_default();
            self.services.refused.get_or_create(&[("reason", reason.to_string())]).set(whole(count));
        }
    }

    /// Sets how full the maps are.
    pub fn map_usage(&self, maps: impl IntoIterator<Item = MapUsage>) {
        for (map, used, capacity) in maps {
            self.maps.entries.get_or_create(&[("map", map)]).set(whole(used));
            self.maps.capacities.get_or_create(&[("map", map)]).set(whole(capacity));
        }
    }
}

fn whole(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
