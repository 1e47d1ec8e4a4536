//! What the agents tell each other travels in UDP datagrams that only those can read and write who have the key, and
//! that cannot be recorded and used again: no clock, no I/O, randomness injected.
//!
//! ```text
//! datagram:   version │ key id │ session │ counter │ XChaCha20-Poly1305 of the plaintext, with its tag
//! bytes:         1    │   4    │   16    │    8    │ nonce: session and counter
//! authenticated, too: the header, and the receiver's name, which is not in it
//! plaintext:  length of the sender's name (1) │ the name │ kind (1) │ body
//! ```
//!
//! Numbers are big-endian. A *session* is one run of an agent: a random number that no other has, so that no nonce is used
//! twice. Its counter tells each of its datagrams from the others, and a receiver takes each once, in any order within
//! [`WINDOW`]. What was sealed for one node opens at no other: to hand a VIP to two nodes it is not enough to copy a datagram.
//!
//! A session that a receiver does not know could be an old one, recorded. So nothing that it says is taken before it has
//! answered a *challenge*, in a datagram that only its agent can seal now:
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
//! Nothing is kept about a challenge (see `challenge`). A node has at most two sessions admitted: while it starts again,
//! datagrams of the one before may still be under way. A session is heard for [`PROOF`] after it answered a challenge, and is
//! challenged anew in time: what somebody kept back is worth nothing once its sender is gone, however it is doled out.

mod challenge;
mod keys;
mod session;
mod wire;

use std::{net::IpAddr, time::Duration};

pub use keys::{Keys, KeysError};
pub use session::{PROOF, WINDOW};
pub use wire::{LONGEST_DATAGRAM, LONGEST_PAYLOAD};

use self::{
    challenge::{Challenger, Subject},
    session::{Sessions, Verdict},
    wire::{Header, Message, Plaintext, SessionId},
};
use crate::model::NodeName;

/// Seals what this agent says, and opens what others say.
#[derive(Debug)]
pub struct Sealer {
    keys: Keys,
    local: NodeName,
    session: SessionId,
    /// The counter of the last datagram that was sealed.
    counter: u64,
    challenger: Challenger,
    sessions: Sessions,
}

/// Who may speak from an address, by the Nodes as they are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It is one of that Node's.
    Expected,
    /// There is such a Node, and the address is not one of its own.
    WrongAddress,
    /// There is no such Node.
    Stranger,
}

/// What came of a datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opened {
    /// Something that a node says, for the first time.
    Payload {
        /// Who.
        node: NodeName,
        /// What.
        bytes: Vec<u8>,
        /// A datagram to be sent back, too.
        reply: Option<Vec<u8>>,
    },
    /// A datagram to be sent back to where this one came from.
    Reply(Vec<u8>),
    /// The session is admitted now, or was already, and there is nothing to say.
    Admitted,
    /// Nothing is to be done about it.
    Nothing {
        /// Why.
        reason: Unopened,
        /// Who sealed it, where it opens.
        sender: Option<NodeName>,
    },
}

/// Why nothing came of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unopened {
    /// Shorter or longer than any, or what was sealed makes no sense.
    Malformed,
    /// Of another version of this format, or no such datagram at all.
    OtherVersion,
    /// Sealed under a key that is not ours.
    OtherKey,
    /// Names our key and does not open with it: damaged, forged, or sealed for another node.
    Forged,
    /// Of our own session: one of our own that came back.
    Echoed,
    /// Sealed in our name, and not by us.
    Namesake,
    /// By a node that is unknown.
    Stranger,
    /// By a known node, from an address that is not its own.
    WrongAddress,
    /// Seen before, or older than what is remembered.
    Replayed,
    /// A challenge to another session, or an answer to none of our challenges of late.
    Unasked,
    /// It should be replied to, and there were too many of these lately.
    TooMany,
}

/// Something cannot be sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// It is longer than [`LONGEST_PAYLOAD`], or this node's name longer than any.
    #[error("{0} bytes are more than fit into a datagram")]
    TooLong(usize),
    /// After 2^64 datagrams.
    #[error("the session's counter has run out")]
    Exhausted,
}

impl Unopened {
    /// All of them, in their order.
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

    /// The name of its counter.
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
    /// For the node `local`. `session` and `secret` are random, unguessable, and never used again.
    pub fn new(keys: &Keys, local: NodeName, session: [u8; 16], secret: [u8; 32]) -> Self {
        Self {
            keys: keys.clone(),
            local,
            session,
            counter: 0,
            challenger: Challenger::new(secret),
            sessions: Sessions::default(),
        }
    }

    /// A datagram for the node `to` with this payload, of at most [`LONGEST_PAYLOAD`] bytes. It can be sent more than once,
    /// and is taken once.
    pub fn seal(&mut self, to: &NodeName, payload: &[u8]) -> Result<Vec<u8>, SealError> {
        self.seal_message(to, Message::Payload(payload))
    }

