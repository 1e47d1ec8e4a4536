//! Tests source ranges, affinity, idle times, every port, and the node's own stack.

use super::*;
use crate::{CapacityMap, CapacityRefusal, Shortage, Subject, simulation::Table};
use vipmux_model::{desired::Unreachable, prefix::Prefix};

pub(crate) fn sources(list: &[&str]) -> Arc<BTreeSet<Prefix>> {
    Arc::new(list.iter().map(|prefix| prefix.parse().unwrap()).collect())
}

impl World {
    fn state(&self, port: u16) -> abi::ServiceState {
        self.kernel.entries.service_states[&self.service(port).slot]
    }

    fn ranges(&self) -> usize {
        self.kernel.entries.source_ranges.len()
    }
}

#[test]
fn a_set_of_source_ranges_is_written_before_it_is_used_and_removed_after_it_has_rested() {
    let mut world = World::new();
    let set = backends(&[(1, "b")]);
    let with = |list: &[&str]| {
        let sources = sources(list);
        desired().serve(80, "web", &set).treat(80, |it| it.sources = Some(sources))
    };
    world.reach(&desired().serve(80, "web", &set));
    let plan = world.reach(&with(&["203.0.113.0/24", "198.51.100.0/24"]));
    assert_eq!(kinds(&plan), ["config", "source range", "source range", "service state"]);
    let first = world.state(80).ranges;
    assert!(first != 0 && !world.observed.has_leftovers());
    let plan = world.reach(&with(&["203.0.113.0/24"]));
    assert_eq!(kinds(&plan), ["config", "source range", "service state"]);
    assert!(world.state(80).ranges > first && world.observed.has_leftovers());
    assert_eq!(world.plan(&with(&["203.0.113.0/24"])).steps, []);
    world.now += REST;
    assert_eq!(kinds(&world.reach(&with(&["203.0.113.0/24"]))), ["-source range", "-source range"]);
    assert!(world.ranges() == 1 && !world.observed.has_leftovers());
    assert_eq!(kinds(&world.reach(&desired().serve(80, "web", &set))), ["service state"]);
    assert_eq!(world.state(80).ranges, 0);
}

#[test]
fn equal_lists_of_source_ranges_share_one_set_and_a_restarted_agent_finds_it() {
    let mut world = World::new();
    let set = backends(&[(1, "b")]);
    let two = |list: &[&str]| {
        let (a, b) = (sources(list), sources(list));
        let both = desired().serve(80, "web", &set).serve(81, "other", &set);
        both.treat(80, |it| it.sources = Some(a)).treat(81, |it| it.sources = Some(b))
    };
    world.reach(&two(&["203.0.113.0/24"]));
    assert_eq!((world.ranges(), world.state(80).ranges), (1, world.state(81).ranges));
    let third = |world: &mut World| {
        let sources = sources(&["203.0.113.0/24"]);
        world.reach(&two(&["203.0.113.0/24"]).serve(82, "third", &set).treat(82, |it| it.sources = Some(sources)))
    };
    world.restart();
    assert!(!kinds(&third(&mut world)).contains(&"source range"));
    let plan = world.reach(&two(&[]));
    assert!(!kinds(&plan).contains(&"source range"), "an empty list lets nobody in and has no entries");
    assert!(world.state(80).ranges != 0 && world.state(80).ranges == world.state(81).ranges);
    world.restart();
    assert_eq!(kinds(&world.plan(&two(&[]))), ["-source range"]);
}

#[test]
fn a_list_that_finds_no_room_never_leaves_its_claim_open() {
    let mut world = World::with_capacities(Capacities { source_ranges: 2, ..Capacities::default() });
    let set = backends(&[(1, "b")]);
    let with = |list: &[&str]| {
        let sources = sources(list);
        desired().serve(80, "web", &set).serve(81, "other", &set).treat(80, |it| it.sources = Some(sources))
    };
    let long = ["192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24"];
    world.reach(&desired().serve(80, "web", &set).serve(81, "other", &set));
    let plan = world.reach(&with(&long));
    let shortage = Shortage { map: CapacityMap::SourceRanges, capacity: 2, free: 2, needed: 3 };
    assert_eq!(plan.refused, [CapacityRefusal { subject: Subject::Claim(tcp_claim(vip(VIP), 80)), shortage }]);
    assert_eq!(world.kernel.entries.services.len(), 1, "the other is served as ever");
    world.now += REST;
    world.reach(&with(&["192.0.2.0/24"]));
    let before = world.state(80);
    assert_eq!(world.reach(&with(&long)).refused.len(), 1);
    assert_eq!(world.state(80), before, "one that was restricted stays so");
}

#[test]
fn a_claim_whose_endpoints_find_no_room_is_held_to_its_source_ranges_all_the_same() {
    let mut world = World::with_capacities(Capacities { tables: 600, ..Capacities::default() });
    let others = desired().serve(81, "web", &backends(&[(2, "b")]));
    world.reach(&others.clone().serve(80, "web", &backends(&[(1, "b")])));
    let before = world.service(80);
    let list = sources(&["192.0.2.0/24"]);
    let plan =
        world.reach(&others.serve(80, "web", &backends(&[(1, "b"), (3, "b")])).treat(80, |it| it.sources = Some(list)));
    assert_eq!((plan.refused.len(), kinds(&plan)), (1, vec!["config", "source range", "service state"]));
    assert_eq!(world.service(80), before);
}

