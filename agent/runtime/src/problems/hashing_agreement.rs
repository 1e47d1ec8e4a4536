//! Decides by which hashing this node chooses backends, since all nodes must use the same one.
//!
//! A flow keeps its backend by its record. A node without the record finds the same backend only by the same
//! hashing. So the nodes use the second hashing once all their agents know it:
//!
//! ```text
//!           all living agents know the second one, and one uses it,
//!           or all have known it for twice the hold-down
//!          ┌──────────────────────────────────────────────────────┐
//!          │                                                      ▼
//!        first                                                 second ◄── no Service in the maps yet
//!          ▲                                                      │
//!          └──────────────────────────────────────────────────────┘
//!           an agent that does not know the second one is ready
//! ```

use std::{collections::BTreeMap, time::Duration};

use vipmux_election::membership::{HashingInfo, Peer};
use vipmux_model::{NodeName, hashing::Hashing};

/// The time for which an agent must be ready without knowing the second hashing. Its VIPs come later, after the
/// hold-down.
const READY: Duration = Duration::from_secs(3);

/// The hashing of this node.
#[derive(Debug)]
pub(crate) struct HashingAgreement {
    newest: Hashing,
    used: Hashing,
    /// The time for which all agents must know the second hashing. VIPs that an update moved return after the
    /// hold-down. Flows from before the change would meet other backends there. Agents that restart in an update
    /// come back within this time.
    known_for: Duration,
    /// When the reason for a change began, `CLOCK_BOOTTIME`.
    since: Option<Duration>,
}

impl HashingAgreement {
    /// `found`: the hashing of the Services in the maps, if there are any.
    pub(crate) fn new(found: Option<Hashing>, hold_down: Duration) -> Self {
        let newest = newest();
        Self { newest, used: found.unwrap_or(newest).min(newest), known_for: hold_down.saturating_mul(2), since: None }
    }

    pub(crate) const fn used(&self) -> Hashing {
        self.used
    }

    /// Returns what this node publishes of it.
    pub(crate) const fn info(&self) -> HashingInfo {
        HashingInfo { newest: self.newest.number(), used: self.used.number() }
    }

    /// Takes a look at the peers at `now`, `CLOCK_BOOTTIME`. Returns whether the hashing changed.
    pub(crate) fn look(&mut self, peers: &BTreeMap<NodeName, Peer>, now: Duration) -> bool {
        let Some((other, delay)) = self.change(peers) else {
            self.since = None;
            return false;
        };
        let since = *self.since.get_or_insert(now);
        let is_due = now.saturating_sub(since) >= delay;
        if is_due {
            (self.used, self.since) = (other, None);
        }
        is_due
    }

    /// Returns the hashing that the peers give a reason for, and how long that reason must last.
    fn change(&self, peers: &BTreeMap<NodeName, Peer>) -> Option<(Hashing, Duration)> {
        let living = || peers.values().filter(|peer| peer.status.is_alive());
        let knows_second = |peer: &Peer| Hashing::from_number(peer.state.hashing.newest) == Hashing::Second;
        let uses_second = |peer: &Peer| Hashing::from_number(peer.state.hashing.used) == Hashing::Second;
        match self.used {
            Hashing::First if self.newest == Hashing::First || !living().all(knows_second) => None,
            Hashing::First => {
                Some((Hashing::Second, if living().any(uses_second) { Duration::ZERO } else { self.known_for }))
            }
            Hashing::Second => {
                let is_ready_without = |peer: &Peer| peer.state.ready && !knows_second(peer);
                living().any(is_ready_without).then_some((Hashing::First, READY))
            }
        }
    }
}

/// Returns the newest hashing of this agent. In debug builds, tests of updates have it pretend to be an agent
/// that only knows the first one.
fn newest() -> Hashing {
    #[cfg(debug_assertions)]
    if std::env::var_os("VIPMUX_TEST_FIRST_HASHING").is_some() {
        return Hashing::First;
    }
    Hashing::Second
}

#[cfg(test)]
mod tests {
    use super::*;
    use vipmux_election::membership::{MemberStatus, State};
    use vipmux_testing::names::node_name;

