//! Tests the data plane as the event loop sees it.

use std::{collections::BTreeSet, num::NonZeroU16, sync::Arc};

use imbl::OrdMap;
use vipmux_common::abi::VIP_ALL_PORTS;

use super::*;
use vipmux_datapath::bpf::vip_index::slots;

use crate::fixture;
use vipmux_model::desired::{
    DesiredBackend, DesiredNode, DesiredService, DesiredVip, Reach, Readiness, Treatment, Unreachable,
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
    let of_vip = |vip: &Vip| (*vip, DesiredVip { leading: false, interfaces: 1, vlan: None, epoch: 0 });
    Desired {
        local: node_name("here"),
        nodes: [(node_name("here"), DesiredNode { mac: None, ifindex: 1, mtu: 1500, reach: Reach::Attached })].into(),
        speakers: BTreeMap::new(),
        handover_macs: Arc::default(),
        vips: vips.iter().map(of_vip).collect(),
        services: vips.iter().map(claim).collect::<OrdMap<_, _>>(),
        unreachable: Unreachable::Refuse,
    }
}

fn kernel() -> Option<Kernel> {
    let pins = fixture::mounted()?;
    Some(Kernel::open(pins, 64, Unclaimed::Reject).unwrap())
}

#[test]
fn packets_find_a_vip_as_it_is_after_each_step() {
    let Some(mut kernel) = kernel() else { return };
    let (one, all) = (desired(&[vip4(1)], 80), desired(&[vip4(1)], 0));
    for (desired, all_ports) in [(&one, false), (&all, true), (&one, false), (&desired(&[], 0), false)] {
        let plan = plan::plan(desired, kernel.observed(), boottime().unwrap()).unwrap();
        for step in &plan.steps {
            kernel.execute(step).unwrap();
            let vips = kernel.maps.read_vips().unwrap();
            assert_eq!(kernel.maps.read_vip_index().unwrap(), slots(&vips), "{step:?}");
        }
        let has_all = |vip: &abi::VipValue| vip.flags & VIP_ALL_PORTS != 0;
        assert_eq!(kernel.maps.read_vips().unwrap().values().any(has_all), all_ports);
    }
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
