//! Tests the real programs with another machine on a wire: probes leave, and answers are noted.

use std::{net::IpAddr, thread};

use nix::time::{ClockId, clock_gettime};
use vipmux_common::abi::{Interface, VipValue};

use super::*;
use crate::{
    announce::{
        Sender,
        address_probe::{AddressAvailability, AddressProbeMode, AddressProber},
    },
    bpf::{
        attach::{TcAttachMode, XdpAttachMode},
        direction::Direction,
        load::load,
        maps::Maps,
    },
    fixture::mounted,
    link::Links,
};
use vipmux_testing::{PATIENCE, again_while, netns::Namespace};

fn eth0(namespace: &Namespace) -> (u32, Mac) {
    namespace.ready("eth0");
    namespace.run(async |_| {
        let links = Links::read().await.unwrap();
        let interface = links.named("eth0").unwrap();
        (interface.ifindex, interface.mac.unwrap())
    })
}

fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).unwrap().into()
}

fn ask(node: &Namespace, maps: &Maps, vip: Vip, outlet: (u32, Mac), mode: AddressProbeMode) -> AddressAvailability {
    node.enter(|| {
        let (sender, mut prober) = (Sender::open().unwrap(), AddressProber::new(7));
        prober.begin(vip, vec![outlet], mode, now());
        loop {
            thread::sleep(prober.next().unwrap().saturating_sub(now()));
            let noted = maps.speakers.read().unwrap();
            let heard: Vec<_> = noted.iter().map(|(key, speaker)| VipSpeaker::new(*key, speaker, |_| false)).collect();
            let turn = prober.poll(&heard, now());
            turn.frames.iter().for_each(|(_, frame)| sender.send(frame).unwrap());
            if let Some((_, outcome)) = turn.outcomes.first() {
                return *outcome;
            }
        }
    })
}

#[test]
fn a_machine_that_has_the_address_is_found() {
    for mode in [XdpAttachMode::Native, XdpAttachMode::Generic] {
        let Some([node, foreign]) = Namespace::new() else { return };
        let Some(pins) = mounted() else { return };
        node.veth("eth0", &foreign, "eth0");
        let (place, (_, mac)) = (eth0(&node), eth0(&foreign));
        let (mut programs, mut maps) = load(&pins, 64).unwrap();
        maps.set_interface(place.0, Interface { mac: place.1, bit: 1, flags: 0 }).unwrap();
        node.enter(|| {
            programs.attach_classifier(Direction::Egress, "eth0", place.0, TcAttachMode::default()).unwrap();
            programs.attach_xdp("eth0", (place.0, 1500), mode, None).unwrap();
        });
        for (id, vip) in (1..).zip(["192.0.2.50", "2001:db8::50"]) {
            let address: IpAddr = vip.parse().unwrap();
            let value = VipValue { id, interfaces: 1, ..VipValue::default() };
            maps.vips.insert(vipmux_common::abi::Address::from(address), value, 0).unwrap();
            for probe in [AddressProbeMode::Query, AddressProbeMode::Detect] {
                assert_eq!(
                    ask(&node, &maps, Vip::new(address), place, probe),
                    AddressAvailability::Free,
                    "{vip}, {mode:?}, {probe:?}"
                );
            }
            foreign.address("eth0", vip, 24);
            let taken = AddressAvailability::Taken { mac, ifindex: place.0 };
            // Not `Query`: on a busy machine an answer may take longer than that waits. It is
            // repeated, because the kernel hears IPv6 questions only some time after it was given
            // the address.
            let ask = || ask(&node, &maps, Vip::new(address), place, AddressProbeMode::Detect);
            let outcome =
                again_while(PATIENCE, |outcome| address.is_ipv6() && *outcome == AddressAvailability::Free, ask);
            assert_eq!(outcome, taken, "{vip}, {mode:?}");
        }
    }
}
