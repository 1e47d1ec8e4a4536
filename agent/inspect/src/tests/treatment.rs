//! Tests how the views show the treatment of Services' packets.

use vipmux_common::{
    abi::{
        AffinityKey, AffinityValue, Range, SERVICE_DIRECT, SERVICE_KERNEL, ServiceKey, ServiceState, ServiceValue,
        VIP_ALL_PORTS, VipValue,
    },
    hash,
};

use super::{cluster::request, *};
use crate::lookup::{Lookup, LookupOutcome};
use vipmux_plan::Step;

impl Cluster {
    fn state(&mut self, slot: u32, change: impl FnOnce(&mut ServiceState)) {
        let states = &mut self.fixture.maps.service_states;
        let mut state = states.get(&slot, 0).unwrap();
        change(&mut state);
        states.set(slot, state, 0).unwrap();
    }

    fn revision(&mut self, port: u16, change: impl FnOnce(&mut ServiceValue)) {
        let key = ServiceKey { vip: 1, port: port.to_be(), protocol: 6, padding: 0 };
        let mut value = self.fixture.maps.services.get(&key, 0).unwrap();
        change(&mut value);
        self.fixture.maps.services.insert(key, value, 0).unwrap();
    }

    /// A prefix of the usual client's network, or another, in a set.
    fn range(&mut self, set: u32, client: bool) {
        let network: std::net::IpAddr = if client { [198, 51, 100, 0] } else { [203, 0, 113, 0] }.into();
        let vipmux_common::abi::Address { w0, w1, w2, w3 } = network.into();
        self.fixture.maps.apply(&Step::SourceRange((152, Range { set, w0, w1, w2, w3 }), true)).unwrap();
    }

    fn ask(&self, port: u16) -> Lookup {
        lookup::walk(&self.maps(), &clock(), &request(4000, port, Protocol::Tcp)).unwrap()
    }
}

fn findings(lookup: &Lookup, step: &str) -> Vec<String> {
    lookup.steps.iter().filter(|it| it.step == step).map(|it| it.finding.clone()).collect()
}

#[test]
fn services_show_what_is_particular_about_them() {
    let Some(mut cluster) = Cluster::new() else { return };
    cluster.range(900, true);
    cluster.range(900, false);
    cluster.state(0, |state| (state.idle, state.ranges, state.flags) = (90 * HZ, 900, SERVICE_DIRECT));
    cluster.state(2, |state| state.ranges = 901);
    cluster.revision(80, |value| value.affinity = 10_800 * HZ);
    cluster.revision(443, |value| value.flags = SERVICE_KERNEL);
    let services = Services::read(&cluster.maps(), &clock()).unwrap();
    let shown = text(&services);
    let line = |name: &str| shown.lines().find(|line| line.contains(name)).unwrap().split("  ").last().unwrap();
    assert_eq!(line("shop/web"), "direct,affinity=10800s,idle=90s,ranges=2");
    assert_eq!(line("shop/tls"), "kernel,ranges=0");
    let web = &json(&services)["services"][1];
    assert_eq!((&web["affinity_s"], &web["idle_s"], &web["source_ranges"]), (&json!(10_800), &json!(90), &json!(2)));
}

#[test]
fn a_lookup_says_whether_the_source_ranges_let_the_client_in() {
    let Some(mut cluster) = Cluster::new() else { return };
    cluster.range(900, true);
    cluster.range(901, false);
    cluster.state(4, |state| state.ranges = 900);
    let let_in = cluster.ask(81);
    assert_eq!(findings(&let_in, "ranges"), ["198.51.100.7 is in one of the Service's source ranges"]);
    assert!(matches!(let_in.outcome, LookupOutcome::Delivered { direct: false, .. }));
    cluster.state(4, |state| state.ranges = 901);
    let kept_out = cluster.ask(81);
    assert_eq!(findings(&kept_out, "ranges"), ["198.51.100.7 is in none of the Service's source ranges"]);
    assert_eq!(kept_out.outcome, LookupOutcome::Dropped { reason: "source_range" });
}

