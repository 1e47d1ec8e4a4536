//! Times and numbers.

use std::time::Duration;

/// Most members that a node asks in a round, unless the settings say otherwise: with more it asks samples.
pub const SAMPLE: usize = 31;

/// How quickly what is found out and said. The defaults are for a local network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How often SWIM probes a member. One that has not answered by the end is suspected.
    pub probe_period: Duration,
    /// After this, others are asked to probe it too. Less than half of the period.
    pub probe_rtt: Duration,
    /// A suspect that has not answered after this is down.
    pub suspicion: Duration,
    /// How often a suspect is asked.
    pub press: Duration,
    /// How often what is new of members goes to a few others.
    pub gossip: Duration,
    /// That somebody is down is passed on at once, but no more often than this.
    pub alarm: Duration,
    /// How often a few nodes that are not alive are spoken to, and a peer is told who has left.
    pub join: Duration,
    /// Who has not answered an ask is asked a second and a third time after one and two of these.
    pub again: Duration,
    /// A [`Message::Take`](super::Message::Take) counts no longer than this after an ask that its sender knew of. More than
    /// it takes from one round of asks to the next.
    pub fresh: Duration,
    /// So many members are asked in a round, at most.
    pub sample: usize,
    /// That our state changed is told at once, but no more often than this;
    pub news: Duration,
    /// and than this for each member.
    pub news_each: Duration,
    /// A pull that is not answered is repeated after this; after the double, the next time, and so on five times.
    pub pull: Duration,
}

impl Settings {
    /// For agents whose kernels answer so long after the last evidence: nobody is to be found down much earlier.
    pub fn for_lease(lease: Duration) -> Self {
        let default = Self::default();
        let factor = lease.as_millis().div_ceil(300).clamp(1, 100);
        let slower = |time: Duration| time * u32::try_from(factor).unwrap_or(1);
        Self {
            probe_period: slower(default.probe_period),
            probe_rtt: slower(default.probe_rtt),
            suspicion: slower(default.suspicion),
            ..default
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        let milliseconds = Duration::from_millis;
        Self {
            probe_period: milliseconds(75),
            probe_rtt: milliseconds(30),
            suspicion: milliseconds(150),
            press: milliseconds(15),
            gossip: milliseconds(100),
            alarm: milliseconds(20),
            join: milliseconds(1000),
            again: milliseconds(30),
            fresh: milliseconds(150),
            sample: SAMPLE,
            news: milliseconds(10),
            news_each: Duration::from_micros(100),
            pull: milliseconds(30),
        }
    }
}
