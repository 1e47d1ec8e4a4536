//! Tests backends that take no new flows.

use std::{collections::BTreeSet, sync::Arc};

use vipmux_common::abi;

use super::{Serve as _, World, backends, desired, kinds};
use crate::Capacities;
use vipmux_model::desired::{Desired, DesiredBackend, Readiness};

#[test]
fn a_service_tells_which_backends_it_has_although_another_one_has_them() {
    let blue = backends(&[(1, "a"), (2, "b")]);
    let green = backends(&[(3, "b"), (-1, "a")]);
    let mut world = World::new();
    world.reach(&desired().serve(80, "web", &blue).serve(81, "blue", &blue));
    let before = world.observed.service_backends().clone();
    let record = |port, last| {
        let abi::ServiceValue { slot, generation, .. } = world.service(port);
        let backend = world.backend(last).unwrap().0;
        abi::FlowRecord { slot, slot_generation: generation, backend, ..abi::FlowRecord::default() }
    };
    let [draining, gone, other] = [record(80, 1), record(80, 2), record(81, 2)];
    assert!([draining, gone, other].iter().all(|record| !before.is_orphan(record)));
    world.reach(&desired().serve(80, "web", &green).serve(81, "blue", &blue));
    let after = world.observed.service_backends();
    let orphans = [draining, gone, other].map(|record| after.is_orphan(&record));
    assert_eq!(orphans, [false, true, false]);
    assert!(!after.is_orphan(&abi::FlowRecord { slot_generation: 9_999, ..gone }), "of another Service");
    assert!(after.lost_any_since(&before) && !after.lost_any_since(after));
}

#[test]
fn a_draining_backend_stays_but_is_in_no_table() {
    let mut world = World::new();
    world.reach(&desired().serve(80, "web", &backends(&[(1, "b"), (2, "b")])));
    let (index, before) = world.backend(2).unwrap();
    let plan = world.reach(&desired().serve(80, "web", &backends(&[(1, "b"), (-2, "b")])));
    let order = ["config", "node", "table", "service", "backend", "node"];
    assert_eq!(kinds(&plan), order, "it takes new flows until no table leads to it");
    assert_eq!(world.backend(2), Some((index, abi::Backend { flags: 0, ..before })));
    let tables = world.kernel.entries().tables;
    assert!(tables.values().flatten().all(|member| *member != index));
}

fn web(endpoints: &[(i16, &str)]) -> Desired {
    desired().serve(80, "web", &backends(endpoints))
}

/// Returns the desired state with each endpoint changed.
fn changed(endpoints: &[(i16, &str)], change: impl Fn(&mut DesiredBackend)) -> Desired {
    let mut all: Vec<_> = backends(endpoints).iter().cloned().collect();
    all.iter_mut().for_each(change);
    desired().serve(80, "web", &Arc::new(all.into_iter().collect()))
}

impl World {
    /// Returns the last bytes of the local table's backends, and whether they take new flows.
    fn local(&self) -> BTreeSet<(u8, bool)> {
        let abi::ServiceValue { local_table, local_length, .. } = self.service(80);
        let members: BTreeSet<u32> =
            self.kernel.entries().tables.get(&(local_table, local_length)).into_iter().flatten().copied().collect();
        let backend = |last| self.backend(last).filter(|(index, _)| members.contains(index));
        let seen = |last| backend(last).map(|(_, backend)| (last, backend.flags & abi::BACKEND_READY != 0));
        (1..=9).filter_map(seen).collect()
    }

    fn is_spare(&self) -> bool {
        self.service(80).flags == abi::SERVICE_SPARE
    }
}

