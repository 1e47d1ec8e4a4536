//! Tests transitions between map layouts.

use std::net::Ipv4Addr;

use aya::maps::MapData;
use vipmux_common::{
    abi::{
        Address, FLOW_BACKEND_FIN, FLOW_CLIENT_FIN, FLOW_ISN, FLOW_REPLIES, Fence, FlowRecord, ServiceKey,
        ServiceState, ServiceValue, VIP_LEADING, VipValue,
    },
    service_index::IndexedService,
};

use super::*;
use crate::{
    bpf::{load::load, service_index::elements},
    fixture::mounted,
};

/// Flows that the table has room for in these tests.
const FLOWS: u32 = 4096;

/// Another version of the family. In these tests, its maps are smaller, and some are missing.
const SIBLING: u32 = ABI_VERSION + 1;
/// The sizes of its values that differ. `CONFIG` has no `handover`, `SERVICE_STATES` no `vip`.
const SIBLING_VALUES: [(&str, u32); 4] = [("CONFIG", 104), ("FENCE", 8), ("SERVICE_STATES", 16), ("FRAGMENTS", 24)];
const MISSING: [&str; 5] = ["ACTIVITY", "LEADERS", "LOCAL_PORTS", "BACKEND_NODES", "SERVICE_INDEX"];

/// Makes and pins the maps of [`SIBLING`].
fn make_sibling(pins: &Pins) {
    fs::create_dir_all(pins.maps()).unwrap();
    let object = aya_obj::Object::parse(OBJECT).unwrap();
    for name in Maps::NAMES.iter().filter(|name| !MISSING.contains(name)) {
        let mut layout = Layout::from(&object.maps[name_in_object(name)]);
        if let Some((_, size)) = SIBLING_VALUES.iter().find(|(other, _)| other == name) {
            layout.value_size = *size;
        }
        if *name == "FLOWS" {
            layout.max_entries = flow_table::elements(FLOWS / 2);
        }
        make(pins, name, layout);
    }
    let numbers = [SIBLING, 41, 77, 250, 1, 2, 3, 600, 4, 1, 1000, 0, flow_table::sets(FLOWS / 2) - 1, 0];
    let secret = (1..=12).map(|number: u32| number.wrapping_mul(0x9e37_79b1));
    put(&pins.maps(), "CONFIG", &words(&[0]), &words(&numbers.into_iter().chain(secret).collect::<Vec<_>>()));
}

fn make(pins: &Pins, name: &str, layout: Layout) {
    let Layout { kind, key_size, value_size, max_entries, flags } = layout;
    let map = aya_obj::Map::new_from_params(kind, key_size, value_size, max_entries, flags);
    MapData::create(map, name, None).unwrap().pin(pins.map(name)).unwrap();
}

fn put(folder: &Path, name: &'static str, key: &[u8], value: &[u8]) {
    assert!(RawMap::open(folder, name).unwrap().put(key, value, UpdateFlag::Any).unwrap(), "{name}");
}

/// Returns numbers as bytes, as maps store them.
fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn address(host: u8) -> Address {
    Ipv4Addr::new(192, 0, 2, host).into()
}

/// An address as words.
fn wire(host: u8) -> [u32; 4] {
    let Address { w0, w1, w2, w3 } = address(host);
    [w0, w1, w2, w3]
}

/// The key of a datagram's fragments.
fn fragment_key(id: u32) -> Vec<u8> {
    words(&[wire(2).as_slice(), &wire(10), &[id, 17]].concat())
}

/// The value of a datagram's fragments in [`SIBLING`], to this backend.
fn fragment(backend: u32) -> Vec<u8> {
    words(&[7, backend, 40, 9, 99, 0])
}

/// Returns the backend of each datagram's fragments.
fn fragments(folder: &Path) -> BTreeMap<u32, u32> {
    let entries = RawMap::open(folder, "FRAGMENTS").unwrap().entries().unwrap();
    let word = |bytes: &[u8], index: usize| u32::from_ne_bytes(*bytes[index * 4..].first_chunk().unwrap());
    entries.iter().map(|(key, value)| (word(key, 8), word(value, 1))).collect()
}

