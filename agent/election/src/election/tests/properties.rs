//! Tests what one node never does, with random inputs at random times.

use std::cell::Cell;

use proptest::{collection, prelude::*, sample::select, test_runner::TestRunner};

use super::*;

/// A step of a run.
#[derive(Clone, Debug)]
enum Step {
    /// Milliseconds go by.
    Wait(u64),
    /// The loop turns; with evidence that was asked for so many milliseconds ago, if any is new.
    Turn {
        carrier: bool,
        evidence: Option<u64>,
    },
    /// A peer is found to stand like this.
    Stands(&'static str, MemberStatus),
    /// A peer claims the VIP in this epoch, or does no longer.
    Claims(&'static str, Option<u64>),
    /// The VIP is wanted of these.
    Wanted(Option<&'static [&'static str]>),
    Unable(bool),
    Drain(bool),
    Disowned,
    /// Nodes with another key may lead rather than this one, or no longer.
    Outranked(bool),
    /// Somebody announces the VIP with the MAC of this peer, or of none that is known.
    Announced(Option<&'static str>),
    /// A peer publishes its state anew.
    Current(&'static str),
    /// A peer says something of an epoch that is so much higher than what this node knows.
    Told(&'static str, TransferStep, u64),
    /// The result of a store operation or a survey comes, or the store is unavailable.
    Stored(bool),
    Surveyed(bool),
    /// The results of all operations on nodes' records come, or the store is unavailable.
    Recorded(bool),
    /// The result of a probe comes.
    Probed(AddressOwner),
    /// Another node writes the Lease, or somebody removes it.
    Written(Option<&'static str>),
}

fn step() -> impl Strategy<Value = Step> {
    let peer = || select(vec!["b", "c"]);
    let status = select(vec![MemberStatus::Alive, MemberStatus::Suspected, MemberStatus::Down, MemberStatus::Left]);
    let found = select(vec![
        AddressOwner::Nobody,
        AddressOwner::Unknown,
        AddressOwner::Peer,
        AddressOwner::ForeignSpeaker(MAC),
    ]);
    let step = select(vec![TransferStep::Take, TransferStep::Taken, TransferStep::Declined]);
    let (alone, both, all, another) = (&["a"][..], &["a", "b"][..], &["a", "b", "c"][..], &["b"][..]);
    let wanted = select(vec![Some(alone), Some(alone), Some(both), Some(both), Some(all), Some(another), None]);
    prop_oneof![
        10 => (1..120_u64).prop_map(Step::Wait),
        1 => (200..5_000_u64).prop_map(Step::Wait),
        20 => (prop::bool::weighted(0.95), prop::option::weighted(0.8, 0..150_u64))
            .prop_map(|(carrier, evidence)| Step::Turn { carrier, evidence }),
        4 => (peer(), status).prop_map(|(peer, status)| Step::Stands(peer, status)),
        3 => (peer(), prop::option::of(0..6_u64)).prop_map(|(peer, epoch)| Step::Claims(peer, epoch)),
        3 => wanted.prop_map(Step::Wanted),
        1 => any::<bool>().prop_map(Step::Unable),
        2 => any::<bool>().prop_map(Step::Drain),
        1 => Just(Step::Disowned),
        1 => any::<bool>().prop_map(Step::Outranked),
        2 => prop::option::weighted(0.8, peer()).prop_map(Step::Announced),
        4 => peer().prop_map(Step::Current),
        4 => (peer(), step, 0..3_u64).prop_map(|(peer, step, epoch)| Step::Told(peer, step, epoch)),
        12 => prop::bool::weighted(0.8).prop_map(Step::Stored),
        4 => prop::bool::weighted(0.8).prop_map(Step::Surveyed),
        8 => prop::bool::weighted(0.8).prop_map(Step::Recorded),
        4 => found.prop_map(Step::Probed),
        2 => select(vec![Some("b"), Some("c"), None]).prop_map(Step::Written),
    ]
}

/// The node and its world: what it has said, and what it waits for.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct World {
    bench: Bench,
    lease: Option<Lease>,
    versions: u64,
    /// The operation on the store whose end is to be given back.
    operation: Option<StoreOperation>,
    /// When the store was asked for all Leases, which have not come yet.
    asked: Option<Duration>,
    /// The operations on nodes' records that are under way, and when they began.
    records: Vec<(StoreOperation, Duration)>,
    /// This node's record.
    own_record: Option<NodeRecord>,
    /// Until when this node may answer by its record, if the deadline has not passed since.
    confirmed: Option<Duration>,
    /// When it did.
    lapsed: Duration,
    probing: bool,
    /// As the kernel has it.
    deadline: Option<Duration>,
    answers: bool,
    /// The kernel does not yield.
    assured: bool,
    /// The state that peers get.
    claimed: Option<u64>,
    /// The highest epoch that was claimed since the VIP came to be wanted.
    highest: u64,
    /// The wanted VIPs must be read anew.
    gathers: bool,
}

impl World {
    fn new() -> Self {
        let mut bench = Bench::new(ElectionSettings { lease: LEASE, hold_down: ms(500), detect: true });
        // This was answered.
        bench.recorded();
        Self {
            bench,
            lease: None,
            versions: 0,
            operation: None,
            asked: None,
            records: Vec::new(),
            own_record: None,
            confirmed: None,
            lapsed: Duration::ZERO,
            probing: false,
            deadline: None,
            answers: false,
            assured: false,
            claimed: None,
            highest: 0,
            gathers: false,
        }
    }

    fn write(&mut self, holder: &str, epoch: u64) -> Version {
        self.versions += 1;
        let lease = lease(holder, epoch, &format!("v{}", self.versions));
        let version = lease.version.clone();
        self.lease = Some(lease);
        version
    }

    /// The input that this comes to, if it is one that may come now.
    fn input(&mut self, step: Step) -> Option<Input> {
        let (now, bench) = (self.bench.now, &mut self.bench);
        Some(match step {
            Step::Wait(milliseconds) => {
                bench.later(ms(milliseconds));
                return None;
            }
            Step::Turn { carrier, evidence } => {
                let asked = evidence.map(|ago| now.saturating_sub(ms(ago)));
                bench.peers.evidence_since = bench.peers.evidence_since.max(asked);
                Input::Tick { carrier }
            }
            Step::Stands(peer, status) => {
                bench.falls(peer, status);
                bench.peers.majority = bench.peers.members.values().any(|peer| peer.status.is_alive());
                Input::Peers
            }
            Step::Claims(peer, epoch) => {
                let claims = &mut bench.peer(peer).state.claims;
                match epoch {
                    Some(epoch) => claims.insert(vip4(1), claimed(epoch)),
                    None => claims.remove(&vip4(1)),
                };
                Input::Peers
            }
            Step::Wanted(candidates) => {
                let wanted =
                    candidates.map(|candidates| (vip4(1), candidates.iter().map(|name| candidate(name)).collect()));
                if wanted.is_none() {
                    // The next leader may begin at the first epoch, once the Lease is removed.
                    self.highest = 0;
                }
                self.gathers = false;
                Input::Wanted(Arc::new(wanted.into_iter().collect()))
            }
            Step::Unable(unable) => Input::Unable(unable.then(|| vip4(1)).into_iter().collect()),
            Step::Drain(drains) => Input::Drain(drains),
            Step::Disowned => Input::Disowned,
            Step::Outranked(outranked) => Input::Outranked(outranked),
            // The kernel yields what it answers for and what is not assured.
            Step::Announced(by) => {
                let announcement = announced(bench, by.as_slice());
                let yielded = !self.assured;
                self.answers.then(|| Input::PeerAnnounced(PeerAnnouncement { yielded, ..announcement }))?
            }
            Step::Current(peer) => {
                bench.peer(peer).current = Some(now);
                Input::Peers
            }
            Step::Told(peer, step, epoch) => {
                let known = bench.election.states.get(&vip4(1)).map_or(0, VipState::epoch);
                told(peer, step, epoch + known)
            }
            Step::Stored(works) => {
                let operation = self.operation.take()?;
                stored(if works { self.store(operation) } else { LeaseOutcome::Unavailable })
            }
            Step::Surveyed(works) => {
                let asked = self.asked.take()?;
                let leases = works.then(|| self.lease.iter().map(|lease| (vip4(1), lease.clone())).collect());
                Input::Surveyed { asked, leases }
            }
            Step::Recorded(works) => {
                let (operation, asked) = self.records.pop()?;
                let (node, outcome) = match operation {
                    StoreOperation::SwapRecord { node, content, .. } if works => {
                        self.versions += 1;
                        let version = version(&format!("r{}", self.versions));
                        if node == bench.election.local {
                            self.own_record = Some(NodeRecord { content, version: version.clone() });
                        }
                        (node, RecordOutcome::Swapped(version))
                    }
                    StoreOperation::ReadRecord { node, .. } if works && node == bench.election.local => {
                        (node, RecordOutcome::Read(self.own_record.clone()))
                    }
                    StoreOperation::ReadRecord { node, .. } if works => (node, RecordOutcome::Read(None)),
                    StoreOperation::SwapRecord { node, .. } | StoreOperation::ReadRecord { node, .. } => {
                        (node, RecordOutcome::Unavailable)
                    }
                    _ => return None,
                };
                if works && node == bench.election.local && asked >= self.lapsed {
                    self.confirmed = self.own_record.as_ref().map(|record| asked + record.content.promise);
                }
                Input::Recorded { node, asked, outcome }
            }
            Step::Probed(found) => std::mem::take(&mut self.probing).then(|| probed(found))?,
            Step::Written(holder) => {
                let epoch = self.lease.as_ref().map_or(0, |lease| lease.epoch) + 1;
                if let Some(holder) = holder {
                    self.write(holder, epoch);
                } else {
                    self.lease = None;
                }
                return None;
            }
        })
    }

    fn store(&mut self, operation: StoreOperation) -> LeaseOutcome {
        let StoreOperation::Swap { expected, epoch, .. } = operation else {
            return LeaseOutcome::Read(self.lease.clone());
        };
        if self.lease.as_ref().map(|lease| &lease.version) != expected.as_ref() {
            return LeaseOutcome::Conflict;
        }
        LeaseOutcome::Swapped(self.write("a", epoch))
    }

    /// Takes what was said, and says what is wrong with it.
    fn obey(&mut self) -> Result<(), TestCaseError> {
        let now = self.bench.now;
        for command in std::mem::take(&mut self.bench.commands) {
            match command {
                Command::Lead { epoch, .. } => {
                    prop_assert!(!self.answers, "it answers already");
                    prop_assert!(self.deadline.is_some_and(|deadline| now < deadline), "the fence is closed");
                    prop_assert_eq!(self.claimed, Some(epoch), "it leads what it claims");
                    self.answers = true;
                }
                Command::Follow { .. } => {
                    prop_assert!(std::mem::take(&mut self.answers), "it does not answer");
                    self.assured = false;
                }
                Command::Assure { assured, .. } => self.assured = assured,
                Command::Forged { by, .. } => {
                    let peer = &self.bench.peers.members[&by];
                    prop_assert!(peer.status.is_alive() && !peer.state.claims.contains_key(&vip4(1)), "{by} may lead");
                }
                Command::Extend(deadline) => {
                    prop_assert!(!self.gathers, "what is wanted was not read anew");
                    prop_assert!(self.deadline.is_none_or(|before| now < before), "it has passed");
                    let until = self.bench.peers.evidence_since.map(|asked| asked + LEASE).max(self.confirmed);
                    prop_assert!(until.is_some_and(|until| deadline <= until), "nobody said so");
                    self.deadline = Some(deadline);
                }
                Command::Reload => {
                    (self.gathers, self.deadline, self.confirmed, self.lapsed) = (true, None, None, now);
                }
                Command::DiscardEvidence => self.bench.peers.evidence_since = None,
                Command::Store(StoreOperation::Survey) => {
                    prop_assert_eq!(self.asked.replace(now), None, "one is under way at most");
                }
                Command::Store(operation) if record_node(&operation).is_some() => {
                    let node = record_node(&operation);
                    let is_busy = self.records.iter().any(|(other, _)| record_node(other) == node);
                    prop_assert!(!is_busy, "one operation on the record of {node:?} is under way at most");
                    self.records.insert(0, (operation, now));
                }
                Command::Store(operation @ (StoreOperation::Read(_) | StoreOperation::Swap { .. })) => {
                    self.operation = Some(operation);
                }
                Command::Probe { .. } => self.probing = true,
                Command::Publish(Item::Claim { epoch, .. }) => {
                    prop_assert!(epoch >= self.highest, "epoch {epoch} after {}", self.highest);
                    (self.claimed, self.highest) = (Some(epoch), epoch);
                }
                Command::Withdraw(ItemKey::Claim(_)) => {
                    prop_assert!(self.claimed.take().is_some(), "it claims nothing");
                }
                _ => {}
            }
        }
        prop_assert!(!self.bench.election.outranked || !self.answers, "it answers although others may lead");
        let leads = self.bench.election.leads(vip4(1));
        prop_assert_eq!(leads, self.answers, "what it believes is what it said");
        prop_assert_eq!(
            self.bench.election.own_vips().next().is_some(),
            self.claimed.is_some(),
            "it claims what it holds"
        );
        Ok(())
    }
}

#[test]
fn a_node_answers_only_while_the_fence_is_open_and_claims_what_it_holds() {
    let (runs, answered) = (256, Cell::new(0));
    let mut runner =
        TestRunner::new(ProptestConfig { cases: runs, failure_persistence: None, ..ProptestConfig::default() });
    let run = runner.run(&collection::vec(step(), 100..300), |steps| {
        let (mut world, mut answers) = (World::new(), false);
        world.obey()?;
        for step in steps {
            let Some(input) = world.input(step) else { continue };
            let lapsed = world.deadline.is_some_and(|deadline| deadline <= world.bench.now);
            let silences = match input {
                Input::Disowned => true,
                Input::PeerAnnounced(PeerAnnouncement { yielded, .. }) => yielded,
                Input::Tick { carrier } => carrier && lapsed,
                _ => false,
            };
            world.bench.give(input);
            world.obey()?;
            prop_assert!(!silences || !world.answers, "it answers in spite of that");
            answers |= world.answers;
        }
        answered.set(answered.get() + u32::from(answers));
        Ok(())
    });
    run.unwrap();
    assert!(answered.get() > runs / 5, "it answered in {} of {runs} runs, which says little", answered.get());
}
