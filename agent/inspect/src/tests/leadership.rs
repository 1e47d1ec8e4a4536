//! Tests how the views show leaders and members.

use std::{collections::BTreeMap, net::Ipv4Addr};

use serde_json::json;
use vipmux_common::abi::{
    Address, Leader, MEMBER_DRAINING, MEMBER_READY, Member, Role, Standing, VIP_LEADING, VIP_YIELDED, VipValue, Why,
};

use super::{
    cluster::{Cluster, clock},
    text,
};
use crate::{
    leadership::{VipLeadership, span},
    members::Members,
    vips::Vips,
};

/// A moment so many milliseconds before [`clock`], nanoseconds.
fn ago(ms: u64) -> u64 {
    (1_000_000 - ms) * 1_000_000
}

/// Adds a VIP and its entry of `LEADERS`.
fn lead(cluster: &mut Cluster, host: u8, flags: u32, leader: Leader) {
    let (vip, id) = (Address::from(Ipv4Addr::new(192, 0, 2, host)), u32::from(host));
    let maps = &mut cluster.fixture.maps;
    maps.vips.insert(vip, VipValue { id, flags, interfaces: 1, vlan: 0, epoch: 1 }, 0).unwrap();
    maps.set_leader(vip, Some(leader)).unwrap();
}

/// Adds a VIP in each state of leadership. Nodes are given by index plus one; node-a (1) is this
/// node.
fn elect(cluster: &mut Cluster) {
    let (following, leading) = (Role::Following as u32, Role::Leading as u32);
    let of = |node, role, epoch, ms, why: u32, other| Leader { node, role, epoch, since: ago(ms), why, other };
    let own = |role: Role| of(1, role as u32, 2, 4_000, Why::First as u32, 0);
    for (host, flags, leader) in [
        (20, VIP_LEADING, of(1, leading, 7, 192_000, Why::Down as u32, 2)),
        (21, 0, of(2, following, 3, 12_999, Why::Handed as u32, 1)),
        (22, VIP_YIELDED, of(4, following, 9, 0, Why::Silent as u32, 3)),
        (23, 0, of(0, following, 0, 1_500, 0, 0)),
        (24, 0, own(Role::Detecting)),
        (25, 0, own(Role::Conflicted)),
        (26, VIP_YIELDED, own(Role::Yielded)),
        (27, 0, of(64, following, 4, 900_000, 99, 64)),
        (28, 0, of(2, 77, 1, 0, Why::Resumed as u32, 0)),
        (29, 0, of(2, following, 1, 0, Why::Unwritten as u32, 0)),
    ] {
        lead(cluster, host, flags, leader);
    }
}

#[test]
fn vips_show_who_leads_them_since_when_and_why() {
    let Some(mut cluster) = Cluster::new() else { return };
    elect(&mut cluster);
    let vips = Vips::read(&cluster.maps(), &clock()).unwrap();
    assert_eq!(
        text(&vips),
        "\
VIP         LEADER                 EPOCH  SINCE  WHY                      FENCE        INTERFACES  VLAN  SERVICES
192.0.2.10  this node                  3      -  -                        250 ms left  lo          -            6
192.0.2.11  yielded                    5      -  -                        -            lo          7            1
192.0.2.20  this node                  7  3m12s  node-b was down          250 ms left  lo          -            0
192.0.2.21  node-b                     3    12s  node-a handed it over    -            lo          -            0
192.0.2.22  node-d                     9     0s  node-c was not heard of  -            lo          -            0
192.0.2.23  nobody                     0     1s  -                        -            lo          -            0
192.0.2.24  this node, detecting       2     4s  nobody led it before     -            lo          -            0
192.0.2.25  this node, conflicted      2     4s  nobody led it before     -            lo          -            0
192.0.2.26  yielded                    2     4s  nobody led it before     -            lo          -            0
192.0.2.27  ?                          4  15m0s  reason 99                -            lo          -            0
192.0.2.28  node-b                     1     0s  it led it before         -            lo          -            0
192.0.2.29  node-b                     1     0s  no Lease could be read   -            lo          -            0
"
    );
    let found: BTreeMap<_, _> = vips.vips.iter().map(|vip| (vip.address.to_string(), json!(vip))).collect();
    let of = |host: u8| {
        let vip = &found[&format!("192.0.2.{host}")];
        json!([vip["leader"], vip["role"], vip["epoch"], vip["since_s"], vip["why"], vip["other"]])
    };
    assert_eq!(of(20), json!(["node-a", "leading", 7, 192, "down", "node-b"]));
    assert_eq!(of(23), json!([null, "following", 0, 1, null, null]));
    assert_eq!(of(27), json!(["?", "following", 4, 900, 99, "?"]), "the node went, and the reason is unknown");
    assert_eq!(of(28), json!(["node-b", 77, 1, 0, "resumed", null]));
}

