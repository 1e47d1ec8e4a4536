//! Neighbor discovery (RFC 4861) for clients on the LAN: solicitations.

use std::{
    net::Ipv6Addr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use pnet::{datalink::DataLinkReceiver, util::MacAddr};

use crate::{
    arp::{TICK, eth0, next_frame, open},
    frames::{Ethernet, Ipv6, NA_OVERRIDE, NA_SOLICITED, Ndp, multicast_mac, solicited_node},
    netns::Namespace,
};

/// The offset of an advertisement's flags: after the headers of Ethernet and IPv6, type, code and
/// checksum.
const FLAGS: usize = 14 + 40 + 4;

/// Sends a solicitation for an address from `source` on eth0. Returns all advertisements within
/// `window`.
pub fn answers(namespace: &Namespace, source: Ipv6Addr, target: Ipv6Addr, window: Duration) -> Result<Vec<MacAddr>> {
    namespace.run(|| send_solicitation(source, target, window, usize::MAX))
}

/// Sends a solicitation for an address from `source` on eth0. Returns the first advertisement
/// within `window`, if any.
pub fn first_answer(
    namespace: &Namespace,
    source: Ipv6Addr,
    target: Ipv6Addr,
    window: Duration,
) -> Result<Option<MacAddr>> {
    Ok(namespace.run(|| send_solicitation(source, target, window, 1))?.pop())
}

/// Announces an address with eth0's MAC, as a machine does after it got the address (RFC 4861,
/// 7.2.6). The frame takes the kernel's way, past the egress programs. Returns whether it left.
pub fn advertise(namespace: &Namespace, address: Ipv6Addr) -> Result<bool> {
    const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    namespace.run(|| {
        let interface = eth0()?;
        let (mut sender, _) = open(&interface, TICK)?;
        let mac = interface.mac.context("eth0 has no MAC")?.octets();
        let message = Ndp::advertisement(address, NA_OVERRIDE).mac(mac);
        let frame = Ethernet::new(mac, multicast_mac(ALL_NODES)).ipv6(&Ipv6::ndp(address, ALL_NODES, &message));
        match sender.send_to(&frame, None).context("the frame does not fit the buffer")? {
            // The kernel's error for a frame that an egress program dropped.
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => Ok(false),
            sent => Ok(sent.map(|()| true)?),
        }
    })
}

fn send_solicitation(source: Ipv6Addr, target: Ipv6Addr, window: Duration, enough: usize) -> Result<Vec<MacAddr>> {
    let interface = eth0()?;
    let (mut sender, mut receiver) = open(&interface, TICK)?;
    let mac = interface.mac.context("eth0 has no MAC")?.octets();
    let group = solicited_node(target);
    let question = Ipv6::ndp(source, group, &Ndp::solicitation(target).mac(mac));
    let frame = Ethernet::new(mac, multicast_mac(group)).ipv6(&question);
    sender.send_to(&frame, None).context("the frame does not fit the buffer")??;
    let (mut found, mut waited) = (Vec::new(), Duration::ZERO);
    while waited < window && found.len() < enough {
        let begin = Instant::now();
        found.extend(receive(receiver.as_mut(), mac, source, target)?);
        // See `arp::send_request`.
        waited += begin.elapsed().min(TICK);
    }
    Ok(found)
}

/// Returns the MAC in a solicited advertisement, if that is the next frame. Everything except the
/// MAC and the other flags must be correct, including the checksum.
fn receive(
    receiver: &mut dyn DataLinkReceiver,
    mac: [u8; 6],
    source: Ipv6Addr,
    target: Ipv6Addr,
) -> Result<Option<MacAddr>> {
    let Some(frame) = next_frame(receiver)? else { return Ok(None) };
    let (Some(claimed), Some(flags)) = (frame.last_chunk::<6>(), frame.get(FLAGS)) else { return Ok(None) };
    let answer = Ndp::advertisement(target, flags | NA_SOLICITED).mac(*claimed);
    let expected = Ethernet::new(*claimed, mac).ipv6(&Ipv6::ndp(target, source, &answer));
    Ok((frame == expected).then(|| (*claimed).into()))
}
