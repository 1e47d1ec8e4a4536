//! Exchanges netlink messages synchronously: one request and its whole answer (netlink(7)).
//!
//! rtnetlink's requests are asynchronous, and netlink-sys only transfers bytes.

use std::{fmt::Debug, io};

use netlink_packet_core::{
    NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload,
    NetlinkSerializable,
};
use netlink_sys::{Socket, SocketAddr};

pub use netlink_sys::protocols::{NETLINK_GENERIC, NETLINK_NETFILTER, NETLINK_ROUTE};

/// The largest datagram of an answer, bytes.
const ANSWER: usize = 64 * 1024;
/// Attempts at a dump that changes interrupt.
const ATTEMPTS: usize = 10;

/// Sends a request and returns the messages of the answer.
///
/// `flags` must contain `NLM_F_DUMP` or `NLM_F_ACK`, so that the answer has an end. A dump that was
/// interrupted by changes is repeated.
pub fn request<M>(protocol: isize, message: M, flags: u16) -> io::Result<Vec<M>>
where
    M: NetlinkSerializable + NetlinkDeserializable + Debug,
{
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | flags;
    let mut request = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    for _ in 0..ATTEMPTS {
        if let Some(messages) = exchange(protocol, &bytes)? {
            return Ok(messages);
        }
    }
    Err(io::Error::new(io::ErrorKind::Interrupted, "the requested objects change too often"))
}

/// Sends a request once. `None`: changes interrupted the answer, so it may be incomplete.
fn exchange<M: NetlinkDeserializable + Debug>(protocol: isize, request: &[u8]) -> io::Result<Option<Vec<M>>> {
    let mut socket = Socket::new(protocol)?;
    socket.bind_auto()?;
    socket.send_to(request, &SocketAddr::new(0, 0), 0)?;
    let (mut messages, mut interrupted) = (Vec::new(), false);
    let mut buffer = Vec::with_capacity(ANSWER);
    loop {
        buffer.clear();
        socket.recv(&mut buffer, 0)?;
        let mut rest = buffer.as_slice();
        while !rest.is_empty() {
            let message = NetlinkMessage::<M>::deserialize(rest).map_err(io::Error::other)?;
            // Messages are aligned to four bytes.
            rest = rest.get((message.header.length as usize).next_multiple_of(4)..).unwrap_or_default();
            interrupted |= message.header.flags & NLM_F_DUMP_INTR != 0;
            match message.payload {
                NetlinkPayload::Done(_) => return Ok((!interrupted).then_some(messages)),
                NetlinkPayload::Error(error) if error.raw_code() == 0 => return Ok(Some(messages)),
                NetlinkPayload::Error(error) => return Err(error.to_io()),
                NetlinkPayload::InnerMessage(message) => messages.push(message),
                _ => {}
            }
        }
    }
}
