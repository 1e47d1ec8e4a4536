//! What the event loop and what runs beside it count.

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

use crate::{
    announce::SendError,
    election::Lost,
    membership::Why,
    model::reason::Reason,
    store::{Deleted, Operation, Outcome, StoreError, Swapped},
};

type Label = [(&'static str, &'static str); 1];
type Seconds = Gauge<f64, AtomicU64>;

/// Entries of a map, and how many it has room for.
pub type Fill = (&'static str, usize, usize);

/// What became of the Services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// They have addresses.
    pub allocated: usize,
    /// They cannot be read any more, and what they hold is kept for them.
    pub withheld: usize,
    /// They have none.
    pub refused: BTreeMap<Reason, usize>,
}

/// All of them. A clone counts the same.
#[derive(Clone, Debug)]
pub struct Meters {
    gained: Family<Label, Counter>,
    lost: Family<Label, Counter>,
    conflicts: Counter,
    contested: Gauge,
    announcements: Family<Label, Counter>,
    checks: Counter,
    repairs: Family<[(&'static str, String); 1], Counter>,
    steps: Counter,
    applies: Histogram,
    last_apply: Seconds,
    settles: Histogram,
    delays: Histogram,
    unplaced: Gauge,
    lapses: Counter,
    leases: Family<[(&'static str, &'static str); 2], Counter>,
    services: Family<Label, Gauge>,
    refused: Family<[(&'static str, String); 1], Gauge>,
    entries: Family<Label, Gauge>,
    capacities: Family<Label, Gauge>,
}

impl Default for Meters {
    fn default() -> Self {
        let meters = Self {
            gained: Family::default(),
            lost: Family::default(),
            conflicts: Counter::default(),
            contested: Gauge::default(),
            announcements: Family::default(),
            checks: Counter::default(),
            repairs: Family::default(),
            steps: Counter::default(),
            // From 0.1 ms to 6.6 s.
            applies: Histogram::new(exponential_buckets(1e-4, 4.0, 9)),
            last_apply: Seconds::default(),
            settles: Histogram::new(exponential_buckets(1e-4, 4.0, 9)),
            // From 1 ms to 8 s.
            delays: Histogram::new(exponential_buckets(1e-3, 2.0, 14)),
            unplaced: Gauge::default(),
            lapses: Counter::default(),
            leases: Family::default(),
            services: Family::default(),
            refused: Family::default(),
            entries: Family::default(),
            capacities: Family::default(),
        };
        meters.begin();
        meters
    }
}

impl Meters {
    /// What is known to come is there from the start, as 0: otherwise its first change would not be seen as one.
    fn begin(&self) {
        for why in ["first", "resumed", "down", "handed", "silent", "unwritten"] {
            drop(self.gained.get_or_create(&[("why", why)]));
        }
        for why in ["handed", "taken", "announced", "fenced", "disowned", "unwanted", "forbidden"] {
            drop(self.lost.get_or_create(&[("why", why)]));
        }
        for result in ["sent", "failed"] {
            drop(self.announcements.get_or_create(&[("result", result)]));
        }
        self.tally(&Tally::default());
    }

    /// Has them shown.
    pub fn register(&self, registry: &mut Registry) {
        self.register_election(registry);
        self.register_sync(registry);
        registry.register(
            "vipmux_services",
            "Services of type LoadBalancer that are this allocator's, by what became of them",
            self.services.clone(),
        );
        registry.register(
            "vipmux_services_refused",
            "Services that get no address, by reason; the reasons are those of Events and vipmux plan",
            self.refused.clone(),
        );
        registry.register("vipmux_map_entries", "Entries in use of the maps in the kernel", self.entries.clone());
        let help = "Entries that the maps in the kernel have room for";
        registry.register("vipmux_map_capacity_entries", help, self.capacities.clone());
        let help = "What found no room in the maps at the last plan";
        registry.register("vipmux_map_refusals", help, self.unplaced.clone());
    }

    fn register_election(&self, registry: &mut Registry) {
        let help = "VIPs that this node came to lead, by why";
        registry.register("vipmux_leaderships_gained", help, self.gained.clone());
        let help = "VIPs that this node stopped answering for, by why";
        registry.register("vipmux_leaderships_lost", help, self.lost.clone());
        registry.register("vipmux_fence_lapses", "Times that the fence's deadline passed", self.lapses.clone());
        let help = "Operations on Leases, by what came of them";
        registry.register("vipmux_lease_operations", help, self.leases.clone());
        let help = "Times that a stranger was found to have an address before it was put into service";
        registry.register("vipmux_address_conflicts", help, self.conflicts.clone());
        let help = "VIPs led here that strangers on the LAN speak for as well";
        registry.register("vipmux_contested_addresses", help, self.contested.clone());
        let help = "Gratuitous ARP and neighbour advertisements, and questions for addresses";
        registry.register("vipmux_announcements", help, self.announcements.clone());
    }

    fn register_sync(&self, registry: &mut Registry) {
        registry.register("vipmux_plan_steps", "Writes to the maps that plans had", self.steps.clone());
        let help = "Time from a plan's beginning to its last step, in seconds";
        registry.register("vipmux_apply_duration_seconds", help, self.applies.clone());
        let help = "Time that the last plan took, in seconds";
        registry.register("vipmux_apply_last_duration_seconds", help, self.last_apply.clone());
        let help = "Time to settle what should be served, in seconds";
        registry.register("vipmux_settle_duration_seconds", help, self.settles.clone());
        let help = "Time from an event of the source to the maps, in seconds";
        registry.register("vipmux_event_to_kernel_seconds", help, self.delays.clone());
        registry.register(
            "vipmux_self_checks",
            "Comparisons of the kernel with what was put there",
            self.checks.clone(),
        );
        let help = "What the self-check put right, by what it was";
        registry.register("vipmux_self_check_repairs", help, self.repairs.clone());
    }

    /// This node leads a VIP now.
    pub fn gained(&self, why: &Why) {
        let why = match why {
            Why::First => "first",
            Why::Resumed => "resumed",
            Why::Down(_) => "down",
            Why::Handed(_) => "handed",
            Why::Silent(_) => "silent",
            Why::Unwritten => "unwritten",
        };
        self.gained.get_or_create(&[("why", why)]).inc();
    }

    /// This node leads a VIP no longer.
    pub fn lost(&self, why: &Lost) {
        let why = match why {
            Lost::Handed(_) => "handed",
            Lost::Taken(_) => "taken",
            Lost::Announced => "announced",
            Lost::Fenced => "fenced",
            Lost::Disowned => "disowned",
            Lost::Unwanted => "unwanted",
            Lost::Forbidden => "forbidden",
        };
        self.lost.get_or_create(&[("why", why)]).inc();
    }

    /// A stranger has an address that was to be put into service.
    pub fn conflict(&self) {
        self.conflicts.inc();
    }

    /// So many addresses that are led here strangers speak for, too.
    pub fn contested(&self, addresses: usize) {
        self.contested.set(whole(addresses));
    }

    /// A frame was sent, or was not.
    pub fn announced(&self, sent: &Result<(), SendError>) {
        let result = if sent.is_ok() { "sent" } else { "failed" };
        self.announcements.get_or_create(&[("result", result)]).inc();
    }

    /// The kernel was compared with what was put there.
    pub fn checked(&self) {
        self.checks.inc();
    }

    /// Something was put right.
    pub fn repaired(&self, what: &str) {
        self.repairs.get_or_create(&[("what", what.to_owned())]).inc();
    }

    /// A plan was carried out.
    pub fn applied(&self, steps: usize, unplaced: usize, took: Duration) {
        self.steps.inc_by(steps as u64);
        self.unplaced.set(whole(unplaced));
        self.applies.observe(took.as_secs_f64());
        self.last_apply.set(took.as_secs_f64());
    }

    /// What should be served was settled.
    pub fn settled(&self, took: Duration) {
        self.settles.observe(took.as_secs_f64());
    }

    /// What the source said so long ago is in the maps.
    pub fn arrived(&self, since: Duration) {
        self.delays.observe(since.as_secs_f64());
    }

    /// The fence's deadline passed.
    pub fn lapsed(&self) {
        self.lapses.inc();
    }

    /// An operation on a Lease is through.
    pub fn stored(&self, operation: &Operation, result: &Result<Outcome, StoreError>) {
        let operation = match operation {
            Operation::Read(_) => "read",
            Operation::Swap { .. } => "swap",
            Operation::Delete { .. } => "delete",
            Operation::Survey => "survey",
        };
        let result = match result {
            Ok(Outcome::Swapped(Swapped::Conflict) | Outcome::Deleted(Deleted::Conflict)) => "conflict",
            Ok(_) => "done",
            Err(_) => "failed",
        };
        self.leases.get_or_create(&[("operation", operation), ("result", result)]).inc();
    }

    /// What became of the Services.
    pub fn tally(&self, Tally { allocated, withheld, refused }: &Tally) {
        let all = [("allocated", *allocated), ("withheld", *withheld), ("refused", refused.values().sum())];
        for (state, count) in all {
            self.services.get_or_create(&[("state", state)]).set(whole(count));
        }
        // Those that are refused for nothing any more go on as 0: a series that ends looks like one that is not scraped.
        for reason in Reason::REFUSALS {
            let count = refused.get(&reason).copied().unwrap_or_default();
            self.refused.get_or_create(&[("reason", reason.to_string())]).set(whole(count));
        }
    }

    /// How full the maps are.
    pub fn fill(&self, maps: impl IntoIterator<Item = Fill>) {
        for (map, used, capacity) in maps {
            self.entries.get_or_create(&[("map", map)]).set(whole(used));
            self.capacities.get_or_create(&[("map", map)]).set(whole(capacity));
        }
    }
}

fn whole(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
