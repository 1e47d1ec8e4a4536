//! Logs faults that make leadership unsafe or slow: once when each begins, and once when it ends.
//! Each has a metric and an alert in docs/metrics.md.

use std::{error::Error, time::Duration};

use super::debounce::{
    Debounce,
    DebounceChange::{Began, Ended},
};
use vipmux_cluster::store::{StoreError, StoreOperation, StoreOutcome};
use vipmux_election::membership::Peers;
use vipmux_gossip::Addresses;
use vipmux_model::NodeName;

/// An agent that restarts, and one that hears its peers for the first time, take less.
const MEMBERS_MISSING: Duration = Duration::from_mins(1);
/// A node that starts, and one whose peers answer late once, need the Leases for less.
const STORE_EVIDENCE: Duration = Duration::from_secs(5);
/// A deadline that passes again within this time belongs to the same fault.
const FENCE_QUIET: Duration = Duration::from_secs(10);
/// Writes are rare, so a write that fails again within this time belongs to the same fault.
const WRITES_QUIET: Duration = Duration::from_mins(1);

/// The faults of this node.
#[derive(Debug)]
pub(crate) struct LeadershipFaults {
    members: Debounce,
    store_evidence: Debounce,
    fence: Debounce,
    /// Lapses of the deadline since the fault began.
    lapses: u64,
    unstable: Debounce,
    writes: Debounce,
    /// Failed writes since the fault began.
    failures: u64,
}

impl Default for LeadershipFaults {
    fn default() -> Self {
        Self {
            members: Debounce::new(MEMBERS_MISSING, Duration::ZERO),
            store_evidence: Debounce::new(STORE_EVIDENCE, STORE_EVIDENCE),
            fence: Debounce::new(Duration::ZERO, FENCE_QUIET),
            lapses: 0,
            unstable: Debounce::new(Duration::ZERO, Duration::ZERO),
            writes: Debounce::new(Duration::ZERO, WRITES_QUIET),
            failures: 0,
        }
    }
}

/// Returns the Nodes without an agent that is alive.
pub(crate) fn missing(local: &NodeName, nodes: &Addresses, peers: &Peers) -> Vec<NodeName> {
    nodes.keys().filter(|name| *name != local && !peers.is_alive(name)).cloned().collect()
}

impl LeadershipFaults {
    /// Notes the Nodes without an agent that is alive.
    pub(crate) fn members(&mut self, missing: &[NodeName], now: Duration) {
        match self.members.look(!missing.is_empty(), now) {
            Some(Began) => {
                let first = missing.first().map(NodeName::as_str);
                tracing::warn!(count = missing.len(), first, "nodes have no living agent");
            }
            Some(Ended(lasted)) => {
                tracing::info!(seconds = lasted.as_secs(), "all nodes have a living agent again");
            }
            None => {}
        }
    }

    /// Notes whether this node may answer only because the Leases say so.
    pub(crate) fn store_evidence(&mut self, used: bool, now: Duration) {
        match self.store_evidence.look(used, now) {
            Some(Began) => {
                tracing::warn!("no majority of the peers answers, only the leases say that this node may answer");
            }
            Some(Ended(lasted)) => {
                let seconds = lasted.as_secs();
                tracing::info!(seconds, "the leases are not needed any more to say that this node may answer");
            }
            None => {}
        }
    }

    /// Notes how often the fence deadline passed since the last call, and whether it is ahead.
    pub(crate) fn fence(&mut self, lapses: u64, ahead: bool, now: Duration) {
        self.lapses += lapses;
        // Before the first lapse the agent is starting.
        match self.fence.look(lapses > 0 || self.lapses > 0 && !ahead, now) {
            Some(Began) => tracing::warn!("fence deadline passed, this node answers for no VIP"),
            Some(Ended(lasted)) => {
                let (lapses, seconds) = (std::mem::take(&mut self.lapses), lasted.as_secs());
                tracing::info!(lapses, seconds, "fence deadline is ahead again, this node may answer");
            }
            None => {}
        }
    }

    /// Notes whether the fence deadline passes again and again.
    pub(crate) fn unstable(&mut self, unstable: bool, now: Duration) {
        match self.unstable.look(unstable, now) {
            Some(Began) => tracing::warn!("fence deadline passes again and again, handing over all VIPs"),
            Some(Ended(lasted)) => {
                let seconds = lasted.as_secs();
                tracing::info!(seconds, "fence deadline has not passed for five minutes, this node takes VIPs again");
            }
            None => {}
        }
    }

    /// Notes the result of an operation on the Leases.
    pub(crate) fn lease_operation(
        &mut self,
        operation: &StoreOperation,
        result: &Result<StoreOutcome, StoreError>,
        now: Duration,
    ) {
        let (StoreOperation::Swap { vip, .. }, Err(error)) = (operation, result) else { return };
        self.failures += 1;
        if self.writes.look(true, now) == Some(Began) {
            let error = error as &dyn Error;
            tracing::warn!(%vip, error, "lease cannot be written, its VIP gets no new leader");
        }
    }

