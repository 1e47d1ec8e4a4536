//! A test case: one frame, its verdict, and every change that it makes.

use vipmux_common::abi::{Count, DropReason, FLOW_HALF_OPEN, FLOW_NEW, Fence, Stat};
use vipmux_datapath::bpf::xdp::Buffers;
use vipmux_tests::frames::ETHERTYPE_VLAN;
use vipmux_tests::program::{Counters, Hook, Outcome, Program, State};

use crate::{
    family::{self, Family},
    fixture, pool,
};

/// The result of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Passed unchanged.
    Untouched,
    /// Passed with these bytes.
    Passed(Vec<u8>),
    /// Sent back out of its ingress interface with these bytes.
    Transmitted(Vec<u8>),
    /// Sent out of another interface with these bytes.
    Redirected(Vec<u8>),
    /// Dropped, and counted with this reason.
    Dropped(DropReason),
}

/// A counter that increases by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counter {
    /// In `STATS`.
    Stat(Stat),
    /// In `DROPS`, for a packet that was answered.
    Drop(DropReason),
    /// In `SERVICE_STATS`, of this slot.
    Service(u32),
    /// In `SERVICE_STATS`, of this slot, which also counts a new flow.
    NewFlow(u32),
}

/// What the programs know beside the case. The result is the same: this only decides how many
/// comparisons they need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Circumstances {
    /// The VLANs of paths are not known, nothing is recent, and no index has the Services.
    Usual,
    /// The VLANs of paths are known, and all flows had a packet within the last second: their packets are
    /// plain. The index has the Services.
    Plain,
}

/// A test case.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) hook: Hook,
    /// The family of the state's addresses. Cases are written in IPv4's terms.
    pub(crate) family: Family,
    /// True if the case also applies to the other family.
    both: bool,
    /// True if the frame only fits in several buffers.
    jumbo: bool,
    /// Changes of the fixture before the frame.
    given: fn(&mut State),
    pub(crate) frame: Vec<u8>,
    pub(crate) verdict: Verdict,
    counters: Vec<Counter>,
    /// The frame's changes of the maps. Nothing else may change.
    then: fn(&mut State),
}

impl Case {
    /// A frame from the wire. By default it passes untouched and is counted as passed.
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

    /// A frame from this node's stack. By default it leaves untouched and uncounted.
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

    /// The same case with the state in IPv6. The frames are IPv6 already.
    pub(crate) fn v6(mut self) -> Self {
        (self.family, self.both) = (Family::V6, false);
        self
    }

    /// Excludes the other family.
    pub(crate) fn in_this_family(mut self) -> Self {
        self.both = false;
        self
    }

    /// A frame in several buffers.
    pub(crate) fn jumbo(mut self) -> Self {
        self.jumbo = true;
        self
    }

    /// The same case in IPv6; `None` if the frame has no equivalent ([`family::frame`]).
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

    /// The same case with changed bytes in all its frames.
    pub(crate) fn edited(mut self, edit: impl Fn(Vec<u8>) -> Vec<u8>) -> Self {
        self.verdict = match self.verdict {
            Verdict::Passed(frame) => Verdict::Passed(edit(frame)),
            Verdict::Transmitted(frame) => Verdict::Transmitted(edit(frame)),
            Verdict::Redirected(frame) => Verdict::Redirected(edit(frame)),
            verdict => verdict,
        };
        self.sent_as(edit)
    }

    /// The same result with changed bytes.
    pub(crate) fn sent_as(mut self, edit: impl Fn(Vec<u8>) -> Vec<u8>) -> Self {
        self.frame = edit(self.frame);
        self
    }

    /// Returns whether the case increases this counter.
    pub(crate) fn counts(&self, stat: Stat) -> bool {
        self.counters.contains(&Counter::Stat(stat))
    }

