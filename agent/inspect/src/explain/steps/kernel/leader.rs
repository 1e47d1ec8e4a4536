//! Evaluates who leads a VIP, and why this node does not answer although it should.

use vipmux_common::abi::{Role, Why};

use super::START;
use crate::{
    explain::{KernelState, StepKind, VipDetails, steps::Steps},
    leadership::{Code, VipLeadership},
    vips::{FenceState, VipView},
};
use vipmux_model::NodeName;

const LOOK: &str = "run `vipmux inspect members` to see which nodes are alive and ready; the agents' logs say why none \
                    of them takes it";
const ANSWERED: &str = "start that node's agent, or find what answers: a switch with proxy ARP or ARP suppression, or a host. \
                        Of two nodes, one takes over after some 10 s (docs/failover.md)";
const FIND: &str = "find the other machine that has the address: another load balancer's speaker, or a host";

/// The desired leader of a VIP, as far as it is known.
#[derive(Clone, Copy)]
pub(super) struct DesiredLeader<'a> {
    /// This node.
    pub(super) local: Option<&'a NodeName>,
    /// The decisions about the VIP.
    pub(super) vip: Option<&'a VipDetails>,
}

impl DesiredLeader<'_> {
    fn leader(&self) -> Option<&NodeName> {
        self.vip.and_then(|vip| vip.leader.as_ref())
    }
}

impl Steps {
    /// Checks who leads it, as this node's agent last wrote.
    pub(super) fn led(&mut self, vip: &VipView, fence: FenceState, desired: DesiredLeader<'_>) {
        let VipView { address, epoch, leadership, .. } = vip;
        let (leader, since) = match leadership {
            VipLeadership { role: None, .. } => {
                let remedy = "start the agent on this node, or read its log: it has not learned the leader yet";
                return self.unknown(
                    StepKind::Led,
                    format!("the leader of {address} is not known on this node"),
                    remedy,
                );
            }
            VipLeadership { leader, .. } => (leader, leadership.since().unwrap_or_default()),
        };
        let reason = leadership.reason().map(|reason| format!(": {reason}")).unwrap_or_default();
        let finding = match leader {
            Some(leader) => {
                let other = desired.leader().filter(|other| other.as_str() != leader);
                let other =
                    other.map(|other| format!("; it keeps the address while it can, although {other} is preferred"));
                format!("{leader} has led {address} for {since}, epoch {epoch}{reason}{}", other.unwrap_or_default())
            }
            None => format!("nobody has led {address} for {since}"),
        };
        match leader {
            // This node would not have heard of a change since.
            _ if fence != FenceState::Open => {
                self.note(StepKind::Led, format!("{finding} (known when the fence lapsed)"));
            }
            Some(_) if leadership.why == Some(Code(Ok(Why::Answered))) => {
                self.broken(StepKind::Led, finding, ANSWERED);
            }
            Some(_) => self.holds(StepKind::Led, finding),
            None => self.broken(StepKind::Led, finding, LOOK),
        }
    }

    /// Checks whether this node answers if it has to. The leader has to; if it is not known, the
    /// desired leader.
    pub(super) fn answers(&mut self, vip: &VipView, held: &KernelState, desired: DesiredLeader<'_>) {
        let VipView { address, leadership, .. } = vip;
        let own = match leadership.leader {
            Some(_) => leadership.is_own(),
            None => desired.local.is_some() && desired.local == desired.leader(),
        };
        match (vip.leading, own) {
            (true, _) if vip.answering => {
                let (place, fence) = (vip.interfaces.join(", "), held.fence.text());
                self.holds(StepKind::Announced, format!("this node answers for {address} on {place}, {fence}"));
            }
            (true, _) => {
                let finding = format!("this node leads {address} and does not answer: the fence {}", held.fence.text());
                self.broken(StepKind::Announced, finding, START);
            }
            (false, true) => self.silent(vip),
            // The step before says so.
            (false, false) if leadership.is_vacant() => {}
            (false, false) => {
                let who = leadership.leader.as_deref().or(desired.leader().map(NodeName::as_str));
                let who = who.map_or_else(|| "another node".to_owned(), |name| format!("{name}, not this node,"));
                self.note(StepKind::Announced, format!("{who} should answer for {address}: check there, too"));
            }
        }
    }

    /// Explains why this node does not answer for a VIP that it leads or should lead.
    fn silent(&mut self, vip: &VipView) {
        let address = vip.address;
        match vip.leadership.role {
            Some(Code(Ok(Role::Detecting))) => self.note(
                StepKind::Announced,
                format!("this node checks whether another machine has {address} before it uses it"),
            ),
            Some(Code(Ok(Role::Handing))) => self.note(StepKind::Announced, format!("this node transfers the leadership of {address}")),
            Some(Code(Ok(Role::Conflicted))) => self.broken(
                StepKind::Announced,
                format!("this node does not answer for {address}: another machine on the LAN has it"),
                FIND,
            ),
            Some(Code(Ok(Role::Suspended))) => self.broken(
                StepKind::Announced,
                format!("this node does not answer for {address} until it knows that it still leads it"),
                "check with `vipmux inspect members` whether it hears its peers, and in its log whether it can read the Leases",
            ),
            role if vip.yielded || role == Some(Code(Ok(Role::Yielded))) => self.broken(
                StepKind::Announced,
                format!("this node yielded {address}: another machine announced it"),
                FIND,
            ),
            _ => self.broken(
                StepKind::Announced,
                format!("this node should lead {address} and does not (yet)"),
                "read the agent's log; an agent that was away decides again when it is back",
            ),
        }
    }
}