#[test]
fn if_none_here_is_ready_the_local_table_has_those_that_drain() {
    let mut world = World::new();
    world.reach(&web(&[(1, "a"), (2, "a"), (3, "b")]));
    assert_eq!(world.local(), [(1, true), (2, true)].into());
    world.reach(&web(&[(-1, "a"), (2, "a"), (3, "b")]));
    assert_eq!(world.local(), [(2, true)].into());
    world.reach(&web(&[(-1, "a"), (-2, "a"), (3, "b")]));
    assert_eq!((world.local(), world.is_spare()), ([(1, false), (2, false)].into(), true));
    // An agent that starts assigns indices to them.
    let mut other = World::new();
    other.reach(&web(&[(-1, "a"), (-2, "a"), (3, "b")]));
    assert_eq!(other.local(), world.local());
    world.reach(&web(&[(-2, "a"), (3, "b"), (4, "a")]));
    assert_eq!((world.local(), world.is_spare()), ([(4, true)].into(), false));
}

/// Returns a change of the endpoints that drain.
fn changed_to(readiness: Readiness) -> impl Fn(&mut DesiredBackend) {
    move |backend| {
        if backend.readiness == Readiness::Draining {
            backend.readiness = readiness;
        }
    }
}

/// The node that balances may know sooner that the first one here is ready.
#[test]
fn if_none_here_is_or_was_ready_the_local_table_has_those_that_are_not_ready_yet() {
    let not_yet = |endpoints: &[(i16, &str)]| changed(endpoints, changed_to(Readiness::NotReady));
    let mut world = World::new();
    world.reach(&not_yet(&[(-1, "a"), (3, "b")]));
    assert_eq!((world.local(), world.is_spare()), ([(1, false)].into(), true));
    world.reach(&web(&[(1, "a"), (3, "b")]));
    assert_eq!((world.local(), world.is_spare()), ([(1, true)].into(), false));
    world.reach(&not_yet(&[(-1, "a"), (2, "a"), (3, "b")]));
    assert_eq!((world.local(), world.is_spare()), ([(2, true)].into(), false));
    // One that drains still serves.
    let first_drains = |backend: &mut DesiredBackend| {
        let is_first = backend.address == backends(&[(1, "a")]).first().unwrap().address;
        backend.readiness = match backend.readiness {
            Readiness::Draining if !is_first => Readiness::NotReady,
            readiness => readiness,
        };
    };
    world.reach(&changed(&[(-1, "a"), (-2, "a"), (3, "b")], first_drains));
    assert_eq!((world.local(), world.is_spare()), ([(1, false)].into(), true));
}

#[test]
fn those_that_drain_and_do_not_serve_or_fail_are_in_no_table() {
    let endpoints = [(-1, "a"), (3, "b")];
    for change in [Readiness::Stopping, Readiness::Failing].map(changed_to) {
        let mut world = World::new();
        world.reach(&web(&[(1, "a"), (3, "b")]));
        world.reach(&changed(&endpoints, change));
        assert_eq!((world.local(), world.is_spare()), (BTreeSet::new(), false));
        assert!(world.backend(1).is_some(), "it keeps its flows");
    }
}

#[test]
fn one_that_drains_for_one_service_takes_new_flows_for_another() {
    let mut world = World::new();
    let drains = web(&[(-1, "a"), (3, "b")]);
    world.reach(&drains.clone().serve(81, "other", &backends(&[(1, "a")])));
    assert_eq!((world.local(), world.is_spare()), ([(1, true)].into(), true));
    world.reach(&drains);
    assert_eq!(world.local(), [(1, false)].into());
}

#[test]
fn without_room_for_those_that_drain_the_others_are_served() {
    // Room for one of two tables, or for one of two backends.
    for capacities in
        [Capacities { tables: 251, ..Capacities::default() }, Capacities { backends: 1, ..Capacities::default() }]
    {
        let mut world = World::with_capacities(capacities);
        assert_eq!(world.reach(&web(&[(-1, "a"), (3, "b")])).refused, []);
        assert_eq!((world.local(), world.is_spare()), (BTreeSet::new(), false));
        assert!(!world.observed.reached.is_complete(), "there may be room later");
        let (index, _) = world.backend(3).unwrap();
        assert!(world.kernel.entries().tables.values().flatten().all(|member| *member == index));
    }
}
