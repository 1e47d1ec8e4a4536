//! Netlink messages and their attributes, for the families of which only a few bytes are wanted (netlink(7)).

use std::io;

use netlink_sys::{Socket, SocketAddr};

/// Bytes of `struct nlmsghdr`.
const HEADER: usize = 16;
/// `NLM_F_REQUEST`, and to have an end told.
const REQUEST: u16 = 0x01;
const ACKNOWLEDGE: u16 = 0x04;
/// `NLM_F_DUMP`.
pub(super) const DUMP: u16 = 0x300;
/// `NLM_F_DUMP_INTR`: something changed meanwhile, so the answer may lack something.
const INTERRUPTED: u16 = 0x10;
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// The kernel's answers come in datagrams of at most this many bytes.
const ANSWER: usize = 64 * 1024;
/// How often a dump that was interrupted is begun again.
const ATTEMPTS: usize = 10;

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) kind: u16,
    pub(super) payload: Vec<u8>,
}

/// Asks something; all that the kernel says to it.
pub(super) fn ask(protocol: isize, kind: u16, flags: u16, payload: &[u8]) -> io::Result<Vec<Message>> {
    for _ in 0..ATTEMPTS {
        if let Some(messages) = ask_once(protocol, kind, flags, payload)? {
            return Ok(messages);
        }
    }
    Err(io::Error::new(io::ErrorKind::Interrupted, "what is asked for changes all the time"))
}

/// `None`: the answer was interrupted.
fn ask_once(protocol: isize, kind: u16, flags: u16, payload: &[u8]) -> io::Result<Option<Vec<Message>>> {
    let mut socket = Socket::new(protocol)?;
    socket.bind_auto()?;
    let acknowledge = if flags == DUMP { 0 } else { ACKNOWLEDGE };
    let length = u32::try_from(HEADER + payload.len()).map_err(io::Error::other)?;
    let mut request = length.to_ne_bytes().to_vec();
    request.extend(kind.to_ne_bytes());
    request.extend((REQUEST | acknowledge | flags).to_ne_bytes());
    // The sequence number, and the kernel's port.
    request.extend([0; 8]);
    request.extend(payload);
    socket.send_to(&request, &SocketAddr::new(0, 0), 0)?;
    let (mut messages, mut interrupted) = (Vec::new(), false);
    let mut buffer = Vec::with_capacity(ANSWER);
    loop {
        buffer.clear();
        socket.recv(&mut buffer, 0)?;
        let mut rest = buffer.as_slice();
        while let Some((header, body, after)) = split(rest) {
            interrupted |= header.flags & INTERRUPTED != 0;
            match header.kind {
                DONE => return Ok((!interrupted).then_some(messages)),
                ERROR => match word(body).map(u32::cast_signed) {
                    Some(0) => return Ok(Some(messages)),
                    code => return Err(io::Error::from_raw_os_error(-code.unwrap_or(-libc::EPROTO))),
                },
                kind => messages.push(Message { kind, payload: body.to_vec() }),
            }
            rest = after;
        }
    }
}

struct Header {
    kind: u16,
    flags: u16,
}

/// The first message, and what is behind it.
fn split(bytes: &[u8]) -> Option<(Header, &[u8], &[u8])> {
    let length = word(bytes)? as usize;
    let body = bytes.get(HEADER..length)?;
    let header = Header { kind: half(bytes.get(4..)?)?, flags: half(bytes.get(6..)?)? };
    Some((header, body, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

/// A number of 32 bits, in the machine's order.
pub(super) fn word(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.first_chunk().copied()?))
}

/// A number of 32 bits, in the network's order.
pub(super) fn network_word(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.first_chunk().copied()?))
}

/// A number of 16 bits, in the machine's order.
pub(super) fn half(bytes: &[u8]) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.first_chunk().copied()?))
}

/// A text with a zero behind it.
pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}

/// An attribute as it is sent.
pub(super) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = u16::try_from(value.len() + 4).unwrap_or(u16::MAX).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// The attributes in `bytes`, as far as they make sense: kind, without the flags for nesting and byte order, and value.
pub(super) fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let length = usize::from(half(rest)?);
        let (kind, value) = (half(rest.get(2..)?)? & 0x3fff, rest.get(4..length)?);
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The first attribute of that kind.
pub(super) fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_as_they_are_sent_and_what_is_cut_off_ends_them() {
        let mut bytes = attribute(1, b"ab\0");
        bytes.extend(attribute(0x8002, &7_u32.to_ne_bytes()));
        let read: Vec<_> = attributes(&bytes).collect();
        assert_eq!(read, [(1, &b"ab\0"[..]), (2, &7_u32.to_ne_bytes()[..])]);
        assert_eq!(find(&bytes, 2).and_then(word), Some(7));
        assert_eq!(find(&bytes, 3), None);
        assert_eq!(attributes(&bytes[..bytes.len() - 1]).count(), 1);
        for cut in 0..4 {
            assert_eq!(attributes(&bytes[..cut]).count(), 0);
        }
        // A length of less than its own header would never end.
        assert_eq!(attributes(&[0, 0, 0, 0, 0, 0, 0, 0]).count(), 0);
    }
}
