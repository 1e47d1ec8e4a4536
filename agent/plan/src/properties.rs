//! Tests that no packet sees a mixture of states, for any desired states and any time at which an
//! agent dies.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    num::NonZeroU16,
    sync::Arc,
    time::Duration,
};

use proptest::{collection, option, prelude::*, sample::select};
use vipmux_common::abi::{self, Config, Mac};

use crate::{
    Capacities, Observed, Plan, Step, Subject, plan,
    reached::ReachedState,
    simulation::{
        Answer, Flow, HZ, ServiceSettings, SimulatedKernel, Table, expected, expected_like, expected_settings, service,
    },
};
use vipmux_model::{
    Family, NodeName, PortClaim, PortNumber, Protocol, Vip,
    desired::{
        Desired, DesiredBackend, DesiredNode, DesiredPath, DesiredService, DesiredVip, Reach, Readiness, Treatment,
        Unreachable,
    },
    hashing::Hashing,
};
use vipmux_testing::names::{node_name, service_name};

const HASHES: [u32; 5] = [0, 0x3333_3333, 0x8000_0000, 0xd00d_f00d, u32::MAX];

const AMPLE: Capacities =
    Capacities { vips: 8, services: 64, tables: 40_000, backends: 256, nodes: 8, peers: 8, source_ranges: 64 };

/// The course of an attempt to reach a desired state.
#[derive(Clone, Copy, Debug)]
enum Course {
    Done,
    /// This percentage of the steps is executed. Then one fails, or the agent dies.
    Fails(usize),
    Dies(usize),
}

#[derive(Clone, Debug)]
struct Episode {
    desired: Desired,
    course: Course,
    pause: Duration,
}

/// Returns an IPv4 VIP for the first number, and an IPv6 VIP for the second.
fn vip(n: u8) -> Vip {
    Vip::new(if n == 1 { [192, 0, 2, n].into() } else { Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, n.into()).into() })
}

/// Returns the same host in the other family.
fn in_ipv6(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(address) => Ipv6Addr::from_bits((0xfd00 << 112) | u128::from(address.to_bits())).into(),
        IpAddr::V6(_) => address,
    }
}

fn host(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(address) => address.octets()[3],
        IpAddr::V6(address) => address.octets()[15],
    }
}

/// Returns the claims. Port 0 is every port.
fn claims() -> impl Iterator<Item = PortClaim> {
    let claims = (1..=2).flat_map(|n| [(vip(n), 80), (vip(n), 443), (vip(n), 0)]);
    let with_protocol =
        |(vip, port)| [Protocol::Tcp, Protocol::Udp].map(|protocol| PortClaim { vip, protocol, port: u16::into(port) });
    claims.flat_map(with_protocol)
}

fn node(n: u8) -> NodeName {
    node_name(format!("node-{n}"))
}

prop_compose! {
    fn backend()(
        host in 1..=9u8,
        moved in 0..20u8,
        alternate in any::<bool>(),
        ready in 0..4u8,
        serving in 0..3u8,
        failing in 0..4u8,
    ) -> DesiredBackend {
        // Usually an address is on one node. Sometimes it moves to another one.
        let on = if moved == 0 { (host + 1) % 3 } else { host % 3 };
        DesiredBackend {
            address: Ipv4Addr::new(10, 0, on, host).into(),
            port: NonZeroU16::new(if alternate { 8081 } else { 8080 }),
            node: Some(node(if moved == 1 { (on + 1) % 3 } else { on })),
            readiness: match (ready > 0, serving, failing == 0) {
                (true, _, false) => Readiness::Ready,
                (true, _, true) => Readiness::ReadyThoughFailing,
                (false, 0, false) => Readiness::Draining,
                (false, 1, false) => Readiness::NotReady,
                (false, _, false) => Readiness::Stopping,
                (false, _, true) => Readiness::Failing,
            },
        }
    }
}