#[test]
fn a_lookup_says_which_backend_a_client_is_remembered_with() {
    let Some(mut cluster) = Cluster::new() else { return };
    cluster.revision(90, |value| value.affinity = 10 * HZ);
    let new = cluster.ask(90);
    assert_eq!(findings(&new, "affinity"), ["the client is not remembered"]);
    let client = request(0, 0, Protocol::Tcp).client.ip().into();
    let slot = hash::slot(hash::client(&client), 250);
    assert!(findings(&new, "table")[0].starts_with(&format!("slot {slot} of 250")), "by the client's address alone");
    let key = AffinityKey { client, slot: 5, generation: 105 };
    let now = cluster::NOW;
    let mut remember = |backend, backend_generation, seen| {
        let tag = hash::affinity(&key);
        let value = AffinityValue { tag, backend, backend_generation, seen, reserved: 0 };
        cluster.fixture.maps.affinity.insert(key, value, 0).unwrap();
        findings(&cluster.ask(90), "affinity").remove(0)
    };
    assert_eq!(remember(5, 15, now), "the client is remembered with backend 5");
    assert_eq!(remember(5, 14, now), "the client is remembered with a backend that cannot be used");
    assert_eq!(remember(3, 13, now), "the client is remembered with a backend that cannot be used", "it drains");
    assert_eq!(remember(5, 15, now - 11 * u64::from(HZ)), "the client was remembered too long ago");
}

#[test]
fn a_lookup_finds_the_service_with_all_ports_and_keeps_the_requested_port() {
    let Some(mut cluster) = Cluster::new() else { return };
    let address = std::net::IpAddr::from([192, 0, 2, 10]).into();
    let key = |port: u16| ServiceKey { vip: 1, port: port.to_be(), protocol: 6, padding: 0 };
    let maps = &mut cluster.fixture.maps;
    let admin = maps.services.get(&key(81), 0).unwrap();
    maps.services.insert(key(0), admin, 0).unwrap();
    maps.services.remove(&key(81)).unwrap();
    let backend = maps.backends.get(&0, 0).unwrap();
    maps.backends.set(0, vipmux_common::abi::Backend { port: 0, ..backend }, 0).unwrap();
    assert_eq!(findings(&cluster.ask(7777), "service"), ["no Service claims port 7777/TCP"]);
    let vip = cluster.fixture.maps.vips.get(&address, 0).unwrap();
    let vip = VipValue { flags: vip.flags | VIP_ALL_PORTS, ..vip };
    cluster.fixture.maps.vips.insert(address, vip, 0).unwrap();
    let found = cluster.ask(7777);
    assert_eq!(findings(&found, "service"), ["shop/admin claims every TCP port"]);
    let LookupOutcome::Delivered { backend, .. } = &found.outcome else { panic!("{found:?}") };
    assert_eq!(backend.port, 7777);
    assert_eq!(findings(&cluster.ask(443), "service"), ["shop/tls claims port 443/TCP"]);
    let shown = text(&Services::read(&cluster.maps(), &clock()).unwrap());
    assert!(shown.contains("192.0.2.10  all/TCP "), "{shown}");
    let backends = text(&Backends::read(&cluster.maps()).unwrap());
    assert!(backends.contains(" 10.0.0.1:all ") && backends.contains("shop/admin:all/TCP"), "{backends}");
}

#[test]
fn a_lookup_shows_which_packets_are_not_translated_and_which_are_left_to_the_stack() {
    let Some(mut cluster) = Cluster::new() else { return };
    cluster.state(4, |state| state.flags = SERVICE_DIRECT);
    let direct = cluster.ask(81);
    assert!(matches!(direct.outcome, LookupOutcome::Delivered { direct: true, .. }));
    assert!(text(&direct).ends_with("delivered here, unchanged, for 10.0.0.1:8080 on node-a\n"), "{}", text(&direct));
    cluster.revision(81, |value| value.flags = SERVICE_KERNEL);
    let left = cluster.ask(81);
    assert_eq!(left.outcome, LookupOutcome::LeftToKernel);
    assert_eq!(json(&left)["outcome"], json!({"verdict": "left_to_kernel"}));
}
