//! Seals payloads into UDP datagrams and opens them: only agents with the key can read and write
//! them.
//!
//! Recorded datagrams cannot be used again. There is no clock and no I/O, and randomness is
//! injected.
//!
//! ```text
//! datagram:   version │ key id │ session │ counter │ XChaCha20-Poly1305 of the plaintext, with its tag
//! bytes:         1    │   4    │   16    │    8    │ nonce: session and counter
//! authenticated, too: the header, and the receiver's name, which is not in it
//! plaintext:  length of the sender's name (1) │ the name │ kind (1) │ body
//! ```
//!
//! Numbers are big-endian. A *session* is one run of an agent: a random number that no other has,
//! so that no nonce is used twice. Its counter tells each of its datagrams from the others. A
//! receiver takes each once, in any order within [`WINDOW`]. A datagram that was sealed for one
//! node opens at no other. So a copied datagram cannot give a VIP to two nodes.
//!
//! A session that a receiver does not know could be an old, recorded one. So no payload of it is
//! taken before it has answered a *challenge*, in a datagram that only its agent can seal now:
//!
//! ```text
//! A (started again)                        B
//!        ── payload ──────────────────────►   lost
//!        ◄───────────── challenge: cookie ──
//!        ── response: cookie; my cookie ──►   A's session is admitted, from this counter on
//!        ◄─────────── response: my cookie ──  and B's at A
//!        ── payload ──────────────────────►   taken
//! ```
//!
//! Nothing is stored about a challenge (see `challenge`). A node has at most two admitted sessions:
//! while it restarts, datagrams of the old session may still be under way. A session is heard for
//! [`PROOF`] after it answered a challenge, and is challenged again in time. So datagrams that an
//! attacker held back are worthless once their sender is gone.

mod challenge;
mod keys;
mod session;
mod wire;

use std::{net::IpAddr, time::Duration};

pub use keys::{KeysError, SealingKeys};
pub use session::{PROOF, WINDOW};
pub(crate) use wire::VERSION;
pub use wire::{KeyId, LONGEST_DATAGRAM, LONGEST_PAYLOAD};

use self::{
    challenge::{ChallengeSubject, Challenger},
    session::{Freshness, Sessions},
    wire::{Header, Plaintext, SealingMessage, SessionId},
};
use vipmux_model::NodeName;

/// What to do where nodes have different keys.
pub const KEY_REMEDY: &str = "give all nodes the same gossip key: copy one node's file to the others, or name it by \
                              --gossip-key (docs/failover.md#the-gossip-key)";

/// Seals this agent's payloads, and opens those of others.
#[derive(Debug)]
pub struct Sealer {
    keys: SealingKeys,
    local: NodeName,
    session: SessionId,
    /// The counter of the last datagram that was sealed.
    counter: u64,
    challenger: Challenger,
    sessions: Sessions,
}

/// The result of opening a datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opened {
    /// A payload of a node, for the first time.
    Payload {
        /// The sender.
        node: NodeName,
        /// The payload.
        bytes: Vec<u8>,
        /// A datagram to send back, too.
        reply: Option<Vec<u8>>,
    },
    /// A datagram to send back to where this one came from.
    Reply(Vec<u8>),
    /// The session is admitted now, or was already. There is nothing to send.
    Admitted,
    /// The datagram was dropped.
    Nothing {
        /// The reason.
        reason: Unopened,
        /// The unknown key that it names, if that is the reason.
        key: Option<KeyId>,
        /// The node that sealed it, if it opens.
        sender: Option<NodeName>,
    },
}

/// The reason why a datagram was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unopened {
    /// It has an impossible length, or the plaintext cannot be parsed.
    Malformed,
    /// It has another version of this format, or is no such datagram at all.
    OtherVersion,
    /// It was sealed with an unknown key.
    OtherKey,
    /// It names a known key and does not open with it: damaged, forged, or sealed for another node.
    Forged,
    /// It is of this node's own session and came back.
    Echoed,
    /// It was sealed in this node's name by another.
    Namesake,
    /// Its sender is an unknown node.
    Stranger,
    /// Its sender is known, and the address is not its own.
    WrongAddress,
    /// It was seen before, or is older than the window.
    Replayed,
    /// It is a challenge to another session, or an answer to no recent challenge.
    Unasked,
    /// It needs a reply, and there were too many of these lately.
    TooMany,
}

