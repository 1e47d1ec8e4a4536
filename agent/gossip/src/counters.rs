//! Counts the datagrams by outcome.

use std::sync::atomic::{AtomicU64, Ordering};

use vipmux_election::membership::sealing::Unopened;

/// Counts, each from the agent's start.
#[derive(Debug, Default)]
pub struct Counters([AtomicU64; GossipCount::ALL.len()]);

/// An outcome of a datagram or payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GossipCount {
    /// Payloads that were sent.
    Sent,
    /// Payloads and replies that were not: no address in common, a full queue, an error of the
    /// system.
    Unsent,
    /// Payloads that were received and passed on.
    Taken,
    /// Payloads that were received and lost, since too many waited.
    Overflowed,
    /// Challenges and responses that were sent.
    Replied,
    /// Responses that admitted a session, and needed no reply.
    Admitted,
    /// Datagrams from addresses of no Node that were not opened, since too many came.
    Stray,
    /// Payloads that were received, and are no messages of this version.
    Undecoded,
    /// Datagrams that could not be opened, or had no payload.
    Unopened(Unopened),
}

impl GossipCount {
    /// All outcomes, in the order of their places.
    pub const ALL: [Self; 8 + Unopened::ALL.len()] = {
        let mut all = [Self::Sent; 8 + Unopened::ALL.len()];
        let named = [
            Self::Sent,
            Self::Unsent,
            Self::Taken,
            Self::Overflowed,
            Self::Replied,
            Self::Admitted,
            Self::Stray,
            Self::Undecoded,
        ];
        let mut place = 0;
        while place < all.len() {
            all[place] =
                if place < named.len() { named[place] } else { Self::Unopened(Unopened::ALL[place - named.len()]) };
            place += 1;
        }
        all
    };

    /// Returns the name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Unsent => "unsent",
            Self::Taken => "taken",
            Self::Overflowed => "overflowed",
            Self::Replied => "replied",
            Self::Admitted => "admitted",
            Self::Stray => "stray",
            Self::Undecoded => "undecoded",
            Self::Unopened(reason) => reason.name(),
        }
    }

    const fn place(self) -> usize {
        match self {
            Self::Sent => 0,
            Self::Unsent => 1,
            Self::Taken => 2,
            Self::Overflowed => 3,
            Self::Replied => 4,
            Self::Admitted => 5,
            Self::Stray => 6,
            Self::Undecoded => 7,
            Self::Unopened(reason) => 8 + reason as usize,
        }
    }
}

impl Counters {
    /// Returns the number of an outcome.
    pub fn get(&self, count: GossipCount) -> u64 {
        self.0[count.place()].load(Ordering::Relaxed)
    }

    /// Counts more datagrams or payloads.
    pub fn add(&self, count: GossipCount, more: usize) {
        self.0[count.place()].fetch_add(more as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_outcome_has_a_place_and_a_name_of_its_own() {
        for (place, count) in GossipCount::ALL.into_iter().enumerate() {
            assert_eq!(count.place(), place, "{count:?}");
        }
        let names: BTreeSet<_> = GossipCount::ALL.into_iter().map(GossipCount::name).collect();
        assert_eq!(names.len(), GossipCount::ALL.len());
    }
}
