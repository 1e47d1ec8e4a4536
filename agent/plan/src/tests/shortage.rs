//! Tests maps that have no room for everything.

use std::collections::BTreeSet;

use super::{Serve as _, VIP, World, backends, desired};
use crate::{Capacities, CapacityMap, CapacityRefusal, Plan, Shortage, Subject};
use vipmux_testing::names::{tcp_claim, vip};

#[test]
fn a_full_map_is_reported_and_served_claims_go_on() {
    let capacities = Capacities { tables: 600, ..Capacities::default() };
    let mut world = World::with_capacities(capacities);
    world.reach(&desired().serve(80, "web", &backends(&[(1, "b")])).serve(81, "web", &backends(&[(2, "b")])));
    let before = world.service(80);
    let larger = desired().serve(80, "web", &backends(&[(1, "b"), (3, "b")])).serve(81, "web", &backends(&[(2, "b")]));
    let plan = world.reach(&larger);
    let shortage = Shortage { map: CapacityMap::Tables, capacity: 600, free: 98, needed: 251 };
    let refused = vec![CapacityRefusal { subject: Subject::Claim(tcp_claim(vip(VIP), 80)), shortage }];
    assert_eq!(plan, Plan { refused, ..Plan::default() });
    assert_eq!(shortage.to_string(), "the map TABLES lacks room: 251 needed, 98 free of 600");
    assert_eq!(world.service(80), before);
}

#[test]
fn a_vip_of_which_nothing_found_room_is_not_served() {
    let other = vip("192.0.2.8");
    let mut world = World::with_capacities(Capacities { backends: 1, ..Capacities::default() });
    let mut wanted = desired().serve(80, "web", &backends(&[(1, "b")])).serve(81, "large", &backends(&[(2, "b")]));
    wanted.vips.insert(other, wanted.vips[&vip(VIP)]);
    let service = wanted.services[&tcp_claim(vip(VIP), 81)].clone();
    wanted.services.insert(tcp_claim(other, 81), service);
    let plan = world.reach(&wanted);
    assert_eq!(plan.refused.len(), 2);
    assert_eq!(world.observed.unserved(&wanted, &plan.refused), [other].into(), "the first one has a claim left");

    // What a served claim should become may find no room: it goes on.
    let larger = desired().serve(80, "web", &backends(&[(1, "b"), (2, "b")]));
    let plan = world.reach(&larger);
    assert_eq!((plan.refused.len(), world.observed.unserved(&larger, &plan.refused)), (1, BTreeSet::new()));

    let mut world = World::with_capacities(Capacities { vips: 0, ..Capacities::default() });
    let plan = world.reach(&wanted);
    assert_eq!(world.observed.unserved(&wanted, &plan.refused), [vip(VIP), other].into());
}

#[test]
fn served_claims_come_before_new_ones() {
    let mut world = World::with_capacities(Capacities { backends: 2, ..Capacities::default() });
    world.reach(&desired().serve(443, "web", &backends(&[(1, "b")])));
    let wanted = desired().serve(80, "new", &backends(&[(5, "b")])).serve(443, "web", &backends(&[(1, "b"), (2, "b")]));
    let plan = world.reach(&wanted);
    let subjects: Vec<_> = plan.refused.iter().map(|refusal| refusal.subject.clone()).collect();
    assert_eq!(subjects, [Subject::Claim(tcp_claim(vip(VIP), 80))]);
    assert!(world.backend(2).is_some());
}

#[test]
fn a_claim_that_finds_no_room_leaves_it_all_to_others() {
    let mut world = World::with_capacities(Capacities { tables: 300, backends: 13, ..Capacities::default() });
    let many: Vec<_> = (1..=13).map(|last| (last, "b")).collect();
    let plan = world.reach(&desired().serve(80, "large", &backends(&many)).serve(81, "small", &backends(&[(1, "b")])));
    let refused: Vec<_> = plan.refused.iter().map(|refusal| (&refusal.subject, refusal.shortage.map)).collect();
    assert_eq!(refused, [(&Subject::Claim(tcp_claim(vip(VIP), 80)), CapacityMap::Tables)]);
    assert_eq!(world.service(81).table_length, 251);
}