/// The record of a flow to a backend on this node.
fn local_flow(port: u16, isn: u32) -> FlowRecord {
    FlowRecord { flags: u8::try_from(FLOW_ISN | FLOW_REPLIES).unwrap(), isn, ..flow(port, LOCAL) }
}

/// Indices of backends.
const LOCAL: u32 = 3;
const REMOTE: u32 = 4;
const OTHER: u32 = 5;

fn flow(port: u16, backend: u32) -> FlowRecord {
    FlowRecord {
        vip: 5,
        client_port: port.to_be(),
        vip_port: 443_u16.to_be(),
        client: address(2),
        backend,
        backend_generation: 40 + backend,
        slot: 9,
        slot_generation: 55,
        protocol: 6,
        seen: 99,
        ..FlowRecord::default()
    }
}

/// Returns the records of the table, by client port.
fn flows(maps: &Maps) -> BTreeMap<u16, FlowRecord> {
    let records = maps.flow_table().unwrap();
    records.records().map(|flow| (u16::from_be(flow.client_port), FlowRecord { check: 0, of_set: 0, ..flow })).collect()
}

/// Writes the configuration, as an agent does after [`load`]. Without it, the next one takes the maps for new.
fn begin_to_use(maps: &mut Maps) -> Config {
    let Config { flow_mask, flow_secret, .. } = maps.read_config().unwrap();
    let config = Config { flow_mask, flow_secret, ..new_config() };
    maps.config.set(0, config, 0).unwrap();
    config
}

#[test]
fn the_maps_of_another_version_are_taken_over_with_their_flows_and_ids() {
    let Some(pins) = mounted() else { return };
    make_sibling(&pins);
    let maps = pins.maps();
    put(&maps, "FENCE", &words(&[0]), &words(&[123, 0]));
    put(&maps, "SERVICE_STATES", &words(&[9]), &words(&[55, 0, 30, 0]));
    put(&maps, "VIPS", &words(&wire(10)), &[words(&[5, VIP_LEADING, 1, 0]), words(&[2, 0])].concat());
    let service = words(&[9, 55, 0, 251, 251, 0, 0, 0]);
    put(&maps, "SERVICES", &[words(&[5]), vec![0x01, 0xbb, 6, 0]].concat(), &service);
    put(&maps, "FRAGMENTS", &fragment_key(1), &fragment(REMOTE));
    let records = [local_flow(4000, 1234), flow(4001, LOCAL), flow(4002, REMOTE)];
    let old = flow_table_handle(&maps).unwrap().map_writable().unwrap();
    assert!(records.iter().all(|record| old.add(*record)));
    let vips = RawMap::open(&maps, "VIPS").unwrap().id();

    let (_programs, maps) = load(&pins, FLOWS).unwrap();

    let config = maps.read_config().unwrap();
    assert_eq!((config.abi, config.next_vip, config.next_generation), (ABI_VERSION, 41, 77));
    assert_eq!((config.unclaimed, config.answers_per_second), (1, 1000));
    assert_eq!(config.flow_mask, maps.flow_mask().unwrap());
    assert_eq!(config.flow_secret.sum, 0x3c6e_f362_9e37_79b1, "the secret stays");
    let state = ServiceState { generation: 55, idle: 30, ..ServiceState::default() };
    assert_eq!(maps.read_service_states().unwrap()[&9], state, "a new field is zero");
    assert_eq!(flows(&maps), (4000..).zip(records).collect());
    assert_eq!(fragments(&pins.maps()), BTreeMap::from([(1, REMOTE)]));
    let vip = VipValue { id: 5, flags: VIP_LEADING, interfaces: 1, vlan: 0, epoch: 2 };
    assert_eq!(maps.read_vips().unwrap(), BTreeMap::from([(address(10), vip)]));
    let key = ServiceKey { vip: 5, port: 443_u16.to_be(), protocol: 6, padding: 0 };
    assert_eq!(maps.read_services().unwrap()[&key].slot, 9);
    assert_eq!(maps.service_index.read().unwrap(), elements(&maps.read_services().unwrap()));
    assert!(maps.service_index.read().unwrap().contains_key(&key.index()));
    assert_eq!(maps.read_fence().unwrap(), Fence { deadline: 123, ..Fence::default() });
    assert!(maps.read_leaders().unwrap().is_empty() && maps.read_members().unwrap().is_empty());
    assert_eq!(RawMap::open(&pins.maps(), "VIPS").unwrap().id(), vips, "an equal map stays the same");
    assert!(!pins.old_maps().exists() && !pins.next_maps().exists());
}