/// Returns sets of endpoints. Each endpoint is on one node, with its better report, as in the
/// model.
fn set() -> impl Strategy<Value = Arc<BTreeSet<DesiredBackend>>> {
    let once = |reports: BTreeSet<DesiredBackend>| {
        let mut seen = BTreeSet::new();
        let is_first = |it: &DesiredBackend| seen.insert((it.address, it.port, it.node.clone()));
        Arc::new(reports.into_iter().rev().filter(is_first).collect())
    };
    prop_oneof![
        1 => Just(Arc::default()),
        8 => collection::btree_set(backend(), 1..6).prop_map(once),
        2 => collection::btree_set(backend(), 10..16).prop_map(once),
    ]
}

prop_compose! {
    fn treatment()(
        sources in collection::btree_set(select(vec!["198.51.100.0/24", "203.0.113.0/26", "203.0.113.77/32"]), 0..3),
        restricted in any::<bool>(),
        affinity in option::of(1..3u32),
        idle in option::of(10..12u32),
        direct in any::<bool>(),
        kernel in 0..6u8,
    ) -> Treatment {
        let sources = restricted.then(|| Arc::new(sources.into_iter().map(|prefix| prefix.parse().unwrap()).collect()));
        Treatment { sources, affinity, idle, direct, kernel: kernel == 0 }
    }
}

/// Returns treatments. Four of five have the default, so that other properties get tested often.
fn treatments() -> impl Strategy<Value = Treatment> {
    prop_oneof![4 => Just(Treatment::default()), 1 => treatment()]
}

prop_compose! {
    fn desired(sets: Vec<Arc<BTreeSet<DesiredBackend>>>)(
        nodes in collection::btree_map(0..3u8, (any::<bool>(), 0..3u8, 0..3u8), 1..=3),
        vips in collection::btree_map(1..=2u8, (any::<bool>(), 0..2u64), 0..=2),
        claimed in collection::vec(
            option::weighted(0.7, (0..3u8, any::<prop::sample::Index>(), treatments(), 0..3u8)),
            claims().count(),
        ),
        to_kernel in any::<bool>(),
        hashing in select(Hashing::ALL.to_vec()),
    ) -> Desired {
        let name = |n| service_name(format!("web-{n}"));
        let vips: BTreeMap<_, _> = vips.into_iter().map(|(n, (leading, epoch))| {
            (vip(n), DesiredVip { leading, interfaces: 1, vlan: None, segment: n, epoch })
        }).collect();
        let moved = |b: &DesiredBackend| DesiredBackend { address: in_ipv6(b.address), ..b.clone() };
        let sets_v6: Vec<_> = sets.iter().map(|set| Arc::new(set.iter().map(moved).collect())).collect();
        let mut services: BTreeMap<_, _> = claims().zip(claimed).filter_map(|(claim, claimed)| {
            // Some VIPs have every port. The others change between that and single ports.
            let wanted = |every: u8| vips.contains_key(&claim.vip) && (claim.port == PortNumber::Every) == (every == 0);
            let (owner, set, treatment, _) = claimed.filter(|(.., every)| wanted(*every))?;
            let sets = if claim.vip.family() == Family::V4 { &sets } else { &sets_v6 };
            Some((claim, DesiredService { owner: name(owner), backends: Arc::clone(set.get(sets)), treatment }))
        }).collect();
        let all: BTreeSet<_> = services.keys().filter(|claim| claim.port == PortNumber::Every).copied().collect();
        services.retain(|claim, _| claim.port == PortNumber::Every || !all.contains(&PortClaim { port: PortNumber::Every, ..*claim }));
        let second = |(n, (_, mac, _)): (&u8, &(bool, u8, u8))| (*mac > 1).then(|| (Mac::new([2, 0, 0, 1, *mac, *n]), node(*n)));
        let speakers = nodes.iter().filter_map(second).collect();
        let nodes = nodes.into_iter().map(|(n, (attached, mac, segments))| {
            let mac = (mac > 0).then(|| Mac::new([2, 0, 0, 0, mac, n]));
            let reach = if attached { Reach::Attached } else { Reach::Detached };
            let path = DesiredPath { mac, ifindex: 2, vlan: None, mtu: 1500, reach };
            let by_segment = (1..=segments).map(|n| (n, DesiredPath { ifindex: 2 + u32::from(n), ..path })).collect();
            (node(n), DesiredNode { path, by_segment })
        }).collect();
        let unreachable = if to_kernel { Unreachable::Kernel } else { Unreachable::Refuse };
        Desired { local: node(0), nodes, speakers, handover_macs: Arc::default(), vips, services: services.into(), unreachable, hashing }
    }
}