#[test]
fn a_leadership_that_the_agent_said_nothing_of_is_neither_its_own_nor_vacant() {
    let nothing = VipLeadership::default();
    assert!(!nothing.is_own() && !nothing.is_vacant());
    assert_eq!((nothing.reason(), nothing.since()), (None, None));
}

#[test]
fn members_show_who_is_alive_and_may_lead() {
    let Some(mut cluster) = Cluster::new() else { return };
    let maps = &mut cluster.fixture.maps;
    let of = |standing: Standing, ms, flags| Member {
        generation: 1,
        heard: ago(40),
        since: ago(ms),
        standing: standing as u32,
        flags,
        claims: 3,
        reserved: 0,
    };
    maps.set_member(0, Some(Member { heard: 0, ..of(Standing::Own, 192_000, MEMBER_READY) })).unwrap();
    maps.set_member(1, Some(of(Standing::Alive, 192_000, MEMBER_READY))).unwrap();
    let heard = ago(700_000);
    let down = Member { heard, generation: 4, ..of(Standing::Down, 699_000, MEMBER_READY) };
    maps.set_member(3, Some(down)).unwrap();
    let members = Members::read(&cluster.maps(), &clock()).unwrap();
    assert_eq!(
        text(&members),
        "\
NODE    STANDING       SINCE       HEARD  READY  VIPS  GENERATION  MAC
node-a  this node      3m12s           -  yes       3           1  02:00:00:00:00:0a
node-b  alive          3m12s   40 ms ago  yes       3           1  02:00:00:00:00:0b
node-c  not heard of       -           -  -         0           0  -
node-d  down          11m39s  11m40s ago  -         3           4  02:00:00:00:00:0d
"
    );
    assert_eq!(
        super::json(&members)["members"],
        json!([
            {"index": 0, "node": "node-a", "standing": "this_node", "since_s": 192, "heard_ms": null, "ready": true,
             "draining": false, "vips": 3, "generation": 1, "mac": "02:00:00:00:00:0a"},
            {"index": 1, "node": "node-b", "standing": "alive", "since_s": 192, "heard_ms": 40, "ready": true,
             "draining": false, "vips": 3, "generation": 1, "mac": "02:00:00:00:00:0b"},
            {"index": 2, "node": "node-c", "standing": null, "since_s": null, "heard_ms": null, "ready": false,
             "draining": false, "vips": 0, "generation": 0, "mac": null},
            {"index": 3, "node": "node-d", "standing": "down", "since_s": 699, "heard_ms": 700_000, "ready": true,
             "draining": false, "vips": 3, "generation": 4, "mac": "02:00:00:00:00:0d"},
        ])
    );

    let maps = &mut cluster.fixture.maps;
    maps.set_member(1, Some(of(Standing::Suspected, 0, MEMBER_READY | MEMBER_DRAINING))).unwrap();
    maps.set_member(2, Some(Member { standing: 9, ..of(Standing::Left, 0, 0) })).unwrap();
    maps.set_member(3, Some(of(Standing::Alive, 0, 0))).unwrap();
    let shown = text(&Members::read(&cluster.maps(), &clock()).unwrap());
    let words: Vec<Vec<_>> = shown.lines().skip(2).map(|line| line.split_whitespace().collect()).collect();
    let word = |row: usize, column: usize| words[row][column];
    assert_eq!((word(0, 1), word(0, 6)), ("suspected", "draining"), "{shown}");
    assert_eq!((word(1, 1), word(1, 6)), ("9", "-"), "from a newer agent: {shown}");
    assert_eq!((word(2, 1), word(2, 6)), ("alive", "hold-down"), "{shown}");
    cluster.fixture.maps.set_member(3, Some(of(Standing::Alive, 0, MEMBER_DRAINING))).unwrap();
    let shown = text(&Members::read(&cluster.maps(), &clock()).unwrap());
    assert!(shown.ends_with("unstable     3           1  02:00:00:00:00:0d\n"), "{shown}");
}

#[test]
fn spans_have_two_units_at_most() {
    for (seconds, text) in [
        (0, "0s"),
        (59, "59s"),
        (60, "1m0s"),
        (192, "3m12s"),
        (3_599, "59m59s"),
        (3_600, "1h0m"),
        (86_399, "23h59m"),
        (86_400, "1d0h"),
        (200_000, "2d7h"),
    ] {
        assert_eq!(span(seconds), text);
    }
}