#[test]
fn fields_that_a_configuration_lacks_get_their_defaults() {
    let Some(pins) = mounted() else { return };
    drop(load(&pins, FLOWS).unwrap());
    fs::remove_file(pins.map("CONFIG")).unwrap();
    make(&pins, "CONFIG", Layout { kind: 2, key_size: 4, value_size: 40, max_entries: 1, flags: 0 });
    put(&pins.maps(), "CONFIG", &words(&[0]), &words(&[SIBLING, 41, 77, 250, 1, 2, 3, 600, 4, 1]));

    let (_programs, maps) = load(&pins, FLOWS).unwrap();

    let config = maps.read_config().unwrap();
    assert_eq!((config.abi, config.next_vip, config.unclaimed), (ABI_VERSION, 41, 1));
    assert_eq!(config.answers_per_second, new_config().answers_per_second);
    assert!(config.flow_secret != FlowSecret::default());
}

/// An agent that ended between its write to `SERVICES` and that of the copy leaves such an index.
#[test]
fn a_copy_of_an_earlier_revision_does_not_outlive_a_start() {
    let Some(pins) = mounted() else { return };
    let (programs, mut maps) = load(&pins, FLOWS).unwrap();
    let config = Config { abi: ABI_VERSION, ..maps.read_config().unwrap() };
    maps.config.set(0, config, 0).unwrap();
    let key = ServiceKey { vip: 5, port: 443_u16.to_be(), protocol: 6, padding: 0 };
    let value = ServiceValue { slot: 9, generation: 55, table: 502, table_length: 251, ..ServiceValue::default() };
    let earlier = IndexedService::new(key, &ServiceValue { table: 0, ..value }).unwrap();
    maps.services.insert(key, value, 0).unwrap();
    maps.service_index.set(key.index(), earlier, 0).unwrap();
    drop((programs, maps));
    let (_programs, maps) = load(&pins, FLOWS).unwrap();
    assert_eq!(maps.service_index.read().unwrap()[&key.index()].value(key), Some(value));
}

/// The loader writes the initial values of the programs' global variables, which are maps in use.
#[test]
fn global_variables_keep_their_values_when_the_programs_are_loaded_again() {
    let Some(pins) = mounted() else { return };
    let (programs, mut maps) = load(&pins, FLOWS).unwrap();
    let config = Config { next_vip: 41, ..begin_to_use(&mut maps) };
    maps.config.set(0, config, 0).unwrap();
    maps.write_deadline(123).unwrap();
    drop((programs, maps));
    let (_programs, maps) = load(&pins, FLOWS).unwrap();
    assert_eq!(maps.read_config().unwrap(), config);
    assert_eq!(maps.read_fence().unwrap().deadline, 123);
}