fn course() -> impl Strategy<Value = Course> {
    prop_oneof![
        3 => Just(Course::Done),
        1 => (0..100usize).prop_map(Course::Fails),
        1 => (0..100usize).prop_map(Course::Dies),
    ]
}

/// Returns the same state with the endpoints on a host taking no new flows.
fn drained(desired: &Desired, drained: u8) -> Desired {
    let services = desired.services.iter().map(|(claim, service)| {
        let backends = service.backends.iter().map(|backend| DesiredBackend {
            readiness: match backend.readiness {
                Readiness::Ready if host(backend.address) == drained => Readiness::Draining,
                Readiness::ReadyThoughFailing if host(backend.address) == drained => Readiness::Failing,
                readiness => readiness,
            },
            ..backend.clone()
        });
        (*claim, DesiredService { backends: Arc::new(backends.collect()), ..service.clone() })
    });
    Desired { services: services.collect(), ..desired.clone() }
}

fn story() -> impl Strategy<Value = Vec<Episode>> {
    let stories = collection::vec(set(), 1..6).prop_flat_map(|sets| {
        let pause = (0..2_500u64).prop_map(Duration::from_millis);
        let drain = option::of((1..=9u8, course()));
        let episodes = (desired(sets), course(), pause, drain).prop_map(|(desired, course, pause, drain)| {
            let next = drain.map(|(host, course)| Episode { desired: drained(&desired, host), course, pause });
            [Some(Episode { desired, course, pause }), next]
        });
        collection::vec(episodes, 1..6)
    });
    stories.prop_map(|story| story.into_iter().flatten().flatten().collect())
}

type Question = (PortClaim, u32, Table);

fn questions() -> impl Iterator<Item = Question> {
    let hashed = |claim| HASHES.into_iter().map(move |hash| (claim, hash));
    claims().flat_map(hashed).flat_map(|(claim, hash)| [Table::All, Table::Local].map(|table| (claim, hash, table)))
}

struct World {
    capacities: Capacities,
    kernel: SimulatedKernel,
    observed: Observed,
    now: Duration,
    /// Every flow that was ever recorded, and its answer.
    flows: BTreeMap<Flow, Answer>,
    /// Every node and epoch that a record of these flows may ever have got.
    vouched: BTreeSet<(Flow, (u32, u32))>,
}

impl World {
    fn new(capacities: Capacities) -> Self {
        let config = Config { hz: HZ, ..Config::default() };
        let observed = Observed::empty(capacities, config);
        let now = Duration::from_secs(1000);
        let (flows, vouched) = (BTreeMap::new(), BTreeSet::new());
        let mut kernel = SimulatedKernel::default();
        kernel.entries.config = config;
        Self { capacities, kernel, observed, now, flows, vouched }
    }

    /// Whether the kernel lacks the answer only because it is a draining endpoint. These are in a
    /// local table only if there is room.
    fn leaves_out(&self, desired: &Desired, claim: &PortClaim, answer: &Answer, expected: &Answer) -> bool {
        let (Answer::NoBackend(owner), Answer::To(other, target)) = (answer, expected) else { return false };
        let drains = |backend: &DesiredBackend| {
            let DesiredBackend { address, node, readiness, .. } = backend;
            !readiness.is_ready()
                && (*address, backend.port_number(), node) == (target.address, target.port, &target.node)
        };
        let service = service(desired, claim);
        owner == other && self.capacities != AMPLE && service.is_some_and(|it| it.backends.iter().any(drains))
    }

    fn answers(&self) -> Vec<Answer> {
        questions().map(|(claim, hash, table)| self.kernel.look_up(&claim, hash, table).0).collect()
    }

    fn settings(&self) -> Vec<Option<[ServiceSettings; 2]>> {
        claims().map(|claim| self.kernel.settings(&claim)).collect()
    }