    /// A frame without a tag keeps having none on a path without one.
    fn circumstances(&self) -> &'static [Circumstances] {
        const ALL: &[Circumstances] = &[Circumstances::Usual, Circumstances::Plain];
        let is_tagged = self.frame.get(12..14) == Some(&ETHERTYPE_VLAN.to_be_bytes());
        if self.hook == Hook::Egress || is_tagged { &ALL[..1] } else { ALL }
    }

    fn state(&self, circumstances: Circumstances, change: &[fn(&mut State)]) -> State {
        let mut state = fixture::state();
        if circumstances == Circumstances::Plain {
            fixture::know_vlans(&mut state);
        }
        for change in change {
            change(&mut state);
        }
        if circumstances == Circumstances::Plain {
            fixture::freshen(&mut state);
            state = state.indexed();
        }
        match self.family {
            Family::V4 => state,
            Family::V6 => family::state(state),
        }
    }

    fn check(&self, program: &mut Program, circumstances: Circumstances) -> anyhow::Result<Result<(), String>> {
        let state = self.state(circumstances, &[self.given]);
        program.install(&state)?;
        let before = program.counters()?;
        let outcome = program.run(self.hook, &self.frame)?;
        let counted = program.counters()?.since(&before);
        let mut wanted = self.state(circumstances, &[self.given, self.then]);
        // The deadline is of one time, and the programs' answers are not read.
        wanted.fence = Fence { kept_until: 0, abandoned_until: 0, ..state.fence };
        Ok(self.compare(&outcome, &counted, &settled(program.state()?), &settled(wanted)))
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

    /// Compares the program's return value and the frame's bytes. The bytes of a dropped frame do
    /// not matter.
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

/// Returns the counters that increased, by name.
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

/// Returns the different lines of two states.
fn difference(after: &State, wanted: &State) -> String {
    let (after, wanted) = (format!("{after:#?}"), format!("{wanted:#?}"));
    let only_in = |a: &str, b: &str| {
        let others: std::collections::BTreeSet<&str> = b.lines().collect();
        a.lines().filter(|line| !others.contains(line)).map(str::trim).collect::<Vec<_>>().join(" ")
    };
    format!("have [{}]\n      not [{}]", only_in(&after, &wanted), only_in(&wanted, &after))
}

/// Returns the kinds of programs that this kernel supports.
pub(crate) fn kinds() -> &'static [Buffers] {
    match Buffers::here() {
        Buffers::One => &[Buffers::One],
        Buffers::Several => &[Buffers::One, Buffers::Several],
    }
}

/// Returns the state without what `records` tests: what tells a flow's first packet from its
/// second, and which of the generations that fit the backend a record has.
fn settled(mut state: State) -> State {
    let young = u8::try_from(FLOW_NEW | FLOW_HALF_OPEN).unwrap();
    for flow in state.flows.values_mut() {
        flow.flags &= !young;
        let backend = state.backends.get(flow.backend as usize);
        if let Some(backend) = backend.filter(|backend| backend.is_of(flow.backend_generation)) {
            flow.backend_generation = backend.generation;
        }
    }
    state
}

/// Runs all cases, in both families and with both kinds of programs. Reports every failed case.
pub(crate) fn check(cases: Vec<Case>) {
    let cases = with_twins(cases);
    let failures: Vec<String> = kinds().iter().flat_map(|&buffers| failures(&cases, buffers)).collect();
    assert!(failures.is_empty(), "{} of {} cases:\n{}", failures.len(), cases.len(), failures.join("\n"));
}

/// Returns the cases, followed by the same ones in IPv6.
pub(crate) fn with_twins(mut cases: Vec<Case>) -> Vec<Case> {
    let twins: Vec<Case> = cases.iter().filter_map(Case::twin).collect();
    cases.extend(twins);
    cases
}

fn failures(cases: &[Case], buffers: Buffers) -> Vec<String> {
    let mut program = pool::load_for(&fixture::state(), fixture::FLOWS, buffers).unwrap();
    cases
        .iter()
        .filter(|case| !case.jumbo || buffers == Buffers::Several)
        .flat_map(|case| case.circumstances().iter().map(move |it| (case, *it)))
        .filter_map(|(case, circumstances)| {
            let result = case.check(&mut program, circumstances).unwrap_or_else(|error| Err(format!("{error:#}")));
            let of = format!("{:?}, {buffers:?}, {circumstances:?}", case.family);
            result.err().map(|why| format!("{} ({of}):\n    {why}", case.name))
        })
        .collect()
}
