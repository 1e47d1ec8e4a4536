//! Decides which unexpected datagrams and payloads are logged: few, however many come.

use std::{collections::BTreeMap, mem, net::IpAddr, time::Duration};

use super::GossipCount;
use vipmux_election::membership::sealing::Unopened;
use vipmux_model::NodeName;

/// So many in a [`PERIOD`] cause a warning. One or two are chance, or an attempt.
const MANY: u64 = 10;
/// At most one warning for each reason comes in such a time.
const PERIOD: Duration = Duration::from_secs(10);

/// The unexpected datagrams and payloads, by outcome.
#[derive(Debug, Default)]
pub struct DatagramWarnings(BTreeMap<GossipCount, Datagrams>);

#[derive(Debug, Default)]
struct Datagrams {
    /// The start of the current period.
    begins: Duration,
    /// The number in the current period.
    within: u64,
    /// The number since the last warning.
    unlogged: u64,
    /// The time of the last warning.
    logged: Option<Duration>,
}

impl DatagramWarnings {
    /// Counts a datagram. If it is time to warn, returns the number of datagrams since the last
    /// warning.
    pub fn take(&mut self, outcome: GossipCount, now: Duration) -> Option<u64> {
        let datagrams = self.0.entry(outcome).or_default();
        if now >= datagrams.begins + PERIOD {
            datagrams.begins = now;
            datagrams.within = 0;
        }
        datagrams.within += 1;
        datagrams.unlogged += 1;
        let due = datagrams.within >= MANY && datagrams.logged.is_none_or(|logged| now >= logged + PERIOD);
        due.then(|| {
            datagrams.logged = Some(now);
            mem::take(&mut datagrams.unlogged)
        })
    }
}

/// Returns the warning about a datagram from `from`; `None`: an administrator can do nothing about
/// it.
pub(super) fn text(reason: Unopened, sender: Option<&NodeName>, from: IpAddr) -> Option<String> {
    let sender = sender.map_or("an unknown sender", NodeName::as_str);
    Some(match reason {
        Unopened::OtherVersion => format!(
            "{from} sends datagrams that are not gossip of this version: do all nodes run the same version, and does \
             anything else use this port?"
        ),
        Unopened::OtherKey => {
            format!("{from} seals its gossip with another key: is the gossip key the same on all nodes?")
        }
        Unopened::Forged => {
            format!("gossip from {from} does not open with the key that it names: damaged, forged, or for another node")
        }
        Unopened::Namesake => {
            format!("an agent at {from} has the name of this one, {sender}: do two agents have this name?")
        }
        Unopened::Stranger => format!("{sender} sends gossip from {from}, but there is no such Node"),
        Unopened::WrongAddress => {
            format!(
                "{sender} sends gossip from {from}, which is not one of its InternalIPs: do two agents have this name?"
            )
        }
        Unopened::Malformed | Unopened::Echoed | Unopened::Replayed | Unopened::Unasked | Unopened::TooMany => {
            return None;
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use vipmux_testing::names::node_name;

    #[test]
    fn few_datagrams_cause_no_warning_and_many_cause_one_in_each_period() {
        let mut warnings = DatagramWarnings::default();
        let mut take = |millis| warnings.take(GossipCount::Unopened(Unopened::OtherKey), Duration::from_millis(millis));
        // One every two seconds: never ten within a period.
        assert!((0..50).all(|i| take(i * 2_000).is_none()));
        let taken: Vec<_> = (0..600).filter_map(|i| take(200_000 + i * 50).map(|count| (i * 50, count))).collect();
        let [(first, all), (second, rest), (third, last)] = taken[..] else { panic!("{taken:?}") };
        assert_eq!((first, all), (450, 60));
        assert_eq!((second - first, rest), (10_450 - 450, 200));
        assert_eq!((third - second, last), (10_000, 200));
    }

    #[test]
    fn one_reason_does_not_hide_another() {
        let mut warnings = DatagramWarnings::default();
        let mut warned = |outcome| (0..10).filter_map(|_| warnings.take(outcome, Duration::from_secs(1))).count();
        assert_eq!((warned(GossipCount::Unopened(Unopened::OtherKey)), warned(GossipCount::Undecoded)), (1, 1));
    }

    #[test]
    fn the_warning_names_the_sender_and_its_address() {
        let from = IpAddr::from([192, 0, 2, 9]);
        let text = text(Unopened::WrongAddress, Some(&node_name("n1")), from).unwrap();
        assert!(text.starts_with("n1 sends gossip from 192.0.2.9, which is not one of its InternalIPs"), "{text}");
    }
}