/// A payload cannot be sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// It is longer than [`LONGEST_PAYLOAD`], or this node's name is too long.
    #[error("{0} bytes are more than fit into a datagram")]
    TooLong(usize),
    /// The session has sealed 2^64 datagrams.
    #[error("the session's counter has run out")]
    Exhausted,
}

impl Unopened {
    /// All reasons, in their order.
    pub const ALL: [Self; 11] = [
        Self::Malformed,
        Self::OtherVersion,
        Self::OtherKey,
        Self::Forged,
        Self::Echoed,
        Self::Namesake,
        Self::Stranger,
        Self::WrongAddress,
        Self::Replayed,
        Self::Unasked,
        Self::TooMany,
    ];

    /// Returns the name of the reason's counter.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::OtherVersion => "other_version",
            Self::OtherKey => "other_key",
            Self::Forged => "forged",
            Self::Echoed => "echoed",
            Self::Namesake => "namesake",
            Self::Stranger => "stranger",
            Self::WrongAddress => "wrong_address",
            Self::Replayed => "replayed",
            Self::Unasked => "unasked",
            Self::TooMany => "too_many",
        }
    }
}

impl Sealer {
    /// Creates the sealer of the node `local`. `session` and `secret` are random, unguessable, and
    /// never used again.
    pub fn new(keys: &SealingKeys, local: NodeName, session: [u8; 16], secret: [u8; 32]) -> Self {
        Self {
            keys: keys.clone(),
            local,
            session,
            counter: 0,
            challenger: Challenger::new(secret),
            sessions: Sessions::default(),
        }
    }

    /// Seals a payload of at most [`LONGEST_PAYLOAD`] bytes for the node `to`. The datagram can be
    /// sent more than once, and is taken once.
    pub fn seal(&mut self, to: &NodeName, payload: &[u8]) -> Result<Vec<u8>, SealError> {
        self.seal_message(to, SealingMessage::Payload(payload))
    }

    /// Opens a datagram that came from `from` at `now` (`CLOCK_BOOTTIME`). `origin` returns an error if a
    /// node may not send from an address: [`Unopened::Stranger`] or [`Unopened::WrongAddress`]. It is called
    /// only for senders that have the key.
    pub fn open(
        &mut self,
        datagram: &[u8],
        from: IpAddr,
        origin: impl FnOnce(&NodeName, IpAddr) -> Result<(), Unopened>,
        now: Duration,
    ) -> Opened {
        let (header, plaintext) = match self.unseal(datagram) {
            Ok(unsealed) => unsealed,
            Err(reason) => {
                let header = Header::parse(datagram).ok().filter(|_| reason == Unopened::OtherKey);
                return Opened::Nothing { reason, key: header.map(|(header, _)| header.key), sender: None };
            }
        };
        let Some(Plaintext { sender, message }) = Plaintext::parse(&plaintext) else {
            return Opened::Nothing { reason: Unopened::Malformed, key: None, sender: None };
        };
        let opened = if sender == self.local {
            Err(Unopened::Namesake)
        } else {
            origin(&sender, from).and_then(|()| self.take(&header, &sender, message, from, now))
        };
        opened.unwrap_or_else(|reason| Opened::Nothing { reason, key: None, sender: Some(sender) })
    }

    /// Replaces the keys. Sessions go on.
    pub fn rekey(&mut self, keys: SealingKeys) {
        self.keys = keys;
    }

    /// Forgets the sessions of nodes that are not to be kept. If one comes back, its session is
    /// challenged.
    pub fn retain(&mut self, keep: impl Fn(&NodeName) -> bool) {
        self.sessions.retain(keep);
    }

