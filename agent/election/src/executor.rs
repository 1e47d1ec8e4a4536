//! Executes the election's commands on the membership, the kernel and the store.
//!
//! The agent and the simulation run the same executor. Each input has one time, which is also that of its
//! commands, however late they are executed. Deadlines and questions are absolute, so a pause between
//! two commands only makes them older.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use crate::{
    Command, Election, Input, PeerAnnouncement, StoreOperation,
    membership::{Full, Membership, MembershipEvent, Peers},
};
use vipmux_model::Vip;

/// The kernel and the store of a node.
pub trait NodeIo {
    /// The kernel could not be written. The agent ends with it.
    type Error;

    /// Sets the leading flag of a VIP.
    fn lead(&mut self, vip: Vip, epoch: u64) -> Result<(), Self::Error>;

    /// Clears the leading flag of a VIP.
    fn follow(&mut self, vip: Vip) -> Result<(), Self::Error>;

    /// Sets whether the kernel goes on answering for a VIP when a peer announces it.
    fn assure(&mut self, vip: Vip, assured: bool) -> Result<(), Self::Error>;

    /// Sets the fence deadline.
    fn extend(&mut self, deadline: Duration) -> Result<(), Self::Error>;

    /// Begins an operation at the store. Returns whether there will be a report, with the time `asked`.
    fn begin(&mut self, operation: StoreOperation, asked: Duration) -> bool;

    /// Reports that an item has no room. Thousands may come at once.
    fn note_full(&mut self, full: Full);
}

/// The election of a node, with the inputs that it has not handled yet and the commands that are not
/// executed yet.
#[derive(Debug)]
pub struct Executor {
    election: Election,
    inputs: VecDeque<Input>,
    /// The commands of the last input.
    commands: VecDeque<Command>,
    /// The time of the last input.
    now: Duration,
    /// The last operation on the Lease of each VIP, by the time at which it was asked for. The results of
    /// older ones are ignored.
    latest: BTreeMap<Vip, Duration>,
    operations: u64,
}

impl Executor {
    /// Returns an executor without inputs.
    pub fn new(election: Election) -> Self {
        let (inputs, commands, latest) = (VecDeque::new(), VecDeque::new(), BTreeMap::new());
        Self { election, inputs, commands, now: Duration::ZERO, latest, operations: 0 }
    }

    /// Returns the election.
    pub const fn election(&self) -> &Election {
        &self.election
    }

    /// Adds inputs.
    pub fn push(&mut self, inputs: impl IntoIterator<Item = Input>) {
        self.inputs.extend(inputs);
    }

    /// Adds the membership's events, and the time.
    pub fn push_events(&mut self, events: Vec<MembershipEvent>) {
        let events = events.into_iter().map(|event| match event {
            MembershipEvent::Changed => Input::Peers,
            MembershipEvent::Disowned => Input::Disowned,
            MembershipEvent::Message { from, message } => Input::Message { from, message },
        });
        self.inputs.extend(events.chain([Input::Peers]));
    }

    /// Adds a heartbeat of the event loop, after the announcements that the kernel heard before it.
    pub fn push_heartbeat(&mut self, heard: Vec<PeerAnnouncement>, carrier: bool) {
        self.inputs.extend(heard.into_iter().map(Input::PeerAnnounced).chain([Input::Tick { carrier }]));
    }

    /// Adds the result of a store operation that has begun with the time `asked`. For a Lease, only the
    /// latest operation counts.
    pub fn push_report(&mut self, asked: Duration, input: Input) {
        if let Input::Stored { vip, .. } = &input {
            if self.latest.get(vip) != Some(&asked) {
                return;
            }
            self.latest.remove(vip);
        }
        self.inputs.push_back(input);
    }

    /// Returns the next input.
    pub fn next_input(&self) -> Option<&Input> {
        self.inputs.front()
    }

    /// Handles the next input, after all commands of the last one.
    pub fn handle_next(&mut self, peers: &Peers, now: Duration) {
        if let Some(input) = self.inputs.pop_front() {
            self.now = now;
            self.commands.extend(self.election.handle(input, peers, now));
        }
    }

    /// Returns the next command of the last input.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn next_command(&self) -> Option<&Command> {
        self.commands.front()
    }

    /// Executes the next command of the last input, and returns it. Commands that concern neither the
    /// membership nor `io` are only returned.
    pub fn execute_next<T: NodeIo>(
        &mut self,
        membership: &mut Membership,
        io: &mut T,
    ) -> Result<Option<Command>, T::Error> {
        let Some(command) = self.commands.pop_front() else { return Ok(None) };
        self.execute(&command, membership, io)?;
        Ok(Some(command))
    }

    fn execute<T: NodeIo>(
        &mut self,
        command: &Command,
        membership: &mut Membership,
        io: &mut T,
    ) -> Result<(), T::Error> {
        let now = self.now;
        match command {
            Command::Follow { vip, .. } => io.follow(*vip)?,
            Command::Lead { vip, epoch, .. } => io.lead(*vip, *epoch)?,
            Command::Assure { vip, assured } => io.assure(*vip, *assured)?,
            Command::Extend(deadline) => {
                io.extend(*deadline)?;
                membership.note_deadline(*deadline, now);
            }
            Command::Ask(name) => membership.ask(name, now),
            Command::AskPeers => membership.ask_peers(now),
            Command::Heartbeat => membership.schedule_heartbeats(now),
            Command::DiscardEvidence => membership.discard_evidence(now),
            Command::Send { to, message } => membership.send_message(to, *message),
            Command::Publish(item) => {
                if let Err(full) = membership.publish(item.clone(), now) {
                    io.note_full(full);
                }
            }
            Command::Withdraw(key) => membership.withdraw(key, now),
            Command::Store(operation) => self.operate(operation, io),
            Command::Reload | Command::Probe { .. } | Command::Conflict { .. } | Command::Forged { .. } => {}
        }
        Ok(())
    }

    fn operate<T: NodeIo>(&mut self, operation: &StoreOperation, io: &mut T) {
        let mut asked = self.now;
        if let StoreOperation::Read(vip) | StoreOperation::Swap { vip, .. } = operation {
            // The time identifies an operation, so two of a VIP must not have the same nanosecond.
            self.operations += 1;
            asked += Duration::from_nanos(self.operations % 1_000);
            self.latest.insert(*vip, asked);
        }
        if !io.begin(operation.clone(), asked)
            && let Some(failed) = operation.failed(asked)
        {
            self.push_report(asked, failed);
        }
    }
}

#[cfg(test)]
mod tests;
