//! Tests that each damage to the maps is found and repaired.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use vipmux_common::abi::{self, Mac};

use super::*;
use crate::{
    Capacities, MapEntries, Plan, REST,
    mirror::put,
    plan,
    tests::{Serve as _, backends, desired, treatment::sources},
};
use vipmux_model::{ServiceName, desired::Desired};

/// The maps, with any damage done to them.
#[derive(Clone, Debug, Default)]
struct Maps {
    entries: MapEntries,
    arena: BTreeMap<u32, u32>,
}

/// Returns the value of an array's element, if it is in use.
fn used<V: Default + PartialEq>(value: V) -> Option<V> {
    (value != V::default()).then_some(value)
}

impl Maps {
    fn apply(&mut self, step: Step) {
        let entries = &mut self.entries;
        match step {
            Step::Config(config) => entries.config = config,
            Step::NodeName(index, name) => put(&mut entries.node_names, index, name),
            Step::Node(index, node) => put(&mut entries.nodes, index, used(node)),
            Step::Peer(mac, index) => put(&mut entries.peers, mac, index),
            Step::Backend(index, backend) => put(&mut entries.backends, index, used(backend)),
            Step::Table(offset, table) => self.arena.extend((offset..).zip(table.iter().copied())),
            Step::ServiceName(index, name) => put(&mut entries.service_names, index, name),
            Step::ServiceState(index, state) => put(&mut entries.service_states, index, used(state)),
            Step::Service(key, value) => put(&mut entries.services, key, value),
            Step::Vip(address, value) => put(&mut entries.vips, address, value),
            Step::SourceRange(key, true) => drop(entries.source_ranges.insert(key)),
            Step::SourceRange(key, false) => drop(entries.source_ranges.remove(&key)),
        }
    }

    fn read(&self) -> MapEntries {
        let mut entries = self.entries.clone();
        let slots = |(offset, length)| (offset..offset + length).map(|slot| *self.arena.get(&slot).unwrap_or(&0));
        entries.tables = entries.table_ranges().into_iter().map(|range| (range, slots(range).collect())).collect();
        entries
    }
}

fn wanted() -> Desired {
    let pair = backends(&[(1, "a"), (2, "b"), (-3, "b")]);
    let desired = desired().serve(80, "web", &pair).serve(443, "secure", &pair);
    let ranges = ["192.0.2.0/24", "198.51.100.7/32"];
    desired
        .serve(8080, "admin", &backends(&[(1, "a"), (9, "a")]))
        .treat(8080, |treatment| treatment.sources = Some(sources(&ranges)))
}

fn execute(plan: Plan, maps: &mut Maps, observed: &mut Observed, now: Duration) {
    assert_eq!(plan.refused, []);
    for step in plan.steps {
        observed.record(&step, now);
        maps.apply(step);
    }
}

fn in_sync() -> (Maps, Observed, Duration) {
    let now = Duration::from_secs(1000);
    let (mut maps, mut observed) = (Maps::default(), Observed::empty(Capacities::default(), abi::Config::default()));
    let first = plan(&wanted(), &observed, now).unwrap();
    execute(first.clone(), &mut maps, &mut observed, now);
    observed.mark_reached(&wanted(), &first);
    (maps, observed, now + 2 * REST)
}