    const HOLD_DOWN: Duration = Duration::from_mins(1);
    const OLDER: HashingInfo = HashingInfo { newest: 0, used: 0 };
    const READING: HashingInfo = HashingInfo { newest: 1, used: 0 };
    const USING: HashingInfo = HashingInfo { newest: 1, used: 1 };
    const LATER: HashingInfo = HashingInfo { newest: 7, used: 1 };

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn peers(infos: &[HashingInfo], status: MemberStatus, ready: bool) -> BTreeMap<NodeName, Peer> {
        let peer = |(number, hashing): (usize, &HashingInfo)| {
            let state = State { ready, hashing: *hashing, ..State::default() };
            let (heard, silent, answered, current) = Default::default();
            let peer =
                Peer { status, since: s(0), generation: 1, heard, silent, confirmed: None, answered, current, state };
            (node_name(format!("{status:?}-{number}").to_lowercase()), peer)
        };
        infos.iter().enumerate().map(peer).collect()
    }

    fn alive(infos: &[HashingInfo]) -> BTreeMap<NodeName, Peer> {
        peers(infos, MemberStatus::Alive, true)
    }

    fn agreement(found: Hashing) -> HashingAgreement {
        HashingAgreement::new(Some(found), HOLD_DOWN)
    }

    /// Returns the second, up to 1,000, of the first change.
    fn changed(agreement: &mut HashingAgreement, peers: impl Fn(u64) -> BTreeMap<NodeName, Peer>) -> Option<u64> {
        (0..=1000).find(|second| agreement.look(&peers(*second), s(*second)))
    }

    #[test]
    fn a_node_without_services_begins_with_the_newest_hashing() {
        let new = HashingAgreement::new(None, HOLD_DOWN);
        assert_eq!((new.used(), new.info()), (Hashing::Second, USING));
        assert_eq!(agreement(Hashing::First).info(), READING);
    }

    #[test]
    fn nodes_take_the_second_hashing_after_all_have_known_it_for_twice_the_hold_down() {
        for peers in [alive(&[]), alive(&[READING, READING])] {
            let mut first = agreement(Hashing::First);
            assert_eq!(changed(&mut first, |_| peers.clone()), Some(120));
            assert_eq!(first.used(), Hashing::Second);
            assert_eq!(changed(&mut first, |_| peers.clone()), None);
        }
    }

    #[test]
    fn an_older_agent_that_lives_keeps_the_first_hashing() {
        for older in [peers(&[USING, LATER, OLDER], MemberStatus::Suspected, false), alive(&[USING, OLDER])] {
            assert_eq!(changed(&mut agreement(Hashing::First), |_| older.clone()), None);
        }
    }

    #[test]
    fn an_older_agent_that_restarts_keeps_the_first_hashing() {
        let restarts = |second| if second % 100 < 90 { alive(&[READING]) } else { alive(&[READING, OLDER]) };
        assert_eq!(changed(&mut agreement(Hashing::First), restarts), None);
    }

    #[test]
    fn an_older_agent_that_is_down_does_not_count() {
        let mut peers = peers(&[OLDER], MemberStatus::Down, true);
        peers.extend(alive(&[READING]));
        assert_eq!(changed(&mut agreement(Hashing::First), |_| peers.clone()), Some(120));
        assert_eq!(changed(&mut agreement(Hashing::Second), |_| peers.clone()), None);
    }

    #[test]
    fn a_node_follows_one_that_uses_the_second_hashing_at_once() {
        for peers in [alive(&[READING, USING]), alive(&[LATER])] {
            assert_eq!(changed(&mut agreement(Hashing::First), |_| peers.clone()), Some(0));
        }
    }

    #[test]
    fn an_older_agent_that_is_ready_brings_the_first_hashing_back() {
        let mut second = agreement(Hashing::Second);
        let starting = peers(&[OLDER], MemberStatus::Alive, false);
        assert_eq!(changed(&mut second, |_| starting.clone()), None);
        assert_eq!(changed(&mut second, |_| alive(&[USING, OLDER])), Some(3));
        assert_eq!(second.used(), Hashing::First);
        assert_eq!(changed(&mut second, |_| alive(&[USING, OLDER])), None);
    }

    #[test]
    fn an_agent_that_only_knows_the_first_hashing_never_changes_it() {
        let mut older = HashingAgreement { newest: Hashing::First, ..agreement(Hashing::First) };
        assert_eq!(changed(&mut older, |_| alive(&[USING])), None);
    }
}
