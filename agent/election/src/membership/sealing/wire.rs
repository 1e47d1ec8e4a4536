//! The bytes of datagrams.

use super::{SealError, Unopened};
use vipmux_model::NodeName;

/// The version of gossip: a datagram's first byte. Version 1 was never released.
pub(crate) const VERSION: u8 = 2;
/// Bytes of the header.
const HEADER: usize = 1 + 4 + 16 + 8;
/// Bytes by which the ciphertext is longer than the plaintext.
const TAG: usize = 16;
/// Bytes of a Node's name: an RFC 1123 subdomain.
const LONGEST_NAME: usize = 253;
/// Bytes of a payload: with a name of 63 bytes and all that goes around, it still fits into 1,400.
pub const LONGEST_PAYLOAD: usize = 1_200;
/// Bytes of a datagram: what is longer was not sealed by this version.
pub const LONGEST_DATAGRAM: usize = HEADER + 1 + LONGEST_NAME + 1 + LONGEST_PAYLOAD + TAG;

const PAYLOAD: u8 = 0;
const CHALLENGE: u8 = 1;
const RESPONSE: u8 = 2;

/// The id of a key. It says nothing about the key.
pub type KeyId = [u8; 4];
/// The id of a session: one run of an agent.
pub(super) type SessionId = [u8; 16];
/// The bytes that a challenge asks to be given back.
pub(super) type Cookie = [u8; 16];

/// The header of a datagram: authenticated, not sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) key: KeyId,
    pub(super) session: SessionId,
    pub(super) counter: u64,
}

impl Header {
    pub(super) fn emit(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[0] = VERSION;
        bytes[1..5].copy_from_slice(&self.key);
        bytes[5..].copy_from_slice(&self.nonce());
        bytes
    }

    /// The header, and the ciphertext after it.
    pub(super) fn parse(datagram: &[u8]) -> Result<(Self, &[u8]), Unopened> {
        if datagram.first().is_some_and(|version| *version != VERSION) {
            return Err(Unopened::OtherVersion);
        }
        if datagram.len() > LONGEST_DATAGRAM {
            return Err(Unopened::Malformed);
        }
        let parse = || {
            let (_, rest) = datagram.split_first()?;
            let (key, rest) = rest.split_first_chunk()?;
            let (session, rest) = rest.split_first_chunk()?;
            let (counter, ciphertext) = rest.split_first_chunk()?;
            Some((Self { key: *key, session: *session, counter: u64::from_be_bytes(*counter) }, ciphertext))
        };
        parse().filter(|(_, ciphertext)| ciphertext.len() > TAG).ok_or(Unopened::Malformed)
    }

    /// Returns the data that binds the ciphertext to a receiver: it opens for that node alone.
    pub(super) fn bound_to(&self, receiver: &NodeName) -> Vec<u8> {
        // The header's length is fixed, so no two of these are the same bytes.
        [self.emit().as_slice(), receiver.as_str().as_bytes()].concat()
    }

    /// Never the same twice under any key: no two runs have the same session, and none counts the
    /// same twice.
    pub(super) fn nonce(&self) -> [u8; 24] {
        let mut nonce = [0; 24];
        nonce[..16].copy_from_slice(&self.session);
        nonce[16..].copy_from_slice(&self.counter.to_be_bytes());
        nonce
    }
}

/// The sealed part of a datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plaintext<'a> {
    pub(super) sender: NodeName,
    pub(super) message: SealingMessage<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SealingMessage<'a> {
    Payload(&'a [u8]),
    Challenge {
        /// The session that is challenged.
        session: SessionId,
        cookie: Cookie,
    },
    Response {
        /// The challenge's.
        cookie: Cookie,
        /// Challenges the session that challenged this one.
        challenge: Option<Cookie>,
    },
}

impl<'a> Plaintext<'a> {
    pub(super) fn emit(&self) -> Result<Vec<u8>, SealError> {
        let name = self.sender.as_str().as_bytes();
        let too_long = SealError::TooLong(name.len());
        let length = u8::try_from(name.len()).ok().filter(|length| usize::from(*length) <= LONGEST_NAME);
        let mut bytes = vec![length.ok_or(too_long)?];
        bytes.extend(name);
        match self.message {
            SealingMessage::Payload(payload) if payload.len() > LONGEST_PAYLOAD => {
                return Err(SealError::TooLong(payload.len()));
            }
            SealingMessage::Payload(payload) => {
                bytes.push(PAYLOAD);
                bytes.extend(payload);
            }
            SealingMessage::Challenge { session, cookie } => {
                bytes.push(CHALLENGE);
                bytes.extend(session);
                bytes.extend(cookie);
            }
            SealingMessage::Response { cookie, challenge } => {
                bytes.push(RESPONSE);
                bytes.extend(cookie);
                bytes.extend(challenge.iter().flatten());
            }
        }
        Ok(bytes)
    }

    /// `None`: it makes no sense.
    pub(super) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (length, rest) = bytes.split_first()?;
        let (name, rest) = rest.split_at_checked(usize::from(*length))?;
        let sender = NodeName::new(str::from_utf8(name).ok()?).ok()?;
        let (kind, body) = rest.split_first()?;
        let message = match *kind {
            PAYLOAD if body.len() <= LONGEST_PAYLOAD => SealingMessage::Payload(body),
            CHALLENGE => {
                let (session, cookie) = body.split_first_chunk()?;
                SealingMessage::Challenge { session: *session, cookie: cookie.try_into().ok()? }
            }
            RESPONSE => {
                let (cookie, challenge) = body.split_first_chunk()?;
                let challenge = if challenge.is_empty() { None } else { Some(challenge.try_into().ok()?) };
                SealingMessage::Response { cookie: *cookie, challenge }
            }
            _ => return None,
        };
        Some(Self { sender, message })
    }
}