/// Damage to the maps that the agent does not know of.
type Harm = (&'static str, Arc<dyn Fn(&mut Maps)>);

/// Returns each way to damage each entry of a map: remove it, change it, or add one that nothing
/// wants.
fn harms_of<K: Ord + Copy + 'static, V: Clone + 'static>(
    name: &'static str,
    map: impl Fn(&mut MapEntries) -> &mut BTreeMap<K, V> + Clone + 'static,
    unused: K,
    change: impl Fn(&mut V) + Clone + 'static,
) -> Vec<Harm> {
    let (mut maps, ..) = in_sync();
    let keys: Vec<K> = map(&mut maps.entries).keys().copied().collect();
    assert!(!keys.is_empty(), "{name}");
    let mut harms: Vec<Harm> = Vec::new();
    for key in keys {
        let (taken, changed, copied) = (map.clone(), map.clone(), map.clone());
        let change = change.clone();
        harms.push((name, Arc::new(move |maps| drop(taken(&mut maps.entries).remove(&key)))));
        harms
            .push((name, Arc::new(move |maps| changed(&mut maps.entries).get_mut(&key).into_iter().for_each(&change))));
        harms.push((
            name,
            Arc::new(move |maps| {
                let map = copied(&mut maps.entries);
                let value = map[&key].clone();
                map.insert(unused, value);
            }),
        ));
    }
    harms
}

fn harms() -> Vec<Harm> {
    let address: abi::Address = std::net::Ipv4Addr::new(192, 0, 2, 99).into();
    let key = abi::ServiceKey { vip: 1, port: 7, protocol: 6, padding: 0 };
    let mut harms = Vec::new();
    harms.extend(harms_of("VIPS", |e| &mut e.vips, address, |vip| vip.interfaces = 8));
    harms.extend(harms_of("SERVICES", |e| &mut e.services, key, |service| service.table_length = 7));
    harms.extend(harms_of("SERVICE_STATES", |e| &mut e.service_states, 50, |state| state.generation += 1));
    harms.extend(harms_of(
        "SERVICE_NAMES",
        |e| &mut e.service_names,
        50,
        |name| *name = ServiceName::new(name.namespace(), format!("{}x", name.name())),
    ));
    harms.extend(harms_of("BACKENDS", |e| &mut e.backends, 50, |backend| backend.port = 9));
    harms.extend(harms_of("BACKENDS", |e| &mut e.backends, 50, |backend| backend.flags ^= abi::BACKEND_READY));
    harms.extend(harms_of("BACKENDS", |e| &mut e.backends, 50, |backend| backend.generation += 5));
    harms.extend(harms_of("NODES", |e| &mut e.nodes, 50, |node| node.mac = Mac::new([1; 6])));
    let path = abi::node_element(2 << abi::VIP_SEGMENT_SHIFT, 50);
    harms.extend(harms_of("NODES", |e| &mut e.nodes, path, |node| node.mac = Mac::new([1; 6])));
    harms.extend(harms_of("NODE_NAMES", |e| &mut e.node_names, 50, |name| name.push('x')));
    harms.extend(harms_of("PEERS", |e| &mut e.peers, Mac::new([3; 6]), |index| *index += 1));
    let first = |maps: &Maps| *maps.entries.source_ranges.first().unwrap();
    harms.push(("SOURCE_RANGES", Arc::new(move |maps| assert!(maps.entries.source_ranges.remove(&first(maps))))));
    harms.push((
        "SOURCE_RANGES",
        Arc::new(move |maps| {
            let (bits, range) = first(maps);
            maps.entries.source_ranges.insert((bits - 8, abi::Range { w3: 0, ..range }));
        }),
    ));
    harms.push(("TABLES", Arc::new(|maps| *maps.arena.get_mut(&3).unwrap() += 1)));
    harms
}

#[test]
fn maps_that_nobody_touched_show_no_difference() {
    let (maps, observed, _) = in_sync();
    assert_eq!(observed.differences(&maps.read()), []);
}

#[test]
fn any_damage_to_an_entry_is_found_and_repaired_by_the_next_plan() {
    for (map, harm) in harms() {
        let (mut maps, mut observed, now) = in_sync();
        harm(&mut maps);
        let differences = observed.differences(&maps.read());
        assert!(differences.iter().any(|difference| difference.map == map), "{map}: {differences:?}");
        for difference in &differences {
            if let Some(step) = observed.correct(difference, now) {
                observed.record(&step, now);
                maps.apply(step);
            }
        }
        // The check runs again after the freed places have rested.
        for now in [now, now + 2 * REST] {
            let plan = plan(&wanted(), &observed, now).unwrap();
            execute(plan.clone(), &mut maps, &mut observed, now);
            observed.mark_reached(&wanted(), &plan);
        }

        assert_eq!(observed.differences(&maps.read()), [], "{map}");
        let restarted = Observed::from_entries(Capacities::default(), maps.read());
        assert_eq!(plan(&wanted(), &restarted, now).unwrap(), Plan::default(), "{map}: a restart finds more to do");
        let services = maps.entries.services.len();
        assert_eq!((services, maps.entries.vips.len(), maps.entries.node_names.len()), (3, 1, 2), "{map}");
    }
}

#[test]
fn a_vip_that_a_program_yielded_is_no_difference() {
    let (mut maps, mut observed, _) = in_sync();
    let (address, vip) = maps.entries.vips.iter_mut().next().unwrap();
    vip.flags |= abi::VIP_ASSURED;
    observed.refresh_vip(*address, *vip);
    vip.flags = vip.flags & !(abi::VIP_LEADING | abi::VIP_ASSURED) | abi::VIP_YIELDED;
    assert_eq!(observed.differences(&maps.read()), []);
    maps.entries.vips.values_mut().next().unwrap().flags = 0;
    assert_eq!(observed.differences(&maps.read()).len(), 1, "a flag that nobody cleared by yielding");
}

#[test]
fn the_configuration_is_reported_and_left_to_be_written_again() {
    let (mut maps, mut observed, now) = in_sync();
    maps.entries.config.tcp_idle = 77;
    let differences = observed.differences(&maps.read());
    assert_eq!(differences.iter().map(|difference| difference.map).collect::<Vec<_>>(), ["CONFIG"]);
    let before = *observed.config();
    assert_eq!(observed.correct(&differences[0], now), Some(Step::Config(before)));
    assert_eq!(*observed.config(), before);
}
