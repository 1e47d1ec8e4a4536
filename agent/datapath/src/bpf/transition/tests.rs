//! Tests transitions between map layouts.

use std::net::Ipv4Addr;

use aya::maps::MapData;
use vipmux_common::abi::{
    Address, Fence, FlowKey, FlowValue, ReverseKey, ReverseValue, ServiceKey, VIP_LEADING, VipValue,
};

use super::*;
use crate::bpf::{load::load, maps::fixture::mounted};

/// Entries of the flow tables in these tests.
const FLOWS: u32 = 4096;

/// The differences of version 3: the sizes of values, and missing maps.
const VERSION_3: [(&str, u32); 5] =
    [("CONFIG", 44), ("SERVICE_STATES", 8), ("TABLES", 4), ("REVERSE", 40), ("FRAGMENTS", 24)];
const NEW_SINCE: [&str; 6] = ["AFFINITY", "SOURCE_RANGES", "LAPSE", "LEADERS", "MEMBERS", "SPEAKERS"];

/// Makes and pins the maps as agents of version 3 did.
fn make_version_3(pins: &Pins) {
    fs::create_dir_all(pins.maps()).unwrap();
    let object = aya_obj::Object::parse(OBJECT).unwrap();
    for name in Maps::NAMES.iter().filter(|name| !NEW_SINCE.contains(name)) {
        let mut layout = Layout::from(&object.maps[*name]);
        if let Some((_, size)) = VERSION_3.iter().find(|(other, _)| other == name) {
            layout.value_size = *size;
        }
        if super::super::load::FLOW_TABLES.contains(name) {
            layout.max_entries = FLOWS;
        }
        make(pins, name, layout);
    }
}

fn make(pins: &Pins, name: &str, layout: Layout) {
    let Layout { kind, key_size, value_size, max_entries, flags } = layout;
    let map = aya_obj::Map::new_from_params(kind, key_size, value_size, max_entries, flags);
    MapData::create(map, name, None).unwrap().pin(pins.map(name)).unwrap();
}

fn put(folder: &Path, name: &'static str, key: &[u8], value: &[u8]) {
    assert!(RawMap::open(folder, name).unwrap().put(key, value, UpdateFlag::Any).unwrap(), "{name}");
}

/// Returns numbers as bytes, as maps of version 3 store them.
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

/// A record of replies to the client with this port, in version 3.
fn reverse_3(port: u16, isn: u32) -> (Vec<u8>, Vec<u8>) {
    let ports = u32::from_ne_bytes([80, 0, port.to_ne_bytes()[0], port.to_ne_bytes()[1]]);
    let key = words(&[wire(1).as_slice(), &wire(2), &[ports, 6]].concat());
    (key, words(&[&[7, isn], wire(10).as_slice(), &[443, 8, 99, 0]].concat()))
}

fn reverse_key(port: u16) -> ReverseKey {
    ReverseKey { backend: address(1), client: address(2), backend_port: 80, client_port: port, protocol: 6 }
}

fn reverse_4(isn: u32) -> ReverseValue {
    ReverseValue { tag: 7, isn, vip: address(10), vip_port: 443, flags: 8, seen: 99, ..ReverseValue::default() }
}

fn flow(maps: &mut Maps, port: u16) -> (FlowKey, FlowValue) {
    let key = FlowKey { client: address(2), vip: 5, client_port: port, vip_port: 443, protocol: 6, reserved: 0 };
    let value = FlowValue { tag: 1, backend: 3, slot: 9, ..FlowValue::default() };
    maps.flows.insert(key, value, 0).unwrap();
    (key, value)
}

