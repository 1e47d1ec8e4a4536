//! Tests reads and writes of the maps.

use std::{
    collections::BTreeSet,
    error::Error as _,
    os::fd::{AsFd as _, AsRawFd as _},
};

use aya::{
    maps::{PerCpuValues, lpm_trie::Key},
    util::nr_cpus,
};
use vipmux_common::{
    abi::{AffinityKey, AffinityValue, BACKEND_LOCAL, FLOW_HALF_OPEN, FLOW_NEW, FLOW_RESET, FlowRecord, capacity},
    backend_nodes,
};

use super::*;
use crate::bpf::flow_table::FlowState;
use crate::fixture::{self, Fixture};
use vipmux_model::{ServiceName, hashing::Hashing};
use vipmux_plan::Step;

#[test]
fn every_declared_map_is_opened_and_every_pin_is_a_declared_map() {
    let Some(fixture) = Fixture::new() else { return };
    let pinned: BTreeSet<_> = std::fs::read_dir(fixture.pins.maps())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let named = |names: &[&str]| names.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
    let kept = named(&[Maps::NAMES, Maps::CALLING].concat());
    assert_eq!(pinned, kept);
    // Maps without meaning between packets, between an agent's moves of programs, and without an
    // agent, are not pinned.
    let kept: BTreeSet<_> = kept.iter().map(|name| name_in_object(name).to_owned()).collect();
    assert_eq!(aya_names(), &kept | &named(&["WORKSPACE", "CLASSIFIERS", "TRACED"]));
}

/// Returns the names of the maps that the object declares.
fn aya_names() -> BTreeSet<String> {
    let ebpf = EbpfLoader::new().load(crate::bpf::OBJECT).unwrap();
    ebpf.maps().map(|(name, _)| name.to_owned()).collect()
}

#[test]
fn a_node_without_vipmux_is_reported_as_such() {
    let folder = tempfile::tempdir().unwrap();
    let error = Maps::open(folder.path()).err().unwrap();
    assert_eq!(
        error.to_string(),
        format!("vipmux is not loaded on this node (no maps under {}/maps)", folder.path().display())
    );
}

#[test]
fn maps_of_another_abi_version_are_refused_with_both_versions() {
    let Some(mut fixture) = Fixture::new() else { return };
    fixture.maps.config.set(0, Config { abi: 77, ..Config::default() }, 0).unwrap();
    let error = Maps::open(fixture.pins.root()).err().unwrap();
    assert!(matches!(error, MapsError::Abi { found: 77, .. }), "{error}");
    assert!(error.to_string().contains(&format!("version 77, this vipmux has {ABI_VERSION}")), "{error}");
}

#[test]
fn a_missing_map_is_named() {
    let Some(fixture) = Fixture::new() else { return };
    let path = fixture.pins.map("NODES");
    std::fs::remove_file(&path).unwrap();
    let error = Maps::open(fixture.pins.root()).err().unwrap();
    assert_eq!(error.to_string(), format!("cannot open the map {}", path.display()));
    assert!(error.source().is_some());
}

#[test]
fn arrays_are_read_and_written_across_batches() {
    let Some(mut fixture) = Fixture::new() else { return };
    let maps = &mut fixture.maps;
    let table: Vec<u32> = (0..10_000).map(|i| i * 3).collect();
    maps.write_table(5_000, &table).unwrap();
    assert_eq!(maps.read_table(5_000, 10_000).unwrap(), table);
    assert_eq!(maps.read_table(4_999, 2).unwrap(), [0, 0]);
    assert_eq!(maps.read_table(5_001, 1).unwrap(), [3]);
    assert_eq!(maps.read_table(16_383, 2).unwrap(), [0], "the array ends");
    for beyond in [16_384, 16_386, u32::MAX] {
        assert!(maps.read_table(beyond, 251).unwrap().is_empty(), "{beyond}");
    }
    assert!(maps.read_table(0, 0).unwrap().is_empty());
    assert!(maps.write_table(16_383, &[1, 2]).is_err());

    for index in [0, 4_095, 4_096, 9_999] {
        maps.backends.set(index, Backend { generation: index + 1, ..Backend::default() }, 0).unwrap();
    }
    let found: Vec<u32> = maps.read_backends().unwrap().into_keys().collect();
    assert_eq!(found, [0, 4_095, 4_096, 9_999]);
}

