//! One frame, what becomes of it, and everything that it changes.

use vipmux::datapath::xdp::Buffers;
use vipmux_common::abi::{Count, DropReason, Stat};
use vipmux_tests::program::{Counters, Hook, Outcome, Program, State};

use crate::{
    family::{self, Family},
    fixture,
};

/// What becomes of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// On its way, as it came.
    Untouched,
    /// On its way, as these bytes.
    Passed(Vec<u8>),
    /// Back out where it came in, as these bytes.
    Transmitted(Vec<u8>),
    /// Out of another interface, as these bytes.
    Redirected(Vec<u8>),
    /// Nowhere, and counted under this reason.
    Dropped(DropReason),
}

/// A counter that goes up by this frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counter {
    /// In `STATS`.
    Stat(Stat),
    /// In `DROPS`, of a packet that was answered.
    Drop(DropReason),
    /// In `SERVICE_STATS`, of this slot.
    Service(u32),
    /// In `SERVICE_STATS`, of this slot, which also counts a new flow.
    NewFlow(u32),
}

/// A row of the table.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) hook: Hook,
    /// Of the state's addresses; what is told of it is told in IPv4's.
    pub(crate) family: Family,
    /// Whether the same holds in the other family.
    both: bool,
    /// The frame has room in several buffers alone.
    jumbo: bool,
    /// What differs from the fixture before.
    given: fn(&mut State),
    pub(crate) frame: Vec<u8>,
    pub(crate) verdict: Verdict,
    counters: Vec<Counter>,
    /// What the frame changes in the maps. Nothing else may change.
    then: fn(&mut State),
}

impl Case {
    /// A frame from the wire, which passes untouched and is counted so, unless told otherwise.
    pub(crate) fn ingress(name: &'static str, frame: Vec<u8>) -> Self {
        Self {
            name,
            hook: Hook::Ingress,
            family: Family::V4,
            both: true,
            jumbo: false,
            given: |_| {},
            frame,
            verdict: Verdict::Untouched,
            counters: vec![Counter::Stat(Stat::Passed)],
            then: |_| {},
        }
    }

    /// A frame from this node's stack, which leaves untouched and uncounted, unless told otherwise.
    pub(crate) fn egress(name: &'static str, frame: Vec<u8>) -> Self {
        Self { hook: Hook::Egress, counters: Vec::new(), ..Self::ingress(name, frame) }
    }

    pub(crate) fn given(mut self, given: fn(&mut State)) -> Self {
        self.given = given;
        self
    }

    pub(crate) fn becomes(mut self, verdict: Verdict, counters: &[Counter]) -> Self {
        (self.verdict, self.counters) = (verdict, counters.to_vec());
        self
    }

    pub(crate) fn dropped(self, reason: DropReason) -> Self {
        self.becomes(Verdict::Dropped(reason), &[])
    }

    pub(crate) fn then(mut self, then: fn(&mut State)) -> Self {
        self.then = then;
        self
    }

    /// The same case on the state in IPv6; the frames are IPv6 already.
    pub(crate) fn v6(mut self) -> Self {
        (self.family, self.both) = (Family::V6, false);
        self
    }

    /// Not to be tried in the other family.
    pub(crate) fn in_this_family(mut self) -> Self {
        self.both = false;
        self
    }

    /// A frame in several buffers.
    pub(crate) fn jumbo(mut self) -> Self {
        self.jumbo = true;
        self
    }

    /// The same in IPv6. `None` where a frame has nothing in its place ([`family::frame`]).
    pub(crate) fn twin(&self) -> Option<Self> {
        if !self.both {
            return None;
        }
        let verdict = match &self.verdict {
            Verdict::Passed(frame) => Verdict::Passed(family::frame(frame)?),
            Verdict::Transmitted(frame) => Verdict::Transmitted(family::frame(frame)?),
            Verdict::Redirected(frame) => Verdict::Redirected(family::frame(frame)?),
            verdict => verdict.clone(),
        };
        let (frame, counters) = (family::frame(&self.frame)?, self.counters.clone());
        Some(Self { family: Family::V6, both: false, frame, verdict, counters, ..*self })
    }

    /// The same with other bytes in all its frames.
    pub(crate) fn edited(mut self, edit: impl Fn(Vec<u8>) -> Vec<u8>) -> Self {
        self.verdict = match self.verdict {
            Verdict::Passed(frame) => Verdict::Passed(edit(frame)),
            Verdict::Transmitted(frame) => Verdict::Transmitted(edit(frame)),
            Verdict::Redirected(frame) => Verdict::Redirected(edit(frame)),
            verdict => verdict,
        };
        self.sent_as(edit)
    }

    /// The same of a frame with other bytes.
    pub(crate) fn sent_as(mut self, edit: impl Fn(Vec<u8>) -> Vec<u8>) -> Self {
        self.frame = edit(self.frame);
        self
    }

    /// Whether this counter goes up.
    pub(crate) fn counts(&self, stat: Stat) -> bool {
        self.counters.contains(&Counter::Stat(stat))
    }

    fn state(&self, change: &[fn(&mut State)]) -> State {
        let mut state = fixture::state();
        for change in change {
            change(&mut state);
        }
        match self.family {
            Family::V4 => state,
            Family::V6 => family::state(state),
        }
    }

    fn check(&self, program: &mut Program) -> anyhow::Result<Result<(), String>> {
        let state = self.state(&[self.given]);
        program.install(&state)?;
        let before = program.counters()?;
        let outcome = program.run(self.hook, &self.frame)?;
        let counted = program.counters()?.since(&before);
        let mut wanted = self.state(&[self.given, self.then]);
        wanted.fence = state.fence;
        Ok(self.compare(&outcome, &counted, &program.state()?, &wanted))
    }

