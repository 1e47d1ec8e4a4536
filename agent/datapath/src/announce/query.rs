//! Asks the LAN who answers for addresses, by ARP (RFC 826) and neighbor solicitations (RFC 4861).
//!
//! The agent sees the answers by its XDP programs. This is for commands that run without an agent:
//! a packet socket listens. It blocks. A machine does not hear answers of its own.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::{IpAddr, Ipv4Addr},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    thread,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, socket},
};
use pnet::packet::{
    Packet as _,
    arp::ArpPacket,
    ethernet::{EtherTypes, EthernetPacket},
};
use vipmux_common::abi::Mac;

use super::{Frame, SendError, Sender, arp, groups::SolicitedNodeGroup, ndp};
use vipmux_model::Vip;

/// How often each question is asked.
const ROUNDS: u32 = 3;
/// The time for the answers to a round.
const WINDOW: Duration = Duration::from_millis(300);
/// The pause between two questions. Access switches limit the rate of ARP.
const PAUSE: Duration = Duration::from_millis(10);
/// The longest frame that is read, in bytes. Answers are shorter.
const FRAME: usize = 256;

/// The MACs that answered, by address.
pub type Answers = BTreeMap<Vip, BTreeSet<Mac>>;

/// A question: who has this address?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// The address.
    pub vip: Vip,
    /// The interface to ask on.
    pub ifindex: u32,
    /// Its MAC.
    pub mac: Mac,
    /// An address of this machine of the same family.
    pub source: IpAddr,
}

/// The LAN could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// No socket can be opened, or a question cannot be sent.
    #[error(transparent)]
    Send(#[from] SendError),
    /// Answers cannot be read.
    #[error("cannot read from the packet socket")]
    Receive(#[source] io::Error),
}

/// Asks all questions three times. Returns all MACs that claimed one of the addresses meanwhile. It
/// takes a second, and 30 ms more for each address.
pub fn ask(questions: &[Question]) -> Result<Answers, QueryError> {
    let mut listener = Listener::open(questions)?;
    let sender = Sender::open()?;
    for _ in 0..ROUNDS {
        for frame in questions.iter().filter_map(frame) {
            sender.send(&frame)?;
            thread::sleep(PAUSE);
        }
        listener.listen(Instant::now() + WINDOW)?;
    }
    Ok(listener.answers)
}

fn frame(question: &Question) -> Option<Frame> {
    let Question { vip, ifindex, mac, source } = *question;
    let bytes = match (vip.address(), source) {
        (IpAddr::V4(vip), IpAddr::V4(source)) => arp::request(source, vip, mac)?,
        (IpAddr::V6(vip), IpAddr::V6(source)) => {
            ndp::solicitation(source, vip, SolicitedNodeGroup::of(vip, ifindex), mac)
        }
        _ => return None,
    };
    Some(Frame { ifindex, bytes })
}

/// A packet socket that receives all frames (packet(7)).
struct Listener {
    socket: OwnedFd,
    answers: Answers,
}

impl Listener {
    fn open(questions: &[Question]) -> Result<Self, QueryError> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let opened = socket(AddressFamily::Packet, SockType::Raw, flags, SockProtocol::EthAll);
        let socket = opened.map_err(|error| SendError::Open(error.into()))?;
        let answers = questions.iter().map(|question| (question.vip, BTreeSet::new())).collect();
        Ok(Self { socket, answers })
    }

    fn listen(&mut self, until: Instant) -> Result<(), QueryError> {
        let mut buffer = [0; FRAME];
        loop {
            match recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Ok(length) => self.note(&buffer[..length]),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Ok(());
                    }
                    self.await_frame(left)?;
                }
                Err(error) => return Err(QueryError::Receive(error.into())),
            }
        }
    }

    fn await_frame(&self, limit: Duration) -> Result<(), QueryError> {
        let limit = PollTimeout::try_from(limit.max(Duration::from_millis(1))).unwrap_or(PollTimeout::ZERO);
        match poll(&mut [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)], limit) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(QueryError::Receive(error.into())),
        }
    }

    fn note(&mut self, frame: &[u8]) {
        let claim = claimed(frame).map(|(address, mac)| (address.into(), mac));
        let claim = claim.or_else(|| ndp::advertised(frame).map(|(address, mac)| (address.into(), mac)));
        let Some((address, mac)) = claim else { return };
        if let Some(macs) = self.answers.get_mut(&Vip::new(address)) {
            macs.insert(mac);
        }
    }
}

/// Returns the address that an ARP frame's sender claims, and its MAC.
fn claimed(frame: &[u8]) -> Option<(Ipv4Addr, Mac)> {
    let ethernet = EthernetPacket::new(frame)?;
    if ethernet.get_ethertype() != EtherTypes::Arp {
        return None;
    }
    let arp = ArpPacket::new(ethernet.payload())?;
    Some((arp.get_sender_proto_addr(), Mac::new(arp.get_sender_hw_addr().octets())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Links;
    use vipmux_testing::{names::vip, netns::Namespace};

    const MAC: Mac = Mac::new([2, 0, 0x5e, 0x10, 0x20, 0x30]);

    #[test]
    fn arp_from_the_address_is_a_claim_and_a_request_for_it_is_none() {
        let vip = Ipv4Addr::new(192, 0, 2, 9);
        for frame in arp::announcement(vip, MAC) {
            assert_eq!(claimed(&frame), Some((vip, MAC)));
        }
        let own = Ipv4Addr::new(192, 0, 2, 1);
        assert_eq!(claimed(&arp::request(own, vip, MAC).unwrap()), Some((own, MAC)));
        assert_eq!(claimed(&ndp::announcement("2001:db8::9".parse().unwrap(), MAC)), None);
    }

    #[test]
    fn who_has_an_address_answers_and_nobody_else() {
        let Some([node, peer]) = Namespace::new() else { return };
        node.veth("eth0", &peer, "eth0");
        for (namespace, host) in [(&node, 1), (&peer, 2)] {
            namespace.address("eth0", &format!("192.0.2.{host}"), 24);
            namespace.address("eth0", &format!("2001:db8::{host}"), 64);
            namespace.ready("eth0");
        }
        let eth0 = |namespace: &Namespace| {
            namespace.run(async |_| {
                let links = Links::read().await.unwrap();
                let interface = links.named("eth0").unwrap();
                (interface.ifindex, interface.mac.unwrap())
            })
        };
        let ((ifindex, mac), (_, theirs)) = (eth0(&node), eth0(&peer));
        let pairs = [
            ("192.0.2.2", "192.0.2.1", Some(theirs)),
            ("192.0.2.9", "192.0.2.1", None),
            ("2001:db8::2", "2001:db8::1", Some(theirs)),
            ("2001:db8::9", "2001:db8::1", None),
        ];
        let question = |(address, source, _): &(&str, &str, Option<Mac>)| Question {
            vip: vip(address),
            ifindex,
            mac,
            source: source.parse().unwrap(),
        };
        let answers = node.enter(|| ask(&pairs.iter().map(question).collect::<Vec<_>>())).unwrap();
        for (address, _, expected) in pairs {
            assert_eq!(answers[&vip(address)], expected.into_iter().collect(), "{address}");
        }
    }
}