#[test]
fn hash_maps_are_read_across_batches() {
    let Some(mut fixture) = Fixture::new() else { return };
    let maps = &mut fixture.maps;
    assert_eq!(batch::entries(&*maps.affinity).unwrap(), []);
    for slot in 0..10_000 {
        let value = AffinityValue { tag: slot, ..AffinityValue::default() };
        maps.affinity.insert(AffinityKey { slot, ..AffinityKey::default() }, value, 0).unwrap();
    }
    let entries = batch::entries(&*maps.affinity).unwrap();
    let slots: BTreeSet<_> = entries.iter().map(|(key, _)| key.slot).collect();
    assert_eq!((entries.len(), slots.len()), (10_000, 10_000));
    assert!(entries.iter().all(|(key, value)| key.slot == value.tag));
}

#[test]
fn source_ranges_are_read_again_as_they_were_written() {
    let Some(mut fixture) = Fixture::new() else { return };
    let maps = &mut fixture.maps;
    let Address { w0, w1, w2, w3 } = Address::v4(u32::from_ne_bytes([192, 0, 2, 0]));
    let keys: BTreeSet<_> = (1..=3).map(|set| (32 + 96 + 24, Range { set, w0, w1, w2, w3 })).collect();
    for key in &keys {
        maps.apply(&Step::SourceRange(*key, true)).unwrap();
    }
    assert_eq!(maps.read_source_ranges().unwrap(), keys);
    let client = |set, last| Key::new(160, Range { set, w3: u32::from_ne_bytes([192, 0, last, 7]), w0, w1, w2 });
    assert!(maps.source_ranges.get(&client(2, 2), 0).is_ok(), "as a program asks");
    assert!(maps.source_ranges.get(&client(2, 3), 0).is_err() && maps.source_ranges.get(&client(4, 2), 0).is_err());
    for key in &keys {
        maps.apply(&Step::SourceRange(*key, false)).unwrap();
        maps.apply(&Step::SourceRange(*key, false)).unwrap();
    }
    assert!(maps.read_source_ranges().unwrap().is_empty(), "removing one that is gone is no error");
}

#[test]
fn counts_are_summed_over_the_cpus() {
    let Some(mut fixture) = Fixture::new() else { return };
    let cpus = nr_cpus().unwrap() as u64;
    let counts: Vec<_> = (1..=cpus).map(|i| Count { packets: i, bytes: 100 * i, flows: 0 }).collect();
    let counts = PerCpuValues::try_from(counts).unwrap();
    fixture.maps.drops.set(DropReason::NoService as u32, counts, 0).unwrap();
    let total = cpus * (cpus + 1) / 2;
    for (reason, count) in fixture.maps.read_drops().unwrap() {
        let packets = if reason == DropReason::NoService { total } else { 0 };
        assert_eq!((count.packets, count.bytes), (packets, 100 * packets), "{}", reason.name());
    }
}

#[test]
fn a_slot_counts_from_zero_for_its_next_owner() {
    let Some(mut fixture) = Fixture::new() else { return };
    let maps = &mut fixture.maps;
    let count = Count { packets: 3, bytes: 200, flows: 1 };
    let named = |slot, name: Option<&str>| Step::ServiceName(slot, name.map(|name| ServiceName::new("default", name)));
    for slot in [4, 5] {
        let counts = PerCpuValues::try_from(vec![count; nr_cpus().unwrap()]).unwrap();
        maps.service_stats.set(slot, counts, 0).unwrap();
    }
    let packets =
        |maps: &Maps| maps.read_service_stats(6).unwrap().iter().map(|count| count.packets).collect::<Vec<_>>();
    let before = packets(maps);
    maps.apply(&named(4, None)).unwrap();
    maps.apply(&named(4, Some("shop"))).unwrap();
    assert_eq!(packets(maps), [&[0; 5][..], &before[5..]].concat());
}

#[test]
fn a_user_without_rights_gets_a_message_that_names_them() {
    let Some(fixture) = Fixture::new() else { return };
    let nobody = 65_534;
    // SAFETY: plain integers. The bare system call changes this thread alone, and the test's thread
    // ends with it.
    assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, nobody, nobody, nobody) }, 0);
    let error = Maps::open(fixture.pins.root()).err().unwrap();
    assert!(matches!(error, MapsError::NoPermission { .. }), "{error}");
    assert!(error.to_string().starts_with("no permission to open /sys/fs/bpf/vipmux/maps"), "{error}");
}

