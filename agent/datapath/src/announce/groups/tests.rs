//! Tests multicast groups of IPv6 VIPs.

use std::{fs, io};

use super::*;
use vipmux_testing::netns::Namespace;

use crate::link::Links;

/// Returns a node and its peer on a wire, and the index of the node's "eth0".
fn node() -> Option<(Namespace, Namespace, u32)> {
    let [node, peer] = Namespace::new()?;
    node.veth("eth0", &peer, "eth0");
    node.ready("eth0");
    let ifindex = node.run(async |_| Links::read().await.unwrap().named("eth0").unwrap().ifindex);
    Some((node, peer, ifindex))
}

fn group(text: &str, ifindex: u32) -> SolicitedNodeGroup {
    SolicitedNodeGroup::of(text.parse().unwrap(), ifindex)
}

/// Returns whether the kernel reports the group, and whether the network card accepts it.
fn kernel_has(groups: &[SolicitedNodeGroup]) -> (bool, bool) {
    let read = |file| fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default();
    let has = |file, name: &dyn Fn(SolicitedNodeGroup) -> String| {
        let text = read(file);
        let words: BTreeSet<_> = text.split_ascii_whitespace().collect();
        groups.iter().all(|group| words.contains(name(*group).as_str()))
    };
    let reported = has("igmp6", &|group| format!("{:032x}", group.address.to_bits()));
    (reported, has("dev_mcast", &|group| format!("3333{:08x}", group.address.to_bits() & 0xffff_ffff)))
}

/// The example of RFC 4291, 2.7.1.
#[test]
fn the_solicited_node_group_keeps_the_last_24_bits() {
    let group = group("4037::1:800:200e:8c6c", 7);
    assert_eq!(group.address.to_string(), "ff02::1:ff0e:8c6c");
    assert_eq!(group.mac(), [0x33, 0x33, 0xff, 0x0e, 0x8c, 0x6c]);
    assert_eq!(group, SolicitedNodeGroup::of("2001:db8::ffff:200e:8c6c".parse().unwrap(), 7), "VIPs that end alike");
}

#[test]
fn groups_are_joined_and_left_with_the_vips() {
    let Some((node, _peer, ifindex)) = node() else { return };
    node.enter(|| {
        let [a, b] = ["2001:db8::1:1", "2001:db8::2:2"].map(|vip| group(vip, ifindex));
        let mut groups = GroupSockets::default();
        assert!(groups.sync(&[a].into()).is_empty());
        assert_eq!((kernel_has(&[a]), kernel_has(&[b])), ((true, true), (false, false)));
        assert!(groups.sync(&[b].into()).is_empty());
        assert_eq!((kernel_has(&[a]), kernel_has(&[b])), ((false, false), (true, true)));
        drop(groups);
        assert_eq!(kernel_has(&[b]), (false, false), "they end with the sockets");
    });
}

#[test]
fn thousands_of_groups_take_several_sockets() {
    let Some((node, _peer, ifindex)) = node() else { return };
    node.enter(|| {
        let all: BTreeSet<_> = (0..4096_u16)
            .map(|n| SolicitedNodeGroup::of(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 7, n), ifindex))
            .collect();
        let half: BTreeSet<_> = all.iter().copied().take(2048).collect();
        let mut groups = GroupSockets::default();
        assert!(groups.sync(&all).is_empty());
        assert_eq!(kernel_has(&all.iter().copied().collect::<Vec<_>>()), (true, true));
        assert!(groups.sync(&half).is_empty());
        assert!(groups.sync(&all).is_empty(), "the room of those that left is used again");
        assert_eq!(kernel_has(&all.iter().copied().collect::<Vec<_>>()), (true, true));
    });
}

#[test]
fn without_ipv6_the_network_card_is_still_configured() {
    let Some((node, _peer, ifindex)) = node() else { return };
    node.sysctl("ipv6/conf/eth0/disable_ipv6", "1");
    node.enter(|| {
        let a = group("2001:db8::1:1", ifindex);
        let mut groups = GroupSockets::default();
        for _ in 0..2 {
            let errors: Vec<_> = groups.sync(&[a].into()).into_iter().map(|error| error.to_string()).collect();
            assert_eq!(errors.len(), 1, "{errors:?}");
            assert!(errors[0].contains("sysctl net.ipv6.conf.eth0.disable_ipv6=0"), "{errors:?}");
            assert!(kernel_has(&[a]).1);
        }
        fs::write("/proc/sys/net/ipv6/conf/eth0/disable_ipv6", "0").unwrap();
        assert!(groups.sync(&[a].into()).is_empty());
        assert_eq!(kernel_has(&[a]), (true, true));
        fs::write("/proc/sys/net/ipv6/conf/eth0/disable_ipv6", "1").unwrap();
        assert!(kernel_has(&[a]).1, "IPv6 that is disabled later takes nothing away");
    });
}

#[test]
fn an_interface_that_comes_back_is_joined_anew() {
    let Some((node, peer, first)) = node() else { return };
    let mut groups = GroupSockets::default();
    let a = |ifindex| group("2001:db8::1:1", ifindex);
    node.enter(|| assert!(groups.sync(&[a(first)].into()).is_empty()));
    node.run(async |handle| handle.link().del(first).execute().await.unwrap());
    node.enter(|| {
        let errors = groups.sync(&[a(first), a(first + 1000)].into());
        let missing = |error: &dyn std::error::Error| {
            let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
            source.and_then(io::Error::raw_os_error) == Some(libc::ENODEV)
        };
        assert!(errors.iter().any(|error| missing(error)), "{errors:?}");
        assert_eq!(kernel_has(&[a(first)]), (false, false));
    });
    node.veth("eth0", &peer, "eth0");
    node.ready("eth0");
    let second = node.run(async |_| Links::read().await.unwrap().named("eth0").unwrap().ifindex);
    node.enter(|| {
        assert!(groups.sync(&[a(second)].into()).is_empty());
        assert_eq!(kernel_has(&[a(second)]), (true, true));
    });
}
