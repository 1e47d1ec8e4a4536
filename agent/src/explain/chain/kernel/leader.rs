//! Who leads a VIP, and why this node does not answer for one that it should.

use vipmux_common::abi::Role;

use super::START;
use crate::{
    explain::{Held, Step, VipAccount, chain::Chain},
    inspect::{
        leadership::{Code, Leadership},
        vips::{Standing, VipView},
    },
    model::NodeName,
};

const LOOK: &str = "see by `vipmux inspect members` which nodes are alive and ready, and in the agents' logs why none of \
                    them takes it";
const FIND: &str = "find who else has the address: another load balancer's speaker, or a host";

/// Who should lead a VIP by the model, as far as that is known.
#[derive(Clone, Copy)]
pub(super) struct Chosen<'a> {
    /// This node.
    pub(super) local: Option<&'a NodeName>,
    /// What was decided about the VIP.
    pub(super) vip: Option<&'a VipAccount>,
}

impl Chosen<'_> {
    fn leader(&self) -> Option<&NodeName> {
        self.vip.and_then(|vip| vip.leader.as_ref())
    }
}

impl Chain {
    /// Who leads it, as the agent on this node said last.
    pub(super) fn led(&mut self, vip: &VipView, fence: Standing) {
        let VipView { address, epoch, leadership, .. } = vip;
        let (leader, since) = match leadership {
            Leadership { role: None, .. } => {
                let remedy = "start the agent on this node, or see its log: it did not get so far";
                return self.unknown(Step::Led, format!("who leads {address} is not known on this node"), remedy);
            }
            Leadership { leader, .. } => (leader, leadership.since().unwrap_or_default()),
        };
        let reason = leadership.reason().map(|reason| format!(": {reason}")).unwrap_or_default();
        let finding = match leader {
            Some(leader) => format!("{leader} has led {address} for {since}, epoch {epoch}{reason}"),
            None => format!("nobody has led {address} for {since}"),
        };
        match leader {
            // Nobody would have told this node of a change.
            _ if fence != Standing::Open => {
                self.note(Step::Led, format!("{finding}; so the agent knew it when the fence lapsed"));
            }
            Some(_) => self.holds(Step::Led, finding),
            None => self.breaks(Step::Led, finding, LOOK),
        }
    }

    /// Whether this node answers if it is to. Who leads decides that, and where that is not known, who should.
    pub(super) fn answers(&mut self, vip: &VipView, held: &Held, chosen: Chosen<'_>) {
        let VipView { address, leadership, .. } = vip;
        let own = match leadership.leader {
            Some(_) => leadership.is_own(),
            None => chosen.local.is_some() && chosen.local == chosen.leader(),
        };
        match (vip.leading, own) {
            (true, _) if vip.answering => {
                let (place, fence) = (vip.interfaces.join(", "), held.fence.text());
                self.holds(Step::Announced, format!("this node answers for {address} on {place}, {fence}"));
            }
            (true, _) => {
                let finding = format!("this node leads {address} and does not answer: the fence {}", held.fence.text());
                self.breaks(Step::Announced, finding, START);
            }
            (false, true) => self.silent(vip),
            // That was told.
            (false, false) if leadership.is_vacant() => {}
            (false, false) => {
                let who = leadership.leader.as_deref().or(chosen.leader().map(|leader| leader.0.as_str()));
                let who = who.map_or_else(|| "another node".to_owned(), |name| format!("{name}, not this node,"));
                self.note(Step::Announced, format!("{who} is to answer for {address}: ask there, too"));
            }
        }
    }

    /// It is this node's, or should be, and it does not answer.
    fn silent(&mut self, vip: &VipView) {
        let address = vip.address;
        match vip.leadership.role {
            Some(Code(Ok(Role::Detecting))) => self.note(
                Step::Announced,
                format!("this node asks the LAN who has {address} before it is put into service"),
            ),
            Some(Code(Ok(Role::Handing))) => self.note(Step::Announced, format!("this node hands {address} over")),
            Some(Code(Ok(Role::Conflicted))) => self.breaks(
                Step::Announced,
                format!("this node does not answer for {address}, since another machine on the LAN has it"),
                FIND,
            ),
            Some(Code(Ok(Role::Suspended))) => self.breaks(
                Step::Announced,
                format!("this node stopped answering for {address} until it is clear that it still leads it"),
                "see by `vipmux inspect members` whether it hears the others, and in its log whether it reads the Leases",
            ),
            role if vip.yielded || role == Some(Code(Ok(Role::Yielded))) => self.breaks(
                Step::Announced,
                format!("this node gave {address} up, since another machine announced it"),
                FIND,
            ),
            _ => self.breaks(
                Step::Announced,
                format!("this node should lead {address} and does not (yet)"),
                "see the agent's log: it chooses anew when it was away",
            ),
        }
    }
}