#[test]
fn seconds_become_jiffies_and_a_change_of_them_is_one_write() {
    let mut world = World::new();
    let set = backends(&[(1, "b")]);
    world.reach(&desired().serve(80, "web", &set));
    let affine = desired().serve(80, "web", &set).treat(80, |it| it.affinity = Some(10_800));
    assert_eq!(kinds(&world.reach(&affine)), ["service"]);
    assert_eq!(world.service(80).affinity, 10_800 * HZ);
    let idle = affine.treat(80, |it| (it.idle, it.direct) = (Some(90), true));
    assert_eq!(kinds(&world.reach(&idle)), ["service state"]);
    assert_eq!((world.state(80).idle, world.state(80).flags), (90 * HZ, abi::SERVICE_DIRECT));
    world.restart();
    assert_eq!(world.plan(&idle), Plan::default());
}

#[test]
fn no_flow_goes_on_when_its_packets_come_to_be_left_to_the_stack_or_no_longer_are() {
    let mut world = World::new();
    let served = desired().serve(80, "web", &backends(&[(1, "b")]));
    world.reach(&served);
    let (_, flow) = world.kernel.look_up(&tcp_claim(vip(VIP), 80), 0, Table::All);
    let before = world.service(80);
    let left = served.clone().treat(80, |it| it.kernel = true);
    world.reach(&left);
    let after = world.service(80);
    assert_eq!((after.flags, after.table_length), (abi::SERVICE_KERNEL, 0));
    assert!(after.slot != before.slot && after.generation > before.generation);
    assert_eq!(world.kernel.follow(&flow.unwrap()), None);
    assert_eq!(world.backend(1), None, "nothing leads to its endpoints");
    world.restart();
    assert_eq!(world.plan(&left), Plan::default());
    world.reach(&served);
    assert!(world.service(80).generation > after.generation && world.service(80).flags == 0);
}

#[test]
fn endpoints_that_cannot_be_reached_are_refused_or_left_to_the_stack() {
    let lost = backends(&[(1, "elsewhere"), (2, "elsewhere"), (-3, "b")]);
    for (unreachable, flags) in [(Unreachable::Refuse, 0), (Unreachable::Kernel, abi::SERVICE_KERNEL)] {
        let mut world = World::new();
        let with = |set: &Arc<BTreeSet<DesiredBackend>>| Desired { unreachable, ..desired().serve(80, "web", set) };
        let plan = world.reach(&with(&lost));
        assert_eq!(plan.unreachable, [tcp_claim(vip(VIP), 80)]);
        assert_eq!((world.service(80).flags, world.service(80).table_length), (flags, 0));
        let plan = world.reach(&with(&backends(&[(1, "elsewhere"), (2, "b")])));
        assert_eq!((plan.unreachable, world.service(80).flags), (vec![], 0), "one of them will do");
        let plan = world.reach(&with(&backends(&[(-1, "elsewhere")])));
        assert_eq!((plan.unreachable, world.service(80).flags), (vec![], 0), "there is none for new flows");
    }
}

#[test]
fn a_port_stays_served_while_its_service_takes_all_ports_or_gives_them_up() {
    let set = backends(&[(1, "b")]);
    let (one, all) = (desired().serve(80, "web", &set), desired().serve(0, "web", &set));
    for leading in [true, false] {
        let with = |desired: &Desired| {
            let mut desired = desired.clone();
            desired.vips.get_mut(&vip(VIP)).unwrap().leading = leading;
            desired
        };
        let mut world = World::new();
        world.reach(&with(&one));
        let after = ["service name", "service state", "service", "vip", "-service", "-service state", "-service name"];
        assert_eq!(kinds(&world.reach(&with(&all)))[1..], after);
        assert!(world.kernel.entries.vips[&vip(VIP).address().into()].flags & abi::VIP_ALL_PORTS != 0);
        assert_eq!(kinds(&world.reach(&with(&one)))[1..], after);
        assert!(world.kernel.entries.vips[&vip(VIP).address().into()].flags & abi::VIP_ALL_PORTS == 0);
    }
}

#[test]
fn without_room_for_both_single_ports_go_before_all_come() {
    let set = backends(&[(1, "b")]);
    let mut world = World::with_capacities(Capacities { services: 2, ..Capacities::default() });
    world.reach(&desired().serve(80, "web", &set).serve(81, "web", &set));
    let second = world.service(81);
    // Otherwise each has a slot, and there is no slot for a third.
    world.restart_with(|entries| {
        entries.services.values_mut().for_each(|value| *value = second);
        entries.service_states.remove(&0);
        entries.service_names.remove(&0);
    });
    assert_eq!(world.reach(&desired().serve(0, "web", &set)).refused, []);
    assert_eq!(world.kernel.entries.services.len(), 1);
}

#[test]
fn leftovers_beside_a_claim_of_every_port_are_removed_after_it_is_written() {
    let set = backends(&[(1, "b")]);
    let mut world = World::new();
    world.reach(&desired().serve(0, "every", &set));
    // The agent dies as soon as the single port has its claim.
    let plan = world.plan(&desired().serve(80, "web", &set));
    let switch = plan.steps.iter().position(|step| matches!(step, Step::Service(..))).unwrap();
    for step in &plan.steps[..=switch] {
        world.kernel.apply(step, &world.capacities, world.now);
    }
    world.restart();
    let plan = world.reach(&desired().serve(443, "web", &set));
    let gone = |step: &Step| match step {
        Step::Service(key, None) => Some(u16::from_be(key.port)),
        _ => None,
    };
    let gone: Vec<_> = plan.steps.iter().filter_map(gone).collect();
    assert_eq!(gone, [0, 80], "of port 80 nobody but its owner gets anything");
}