/// Returns the bytes of kernel memory of each map at the object's size.
fn memory(pins: &Pins) -> BTreeMap<&'static str, u64> {
    std::fs::create_dir_all(pins.maps()).unwrap();
    let mut loader = EbpfLoader::new();
    use_pins(&mut loader, &pins.maps(), &[]);
    let _ebpf = loader.load(crate::bpf::OBJECT).unwrap();
    let bytes = |name: &&'static str| {
        let map = open(&pins.map(name)).unwrap();
        let info = format!("/proc/self/fdinfo/{}", map.fd().as_fd().as_raw_fd());
        let info = std::fs::read_to_string(info).unwrap();
        let line = info.lines().find_map(|line| line.strip_prefix("memlock:")).unwrap();
        (*name, line.trim().parse().unwrap())
    };
    Maps::NAMES.iter().map(bytes).collect()
}

#[test]
fn ten_thousand_services_of_ten_endpoints_take_64_mib_beside_the_flow_table_on_16_cpus() {
    const SERVICES: u32 = 10_000;
    let Some(pins) = fixture::mounted() else { return };
    let mut memory = memory(&pins);
    memory.remove("FLOWS").unwrap();
    let cpus = nr_cpus().unwrap() as u64;
    for per_cpu in ["SERVICE_STATS", "STATS", "DROPS"] {
        *memory.get_mut(per_cpu).unwrap() *= 16;
        *memory.get_mut(per_cpu).unwrap() /= cpus;
    }
    let total: u64 = memory.values().sum();
    assert!(total <= 64 << 20, "{total} bytes: {memory:?}");
    const { assert!(capacity::SERVICES >= SERVICES && capacity::BACKENDS >= SERVICES * 10) };
    // Each with a table over all and one over local endpoints, and some of them anew before the old
    // ones have rested.
    assert!(capacity::TABLES >= SERVICES * 2 * Hashing::First.length(10) / 5 * 6);
}

#[test]
fn a_table_is_written_beside_others_and_read_as_it_was_written() {
    let Some(mut fixture) = Fixture::new() else { return };
    let maps = &mut fixture.maps;
    let tables = [(0, 251), (251, 251), (502, 1), (503, 0), (503, 2), (505, 1021)];
    let contents = |first: u32, length: u32| (first..first + length).map(|slot| slot + 7).collect::<Vec<_>>();
    // The even ones first, then those in between.
    for (first, length) in tables.iter().step_by(2).chain(tables.iter().skip(1).step_by(2)) {
        maps.write_table(*first, &contents(*first, *length)).unwrap();
    }
    for (first, length) in tables {
        assert_eq!(maps.read_table(first, length).unwrap(), contents(first, length));
    }
    assert_eq!(maps.read_table(1526, 1).unwrap(), [0]);
}

/// Returns the bits of `LOCAL_PORTS` that these backends need.
fn bits(backends: &[Backend]) -> BTreeMap<u32, u64> {
    let elements = (0..).zip(backend_indices::local_ports(backends));
    elements.filter(|(_, bits)| *bits != 0).collect()
}

#[test]
fn a_local_backend_that_goes_stays_known_to_replies_until_its_index_has_another() {
    let Some(mut fixture) = Fixture::new() else { return };
    let maps = &mut fixture.maps;
    let backend = |host, flags, generation| Backend {
        address: Address::v4(host),
        port: 80,
        flags,
        generation,
        ..Backend::default()
    };
    let [local, other] = [backend(1, BACKEND_LOCAL, 5), backend(2, BACKEND_LOCAL, 7)];
    let remote = backend(3, 0, 6);
    for (index, backend) in [(0, local), (1, remote), (0, local)] {
        maps.apply(&Step::Backend(index, backend)).unwrap();
    }
    assert_eq!(maps.local_ports.read().unwrap(), bits(&[local]));

    for index in [0, 1] {
        maps.apply(&Step::Backend(index, Backend::default())).unwrap();
    }
    assert!(maps.read_backends().unwrap().is_empty(), "both indices are free");
    let gone = Backend { flags: BACKEND_LOCAL | BACKEND_GONE, ..local };
    assert_eq!(maps.backends.elements(0, 2).unwrap(), [gone, Backend::default()]);
    assert_eq!(maps.local_ports.read().unwrap(), bits(&[local]));
    maps.rebuild_backend_indices().unwrap();
    assert_eq!(maps.local_ports.read().unwrap(), bits(&[local]), "after a restart too");

    maps.apply(&Step::Backend(0, other)).unwrap();
    assert_eq!(maps.local_ports.read().unwrap(), bits(&[other]));
    assert_eq!(maps.written_local_ports(), bits(&[other]));
}

