//! The times and numbers of the membership.

use std::time::Duration;

/// The most members that a node asks in a round, unless the settings differ. Of more it asks
/// samples.
pub const SAMPLE: usize = 31;

/// The times and numbers of the membership. The defaults are for a local network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MembershipSettings {
    /// The period of SWIM's probes. A member that has not answered by the end is suspected.
    pub probe_period: Duration,
    /// The time after which others are asked to probe it too. Less than half of the period.
    pub probe_rtt: Duration,
    /// The time after which a suspect that has not answered is down.
    pub suspicion: Duration,
    /// The time from one heartbeat to a suspect to the next.
    pub press: Duration,
    /// The time from one gossip message with news of members, to a few others, to the next.
    pub gossip: Duration,
    /// The shortest time from one message that a node is down to the next.
    pub alarm: Duration,
    /// The time after which a few nodes that are not alive are contacted again, and a peer is told
    /// again which nodes left.
    pub join: Duration,
    /// The time from a heartbeat of the event loop to the heartbeats whose answers the next one uses.
    pub round: Duration,
    /// A heartbeat without an answer is repeated after this time, and after twice this time.
    pub again: Duration,
    /// A [`TransferStep::Take`](super::TransferStep::Take) counts no longer than this after
    /// a heartbeat that its sender knew of. It is more than the time from one round of heartbeats
    /// to the next.
    pub fresh: Duration,
    /// The most members that are asked in a round.
    pub sample: usize,
    /// The shortest time from one announcement of a changed state to the next.
    pub news: Duration,
    /// The most members to which a changed state is announced at once.
    pub announced: usize,
    /// The time without a heartbeat of the event loop after which gossip stops: an agent that is stuck must not
    /// seem alive. Before that, it says that this node answers no more.
    pub hung: Duration,
    /// A pull without an answer is repeated after this. The time doubles with each of the next five
    /// tries.
    pub pull: Duration,
}

impl MembershipSettings {
    /// Returns settings for kernels that answer for `lease` after the last evidence. No node is
    /// found down much earlier.
    pub fn for_lease(lease: Duration) -> Self {
        let default = Self::default();
        let factor = lease.as_millis().div_ceil(300).clamp(1, 100);
        let slower = |time: Duration| time * u32::try_from(factor).unwrap_or(1);
        Self {
            probe_period: slower(default.probe_period),
            probe_rtt: slower(default.probe_rtt),
            suspicion: slower(default.suspicion),
            hung: lease + Duration::from_secs(1),
            ..default
        }
    }
}

impl Default for MembershipSettings {
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
            round: milliseconds(90),
            again: milliseconds(30),
            fresh: milliseconds(150),
            sample: SAMPLE,
            news: milliseconds(10),
            announced: 64,
            hung: milliseconds(1300),
            pull: milliseconds(30),
        }
    }
}
