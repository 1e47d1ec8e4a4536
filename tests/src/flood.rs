//! Floods of connections that nobody completes.

use std::{net::Ipv4Addr, ops::Range, thread, time::Duration};

use anyhow::{Context as _, Result};
use pnet::util::MacAddr;

use crate::{
    arp,
    frames::{ACK, Ethernet, Ipv4, SYN, Tcp},
};

/// Frames between pauses. All network namespaces share a CPU's queue of 1,000 packets
/// (net.core.netdev_max_backlog): more at once would lose packets of other tests.
const BURST: u32 = 50;
const PAUSE: Duration = Duration::from_millis(1);

/// Sends SYNs from forged addresses in 10.0.0.0/8 to a MAC, out of eth0 of the caller's network
/// namespace. `numbers`: the flows; each has another address and port.
pub fn send_forged_syns(to: MacAddr, vip: Ipv4Addr, port: u16, numbers: Range<u32>) -> Result<()> {
    send_forged(to, vip, port, numbers, &[SYN])
}

/// Sends a SYN and an ACK of each flow, as [`send_forged_syns`] sends SYNs. So a client behaves that has a
/// connection.
pub fn send_forged_connections(to: MacAddr, vip: Ipv4Addr, port: u16, numbers: Range<u32>) -> Result<()> {
    send_forged(to, vip, port, numbers, &[SYN, ACK])
}

fn send_forged(to: MacAddr, vip: Ipv4Addr, port: u16, numbers: Range<u32>, segments: &[u8]) -> Result<()> {
    let interface = arp::eth0()?;
    let own = interface.mac.context("eth0 has no MAC")?;
    let (mut sender, _receiver) = arp::open(&interface, Duration::from_millis(1))?;
    let ethernet = Ethernet::new(own.octets(), to.octets());
    for number in numbers {
        let client = Ipv4Addr::from(0x0a00_0000 | number.wrapping_mul(0x9e37_79b1) >> 8);
        let client_port = 1024 + u16::try_from(number % 60_000)?;
        for (offset, flags) in (0..).zip(segments) {
            let tcp = Tcp::new(client_port, port, *flags).numbers(number.wrapping_add(offset), 0);
            // A full queue is part of a flood.
            let _ = sender.send_to(&ethernet.ipv4(&Ipv4::tcp(client, vip, tcp)), None).context("cannot send")?;
        }
        if number % BURST == 0 {
            thread::sleep(PAUSE);
        }
    }
    Ok(())
}
