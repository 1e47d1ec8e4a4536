//! A client that sends ARP requests for an address, and records every node that replies.

use std::{
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use pnet::{datalink::DataLinkReceiver, packet::arp::ArpOperations, util::MacAddr};

use super::{GRACE, PAUSE, Shared, series::longest_gap};
use crate::arp;

/// Requests use this number of sender addresses in turn, so that a reply shows its request. Nobody
/// on the LAN has these addresses.
const NAMES: u8 = 128;
const FIRST_NAME: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// The longest wait for a reply.
const LOOK: Duration = Duration::from_millis(1);

/// Requests in order, with the time of the first reply and all MACs that replied.
#[derive(Clone, Debug, Default)]
pub struct ArpRequests {
    requests: Vec<(Instant, Vec<(MacAddr, Instant)>)>,
}

impl ArpRequests {
    fn begin(&mut self, at: Instant) -> Ipv4Addr {
        self.requests.push((at, Vec::new()));
        name(self.requests.len() - 1)
    }

    /// Records a reply to the latest request with this sender address.
    fn answer(&mut self, name_of_request: Ipv4Addr, mac: MacAddr, at: Instant) {
        let recent = self.requests.iter_mut().enumerate().rev().take(NAMES.into());
        let request = recent.into_iter().find(|(number, _)| name(*number) == name_of_request);
        if let Some((_, (_, answers))) = request
            && answers.iter().all(|(other, _)| *other != mac)
        {
            answers.push((mac, at));
        }
    }

    /// Returns the number of requests.
    pub fn count(&self) -> usize {
        self.requests.len()
    }

    /// Returns how many requests nobody answered.
    pub fn lost(&self) -> usize {
        self.requests.iter().filter(|(_, answers)| answers.is_empty()).count()
    }

    /// Returns how many requests more than one node answered.
    pub fn answered_twice(&self) -> usize {
        self.requests.iter().filter(|(_, answers)| answers.len() > 1).count()
    }

    /// Returns the MACs that answered, in the order of the requests. A MAC that answers again after
    /// another one appears again. Two that answer the same requests appear once each.
    pub fn leaders(&self) -> Vec<MacAddr> {
        let (mut leaders, mut before): (Vec<MacAddr>, Vec<MacAddr>) = (Vec::new(), Vec::new());
        for (_, answers) in self.requests.iter().filter(|(_, answers)| !answers.is_empty()) {
            let macs: Vec<_> = answers.iter().map(|(mac, _)| *mac).collect();
            // A request with two replies shows no order between them. Who answered the last request,
            // too, does not begin with this one, as long as the latest leader still answers.
            let (last, goes_on) = (leaders.last().copied(), leaders.last().is_some_and(|last| macs.contains(last)));
            let begins = |mac: &MacAddr| Some(*mac) != last && !(goes_on && before.contains(mac));
            leaders.extend(macs.iter().copied().filter(begins));
            before = macs;
        }
        leaders
    }

    /// Returns the time from the first request to the last one that more than one node answered.
    pub fn overlap(&self) -> Duration {
        let twice: Vec<_> = self.requests.iter().filter(|(_, answers)| answers.len() > 1).map(|(at, _)| *at).collect();
        let ends = twice.first().zip(twice.last());
        ends.map_or(Duration::ZERO, |(first, last)| last.saturating_duration_since(*first))
    }

    /// Returns the longest time between two replies, beyond the pause between requests.
    pub fn outage(&self) -> Duration {
        let answers = self.requests.iter().flat_map(|(_, answers)| answers.iter().map(|(_, at)| *at)).collect();
        let bounds = self.requests.first().zip(self.requests.last());
        bounds.map_or(Duration::ZERO, |((first, _), (last, _))| longest_gap(answers, *first, *last))
    }

    pub(super) fn answered_since(&self, begin: Instant) -> usize {
        self.requests.iter().filter(|(asked, answers)| *asked >= begin && !answers.is_empty()).count()
    }

    /// Returns the replies to requests since then.
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

/// Sends requests until it is stopped.
pub(super) fn ask(target: Ipv4Addr, shared: &Shared<ArpRequests>) -> Result<()> {
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

fn receive(receiver: &mut dyn DataLinkReceiver, target: Ipv4Addr, shared: &Shared<ArpRequests>) -> Result<()> {
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

    fn requests(answers: &[&[MacAddr]]) -> ArpRequests {
        let mut arp_requests = ArpRequests::default();
        for macs in answers {
            let name = arp_requests.begin(Instant::now());
            for mac in *macs {
                arp_requests.answer(name, *mac, Instant::now());
            }
        }
        arp_requests
    }

    #[test]
    fn a_change_of_the_answering_node_is_seen() {
        let moved = requests(&[&[ONE], &[ONE], &[], &[TWO], &[TWO]]);
        assert_eq!((moved.lost(), moved.answered_twice(), moved.leaders()), (1, 0, vec![ONE, TWO]));
        assert_eq!(requests(&[&[ONE], &[TWO], &[ONE]]).leaders(), [ONE, TWO, ONE]);
    }

    #[test]
    fn answers_of_two_nodes_are_counted_and_repeated_answers_of_one_are_not() {
        assert_eq!(requests(&[&[ONE, TWO], &[ONE]]).answered_twice(), 1);
        assert_eq!(requests(&[&[ONE, ONE]]).answered_twice(), 0);
        assert_eq!(requests(&[&[ONE], &[TWO, ONE], &[TWO]]).leaders(), [ONE, TWO]);
    }

    #[test]
    fn nodes_that_answer_the_same_requests_for_a_while_are_no_moves_forth_and_back() {
        for count in 1..5 {
            let mut answers: Vec<&[MacAddr]> = vec![&[ONE, TWO]; count];
            answers.splice(0..0, [&[ONE][..]]);
            answers.push(&[]);
            assert_eq!(requests(&answers).leaders(), [ONE, TWO]);
            answers.push(&[TWO]);
            assert_eq!(requests(&answers).leaders(), [ONE, TWO]);
            answers.push(&[ONE]);
            assert_eq!(requests(&answers).leaders(), [ONE, TWO, ONE]);
        }
        assert_eq!(requests(&[&[ONE], &[ONE, TWO], &[ONE]]).leaders(), [ONE, TWO, ONE]);
        assert_eq!(requests(&[&[ONE], &[TWO], &[ONE, TWO], &[TWO]]).leaders(), [ONE, TWO, ONE, TWO]);
    }

    #[test]
    fn an_overlap_lasts_from_the_first_to_the_last_request_with_two_answers() {
        let mut arp_requests = requests(&[&[ONE], &[ONE, TWO], &[TWO], &[TWO, ONE], &[TWO]]);
        let begin = arp_requests.requests[0].0;
        for ((asked, _), number) in arp_requests.requests.iter_mut().zip(0..) {
            *asked = begin + PAUSE * number;
        }
        assert_eq!(arp_requests.overlap(), PAUSE * 2);
        assert_eq!(requests(&[&[ONE], &[ONE, TWO], &[TWO]]).overlap(), Duration::ZERO);
        assert_eq!(requests(&[&[ONE], &[TWO]]).overlap(), Duration::ZERO);
    }

    #[test]
    fn an_answer_that_comes_after_other_requests_counts_for_its_own() {
        let mut arp_requests = ArpRequests::default();
        let early = arp_requests.begin(Instant::now());
        let late = arp_requests.begin(Instant::now());
        arp_requests.answer(late, TWO, Instant::now());
        arp_requests.answer(early, ONE, Instant::now());
        assert_eq!((arp_requests.answered_twice(), arp_requests.leaders()), (0, vec![ONE, TWO]));
    }
}
