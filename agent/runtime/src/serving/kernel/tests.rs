//! Tests the data plane as the event loop sees it.

use std::{collections::BTreeSet, num::NonZeroU16, sync::Arc};

use imbl::OrdMap;
use vipmux_common::abi::VIP_ALL_PORTS;

use super::*;
use vipmux_datapath::bpf::{service_index::elements, vip_index::slots};

use vipmux_datapath::fixture;
use vipmux_model::{
    desired::{
        DesiredBackend, DesiredNode, DesiredPath, DesiredService, DesiredVip, Reach, Readiness, Treatment, Unreachable,
    },
    hashing::Hashing,
};
use vipmux_testing::names::{node_name, service_name, tcp_claim, vip4};

/// A Service with an endpoint here, on these VIPs and that port of each.
fn desired(vips: &[Vip], port: u16) -> Desired {
    let backend = DesiredBackend {
        address: [10, 0, 0, 1].into(),
        port: NonZeroU16::new(8080),
        node: Some(node_name("here")),
        readiness: Readiness::Ready,
    };
    let service = DesiredService {
        owner: service_name("web"),
        backends: Arc::new(BTreeSet::from([backend])),
        treatment: Treatment::default(),
    };
    let claim = |vip: &Vip| (tcp_claim(*vip, port), service.clone());
    let of_vip = |vip: &Vip| (*vip, DesiredVip { leading: false, interfaces: 1, vlan: None, segment: 0, epoch: 0 });
    Desired {
        local: node_name("here"),
        nodes: [(
            node_name("here"),
            DesiredNode {
                path: DesiredPath { mac: None, ifindex: 1, vlan: None, mtu: 1500, reach: Reach::Attached },
                by_segment: BTreeMap::new(),
            },
        )]
        .into(),
        speakers: BTreeMap::new(),
        handover_macs: Arc::default(),
        vips: vips.iter().map(of_vip).collect(),
        services: vips.iter().map(claim).collect::<OrdMap<_, _>>(),
        unreachable: Unreachable::Refuse,
        hashing: Hashing::Second,
    }
}

fn kernel() -> Option<Kernel> {
    let pins = fixture::mounted()?;
    Some(Kernel::open(pins, 64, Unclaimed::Reject).unwrap().0)
}

#[test]
fn packets_find_a_vip_and_its_services_as_they_are_after_each_step() {
    let Some(mut kernel) = kernel() else { return };
    let (one, all) = (desired(&[vip4(1)], 80), desired(&[vip4(1)], 0));
    for (desired, all_ports) in [(&one, false), (&all, true), (&one, false), (&desired(&[], 0), false)] {
        let plan = plan::plan(desired, kernel.observed(), boottime().unwrap()).unwrap();
        for step in &plan.steps {
            kernel.execute(step).unwrap();
            let vips = kernel.maps.read_vips().unwrap();
            assert_eq!(kernel.maps.vip_index.read().unwrap(), slots(&vips), "{step:?}");
            let services = kernel.maps.read_services().unwrap();
            assert_eq!(kernel.maps.service_index.read().unwrap(), elements(&services), "{step:?}");
        }
        let has_all = |vip: &abi::VipValue| vip.flags & VIP_ALL_PORTS != 0;
        assert_eq!(kernel.maps.read_vips().unwrap().values().any(has_all), all_ports);
    }
}