#[test]
fn the_nodes_of_backends_follow_them() {
    let Some(mut fixture) = Fixture::new() else { return };
    let maps = &mut fixture.maps;
    let backend = |node, flags| Backend { node, flags, generation: 5, ..Backend::default() };
    let nodes = |maps: &Maps, indices: [u32; 4]| {
        let elements = maps.read_backend_nodes(maps.backends.len()).unwrap();
        assert_eq!(elements, maps.written_backend_nodes(maps.backends.len()));
        let element = |index| elements.get(&backend_nodes::element(index)).copied().unwrap_or_default();
        indices.map(|index| backend_nodes::get(element(index), index))
    };
    for (index, backend) in [(0, backend(3, 0)), (1, backend(0, BACKEND_LOCAL)), (2, backend(0, 0)), (9, backend(8, 0))]
    {
        maps.apply(&Step::Backend(index, backend)).unwrap();
    }
    assert_eq!(nodes(maps, [0, 1, 2, 9]), [Some(3), None, Some(0), Some(8)]);
    for index in [0, 1, 9] {
        maps.apply(&Step::Backend(index, Backend::default())).unwrap();
    }
    assert_eq!(nodes(maps, [0, 1, 2, 9]), [None, None, Some(0), None], "the one that is left stays");
    maps.backend_nodes.write(0, 77).unwrap();
    maps.rebuild_backend_indices().unwrap();
    assert_eq!(nodes(maps, [0, 1, 2, 9]), [None, None, Some(0), None], "made again");
}

#[test]
fn a_service_port_that_goes_stays_known_to_replies_until_its_slot_has_another() {
    let Some(mut fixture) = Fixture::new() else { return };
    let maps = &mut fixture.maps;
    let state = ServiceState { generation: 5, idle: 9, vip: Address::v4(1), ..ServiceState::default() };
    for slot in [2, 3] {
        maps.apply(&Step::ServiceState(slot, ServiceState::default())).unwrap();
    }
    maps.apply(&Step::ServiceState(2, state)).unwrap();
    maps.apply(&Step::ServiceState(2, ServiceState::default())).unwrap();
    assert!(maps.read_service_states().unwrap().is_empty());
    let read = |maps: &Maps, slot| maps.service_states.get(&slot, 0).unwrap();
    assert_eq!(read(maps, 2), ServiceState { flags: SERVICE_GONE, ..state });
    assert_eq!(read(maps, 3), ServiceState::default(), "there was none");
    let next = ServiceState { generation: 8, vip: Address::v4(2), ..ServiceState::default() };
    maps.apply(&Step::ServiceState(2, next)).unwrap();
    assert_eq!(maps.read_service_states().unwrap(), BTreeMap::from([(2, next)]));
}

/// Every record is found again, and their states add up.
#[test]
fn flows_are_added_found_and_counted() {
    let Some(fixture) = Fixture::new() else { return };
    let table = fixture.maps.writable_flow_table().unwrap();
    let flow = |port: u16, flags: u32| FlowRecord {
        vip: 1,
        client_port: port,
        client: Address::v4(7),
        protocol: 6,
        seen: 100,
        flags: u8::try_from(flags).unwrap(),
        ..FlowRecord::default()
    };
    let kinds = [0, FLOW_NEW, FLOW_NEW | FLOW_HALF_OPEN, FLOW_RESET];
    let flows: Vec<_> = (0..4_000).map(|port| flow(port, kinds[usize::from(port) % 4])).collect();
    assert!(flows.iter().all(|flow| table.add(*flow)), "a quarter of the table");
    let same = |flow: &FlowRecord, found: FlowRecord| FlowRecord { check: 0, of_set: 0, ..found } == *flow;
    assert!(flows.iter().all(|flow| table.find(&flow.key()).is_some_and(|found| same(flow, found))));
    assert_eq!(table.find(&flow(5_000, 0).key()), None);
    assert!(table.occupancy().values().all(|count| *count == 1_000), "{:?}", table.occupancy());

    // Twice as many as fit: what has proven the least goes.
    let more: Vec<_> = (4_000..40_000).map(|port| flow(port, 0)).collect();
    let refused = more.iter().filter(|flow| !table.add(**flow)).count();
    assert!(refused > 10_000 && table.occupancy()[&FlowState::Established] + refused == 1_000 + more.len());
    assert!(table.occupancy()[&FlowState::Closed] < 20, "{:?}", table.occupancy());
    assert!(flows.iter().step_by(4).all(|flow| table.find(&flow.key()).is_some()), "an established one went");

    let newer = FlowRecord { seen: 101, ..flows[0] };
    for record in [newer, FlowRecord { seen: 99, isn: 1, ..flows[0] }] {
        assert!(table.add(record));
    }
    assert!(same(&newer, table.find(&newer.key()).unwrap()), "an older record replaces none");
    assert_eq!(table.capacity(), 16_384);
}
