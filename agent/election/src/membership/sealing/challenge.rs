//! Challenges without memory: a cookie is a keyed hash of all that makes it valid, so it can be
//! computed again.
//!
//! A cookie is valid for one session, at one address, for one to two [`SLOT`]s, and until a session
//! of that node is admitted. So a recorded response opens nothing later, also not after its session
//! was pushed out.

use std::{
    net::{IpAddr, Ipv6Addr},
    time::Duration,
};

use sha2::{Digest as _, Sha256};

use super::wire::{Cookie, SessionId};

/// The resolution of a cookie's time.
pub(super) const SLOT: Duration = Duration::from_secs(1);

/// The most replies in a second to unknown sessions. A node that starts in a cluster of 1,000 must
/// admit all others. A flood of old datagrams costs it this many replies, some milliseconds of each
/// second. Others still get through by retries, unless the flood is a hundred times as large. Known
/// sessions are not limited.
pub(super) const REPLIES: u32 = 1_000;
/// The replies that may come at once, as time.
const BURST: Duration = Duration::from_secs(1);

/// Makes challenges, and recognizes the answers.
#[derive(Debug)]
pub(super) struct Challenger {
    secret: Secret,
    /// The allowance is used up to this time. Replies may run ahead of the clock by [`BURST`].
    spent: Duration,
}

struct Secret([u8; 32]);

/// The facts that a cookie confirms.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChallengeSubject {
    pub(super) session: SessionId,
    pub(super) from: IpAddr,
    /// The number of admissions of the node's sessions so far.
    pub(super) admissions: u64,
}

impl Challenger {
    pub(super) const fn new(secret: [u8; 32]) -> Self {
        Self { secret: Secret(secret), spent: Duration::ZERO }
    }

    pub(super) fn cookie(&self, subject: &ChallengeSubject, now: Duration) -> Cookie {
        self.cookie_of(subject, now.as_secs() / SLOT.as_secs())
    }

    /// Returns whether the cookie was made for this subject, in this slot or the one before. The
    /// comparison takes variable time, but only who has the key can measure it.
    pub(super) fn recognizes(&self, cookie: Cookie, subject: &ChallengeSubject, now: Duration) -> bool {
        let slot = now.as_secs() / SLOT.as_secs();
        [Some(slot), slot.checked_sub(1)].into_iter().flatten().any(|slot| self.cookie_of(subject, slot) == cookie)
    }

    /// Returns the cookie of a subject in a slot. All inputs have a fixed length, so no two
    /// subjects hash the same bytes. Half of the hash is of no use for a length extension.
    fn cookie_of(&self, subject: &ChallengeSubject, slot: u64) -> Cookie {
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

    /// Takes a reply from the allowance of [`REPLIES`] a second. Returns whether there was one
    /// left.
    pub(super) fn may_reply(&mut self, now: Duration) -> bool {
        let spent = self.spent.max(now) + Duration::from_secs(1) / REPLIES;
        let allowed = spent <= now + BURST;
        if allowed {
            self.spent = spent;
        }
        allowed
    }
}

/// Shows no secret.
impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}