    /// Checks that each of a claim's two settings is the old one or the new one. If a claim found
    /// no room, only the source ranges may be new.
    fn check_settings(&self, before: &[Option<[ServiceSettings; 2]>], desired: &Desired, plan: &Plan, step: &Step) {
        for (claim, before) in claims().zip(before) {
            let after = expected_settings(desired, &claim);
            let refused = refuses(plan, &claim);
            for (i, now) in self.kernel.settings(&claim).iter().flatten().enumerate() {
                let is = |settings: &Option<[ServiceSettings; 2]>| {
                    settings.as_ref().is_some_and(|settings| match (&settings[i], now) {
                        (ServiceSettings::State(a, .., a_from), ServiceSettings::State(b, .., b_from)) if refused => {
                            (a, a_from) == (b, b_from)
                        }
                        (settings, now) => settings == now,
                    })
                };
                assert!(
                    is(before) || is(&after),
                    "{claim}: {now:?} is neither {before:?} nor {after:?} after {step:?}"
                );
            }
        }
    }

    fn live(&mut self, episode: &Episode) {
        self.now += episode.pause;
        self.observed.forget_rested(self.now);
        let plan = plan(&episode.desired, &self.observed, self.now).unwrap();
        self.check_the_long_way(&episode.desired, &plan);
        let executed = match episode.course {
            Course::Done => plan.steps.len(),
            Course::Fails(percent) | Course::Dies(percent) => plan.steps.len() * percent / 100,
        };
        self.execute(&plan, executed, &episode.desired);
        match episode.course {
            Course::Done if plan.refused.is_empty() => self.observed.mark_reached(&episode.desired, &plan),
            Course::Done | Course::Fails(_) => {}
            Course::Dies(_) => self.restart(),
        }
        if executed == plan.steps.len() {
            self.check_arrival(&episode.desired, &plan);
        }
    }

    /// Checks that a plan is the same with and without the reached state. There is one exception:
    /// draining endpoints may have got an index since, or room for a spare table. The short plan need not
    /// know, since their flows cannot be those of that index, and a Service can be without a spare table.
    fn check_the_long_way(&self, desired: &Desired, plan: &Plan) {
        if self.observed.reached.is_complete() {
            let mut without_reached = self.observed.clone();
            without_reached.reached = ReachedState::default();
            let long = super::plan(desired, &without_reached, self.now).unwrap();
            let missing: Vec<_> = long.steps.iter().filter(|step| !plan.steps.contains(step)).collect();
            let excess: Vec<_> = plan.steps.iter().filter(|step| !long.steps.contains(step)).collect();
            assert!(*plan == long, "the short way lacks {missing:?} and has {excess:?}");
        }
    }

    fn restart(&mut self) {
        self.observed = Observed::from_entries(self.capacities, self.kernel.entries());
        self.kernel.forget_packets_in_flight();
    }

    fn execute(&mut self, plan: &Plan, count: usize, desired: &Desired) {
        let before = self.answers();
        let settings = self.settings();
        let after: Vec<_> = questions().map(|(claim, hash, table)| expected(desired, &claim, hash, table)).collect();
        for step in &plan.steps[..count] {
            self.now += Duration::from_millis(1);
            let lasting = self.flows.keys().filter(|flow| !step.is_removal() && self.kernel.follow(flow).is_some());
            let lasting: Vec<_> = lasting.copied().collect();
            self.kernel.apply(step, &self.capacities, self.now);
            self.observed.record(step, self.now);
            let lasts = lasting.iter().all(|flow| self.kernel.follow(flow).is_some());
            assert!(lasts, "records are invalid after what is no removal: {step:?}");
            for (i, (claim, hash, table)) in questions().enumerate() {
                let (answer, flow) = self.kernel.look_up(&claim, hash, table);
                let withdrawn = refuses(plan, &claim) && answer == Answer::NoService;
                let left_out = self.leaves_out(desired, &claim, &answer, &after[i]);
                let right = withdrawn || left_out || answer == before[i] || answer == after[i];
                assert!(right, "{claim}: {answer:?} is neither {:?} nor {:?} after {step:?}", before[i], after[i]);
                if let Some(flow) = flow {
                    let first = self.flows.entry(flow).or_insert_with(|| answer.clone());
                    assert_eq!(*first, answer, "a record has two meanings after {step:?}");
                }
            }
            self.check_settings(&settings, desired, plan, step);
            for (flow, answer) in &self.flows {
                let now = self.kernel.follow(flow);
                assert!(now.as_ref().is_none_or(|now| now == answer), "a flow went astray after {step:?}");
                self.vouched.extend(self.kernel.vouch(flow).map(|vouched| (*flow, vouched)));
            }
            self.vouched.iter().for_each(|(flow, vouched)| self.kernel.check_vouched(flow, *vouched));
        }
    }