#[test]
fn the_maps_of_version_3_are_taken_over_with_their_flows_and_ids() {
    let Some(pins) = mounted() else { return };
    make_version_3(&pins);
    let maps = pins.maps();
    let config = [3, 41, 77, 250, 1, 2, 3, 600, 4, 1, 1000];
    put(&maps, "CONFIG", &words(&[0]), &words(&config));
    put(&maps, "SERVICE_STATES", &words(&[9]), &words(&[55, 0]));
    let (key, value) = reverse_3(4000, 1234);
    put(&maps, "REVERSE", &key, &value);
    let vip = [words(&[5, VIP_LEADING, 1, 0]), words(&[2, 0])].concat();
    put(&maps, "VIPS", &words(&wire(10)), &vip);
    let service = words(&[9, 55, 0, 251, 251, 0, 0, 0]);
    put(&maps, "SERVICES", &[words(&[5]), vec![0x01, 0xbb, 6, 0]].concat(), &service);
    put(&maps, "FENCE", &words(&[0]), &words(&[123, 0]));
    for (slot, backend) in [(250, 3), (252, 4), (253, 5)] {
        put(&maps, "TABLES", &words(&[slot]), &words(&[backend]));
    }
    let vips = RawMap::open(&maps, "VIPS").unwrap().id();

    let (_programs, maps) = load(&pins, FLOWS).unwrap();

    let config = maps.read_config().unwrap();
    assert_eq!((config.abi, config.next_vip, config.next_generation), (ABI_VERSION, 41, 77));
    assert_eq!((config.unclaimed, config.answers_per_second), (1, 1000));
    assert_eq!(config.records_per_second, new_config().records_per_second, "a new field gets its default");
    assert_eq!(maps.read_service_states().unwrap()[&9], abi::ServiceState { generation: 55, ..Default::default() });
    assert_eq!(maps.read_reverse(9).unwrap(), [(reverse_key(4000), reverse_4(1234))]);
    let vip = VipValue { id: 5, flags: VIP_LEADING, interfaces: 1, vlan: 0, epoch: 2 };
    assert_eq!(maps.read_vips().unwrap(), BTreeMap::from([(address(10), vip)]));
    let key = ServiceKey { vip: 5, port: 443_u16.to_be(), protocol: 6, padding: 0 };
    assert_eq!(maps.read_services().unwrap()[&key].slot, 9);
    assert_eq!(maps.read_fence().unwrap(), Fence { deadline: 123 });
    assert_eq!(maps.read_table(250, 4).unwrap(), [3, 0, 4, 5]);
    assert!(maps.read_leaders().unwrap().is_empty() && maps.read_members().unwrap().is_empty());
    assert_eq!(RawMap::open(&pins.maps(), "VIPS").unwrap().id(), vips, "an equal map stays the same");
    assert!(!pins.old_maps().exists() && !pins.next_maps().exists());
}

#[test]
fn flow_tables_of_another_size_keep_their_records_and_the_rest_stays() {
    let Some(pins) = mounted() else { return };
    let (programs, mut maps) = load(&pins, FLOWS).unwrap();
    maps.config.set(0, new_config(), 0).unwrap();
    let flows: BTreeMap<_, _> = (0..500).map(|port| flow(&mut maps, port)).collect();
    maps.reverse.insert(reverse_key(1), reverse_4(2), 0).unwrap();
    let id = |name| RawMap::open(&pins.maps(), name).unwrap().id();
    let before = ["SERVICES", "TABLES", "FRAGMENTS", "LEADERS", "MEMBERS"].map(id);
    drop(programs);

    let (programs, maps) = load(&pins, 2 * FLOWS).unwrap();
    assert_eq!(crate::bpf::maps::flow_entries(&pins), Some(2 * FLOWS));
    assert_eq!(maps.read_flows(usize::MAX).unwrap().into_iter().collect::<BTreeMap<_, _>>(), flows);
    assert_eq!(maps.read_reverse(9).unwrap(), [(reverse_key(1), reverse_4(2))]);
    assert_eq!(["SERVICES", "TABLES", "FRAGMENTS", "LEADERS", "MEMBERS"].map(id), before);
    let flow_table = id("FLOWS");
    drop(programs);

    drop(load(&pins, 2 * FLOWS).unwrap());
    assert_eq!(id("FLOWS"), flow_table, "the same size is no change");
}