    /// Notes that time passes.
    pub(crate) fn tick(&mut self, now: Duration) {
        if let Some(Ended(lasted)) = self.writes.look(false, now) {
            let (failures, seconds) = (std::mem::take(&mut self.failures), lasted.as_secs());
            tracing::info!(failures, seconds, "no write of a lease has failed for a minute");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        io,
        sync::{Arc, Mutex},
    };

    use vipmux_election::membership::{MemberStatus, Peer, State};
    use vipmux_testing::names::{node_name, vip4};

    use super::*;

    /// The log of a test, as text without times.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns the log lines of this work, and checks that docs/metrics.md has their words.
    fn logged(work: impl FnOnce(&mut LeadershipFaults)) -> Vec<String> {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .without_time()
            .with_target(false)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || work(&mut LeadershipFaults::default()));
        let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<_> = text.lines().map(|line| line.trim().to_owned()).collect();
        let page = include_str!("../../../../docs/metrics.md");
        for line in &lines {
            let message: Vec<_> = line.split(' ').skip(1).take_while(|word| !word.contains('=')).collect();
            assert!(page.contains(&message.join(" ")), "{line} is not in docs/metrics.md");
        }
        lines
    }

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(1_000 + seconds)
    }

    #[test]
    fn nodes_without_an_agent_are_logged_once_if_that_lasts() {
        let lines = logged(|faults| {
            for second in 0..200 {
                let missing: &[NodeName] = if second < 180 { &[node_name("n2"), node_name("n3")] } else { &[] };
                faults.members(missing, s(second));
            }
            // A restart of each agent.
            (200..300).for_each(|second| faults.members(&[node_name("n1")][second % 30 / 20..], s(second as u64)));
        });
        let expected = [
            r#"WARN nodes have no living agent count=2 first="n2""#,
            "INFO all nodes have a living agent again seconds=180",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn a_lapse_of_the_fence_is_logged_once_with_those_that_follow() {
        let lines = logged(|faults| {
            faults.fence(0, false, s(0));
            faults.fence(0, true, s(1));
            faults.fence(1, false, s(2));
            faults.fence(0, false, s(30));
            faults.fence(0, true, s(31));
            faults.fence(1, true, s(33));
            (34..60).for_each(|second| faults.fence(0, true, s(second)));
        });
        let expected = [
            "WARN fence deadline passed, this node answers for no VIP",
            "INFO fence deadline is ahead again, this node may answer lapses=2 seconds=32",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn a_node_that_is_unstable_is_logged_once() {
        let lines =
            logged(|faults| (0..500).for_each(|second| faults.unstable((10..400).contains(&second), s(second))));
        let expected = [
            "WARN fence deadline passes again and again, handing over all VIPs",
            "INFO fence deadline has not passed for five minutes, this node takes VIPs again seconds=390",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn failed_writes_of_leases_are_logged_once_and_others_not_at_all() {
        let swap = StoreOperation::Swap { vip: vip4(1), expected: None, holder: node_name("n1"), epoch: 1 };
        let failed = || {
            let source = io::Error::other("no route");
            Err(StoreError::Unavailable { operation: "write it".to_owned(), source })
        };
        let lines = logged(|faults| {
            faults.lease_operation(&StoreOperation::Survey, &failed(), s(0));
            faults.lease_operation(&swap, &Ok(StoreOutcome::Read(None)), s(1));
            for second in 2..20 {
                faults.lease_operation(&swap, &failed(), s(second));
                faults.tick(s(second));
            }
            (20..100).for_each(|second| faults.tick(s(second)));
        });
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(
            lines[0].starts_with("WARN lease cannot be written, its VIP gets no new leader vip=192.0.2.1 error="),
            "{lines:?}"
        );
        assert_eq!(lines[1], "INFO no write of a lease has failed for a minute failures=18 seconds=17");
    }

    #[test]
    fn evidence_of_the_leases_is_logged_if_it_is_needed_for_long() {
        let lines = logged(|faults| {
            (0..3).for_each(|second| faults.store_evidence(true, s(second)));
            (3..10).for_each(|second| faults.store_evidence(false, s(second)));
            (10..20).for_each(|second| faults.store_evidence(true, s(second)));
            (20..30).for_each(|second| faults.store_evidence(false, s(second)));
        });
        let expected = [
            "WARN no majority of the peers answers, only the leases say that this node may answer",
            "INFO the leases are not needed any more to say that this node may answer seconds=10",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn missing_are_nodes_whose_agent_is_unknown_or_not_alive() {
        let peer = |status| Peer {
            status,
            since: s(0),
            generation: 1,
            heard: None,
            silent: None,
            confirmed: None,
            answered: None,
            current: None,
            state: State::default(),
        };
        let members = [("n2", MemberStatus::Alive), ("n3", MemberStatus::Down), ("n4", MemberStatus::Left)];
        let members = members.map(|(name, status)| (node_name(name), peer(status)));
        let peers = Peers { members: BTreeMap::from(members), evidence_since: None, majority: true, pair: false };
        let nodes: Addresses = ["n1", "n2", "n3", "n4", "n5"].map(|name| (node_name(name), Vec::new())).into();
        assert_eq!(missing(&node_name("n1"), &nodes, &peers), ["n3", "n4", "n5"].map(node_name));
    }
}
