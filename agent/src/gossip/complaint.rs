//! What the log says about datagrams that should not come: little, however many come.

use std::{collections::BTreeMap, mem, net::IpAddr, time::Duration};

use crate::{membership::sealing::Unopened, model::NodeName};

/// So many in a [`PERIOD`] are worth a word; one or two are chance, or somebody who tries something.
const MANY: u64 = 10;
/// At most one warning of a kind comes in such a time.
const PERIOD: Duration = Duration::from_secs(10);

/// What was heard, by reason, and when it was told.
#[derive(Debug, Default)]
pub(super) struct Complaints(BTreeMap<Unopened, Heard>);

#[derive(Debug, Default)]
struct Heard {
    /// When the period began that counts now.
    begins: Duration,
    within: u64,
    untold: u64,
    told: Option<Duration>,
}

impl Complaints {
    /// Takes note at `now`. If it is time to warn: of how many datagrams since the last warning.
    pub(super) fn hear(&mut self, reason: Unopened, now: Duration) -> Option<u64> {
        let heard = self.0.entry(reason).or_default();
        if now >= heard.begins + PERIOD {
            heard.begins = now;
            heard.within = 0;
        }
        heard.within += 1;
        heard.untold += 1;
        let due = heard.within >= MANY && heard.told.is_none_or(|told| now >= told + PERIOD);
        due.then(|| {
            heard.told = Some(now);
            mem::take(&mut heard.untold)
        })
    }
}

/// What to say about a datagram from `from`; `None`: nothing that anybody could mend.
pub(super) fn text(reason: Unopened, sender: Option<&NodeName>, from: IpAddr) -> Option<String> {
    let sender = sender.map_or("somebody", |name| &name.0);
    Some(match reason {
        Unopened::OtherVersion => format!(
            "{from} sends what is no gossip of this version: do all nodes run the same version, and does anything else \
             use this port?"
        ),
        Unopened::OtherKey => {
            format!("{from} seals its gossip with another key: is the gossip key the same on all nodes?")
        }
        Unopened::Forged => {
            format!("gossip from {from} does not open with the key that it names: damaged, forged, or for another node")
        }
        Unopened::Namesake => {
            format!("an agent at {from} speaks as {sender}, which is this one: do two agents have this name?")
        }
        Unopened::Stranger => format!("{sender} speaks from {from}, and there is no such Node"),
        Unopened::WrongAddress => {
            format!("{sender} speaks from {from}, which is not one of its InternalIPs: do two agents have this name?")
        }
        Unopened::Malformed | Unopened::Echoed | Unopened::Replayed | Unopened::Unasked | Unopened::TooMany => {
            return None;
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_are_not_worth_a_word_and_of_many_one_warning_tells_in_each_period() {
        let mut complaints = Complaints::default();
        let mut hear = |millis| complaints.hear(Unopened::OtherKey, Duration::from_millis(millis));
        // One every two seconds: never ten within a period.
        assert!((0..50).all(|i| hear(i * 2_000).is_none()));
        let told: Vec<_> = (0..600).filter_map(|i| hear(200_000 + i * 50).map(|count| (i * 50, count))).collect();
        let [(first, all), (second, rest), (third, last)] = told[..] else { panic!("{told:?}") };
        assert_eq!((first, all), (450, 60));
        assert_eq!((second - first, rest), (10_450 - 450, 200));
        assert_eq!((third - second, last), (10_000, 200));
    }

    #[test]
    fn one_reason_does_not_hide_another() {
        let mut complaints = Complaints::default();
        let mut hear = |reason| (0..10).filter_map(|_| complaints.hear(reason, Duration::from_secs(1))).count();
        assert_eq!((hear(Unopened::OtherKey), hear(Unopened::Stranger)), (1, 1));
    }

    #[test]
    fn who_speaks_from_where_is_named() {
        let from = IpAddr::from([192, 0, 2, 9]);
        let text = text(Unopened::WrongAddress, Some(&NodeName("n1".to_owned())), from).unwrap();
        assert!(text.starts_with("n1 speaks from 192.0.2.9, which is not one of its InternalIPs"), "{text}");
    }
}