/// Writes until the links were swapped are carried over. Later writes of the new programs are not
/// overwritten.
#[test]
fn later_writes_of_the_old_programs_are_carried_over_too() {
    let Some(pins) = mounted() else { return };
    make_version_3(&pins);
    put(&pins.maps(), "CONFIG", &words(&[0]), &words(&[3, 1, 1, 250, 0, 0, 0, 0, 0, 0, 0]));
    for port in 1..=5 {
        let (key, value) = reverse_3(port, 1);
        put(&pins.maps(), "REVERSE", &key, &value);
    }
    let mut transition = Transition::begin(&pins, FLOWS).unwrap();
    let next = transition.folder(&pins);
    let object = aya_obj::Object::parse(OBJECT).unwrap();
    for name in ["CONFIG", "SERVICE_STATES", "TABLES", "REVERSE", "FRAGMENTS"] {
        let mut map = object.maps[name].clone();
        map.set_max_entries(if name == "REVERSE" { FLOWS } else { map.max_entries() });
        MapData::create(map, name, None).unwrap().pin(next.join(name)).unwrap();
    }
    transition.fill(&pins).unwrap();

    let old = pins.old_maps();
    let (gone, _) = reverse_3(1, 0);
    RawMap::open(&old, "REVERSE").unwrap().remove(&gone).unwrap();
    for (port, isn) in [(2, 20), (3, 30), (6, 60), (7, 70)] {
        let (key, value) = reverse_3(port, isn);
        put(&old, "REVERSE", &key, &value);
    }
    let new = RawMap::open(&pins.maps(), "REVERSE").unwrap();
    let by_new_programs = |port| {
        let (key, value) = reverse_3(port, 99);
        assert!(new.put(&key, &[value, vec![0; 8]].concat(), UpdateFlag::Any).unwrap());
    };
    transition.finish(&pins, || [3, 7].into_iter().for_each(by_new_programs)).unwrap();

    let found: BTreeMap<_, _> = new.entries().unwrap().iter().map(|(key, value)| (key[34], value[4])).collect();
    assert_eq!(found, BTreeMap::from([(2, 20), (3, 99), (4, 1), (5, 1), (6, 60), (7, 99)]));
    assert!(!old.exists());
}

#[test]
fn a_transition_that_was_cut_off_goes_on_where_it_ended() {
    let Some(pins) = mounted() else { return };
    let (programs, mut maps) = load(&pins, FLOWS).unwrap();
    maps.config.set(0, new_config(), 0).unwrap();
    let flows: BTreeMap<_, _> = (0..9).map(|port| flow(&mut maps, port)).collect();
    drop(programs);
    let read = |maps: &Maps| maps.read_flows(usize::MAX).unwrap().into_iter().collect::<BTreeMap<_, _>>();

    // Before the first rename: the transition starts again.
    let transition = Transition::begin(&pins, 2 * FLOWS).unwrap();
    assert!(pins.next_maps().exists());
    drop(transition);
    let (programs, maps) = load(&pins, FLOWS).unwrap();
    assert_eq!(read(&maps), flows);
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
    // A record of the old programs.
    let key: Vec<u8> = words(&[wire(2).as_slice(), &[5, 77, 6, 0]].concat());
    put(&pins.old_maps(), "FLOWS", &key, &words(&[1, 3, 0, 9, 0, 0, 0, 0]));
    let (_programs, maps) = load(&pins, FLOWS).unwrap();
    assert_eq!(read(&maps).len(), flows.len() + 1);
    assert!(!pins.next_maps().exists() && !pins.old_maps().exists());
}

#[test]
fn maps_of_another_family_are_left_for_new_ones() {
    let Some(pins) = mounted() else { return };
    for version in [2, abi::COMPATIBLE.end] {
        make(
            &pins_with_folder(&pins),
            "CONFIG",
            Layout { kind: 2, key_size: 4, value_size: 8, max_entries: 1, flags: 0 },
        );
        put(&pins.maps(), "CONFIG", &words(&[0]), &words(&[version, 0]));
        let (_programs, maps) = load(&pins, FLOWS).unwrap();
        assert_eq!(maps.read_config().unwrap(), abi::Config::default());
        drop(maps);
        pins::remove_folder(&pins.maps()).unwrap();
    }
}

fn pins_with_folder(pins: &Pins) -> Pins {
    fs::create_dir_all(pins.maps()).unwrap();
    pins.clone()
}
