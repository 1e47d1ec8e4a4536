//! Tests the views on real maps, and `lookup` against the real program.

mod cluster;
mod ipv6;
mod leadership;
mod program;
mod treatment;

use std::time::Duration;

use aya::programs::{Xdp, XdpMode, links::FdLink};
use nix::sched::{CloneFlags, unshare};
use serde_json::{Value, json};

use self::cluster::{Cluster, HZ, clock};
use super::{
    backends::Backends,
    flows::Flows,
    lookup,
    members::Members,
    neighbors::NeighborList,
    objects::{MapList, MapView, PinnedPrograms, ProgramView},
    services::Services,
    stats::Stats,
    vips::Vips,
};
use crate::output::{Format, Report, table::Color, write};
use vipmux_common::abi::{Mac, NODE_SILENT, NODE_VLAN, NODE_VLAN_SHIFT, Node, VIP_SEGMENT_SHIFT, node_element};
use vipmux_datapath::bpf::pins::{LinkKind, XDP_PROGRAM};
use vipmux_model::Protocol;

fn text(report: &impl Report) -> String {
    let mut out = Vec::new();
    write(report, Format::Table(Color::Never), &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// Returns the cells in color below the header, with the numbers of their colors.
fn colored(report: &impl Report) -> Vec<String> {
    let mut out = Vec::new();
    write(report, Format::Table(Color::Always), &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    let (_, rows) = text.split_once('\n').unwrap();
    rows.split("\x1b[").skip(1).filter(|cell| !cell.starts_with("0m")).map(str::to_owned).collect()
}

fn json(report: &impl Report) -> Value {
    let mut out = Vec::new();
    write(report, Format::Json, &mut out).unwrap();
    assert_eq!(out.iter().position(|byte| *byte == b'\n'), Some(out.len() - 1), "one line");
    let mut pretty = Vec::new();
    write(report, Format::PrettyJson, &mut pretty).unwrap();
    let value: Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(value, serde_json::from_slice::<Value>(&pretty).unwrap());
    value
}

#[test]
fn vips_show_the_leader_and_the_fence_where_the_agent_says_nothing_more() {
    let Some(cluster) = Cluster::new() else { return };
    let vips = Vips::read(&cluster.maps(), &clock()).unwrap();
    assert_eq!(
        text(&vips),
        "\
VIP         LEADER     EPOCH  SINCE  WHY  FENCE        INTERFACES  VLAN  SERVICES
192.0.2.10  this node      3      -  -    250 ms left  lo          -            6
192.0.2.11  yielded        5      -  -    -            lo          7            1
"
    );
    assert_eq!(
        json(&vips),
        json!({
            "version": 1, "kind": "vips",
            "fence": {"standing": "open", "deadline_ns": 1_000_250_000_000_u64, "left_ms": 250, "lapsed_ms": null},
            "vips": [
                {"address": "192.0.2.10", "id": 1, "leading": true, "yielded": false, "answering": true, "epoch": 3,
                 "leader": null, "role": null, "since_s": null, "why": null, "other": null,
                 "interfaces": ["lo"], "vlan": 0, "segment": 0, "services": 6},
                {"address": "192.0.2.11", "id": 2, "leading": false, "yielded": true, "answering": false, "epoch": 5,
                 "leader": null, "role": null, "since_s": null, "why": null, "other": null,
                 "interfaces": ["lo"], "vlan": 7, "segment": 0, "services": 1},
            ],
        })
    );
}

#[test]
fn a_leader_past_its_fence_is_not_answering() {
    let Some(cluster) = Cluster::new() else { return };
    let later = super::clock::Clock::at(Duration::from_secs(1003), Duration::from_secs(1003), HZ);
    let vips = Vips::read(&cluster.maps(), &later).unwrap();
    assert!(text(&vips).contains("192.0.2.10  this node      3      -  -    lapsed 2750 ms ago"), "{}", text(&vips));
    assert!(vips.vips[0].leading && !vips.vips[0].answering);
}

#[test]
fn services_show_their_backends_and_traffic() {
    let Some(cluster) = Cluster::new() else { return };
    let services = Services::read(&cluster.maps(), &clock()).unwrap();
    assert_eq!(
        text(&services),
        "\
VIP         PORT      SERVICE     READY  LOCAL  PACKETS  BYTES  FLOWS
192.0.2.10  53/UDP    dns/dns         1      0        0      0      0
192.0.2.10  80/TCP    shop/web        2      1       10   1000      3
192.0.2.10  81/TCP    shop/admin      1      1        0      0      0
192.0.2.10  90/TCP    shop/many       3      0        0      0      0
192.0.2.10  443/TCP   shop/tls        0      0        0      0      0
192.0.2.10  8080/TCP  shop/far        1      0        0      0      0
192.0.2.11  80/TCP    shop/vlan       1      1        0      0      0
"
    );
    let web = &json(&services)["services"][1];
    assert_eq!(
        *web,
        json!({"vip": "192.0.2.10", "port": 80, "protocol": "TCP", "namespace": "shop", "name": "web", "slot": 0,
               "table_length": 250, "ready": 2, "local": 1, "packets": 10, "bytes": 1000, "flows": 3, "kernel": false,
               "direct": false, "affinity_s": null, "idle_s": null, "source_ranges": null})
    );
}

#[test]
fn backends_show_where_they_are_and_whom_they_serve() {
    let Some(cluster) = Cluster::new() else { return };
    let backends = Backends::read(&cluster.maps()).unwrap();
    assert_eq!(
        text(&backends),
        "\
INDEX  ADDRESS        NODE    LOCAL  STATE           USED BY
    0  10.0.0.1:8080  node-a  yes    ready           shop/web:80/TCP,shop/admin:81/TCP,shop/vlan:80/TCP
    1  10.0.1.1:8080  node-b  no     ready           dns/dns:53/UDP,shop/web:80/TCP,shop/many:90/TCP
    2  10.0.2.1:8080  node-c  no     ready           shop/far:8080/TCP
    3  10.0.0.2:8080  node-a  yes    draining        -
    4  10.0.1.2:8080  node-b  no     ready, failing  shop/many:90/TCP
    5  10.0.3.1:8080  node-d  no     ready           shop/many:90/TCP
"
    );
    let mut failing = backends.clone();
    failing.backends[3].failing = true;
    assert!(text(&failing).contains("    3  10.0.0.2:8080  node-a  yes    failing         -\n"), "{}", text(&failing));
    let draining = &json(&backends)["backends"][3];
    assert_eq!(
        *draining,
        json!({"index": 3, "address": "10.0.0.2", "port": 8080, "node": "node-a", "local": true, "ready": false,
               "failing": false, "generation": 13, "used_by": []})
    );
}

#[test]
fn flows_show_which_records_are_stale_and_why() {
    let Some(mut cluster) = Cluster::new() else { return };
    cluster.record_flows();
    let flows = Flows::read(&cluster.maps(), &clock(), 1000).unwrap();
    assert_eq!(
        text(&flows),
        "\
CLIENT             SERVICE        PROTO  BACKEND        NODE    AGE  STATE       RECORD                REPLIES
198.51.100.7:1000  192.0.2.10:80  TCP    10.0.0.1:8080  node-a   0s  open        valid                 translated
198.51.100.7:1001  192.0.2.10:80  TCP    10.0.0.1:8080  node-a   1s  reset       valid                 not translated
198.51.100.7:1002  192.0.2.10:80  TCP    10.0.1.1:8080  node-b   2s  client fin  valid                 -
198.51.100.7:1003  192.0.2.10:80  TCP    -              -        3s  open        stale: backend gone   -
198.51.100.7:1004  192.0.2.10:80  TCP    10.0.1.1:8080  node-b   4s  open        stale: owner changed  -
198.51.100.7:1005  192.0.2.10:80  TCP    10.0.1.1:8080  node-b   5s  half open   valid                 -
198.51.100.7:1006  ?:80           TCP    10.0.1.1:8080  node-b   6m  open        stale: idle           -

7 of 16384 records are used: 2 closed, 1 half open, 0 unconfirmed, 4 established
"
    );
    let json = json(&flows);
    assert_eq!((&json["limit"], &json["truncated"]), (&json!(1000), &json!(false)));
    assert_eq!(
        json["flows"][1],
        json!({"client": "198.51.100.7", "client_port": 1001, "vip": "192.0.2.10", "vip_port": 80, "protocol": "TCP",
               "backend": {"address": "10.0.0.1", "port": 8080, "node": "node-a", "local": true},
               "age_ms": 1000, "phase": "reset", "stale": null, "replies": false})
    );
    assert_eq!(json["flows"][4]["stale"], json!("owner_changed"));
    let occupancy = json!({"closed": 2, "half_open": 1, "unconfirmed": 0, "established": 4});
    assert_eq!((&json["capacity"], &json["occupancy"]), (&json!(16_384), &occupancy));
}

#[test]
fn more_flows_than_the_limit_are_cut_with_a_notice() {
    let Some(mut cluster) = Cluster::new() else { return };
    cluster.record_flows();
    let flows = Flows::read(&cluster.maps(), &clock(), 3).unwrap();
    assert_eq!((json(&flows)["flows"].as_array().unwrap().len(), flows.truncated), (3, true));
    assert!(text(&flows).contains("\n(only 3 flows shown; use --limit for more)\n\n7 of 16384 records are used: "));
    assert!(!Flows::read(&cluster.maps(), &clock(), 7).unwrap().truncated);
}

#[test]
fn neighbors_show_how_nodes_are_reached() {
    let Some(mut cluster) = Cluster::new() else { return };
    let nodes = &mut cluster.fixture.maps.nodes;
    let silent = Node { flags: NODE_SILENT, ..nodes.get(&3, 0).unwrap() };
    nodes.set(3, silent, 0).unwrap();
    let node = nodes.get(&1, 0).unwrap();
    let element = |segment: u32| node_element(segment << VIP_SEGMENT_SHIFT, 1);
    nodes.set(element(1), node, 0).unwrap();
    let mac = Mac::new([2, 0, 0, 0, 1, 0x0b]);
    let flags = node.flags | NODE_VLAN | 7 << NODE_VLAN_SHIFT;
    nodes.set(element(2), Node { mac, mtu: 9000, flags, ..node }, 0).unwrap();
    let neighbors = NeighborList::read(&cluster.maps()).unwrap();
    assert_eq!(
        text(&neighbors),
        "\
NODE    MAC                HAND-OVER MAC      INTERFACE  VLAN   MTU  STATE
node-a  02:00:00:00:00:0a  0e:76:6d:00:00:0a  lo            -  1500  this node
node-b  02:00:00:00:00:0b  0e:76:6d:00:00:0b  lo            -  1500  attached
node-b  02:00:00:00:01:0b  0e:76:6d:00:00:0b  lo            7  9000  attached, segment 2
node-c  -                  -                  -             -     -  not resolved
node-d  02:00:00:00:00:0d  0e:76:6d:00:00:0d  lo            -  1500  does not answer
"
    );
    assert_eq!(
        json(&neighbors)["neighbors"][1],
        json!({"index": 1, "node": "node-b", "mac": "02:00:00:00:00:0b", "handover_mac": "0e:76:6d:00:00:0b",
               "peer_macs": ["02:00:00:00:00:0b"], "interface": "lo", "vlan": null, "mtu": 1500,
               "paths": [{"segment": 2, "mac": "02:00:00:00:01:0b", "interface": "lo", "vlan": 7, "mtu": 9000,
                          "attached": true}],
               "attached": true, "silent": false, "self": false})
    );
    let silent = &json(&neighbors)["neighbors"][3];
    assert_eq!([&silent["attached"], &silent["silent"]], [false, true]);
}

#[test]
fn stats_leave_out_zeros_unless_all_are_wanted() {
    let Some(cluster) = Cluster::new() else { return };
    let stats = Stats::read(&cluster.maps(), false).unwrap();
    assert_eq!(
        text(&stats),
        "\
COUNTER          PACKETS  BYTES
local                  4    400
drop:no_service        2    120
"
    );
    let all = Stats::read(&cluster.maps(), true).unwrap();
    assert_eq!(all.stats.len(), vipmux_common::abi::Stat::ALL.len());
    assert_eq!(all.drops.len(), vipmux_common::abi::DropReason::ALL.len());
    assert_eq!(json(&stats)["drops"], json!([{"name": "no_service", "packets": 2, "bytes": 120}]));
}

#[test]
fn states_have_a_color() {
    let Some(mut cluster) = Cluster::new() else { return };
    cluster.record_flows();
    let (maps, clock) = (cluster.maps(), clock());
    assert_eq!(colored(&Vips::read(&maps, &clock).unwrap()), ["32mthis node", "33myielded"]);
    assert_eq!(colored(&Services::read(&maps, &clock).unwrap()), ["31m0"]);
    let states = ["32mready", "32mready", "32mready", "33mdraining", "33mready, failing", "32mready"];
    assert_eq!(colored(&Backends::read(&maps).unwrap()), states);
    let records = ["32mvalid", "32mvalid", "33mnot translated", "32mvalid", "33mstale: backend gone"];
    let records = [&records[..], &["33mstale: owner changed", "32mvalid", "33mstale: idle"]].concat();
    assert_eq!(colored(&Flows::read(&maps, &clock, 1000).unwrap()), records);
    let states = ["32mattached", "31mnot resolved", "32mattached"];
    assert_eq!(colored(&NeighborList::read(&maps).unwrap()), states);
    assert_eq!(colored(&Members::read(&maps, &clock).unwrap()), ["33mnot heard of"; 4]);
    assert_eq!(colored(&Stats::read(&maps, false).unwrap()), ["33mdrop:no_service"]);
}

#[test]
fn all_maps_are_listed_with_their_sizes() {
    let Some(cluster) = Cluster::new() else { return };
    let maps = MapList::read(&cluster.fixture.pins).unwrap();
    let vips = maps.maps.iter().find(|map| map.name == "VIPS").unwrap();
    assert_eq!((vips.key_bytes, vips.value_bytes, vips.max_entries), (16, 24, 64));
    let shown = text(&MapList { maps: vec![MapView { id: 7, ..vips.clone() }] });
    assert_eq!(shown, "MAP   ID  KEY BYTES  VALUE BYTES  MAX ENTRIES\nVIPS   7         16           24           64\n");
}

#[test]
fn programs_are_listed_with_where_they_are_attached() {
    let Some(mut cluster) = Cluster::new() else { return };
    let pins = cluster.fixture.pins.clone();
    unshare(CloneFlags::CLONE_NEWNET).unwrap();
    let xdp: &mut Xdp = cluster.fixture.ebpf.program_mut(XDP_PROGRAM).unwrap().try_into().unwrap();
    xdp.load().unwrap();
    xdp.pin(pins.program(XDP_PROGRAM)).unwrap();
    let link = xdp.attach("lo", XdpMode::Skb).and_then(|id| xdp.take_link(id)).unwrap();
    FdLink::try_from(link).unwrap().pin(pins.link(LinkKind::Xdp, 1)).unwrap();
    let info = xdp.info().unwrap();
    let programs = PinnedPrograms::read(&pins, &cluster.maps()).unwrap();
    let [program] = programs.programs.as_slice() else { panic!("one is pinned: {programs:?}") };
    assert_eq!((program.name, program.id), (XDP_PROGRAM, info.id()));
    assert_eq!(
        json(&programs)["programs"][0]["attached"],
        json!([{"interface": "lo", "generic": true, "place": null}])
    );
    let program = ProgramView { id: 7, tag: "0123456789abcdef".to_owned(), ..program.clone() };
    assert_eq!(
        text(&PinnedPrograms { programs: vec![program] }),
        "PROGRAM     ID  TAG               ATTACHED TO\nvipmux_xdp   7  0123456789abcdef  lo (generic)\n"
    );
}

#[test]
fn a_lookup_shows_each_step_and_the_verdict() {
    let Some(cluster) = Cluster::new() else { return };
    let answer = lookup::walk(&cluster.maps(), &clock(), &cluster::request(4000, 53, Protocol::Udp)).unwrap();
    assert_eq!(
        text(&answer),
        "\
STEP     FINDING
vip      192.0.2.10 is announced on lo
flow     no record
service  dns/dns claims port 53/UDP
table    slot 83 of 250: backend 1
backend  1 is 10.0.1.1:8080 on node-b
node     its program is attached, its MAC is 02:00:00:00:00:0b; a packet with a TTL of 1 would be dropped
verdict  handed over for 10.0.1.1:8080 on node-b: 0e:76:6d:00:00:0a to 02:00:00:00:00:0b by lo
"
    );
    let json = json(&answer);
    assert_eq!(json["outcome"]["verdict"], json!("handed_over"));
    assert_eq!(json["client"], json!("198.51.100.7:4000"));
}
