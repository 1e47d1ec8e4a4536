//! Tests changes of the hashing.

use vipmux_common::abi;

use super::{Serve as _, World, backends, desired, kinds};
use crate::{Capacities, Plan, REST};
use vipmux_model::{desired::Desired, hashing::Hashing};

#[test]
fn another_hashing_replaces_all_tables() {
    let set = backends(&[(1, "a"), (2, "b")]);
    let wanted = desired().serve(80, "web", &set).serve(81, "other", &backends(&[(3, "b")]));
    let mut world = World::new();
    world.reach(&wanted);
    let before = world.service(80);
    let wanted = Desired { hashing: Hashing::Second, ..wanted };
    assert_eq!(kinds(&world.reach(&wanted)), ["table", "table", "table", "service", "service"]);
    let service = world.service(80);
    assert_eq!((service.slot, service.generation), (before.slot, before.generation), "flows keep their records");
    for service in [service, world.service(81)] {
        assert_eq!((service.table_length, service.flags), (250, abi::SERVICE_HASHES_VIP));
    }
    assert_eq!(world.plan(&wanted), Plan::default());
    world.restart();
    assert_eq!(world.observed.hashing(), Some(Hashing::Second));
    assert_eq!(world.plan(&wanted), Plan::default());
}

#[test]
fn an_agent_of_the_first_hashing_replaces_the_tables_of_the_second() {
    let wanted = desired().serve(80, "web", &backends(&[(1, "a"), (2, "b")]));
    let mut world = World::new();
    world.reach(&wanted);
    let before = world.service(80);
    world.reach(&Desired { hashing: Hashing::Second, ..wanted.clone() });
    world.restart();
    world.reach(&wanted);
    let service = world.service(80);
    assert_eq!((service.table_length, service.flags, service.slot), (251, 0, before.slot));
    assert_eq!(world.observed.hashing(), Some(Hashing::First));
}

#[test]
fn without_room_for_two_hashings_tables_are_replaced_one_after_another() {
    let wanted = (1i16..=6)
        .fold(desired(), |wanted, last| wanted.serve(80 + last.cast_unsigned(), "web", &backends(&[(last, "b")])));
    let mut world = World::with_capacities(Capacities { tables: 7 * 251, ..Capacities::default() });
    world.reach(&wanted);
    let wanted = Desired { hashing: Hashing::Second, ..wanted };
    let mut rounds = 0;
    while !world.reach(&wanted).refused.is_empty() {
        rounds += 1;
        let second = (81..=86).filter(|port| world.service(*port).table_length == 250).count();
        assert!(second >= rounds, "{second} tables are replaced in round {rounds}");
        let is_atomic = |port| (world.service(port).table_length == 250) == (world.service(port).flags != 0);
        assert!((81..=86).all(is_atomic), "the hash changes with the table");
        world.now += REST;
        world.observed.forget_rested(world.now);
    }
    assert!(rounds > 1, "there was room for all at once");
    assert_eq!(world.plan(&wanted), Plan::default());
}