    fn compare(&self, outcome: &Outcome, counted: &Counters, after: &State, wanted: &State) -> Result<(), String> {
        let (verdict, frame) = self.wire();
        let mut wrong = Vec::new();
        if outcome.verdict != verdict {
            wrong.push(format!("verdict {}, not {verdict}", outcome.verdict.cast_signed()));
        }
        if let Some(frame) = frame
            && outcome.frame != frame
        {
            wrong.push(format!("frame {}\n      not {}", hex(&outcome.frame), hex(frame)));
        }
        let expected = self.counted(counted);
        if *counted != expected {
            wrong.push(format!("counted {}\n      not {}", shown(counted), shown(&expected)));
        }
        if after != wanted {
            wrong.push(format!("maps {}", difference(after, wanted)));
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n    ")) }
    }

    /// The program's return value and the frame's bytes; a dropped frame's do not matter.
    fn wire(&self) -> (u32, Option<&[u8]>) {
        let next = (-1_i32).cast_unsigned();
        match (self.hook, &self.verdict) {
            (Hook::Ingress, Verdict::Untouched) => (2, Some(&self.frame)),
            (Hook::Ingress, Verdict::Passed(frame)) => (2, Some(frame)),
            (Hook::Ingress, Verdict::Transmitted(frame)) => (3, Some(frame)),
            (Hook::Ingress, Verdict::Redirected(frame)) => (4, Some(frame)),
            (Hook::Ingress, Verdict::Dropped(_)) => (1, None),
            (Hook::Egress, Verdict::Untouched) => (next, Some(&self.frame)),
            (Hook::Egress, Verdict::Passed(frame)) => (next, Some(frame)),
            (Hook::Egress, Verdict::Dropped(_)) => (2, None),
            (Hook::Egress, verdict) => panic!("{}: the egress program has no verdict {verdict:?}", self.name),
        }
    }

    fn counted(&self, counters: &Counters) -> Counters {
        let mut expected = counters.zeroed();
        let one = Count { packets: 1, bytes: self.frame.len() as u64, flows: 0 };
        for counter in &self.counters {
            match *counter {
                Counter::Stat(stat) => expected.stats[stat as usize] = one,
                Counter::Drop(reason) => expected.drops[reason as usize] = one,
                Counter::Service(slot) => expected.services[slot as usize] = one,
                Counter::NewFlow(slot) => expected.services[slot as usize] = Count { flows: 1, ..one },
            }
        }
        if let Verdict::Dropped(reason) = self.verdict {
            expected.drops[reason as usize] = one;
        }
        expected
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The counters that went up, by name.
fn shown(counters: &Counters) -> String {
    let mut lines = Vec::new();
    let mut show = |name: String, count: &Count| {
        if *count != Count::default() {
            lines.push(format!("{name}: {} packets, {} bytes, {} flows", count.packets, count.bytes, count.flows));
        }
    };
    for (stat, count) in Stat::ALL.iter().zip(&counters.stats) {
        show(stat.name().to_owned(), count);
    }
    for (reason, count) in DropReason::ALL.iter().zip(&counters.drops) {
        show(format!("drop {}", reason.name()), count);
    }
    for (slot, count) in counters.services.iter().enumerate() {
        show(format!("service {slot}"), count);
    }
    format!("[{}]", lines.join("; "))
}

/// The lines of the two states that differ.
fn difference(after: &State, wanted: &State) -> String {
    let (after, wanted) = (format!("{after:#?}"), format!("{wanted:#?}"));
    let only_in = |a: &str, b: &str| {
        let others: std::collections::BTreeSet<&str> = b.lines().collect();
        a.lines().filter(|line| !others.contains(line)).map(str::trim).collect::<Vec<_>>().join(" ")
    };
    format!("have [{}]\n      not [{}]", only_in(&after, &wanted), only_in(&wanted, &after))
}

/// The kinds of programs that this kernel has.
pub(crate) fn kinds() -> &'static [Buffers] {
    match Buffers::here() {
        Buffers::One => &[Buffers::One],
        Buffers::Several => &[Buffers::One, Buffers::Several],
    }
}

/// Runs all cases, in both families and through both kinds of programs, and fails with every one that does not come out
/// as told.
pub(crate) fn check(cases: Vec<Case>) {
    let cases = with_twins(cases);
    let failures: Vec<String> = kinds().iter().flat_map(|&buffers| failures(&cases, buffers)).collect();
    assert!(failures.is_empty(), "{} of {} cases:\n{}", failures.len(), cases.len(), failures.join("\n"));
}

/// The cases, and after them the same in IPv6.
pub(crate) fn with_twins(mut cases: Vec<Case>) -> Vec<Case> {
    let twins: Vec<Case> = cases.iter().filter_map(Case::twin).collect();
    cases.extend(twins);
    cases
}

fn failures(cases: &[Case], buffers: Buffers) -> Vec<String> {
    let mut program = Program::load_for(&fixture::state(), fixture::FLOWS, buffers).unwrap();
    cases
        .iter()
        .filter(|case| !case.jumbo || buffers == Buffers::Several)
        .filter_map(|case| {
            let result = case.check(&mut program).unwrap_or_else(|error| Err(format!("{error:#}")));
            result.err().map(|why| format!("{} ({:?}, {buffers:?}):\n    {why}", case.name, case.family))
        })
        .collect()
}