    fn unseal(&self, datagram: &[u8]) -> Result<(Header, Vec<u8>), Unopened> {
        let (header, ciphertext) = Header::parse(datagram)?;
        if header.session == self.session {
            return Err(Unopened::Echoed);
        }
        let mut named = self.keys.iter().filter(|key| key.id() == header.key).peekable();
        named.peek().ok_or(Unopened::OtherKey)?;
        let plaintext = named.find_map(|key| key.open(&header.nonce(), ciphertext, &header.bound_to(&self.local)));
        Ok((header, plaintext.ok_or(Unopened::Forged)?))
    }

    fn seal_message(&mut self, to: &NodeName, message: SealingMessage<'_>) -> Result<Vec<u8>, SealError> {
        let plaintext = Plaintext { sender: self.local.clone(), message }.emit()?;
        self.counter = self.counter.checked_add(1).ok_or(SealError::Exhausted)?;
        let key = self.keys.sealing();
        let header = Header { key: key.id(), session: self.session, counter: self.counter };
        let sealed = key.seal(&header.nonce(), &plaintext, &header.bound_to(to));
        let sealed = sealed.ok_or(SealError::TooLong(plaintext.len()))?;
        Ok([header.emit().as_slice(), &sealed].concat())
    }

    /// Handles a message of a node that may send from its address.
    fn take(
        &mut self,
        header: &Header,
        sender: &NodeName,
        message: SealingMessage<'_>,
        from: IpAddr,
        now: Duration,
    ) -> Result<Opened, Unopened> {
        let session = header.session;
        let admissions = self.sessions.admissions(sender);
        let subject = ChallengeSubject { session, from, admissions };
        let freshness = self.sessions.check(sender, session, header.counter, now);
        match (freshness, message) {
            (Freshness::Replayed, _) => Err(Unopened::Replayed),
            (Freshness::Fresh, SealingMessage::Payload(bytes)) => {
                Ok(Opened::Payload { node: sender.clone(), bytes: bytes.to_vec(), reply: None })
            }
            (freshness, SealingMessage::Payload(bytes)) => {
                let challenge = SealingMessage::Challenge { session, cookie: self.challenger.cookie(&subject, now) };
                let challenge = self.reply(sender, challenge, freshness, now)?;
                Ok(match freshness {
                    Freshness::ProofDue => {
                        Opened::Payload { node: sender.clone(), bytes: bytes.to_vec(), reply: Some(challenge) }
                    }
                    _ => Opened::Reply(challenge),
                })
            }
            (_, SealingMessage::Challenge { session, .. }) if session != self.session => Err(Unopened::Unasked),
            (freshness, SealingMessage::Challenge { cookie, .. }) => {
                let mine = (freshness != Freshness::Fresh).then(|| self.challenger.cookie(&subject, now));
                self.reply(sender, SealingMessage::Response { cookie, challenge: mine }, freshness, now)
                    .map(Opened::Reply)
            }
            (freshness, SealingMessage::Response { cookie, challenge }) => {
                if freshness != Freshness::Fresh {
                    if !self.challenger.recognizes(cookie, &subject, now) {
                        return Err(Unopened::Unasked);
                    }
                    self.sessions.admit(sender, session, header.counter, now);
                }
                let Some(theirs) = challenge else { return Ok(Opened::Admitted) };
                let response = SealingMessage::Response { cookie: theirs, challenge: None };
                self.reply(sender, response, Freshness::Fresh, now).map(Opened::Reply)
            }
        }
    }

    /// Seals a reply. Datagrams of unknown sessions may be recorded and repeated, so replies to
    /// them are limited.
    fn reply(
        &mut self,
        to: &NodeName,
        message: SealingMessage<'_>,
        freshness: Freshness,
        now: Duration,
    ) -> Result<Vec<u8>, Unopened> {
        if freshness == Freshness::Unknown && !self.challenger.may_reply(now) {
            return Err(Unopened::TooMany);
        }
        self.seal_message(to, message).map_err(|_| Unopened::TooMany)
    }
}

#[cfg(test)]
mod tests;