/// Then records of flows that are older may be invalid.
#[test]
fn the_programs_know_when_a_service_or_a_backend_was_removed() {
    let Some(mut kernel) = kernel() else { return };
    let hz = kernel.observed().config().hz;
    let started = kernel.maps.read_config().unwrap().removed;
    assert!(jiffies::now_low(hz).unwrap().wrapping_sub(started) < 1 << 31, "what is removed before counts as well");
    let mut notes = |wanted: &Desired| {
        kernel.execute(&Step::Config(Config { removed: 7, ..*kernel.observed().config() })).unwrap();
        let before = jiffies::now_low(hz).unwrap();
        kernel.sync(wanted, |_| Ok(())).unwrap();
        let config = kernel.maps.read_config().unwrap();
        assert_eq!(config, *kernel.observed().config());
        let is_noted = config.removed != 7;
        let since = jiffies::now_low(hz).unwrap().wrapping_sub(before);
        assert!(!is_noted || config.removed.wrapping_sub(before) <= since, "noted at another time");
        is_noted
    };
    let (with, mut without) = (desired(&[vip4(1)], 80), desired(&[vip4(1)], 80));
    let idle = |service: &DesiredService| DesiredService { backends: Arc::default(), ..service.clone() };
    without.services = with.services.iter().map(|(claim, service)| (*claim, idle(service))).collect();
    assert!(!notes(&with), "nothing was there before");
    assert!(notes(&without), "a backend");
    assert!(!notes(&with), "a backend came");
    without.services.clear();
    assert!(notes(&without), "a Service");
}

/// The self-check finds an entry gone. Before it is written again, nobody wants it any more.
#[test]
fn no_index_keeps_what_somebody_else_removed() {
    let Some(mut kernel) = kernel() else { return };
    let wanted = desired(&[vip4(1)], 80);
    kernel.sync(&wanted, |_| Ok(())).unwrap();
    let (address, _) = kernel.maps.read_vips().unwrap().pop_first().unwrap();
    let (key, _) = kernel.maps.read_services().unwrap().pop_first().unwrap();
    kernel.maps.services.remove(&key).unwrap();
    kernel.maps.vips.remove(&address).unwrap();
    let found = entries(&kernel.maps, kernel.maps.backends.len()).unwrap();
    let differences = kernel.observed().differences(&found);
    assert_eq!(differences.len(), 2, "{differences:?}");
    for difference in &differences {
        kernel.correct(difference).unwrap();
    }
    kernel.sync(&desired(&[], 0), |_| Ok(())).unwrap();
    assert!(kernel.maps.vip_index.read().unwrap().is_empty());
    assert!(kernel.maps.service_index.read().unwrap().is_empty());
}

#[test]
fn a_plan_that_is_older_than_the_election_changes_no_leading_flag() {
    let Some(mut kernel) = kernel() else { return };
    let vips: Vec<_> = (1..=3).map(vip4).collect();
    let led = |kernel: &Kernel| kernel.announced().into_keys().collect::<Vec<_>>();
    kernel.sync(&desired(&vips, 80), |_| Ok(())).unwrap();
    for vip in &vips {
        kernel.lead(*vip, 7).unwrap();
    }
    assert_eq!(led(&kernel), vips);
    let now = boottime().unwrap();
    assert_eq!(kernel.answering(now).unwrap(), [].into(), "the fence is closed");
    kernel.extend(now + Duration::from_secs(1)).unwrap();
    assert_eq!(kernel.answering(now).unwrap(), vips.iter().copied().collect());
    let mut stale = desired(&vips, 443);
    stale.vips.values_mut().for_each(|vip| vip.interfaces = 3);
    kernel.sync(&stale, |_| Ok(())).unwrap();
    assert_eq!(led(&kernel), vips);
    assert!(kernel.observed().vips().values().all(|vip| vip.epoch == 7));
    stale.vips.values_mut().for_each(|vip| (vip.leading, vip.interfaces) = (true, 7));
    for vip in &vips {
        kernel.follow(*vip).unwrap();
    }
    kernel.sync(&stale, |_| Ok(())).unwrap();
    assert_eq!(led(&kernel), []);
    assert!(kernel.observed().vips().values().all(|vip| vip.interfaces == 7));
}