#[test]
fn a_flow_table_of_another_size_keeps_its_records_and_the_rest_stays() {
    let Some(pins) = mounted() else { return };
    let (programs, mut maps) = load(&pins, FLOWS).unwrap();
    let config = begin_to_use(&mut maps);
    let table = maps.writable_flow_table().unwrap();
    assert!((0..500).all(|port| table.add(local_flow(port, 7))));
    let before = flows(&maps);
    assert_eq!(before.len(), 500);
    let id = |name| RawMap::open(&pins.maps(), name).unwrap().id();
    let others = ["SERVICES", "TABLES", "FRAGMENTS", "LEADERS", "MEMBERS"];
    let ids = others.map(id);
    drop((programs, maps));

    for size in [2 * FLOWS, FLOWS / 2] {
        let (_programs, maps) = load(&pins, size).unwrap();
        assert_eq!(crate::bpf::maps::flow_capacity(&pins), Some(size));
        assert_eq!(flows(&maps), before);
        let after = maps.read_config().unwrap();
        assert!(after.flow_secret == config.flow_secret && after.flow_mask == maps.flow_mask().unwrap());
        assert_eq!(others.map(id), ids);
    }
    let table = id("FLOWS");
    drop(load(&pins, FLOWS / 2).unwrap());
    assert_eq!(id("FLOWS"), table, "the same size is no change");
}

#[test]
fn live_flows_are_kept_if_a_smaller_table_has_no_room_for_all() {
    let Some(pins) = mounted() else { return };
    let (programs, mut maps) = load(&pins, FLOWS).unwrap();
    begin_to_use(&mut maps);
    let table = maps.writable_flow_table().unwrap();
    let closed = u8::try_from(FLOW_CLIENT_FIN | FLOW_BACKEND_FIN).unwrap();
    for port in 0..3000 {
        table.add(FlowRecord { flags: closed, ..flow(port, REMOTE) });
    }
    let live: Vec<_> = (3000..3512).filter(|port| table.add(local_flow(*port, 7))).collect();
    drop((programs, maps));

    let (_programs, maps) = load(&pins, FLOWS / 2).unwrap();
    let after = flows(&maps);
    assert!(after.len() > 1900, "{} of 2048", after.len());
    // Few sets have only live ones.
    let lost = live.iter().filter(|port| !after.contains_key(port)).count();
    assert!(live.len() > 500 && lost <= 5, "{lost} of {}", live.len());
}

#[test]
fn each_node_draws_a_secret_for_its_flow_table_and_keeps_it() {
    let Some(one) = mounted() else { return };
    let other = Pins::new(one.root().with_file_name("other"));
    let secret = |pins| {
        let (_programs, mut maps) = load(pins, FLOWS).unwrap();
        let FlowSecret { sum, client, port } = begin_to_use(&mut maps).flow_secret;
        [sum, port, client[0], client[1], client[2], client[3]]
    };
    let drawn = secret(&one);
    assert!(drawn.iter().zip(secret(&other)).all(|(one, other)| *one != 0 && *one != other));
    assert_eq!(secret(&one), drawn);
}

/// Writes until the links were swapped are carried over. Later writes of the new programs are not
/// overwritten.
#[test]
fn later_writes_of_the_old_programs_are_carried_over_too() {
    let Some(pins) = mounted() else { return };
    make_sibling(&pins);
    let add = |folder: &Path, port, backend, seen| {
        assert!(
            flow_table_handle(folder).unwrap().map_writable().unwrap().add(FlowRecord { seen, ..flow(port, backend) })
        );
    };
    for port in 1..=4 {
        add(&pins.maps(), port, LOCAL, 100);
        put(&pins.maps(), "FRAGMENTS", &fragment_key(port.into()), &fragment(LOCAL));
    }
    let mut transition = Transition::begin(&pins, FLOWS).unwrap();
    let next = transition.folder(&pins);
    let object = aya_obj::Object::parse(OBJECT).unwrap();
    for name in ["CONFIG", "FENCE", "SERVICE_STATES", "FLOWS", "FRAGMENTS"] {
        let mut map = object.maps[name_in_object(name)].clone();
        map.set_max_entries(if name == "FLOWS" { flow_table::elements(FLOWS) } else { map.max_entries() });
        MapData::create(map, name, None).unwrap().pin(next.join(name)).unwrap();
    }
    transition.fill(&pins).unwrap();

    let old = pins.old_maps();
    for (port, backend) in [(2, REMOTE), (3, REMOTE), (6, LOCAL), (7, LOCAL)] {
        add(&old, port, backend, 200);
        put(&old, "FRAGMENTS", &fragment_key(port.into()), &fragment(backend));
    }
    RawMap::open(&old, "FRAGMENTS").unwrap().remove(&fragment_key(4)).unwrap();
    let maps = pins.maps();
    let by_new_programs = |port| {
        add(&maps, port, LOCAL, 300);
        let value = [fragment(OTHER), words(&[0, 0])].concat();
        put(&maps, "FRAGMENTS", &fragment_key(port.into()), &value);
    };
    transition.finish(&pins, || [3, 7].into_iter().for_each(by_new_programs)).unwrap();

    let records = flow_table_handle(&maps).unwrap().map().unwrap();
    let found: BTreeMap<_, _> =
        records.records().map(|flow| (u16::from_be(flow.client_port), (flow.backend, flow.seen))).collect();
    let expected = [(1, (LOCAL, 100)), (2, (REMOTE, 200)), (3, (LOCAL, 300)), (4, (LOCAL, 100)), (6, (LOCAL, 200))];
    assert_eq!(found, expected.into_iter().chain([(7, (LOCAL, 300))]).collect());
    assert_eq!(fragments(&maps), BTreeMap::from([(1, LOCAL), (2, REMOTE), (3, OTHER), (6, LOCAL), (7, OTHER)]));
    assert!(!old.exists());
}

