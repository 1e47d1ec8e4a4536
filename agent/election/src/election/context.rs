//! The part of the election that changes of one VIP's state need.

use std::time::Duration;

use super::{io::Command, leader_index::LeaderIndex, schedule::EvaluationSchedule, takeover_guard::TakeoverGuard};
use crate::{
    membership::{ElectionMessage, TransferStep},
    mutation::Mutated,
};
use vipmux_model::{NodeName, Vip};

/// The rest of the election, as far as the methods of one VIP's state need it.
pub(super) struct Context<'a> {
    pub(super) vip: Vip,
    pub(super) now: Duration,
    pub(super) local: &'a NodeName,
    /// The fence is open.
    pub(super) open: bool,
    /// This node can announce the VIP.
    pub(super) able: bool,
    pub(super) guard: TakeoverGuard<'a>,
    pub(super) index: &'a mut LeaderIndex,
    pub(super) schedule: &'a mut EvaluationSchedule,
    pub(super) commands: &'a mut Vec<Command>,
    pub(super) mutated: Mutated,
}

impl Context<'_> {
    /// Sends a message about the VIP to a peer.
    pub(super) fn send(&mut self, to: NodeName, step: TransferStep, epoch: u64) {
        let message = ElectionMessage { step, vip: self.vip, epoch };
        self.commands.push(Command::Send { to, message });
    }
}
