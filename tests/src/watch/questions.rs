//! A client that asks by ARP who has an address, and takes note of everyone who answers.

use std::{
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use pnet::{datalink::DataLinkReceiver, packet::arp::ArpOperations, util::MacAddr};

use super::{GRACE, PAUSE, Shared, series::longest_gap};
use crate::arp;

/// Requests are sent in the names of so many addresses in turn, so that an answer tells which request it is for. Nobody on the
/// LAN has them.
const NAMES: u8 = 128;
const FIRST_NAME: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// How long a look for an answer takes at most.
const LOOK: Duration = Duration::from_millis(1);

/// Requests in their order, with who answered each, and when first.
#[derive(Clone, Debug, Default)]
pub struct Questions {
    requests: Vec<(Instant, Vec<(MacAddr, Instant)>)>,
}

impl Questions {
    fn begin(&mut self, at: Instant) -> Ipv4Addr {
        self.requests.push((at, Vec::new()));
        name(self.requests.len() - 1)
    }

    /// Someone answered the latest request that was made in this name.
    fn answer(&mut self, name_of_request: Ipv4Addr, mac: MacAddr, at: Instant) {
        let recent = self.requests.iter_mut().enumerate().rev().take(NAMES.into());
        let request = recent.into_iter().find(|(number, _)| name(*number) == name_of_request);
        if let Some((_, (_, answers))) = request
            && answers.iter().all(|(other, _)| *other != mac)
        {
            answers.push((mac, at));
        }
    }

    /// How many were asked.
    pub fn asked(&self) -> usize {
        self.requests.len()
    }

    /// How many nobody answered.
    pub fn lost(&self) -> usize {
        self.requests.iter().filter(|(_, answers)| answers.is_empty()).count()
    }

    /// How many more than one answered.
    pub fn answered_twice(&self) -> usize {
        self.requests.iter().filter(|(_, answers)| answers.len() > 1).count()
    }

    /// Who answered, in the order of the requests; whoever answers again after another one is there again.
    pub fn leaders(&self) -> Vec<MacAddr> {
        let mut leaders: Vec<MacAddr> = Vec::new();
        for (_, answers) in &self.requests {
            let last = leaders.last().copied();
            let macs = || answers.iter().map(|(mac, _)| *mac);
            // A request that two answered tells of no order between them.
            leaders.extend(macs().filter(|mac| Some(*mac) == last));
            leaders.extend(macs().filter(|mac| Some(*mac) != last));
            leaders.dedup();
        }
        leaders
    }

    /// The longest time between one answer and the next, beyond the pause between requests.
    pub fn outage(&self) -> Duration {
        let answers = self.requests.iter().flat_map(|(_, answers)| answers.iter().map(|(_, at)| *at)).collect();
        let bounds = self.requests.first().zip(self.requests.last());
        bounds.map_or(Duration::ZERO, |((first, _), (last, _))| longest_gap(answers, *first, *last))
    }

    pub(super) fn answered_since(&self, begin: Instant) -> usize {
        self.requests.iter().filter(|(asked, answers)| *asked >= begin && !answers.is_empty()).count()
    }

    /// The answers to requests since then.
    pub(super) fn answers_since(&self, begin: Instant) -> impl Iterator<Item = MacAddr> {
        let first = self.requests.partition_point(|(asked, _)| *asked < begin);
        self.requests[first..].iter().flat_map(|(_, answers)| answers.iter().map(|(mac, _)| *mac))
    }
}

fn name(request: usize) -> Ipv4Addr {
    // The remainder is less than NAMES.
    let offset = u32::try_from(request % usize::from(NAMES)).unwrap_or(0);
    Ipv4Addr::from_bits(FIRST_NAME.to_bits() + offset)
}

/// Asks until it is over.
pub(super) fn ask(target: Ipv4Addr, shared: &Shared<Questions>) -> Result<()> {
    let interface = arp::eth0()?;
    let (mut sender, mut receiver) = arp::open(&interface, LOOK)?;
    let mac = interface.mac.context("eth0 has no MAC")?;
    let mut next = Instant::now();
    while !shared.is_over() {
        let now = Instant::now();
        let name = shared.lock().begin(now);
        let frame = arp::request(mac, name, target).context("cannot build an ARP request")?;
        sender.send_to(&frame, None).context("the frame does not fit the buffer")??;
        next = (next + PAUSE).max(now);
        while Instant::now() < next {
            receive(receiver.as_mut(), target, shared)?;
        }
    }
    let end = Instant::now() + GRACE;
    while Instant::now() < end && shared.lock().requests.last().is_some_and(|(_, answers)| answers.is_empty()) {
        receive(receiver.as_mut(), target, shared)?;
    }
    Ok(())
}

fn receive(receiver: &mut dyn DataLinkReceiver, target: Ipv4Addr, shared: &Shared<Questions>) -> Result<()> {
    if let Some(seen) = arp::receive(receiver)?
        && seen.operation == ArpOperations::Reply
        && seen.sender == target
    {
        shared.lock().answer(seen.target, seen.sender_mac, seen.at);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: MacAddr = MacAddr(2, 0, 0, 0, 0, 1);
    const TWO: MacAddr = MacAddr(2, 0, 0, 0, 0, 2);

    fn asked(answers: &[&[MacAddr]]) -> Questions {
        let mut questions = Questions::default();
        for macs in answers {
            let name = questions.begin(Instant::now());
            for mac in *macs {
                questions.answer(name, *mac, Instant::now());
            }
        }
        questions
    }

    #[test]
    fn who_answers_after_another_is_told() {
        let moved = asked(&[&[ONE], &[ONE], &[], &[TWO], &[TWO]]);
        assert_eq!((moved.lost(), moved.answered_twice(), moved.leaders()), (1, 0, vec![ONE, TWO]));
        assert_eq!(asked(&[&[ONE], &[TWO], &[ONE]]).leaders(), [ONE, TWO, ONE]);
    }

    #[test]
    fn a_request_that_two_answer_is_told_and_one_that_is_answered_again_by_the_same_is_not() {
        assert_eq!(asked(&[&[ONE, TWO], &[ONE]]).answered_twice(), 1);
        assert_eq!(asked(&[&[ONE, ONE]]).answered_twice(), 0);
        assert_eq!(asked(&[&[ONE], &[TWO, ONE], &[TWO]]).leaders(), [ONE, TWO]);
    }

    #[test]
    fn an_answer_that_comes_after_other_requests_counts_for_its_own() {
        let mut questions = Questions::default();
        let early = questions.begin(Instant::now());
        let late = questions.begin(Instant::now());
        questions.answer(late, TWO, Instant::now());
        questions.answer(early, ONE, Instant::now());
        assert_eq!((questions.answered_twice(), questions.leaders()), (0, vec![ONE, TWO]));
    }
}