#[test]
fn a_transition_that_was_cut_off_goes_on_where_it_ended() {
    let Some(pins) = mounted() else { return };
    let (programs, mut maps) = load(&pins, FLOWS).unwrap();
    begin_to_use(&mut maps);
    let table = maps.writable_flow_table().unwrap();
    assert!((0..9).all(|port| table.add(flow(port, REMOTE))));
    let before = flows(&maps);
    drop((programs, maps));

    // Before the first rename: the transition starts again.
    let transition = Transition::begin(&pins, 2 * FLOWS).unwrap();
    assert!(pins.next_maps().exists());
    drop(transition);
    let (programs, maps) = load(&pins, FLOWS).unwrap();
    assert_eq!(flows(&maps), before);
    assert!(!pins.next_maps().exists());
    drop((programs, maps));

    // Between both renames: the new maps are complete.
    let next = pins.next_maps();
    fs::rename(pins.maps(), &next).unwrap();
    fs::create_dir(pins.old_maps()).unwrap();
    let wanted = Layout::of_pin(&next.join("FLOWS")).unwrap();
    let Layout { kind, key_size, value_size, max_entries, flags } = wanted;
    let old = aya_obj::Map::new_from_params(kind, key_size, value_size, max_entries / 2, flags);
    MapData::create(old, "FLOWS", None).unwrap().pin(pins.old_maps().join("FLOWS")).unwrap();
    RawMap::open(&next, "CONFIG").unwrap().pin(&pins.old_maps().join("CONFIG")).unwrap();
    // A record of the old programs.
    assert!(flow_table_handle(&pins.old_maps()).unwrap().map_writable().unwrap().add(flow(77, REMOTE)));
    let (_programs, maps) = load(&pins, FLOWS).unwrap();
    assert_eq!(flows(&maps).len(), before.len() + 1);
    assert!(!pins.next_maps().exists() && !pins.old_maps().exists());
}

/// Versions below 100 were never released.
#[test]
fn maps_of_another_family_are_left_for_new_ones() {
    let Some(pins) = mounted() else { return };
    for version in [14, abi::COMPATIBLE.start - 1, abi::COMPATIBLE.end] {
        fs::create_dir_all(pins.maps()).unwrap();
        make(&pins, "CONFIG", Layout { kind: 2, key_size: 4, value_size: 8, max_entries: 1, flags: 0 });
        put(&pins.maps(), "CONFIG", &words(&[0]), &words(&[version, 0]));
        let (_programs, maps) = load(&pins, FLOWS).unwrap();
        assert_eq!(maps.read_config().unwrap().abi, 0);
        drop(maps);
        pins::remove_folder(&pins.maps()).unwrap();
    }
}
