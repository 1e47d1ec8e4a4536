//! Challenges without memory: the cookie of a challenge is a keyed hash of all that makes it valid, so that it can be
//! computed again when it comes back.
//!
//! It is good for one session, at one address, for one to two [`SLOT`]s; and only until a session of that node is
//! admitted. So a response that was recorded opens nothing later, also not after its session was pushed out.

use std::{
    net::{IpAddr, Ipv6Addr},
    time::Duration,
};

use sha2::{Digest as _, Sha256};

use super::wire::{Cookie, SessionId};

/// How coarse a cookie tells the time.
pub(super) const SLOT: Duration = Duration::from_secs(1);

/// Replies in a second to sessions that are not known. A node that starts in a cluster of 1,000 has all others to
/// admit. Whoever floods it with old datagrams makes it spend this much, some milliseconds of a second; and while the flood is
/// not a hundred times as much, others still get through by trying again. Sessions that are known are not concerned.
pub(super) const REPLIES: u32 = 1_000;
/// As many may come at once.
const BURST: Duration = Duration::from_secs(1);

/// Makes challenges, and recognises the answers.
#[derive(Debug)]
pub(super) struct Challenger {
    secret: Secret,
    /// The allowance is used up to this time; replies may run ahead of the clock by [`BURST`].
    spent: Duration,
}

struct Secret([u8; 32]);

/// What a cookie is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject {
    pub(super) session: SessionId,
    pub(super) from: IpAddr,
    /// Of how many admissions of this node's sessions the cookie knows.
    pub(super) admissions: u64,
}

impl Challenger {
    pub(super) const fn new(secret: [u8; 32]) -> Self {
        Self { secret: Secret(secret), spent: Duration::ZERO }
    }

    pub(super) fn cookie(&self, subject: &Subject, now: Duration) -> Cookie {
        self.cookie_of(subject, now.as_secs() / SLOT.as_secs())
    }

    /// Whether the cookie was made for this subject, in this slot or the one before. Those who can measure how long that
    /// takes have the key.
    pub(super) fn recognises(&self, cookie: Cookie, subject: &Subject, now: Duration) -> bool {
        let slot = now.as_secs() / SLOT.as_secs();
        [Some(slot), slot.checked_sub(1)].into_iter().flatten().any(|slot| self.cookie_of(subject, slot) == cookie)
    }

    /// All inputs have a fixed length, so no two subjects hash the same bytes; and half of the hash is no use to whoever
    /// would extend it.
    fn cookie_of(&self, subject: &Subject, slot: u64) -> Cookie {
        let address: Ipv6Addr = match subject.from {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        let hash = Sha256::new()
            .chain_update(self.secret.0)
            .chain_update(subject.session)
            .chain_update(address.octets())
            .chain_update(subject.admissions.to_be_bytes())
            .chain_update(slot.to_be_bytes())
            .finalize();
        let mut cookie = Cookie::default();
        cookie.copy_from_slice(&hash[..16]);
        cookie
    }

    /// Takes one from the allowance of [`REPLIES`] a second, if there is one left.
    pub(super) fn may_reply(&mut self, now: Duration) -> bool {
        let spent = self.spent.max(now) + Duration::from_secs(1) / REPLIES;
        let allowed = spent <= now + BURST;
        if allowed {
            self.spent = spent;
        }
        allowed
    }
}

/// Never the secret itself.
impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}
