//! Tests the views with IPv6 addresses beside IPv4 ones.

use std::net::SocketAddr;

use super::*;
use crate::lookup::LookupPacket;

fn cluster() -> Option<Cluster> {
    let mut cluster = Cluster::new()?;
    cluster.add_ipv6();
    Some(cluster)
}

fn last_line(text: &str) -> &str {
    text.lines().last().unwrap()
}

#[test]
fn views_show_ipv6_addresses_in_columns_of_their_width() {
    let Some(cluster) = cluster() else { return };
    let maps = cluster.maps();
    let vips = text(&Vips::read(&maps, &clock()).unwrap());
    let header = "VIP           LEADER     EPOCH  SINCE  WHY  FENCE        INTERFACES  VLAN  SERVICES";
    assert_eq!(vips.lines().next(), Some(header));
    assert_eq!(last_line(&vips), "2001:db8::10  this node      4      -  -    250 ms left  lo          -            1");
    let services = text(&Services::read(&maps, &clock()).unwrap());
    assert!(
        services.contains("\n192.0.2.11    80/TCP    shop/vlan       1      1        0      0      0\n"),
        "{services}"
    );
    assert_eq!(last_line(&services), "2001:db8::10  80/TCP    shop/six        2      1        0      0      0");
    let backends = text(&Backends::read(&maps).unwrap());
    assert!(
        backends.contains("\n    6  [fd00::1]:8080        node-a  yes    ready           shop/six:80/TCP\n"),
        "{backends}"
    );
    assert_eq!(last_line(&backends), "    7  [fd00:0:0:1::1]:8080  node-b  no     ready           shop/six:80/TCP");
}

#[test]
fn a_flow_shows_ports_outside_of_the_brackets() {
    let Some(cluster) = cluster() else { return };
    let flows = Flows::read(&cluster.maps(), &clock(), 1000).unwrap();
    assert_eq!(
        text(&flows),
        "\
CLIENT                SERVICE            PROTO  BACKEND               NODE    AGE  STATE  RECORD  REPLIES
[2001:db8:f::7]:1000  [2001:db8::10]:80  TCP    [fd00:0:0:1::1]:8080  node-b   0s  open   valid   -

1 of 16384 records are used: 0 closed, 0 half open, 0 unconfirmed, 1 established
"
    );
    let flow = &json(&flows)["flows"][0];
    assert_eq!((&flow["client"], &flow["vip"]), (&json!("2001:db8:f::7"), &json!("2001:db8::10")));
    assert_eq!(flow["backend"]["address"], json!("fd00:0:0:1::1"));
}

#[test]
fn a_lookup_takes_ipv6_packets() {
    let Some(cluster) = cluster() else { return };
    let lookup = |client: &str, vip: &str| {
        let (client, vip): (SocketAddr, SocketAddr) = (client.parse().unwrap(), vip.parse().unwrap());
        lookup::walk(&cluster.maps(), &clock(), &LookupPacket { client, vip, ..cluster::request(0, 0, Protocol::Tcp) })
            .unwrap()
    };
    assert_eq!(
        text(&lookup("[2001:db8:f::7]:1000", "[2001:db8::10]:80")),
        "\
STEP     FINDING
vip      2001:db8::10 is announced on lo
flow     a record of backend 7, 0 s old
backend  7 is [fd00:0:0:1::1]:8080 on node-b
node     its program is attached, its MAC is 02:00:00:00:00:0b; a packet with a hop limit of 1 would be dropped
verdict  handed over for [fd00:0:0:1::1]:8080 on node-b: 0e:76:6d:00:00:0a to 02:00:00:00:00:0b by lo
"
    );
    let unrecorded = lookup("[2001:db8:f::7]:1001", "[2001:db8::10]:80");
    assert!(text(&unrecorded).contains("service  shop/six claims port 80/TCP\n"), "{}", text(&unrecorded));
    assert_eq!(json(&unrecorded)["client"], json!("[2001:db8:f::7]:1001"));
    let other = lookup("[2001:db8:f::7]:1000", "[2001:db8::11]:80");
    assert!(text(&other).contains("vip      2001:db8::11 is not a VIP\n"), "{}", text(&other));
}