    fn check_flags(&self, desired: &Desired) {
        let ready = self.kernel.flagged(abi::BACKEND_READY);
        let failing = expected_like(desired, &self.kernel, Readiness::is_failing);
        let stopping = expected_like(desired, &self.kernel, Readiness::is_stopping);
        let stopping = stopping.difference(&ready).cloned().collect();
        for (flag, expected) in [(abi::BACKEND_FAILING, failing), (abi::BACKEND_STOPPING, stopping)] {
            let found = self.kernel.flagged(flag);
            // For draining endpoints, see below.
            let right =
                if self.observed.reached.is_complete() { found == expected } else { found.is_subset(&expected) };
            assert!(right, "{found:?} are marked with {flag}, not {expected:?}");
        }
    }

    fn check_arrival(&self, desired: &Desired, plan: &Plan) {
        for (claim, hash, table) in questions().filter(|(claim, ..)| !refuses(plan, claim)) {
            let answer = self.kernel.look_up(&claim, hash, table).0;
            let expected = expected(desired, &claim, hash, table);
            let right = answer == expected || self.leaves_out(desired, &claim, &answer, &expected);
            assert!(right, "{claim}: {answer:?}, not {expected:?}");
        }
        for claim in claims().filter(|claim| !refuses(plan, claim)) {
            assert_eq!(self.kernel.settings(&claim), expected_settings(desired, &claim), "{claim}");
        }
        if plan.refused.is_empty() {
            self.check_flags(desired);
            // Sets that nothing refers to may have rested by then, or not.
            let work = |step: &Step| !matches!(step, Step::SourceRange(_, false));
            let at = |observed, now| super::plan(desired, observed, now).unwrap().steps.into_iter().find(work);
            assert_eq!(at(&self.observed, self.now), None, "a second plan has something to do");
            let restarted = Observed::from_entries(self.capacities, self.kernel.entries());
            // It does not know which places rest. There may be room in them for what this agent left out. For
            // draining endpoints, see above.
            let rested = self.now + super::REST;
            let mut without_reached = self.observed.clone();
            without_reached.reached = ReachedState::default();
            let is_all = self.capacities == AMPLE && self.observed.reached.is_complete();
            let left_out = at(&without_reached, rested).filter(|_| !is_all);
            assert_eq!(at(&restarted, rested), left_out, "a restarted agent has something else to do");
        }
    }
}

fn refuses(plan: &Plan, claim: &PortClaim) -> bool {
    plan.refused.iter().any(|refusal| match &refusal.subject {
        Subject::Claim(refused) => [*claim, PortClaim { port: PortNumber::Every, ..*claim }].contains(refused),
        Subject::Vip(vip) => *vip == claim.vip,
        Subject::Node(_) => false,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn packets_see_the_old_state_or_the_new_one(story in story()) {
        let mut world = World::new(AMPLE);
        for episode in &story {
            world.live(episode);
        }
        let end = Episode { course: Course::Done, ..story[story.len() - 1].clone() };
        world.live(&end);
    }

    #[test]
    fn full_maps_disturb_nothing_that_is_served(
        story in story(),
        vips in 1..=2u32,
        services in 1..8u32,
        source_ranges in 0..4u32,
        tables in 0..4_000u32,
        backends in 1..24u32,
    ) {
        let mut world = World::new(Capacities { vips, services, tables, backends, source_ranges, ..AMPLE });
        for episode in &story {
            world.live(episode);
        }
        // After everything has rested, the refusals stay the same, and no more work is planned.
        let end = &story[story.len() - 1].desired;
        for _ in 0..4 {
            world.now += super::REST;
            let plan = plan(end, &world.observed, world.now).unwrap();
            world.execute(&plan, plan.steps.len(), end);
        }
        world.now += super::REST;
        prop_assert_eq!(plan(end, &world.observed, world.now).unwrap().steps, []);
    }
}