#[test]
fn a_vip_that_the_programs_gave_up_stays_so_until_it_is_led_again_whatever_a_plan_writes() {
    let Some(mut kernel) = kernel() else { return };
    let address = Address::from(vip4(1).address());
    let is_led = |kernel: &Kernel| kernel.maps.read_vip(&address).unwrap().unwrap().flags & VIP_LEADING != 0;
    let mut desired = desired(&[vip4(1)], 80);
    kernel.sync(&desired, |_| Ok(())).unwrap();
    kernel.lead(vip4(1), 7).unwrap();
    assert!(is_led(&kernel));
    let led = kernel.maps.read_vip(&address).unwrap().unwrap();
    let flags = led.flags & !VIP_LEADING | VIP_YIELDED;
    kernel.maps.apply(&Step::Vip(address, Some(abi::VipValue { flags, ..led }))).unwrap();
    for interfaces in [3, 7] {
        desired.vips.values_mut().for_each(|vip| (vip.leading, vip.interfaces) = (true, interfaces));
        kernel.sync(&desired, |_| Ok(())).unwrap();
        let found = kernel.maps.read_vip(&address).unwrap().unwrap();
        assert_eq!((is_led(&kernel), found.interfaces, found.epoch), (false, interfaces, 7));
    }
    kernel.lead(vip4(1), 8).unwrap();
    assert!(is_led(&kernel));
}

#[test]
fn an_assured_vip_stays_assured_whatever_a_plan_writes_until_it_is_led_no_longer() {
    let Some(mut kernel) = kernel() else { return };
    let flags = |kernel: &Kernel| kernel.maps.read_vip(&vip4(1).address().into()).unwrap().unwrap().flags;
    let mut desired = desired(&[vip4(1)], 80);
    kernel.sync(&desired, |_| Ok(())).unwrap();
    kernel.assure(vip4(1), true).unwrap();
    assert_eq!(flags(&kernel), 0, "it is not led yet");
    kernel.lead(vip4(1), 7).unwrap();
    assert_eq!(flags(&kernel), VIP_LEADING | VIP_ASSURED);
    for interfaces in [3, 7] {
        desired.vips.values_mut().for_each(|vip| (vip.leading, vip.interfaces) = (true, interfaces));
        kernel.sync(&desired, |_| Ok(())).unwrap();
        assert_eq!(flags(&kernel), VIP_LEADING | VIP_ASSURED);
    }
    kernel.assure(vip4(1), false).unwrap();
    assert_eq!(flags(&kernel), VIP_LEADING);
    kernel.assure(vip4(1), true).unwrap();
    kernel.follow(vip4(1)).unwrap();
    assert_eq!(flags(&kernel), 0);
    kernel.lead(vip4(1), 8).unwrap();
    assert_eq!(flags(&kernel), VIP_LEADING, "each leadership begins without it");
}

#[test]
fn announcements_of_led_vips_with_peers_macs_are_heard_once() {
    let (since, mac) = (Duration::from_secs(10), |last| Mac::new([2, 0, 0, 0, 0, last]));
    let speaker = |vip, last, seconds, peer| VipSpeaker {
        vip: vip4(vip),
        mac: mac(last),
        ifindex: 1,
        claimed: Some(Duration::from_secs(seconds)),
        probed: None,
        option: None,
        peer,
    };
    let speakers = [
        speaker(1, 1, 9, true),
        speaker(1, 2, 11, false),
        speaker(2, 1, 11, true),
        speaker(2, 2, 12, true),
        speaker(2, 3, 9, true),
        speaker(3, 1, 11, true),
        VipSpeaker { claimed: None, ..speaker(2, 4, 0, true) },
    ];
    let heard = heard_announcements(&speakers, since, [vip4(1)].into(), |vip| *vip != vip4(3));
    let expected = [
        (vip4(1), HeardAnnouncement { macs: [].into(), at: Duration::ZERO, yielded: true }),
        (vip4(2), HeardAnnouncement { macs: [mac(1), mac(2)].into(), at: Duration::from_secs(12), yielded: false }),
    ];
    assert_eq!(heard, expected.into());
}