    /// Opens a datagram that came from `from` at `now` (`CLOCK_BOOTTIME`). `origin` says whether a node may speak from an
    /// address; it is asked only about who has the key.
    pub fn open(
        &mut self,
        datagram: &[u8],
        from: IpAddr,
        origin: impl FnOnce(&NodeName, IpAddr) -> Origin,
        now: Duration,
    ) -> Opened {
        let (header, plaintext) = match self.unseal(datagram) {
            Ok(unsealed) => unsealed,
            Err(reason) => return Opened::Nothing { reason, sender: None },
        };
        let Some(Plaintext { sender, message }) = Plaintext::parse(&plaintext) else {
            return Opened::Nothing { reason: Unopened::Malformed, sender: None };
        };
        let refusal = if sender == self.local {
            Some(Unopened::Namesake)
        } else {
            match origin(&sender, from) {
                Origin::Expected => None,
                Origin::WrongAddress => Some(Unopened::WrongAddress),
                Origin::Stranger => Some(Unopened::Stranger),
            }
        };
        let opened = match refusal {
            Some(reason) => Err(reason),
            None => self.take(&header, &sender, message, from, now),
        };
        opened.unwrap_or_else(|reason| Opened::Nothing { reason, sender: Some(sender) })
    }

    /// Takes these keys in place of those before; sessions go on.
    pub fn rekey(&mut self, keys: Keys) {
        self.keys = keys;
    }

    /// Forgets the sessions of nodes that are not to be kept. Should one come back, its session is challenged.
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

    fn seal_message(&mut self, to: &NodeName, message: Message<'_>) -> Result<Vec<u8>, SealError> {
        let plaintext = Plaintext { sender: self.local.clone(), message }.emit()?;
        self.counter = self.counter.checked_add(1).ok_or(SealError::Exhausted)?;
        let key = self.keys.sealing();
        let header = Header { key: key.id(), session: self.session, counter: self.counter };
        let sealed = key.seal(&header.nonce(), &plaintext, &header.bound_to(to));
        let sealed = sealed.ok_or(SealError::TooLong(plaintext.len()))?;
        Ok([header.emit().as_slice(), &sealed].concat())
    }

    /// Takes what a node says that may say it from where it does.
    fn take(
        &mut self,
        header: &Header,
        sender: &NodeName,
        message: Message<'_>,
        from: IpAddr,
        now: Duration,
    ) -> Result<Opened, Unopened> {
        let session = header.session;
        let admissions = self.sessions.admissions(sender);
        let subject = Subject { session, from, admissions };
        let verdict = self.sessions.judge(sender, session, header.counter, now);
        match (verdict, message) {
            (Verdict::Old, _) => Err(Unopened::Replayed),
            (Verdict::Fresh, Message::Payload(bytes)) => {
                Ok(Opened::Payload { node: sender.clone(), bytes: bytes.to_vec(), reply: None })
            }
            (verdict, Message::Payload(bytes)) => {
                let challenge = Message::Challenge { session, cookie: self.challenger.cookie(&subject, now) };
                let challenge = self.reply(sender, challenge, verdict, now)?;
                Ok(match verdict {
                    Verdict::Due => {
                        Opened::Payload { node: sender.clone(), bytes: bytes.to_vec(), reply: Some(challenge) }
                    }
                    _ => Opened::Reply(challenge),
                })
            }
            (_, Message::Challenge { session, .. }) if session != self.session => Err(Unopened::Unasked),
            (verdict, Message::Challenge { cookie, .. }) => {
                let mine = (verdict != Verdict::Fresh).then(|| self.challenger.cookie(&subject, now));
                self.reply(sender, Message::Response { cookie, challenge: mine }, verdict, now).map(Opened::Reply)
            }
            (verdict, Message::Response { cookie, challenge }) => {
                if verdict != Verdict::Fresh {
                    if !self.challenger.recognises(cookie, &subject, now) {
                        return Err(Unopened::Unasked);
                    }
                    self.sessions.admit(sender, session, header.counter, now);
                }
                let Some(theirs) = challenge else { return Ok(Opened::Admitted) };
                let response = Message::Response { cookie: theirs, challenge: None };
                self.reply(sender, response, Verdict::Fresh, now).map(Opened::Reply)
            }
        }
    }

    /// What unknown sessions say can have been recorded, and come as often as somebody likes.
    fn reply(
        &mut self,
        to: &NodeName,
        message: Message<'_>,
        verdict: Verdict,
        now: Duration,
    ) -> Result<Vec<u8>, Unopened> {
        if verdict == Verdict::Unknown && !self.challenger.may_reply(now) {
            return Err(Unopened::TooMany);
        }
        self.seal_message(to, message).map_err(|_| Unopened::TooMany)
    }
}

#[cfg(test)]
mod tests;
