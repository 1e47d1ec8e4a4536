//! What a node knows of one VIP, and holds of it.

use std::{fmt, time::Duration};

use serde::Serialize;

use super::{Command, Election};
use crate::{
    election::lease::{Lease, Version},
    membership::{Claimed, Item, Key, Message, Why},
    model::{NodeName, Vip},
};

/// How long the Lease of a VIP that nobody wants is kept.
pub(super) const LEFTOVER: Duration = Duration::from_hours(1);

/// A node's part in a VIP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Another node leads it, or none.
    #[default]
    Following,
    /// It has the Lease, and asks the LAN for another owner before the address is first put into service.
    Detecting,
    /// It has the Lease, and a stranger has the address.
    Conflicted,
    /// It answers.
    Leading,
    /// It stopped answering since a peer announced the VIP.
    Yielded,
    /// It stopped answering until it is clear that the VIP is still its own.
    Suspended,
    /// It stopped answering, so that another can begin.
    Handing,
}

/// Why a node no longer answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lost {
    /// It was handed over.
    Handed(NodeName),
    /// Another has the Lease or a higher epoch.
    Taken(NodeName),
    /// A peer announced it.
    Announced,
    /// The fence's deadline passed.
    Fenced,
    /// A peer held this node for down.
    Disowned,
    /// No Service has it any more, or its Lease was removed.
    Unwanted,
    /// Neither this node nor another that is there may announce it.
    Forbidden,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Handed(node) => write!(f, "handed over to {node}"),
            Self::Taken(node) => write!(f, "{node} took it"),
            Self::Announced => f.write_str("a peer announced it"),
            Self::Fenced => f.write_str("the fence's deadline passed: this node was stopped, or is cut off"),
            Self::Disowned => f.write_str("a peer held this node for down"),
            Self::Unwanted => f.write_str("no Service has it any more"),
            Self::Forbidden => f.write_str("this node may not announce it any more"),
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::First => f.write_str("nobody led it before"),
            Self::Resumed => f.write_str("it led it before, and came back in time"),
            Self::Down(node) => write!(f, "{node} was down"),
            Self::Handed(node) => write!(f, "{node} handed it over"),
            Self::Silent(node) => write!(f, "{node} held it and was not heard of"),
            Self::Unwritten => f.write_str("nobody led it, and the Leases could not be read"),
        }
    }
}

/// Who leads a VIP, as far as a node knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leadership {
    /// The node's own part.
    pub role: Role,
    /// Who leads; `None`: nobody that is known.
    pub leader: Option<NodeName>,
    /// The epoch of that; 0 without a leader.
    pub epoch: u64,
    /// Since when, `CLOCK_BOOTTIME`; of another node, when this one learned of it.
    pub since: Duration,
    /// Why it is that one.
    pub why: Option<Why>,
}

/// A leadership that is this node's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tenure {
    pub(super) epoch: u64,
    pub(super) why: Why,
    pub(super) since: Duration,
    /// `None`: the Lease is to be written when the store is back.
    pub(super) written: Option<Written>,
}

/// A Lease that says what this node holds: when it was written, or found to be so, and its version then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) at: Duration,
    pub(super) version: Version,
}

/// Who holds a VIP otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hold {
    pub(super) node: NodeName,
    pub(super) epoch: u64,
    pub(super) since: Duration,
    pub(super) why: Option<Why>,
}

/// What is done about a VIP at the store or on the LAN; one thing at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Errand {
    /// The Lease is being read: by one who would take it over,
    TakeRead,
    /// the LAN is being asked whether its holder is there after all,
    TakeAsk { lease: Option<Lease>, why: Why },
    /// and it is being swapped.
    TakeSwap { epoch: u64, why: Why },
    /// The Lease is being read, to see whether it is still this node's,
    CheckRead,
    /// and it is being swapped, so that nobody else does.
    CheckSwap,
    /// The LAN is being asked for another owner.
    Detect,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Place {
    pub(super) role: Role,
    pub(super) tenure: Option<Tenure>,
    /// The newest that is known of others.
    pub(super) hold: Option<Hold>,
    /// The highest epoch that was known of when the VIP came to be wanted again, or that was this node's own.
    pub(super) floor: u64,
    pub(super) errand: Option<Errand>,
    /// Since when it may be taken over, for whose turn it is.
    pub(super) open: Option<Duration>,
    /// Since when its living holder does not claim it.
    pub(super) unclaimed: Option<Duration>,
    /// When the role began.
    pub(super) since: Duration,
    /// Nothing is tried before.
    pub(super) rest: Duration,
    /// To whom it is being handed, and how often that was said.
    pub(super) heir: Option<(NodeName, u32)>,
    /// It is not handed over before: that was tried in vain.
    pub(super) kept: Duration,
    /// How often heirs did not answer, since this node has it.
    pub(super) unanswered: u32,
    /// The epoch in which this node declined it last, and when.
    pub(super) declined: Option<(u64, Duration)>,
}

impl Place {
    /// What a Lease says. Whether it is new.
    pub(super) fn learn(&mut self, lease: &Lease, now: Duration) -> bool {
        let new = self
            .hold
            .as_ref()
            .is_none_or(|hold| hold.epoch < lease.epoch || hold.epoch == lease.epoch && hold.node != lease.holder);
        if new {
            self.hold = Some(Hold { node: lease.holder.clone(), epoch: lease.epoch, since: now, why: None });
        }
        new
    }

    /// What a peer claims. One that was away may claim what is known to have been another's since.
    pub(super) fn hear(&mut self, node: &NodeName, claim: &Claimed) {
        let Claimed { epoch, why, since } = claim.clone();
        if self.hold.as_ref().is_none_or(|hold| hold.epoch <= epoch) {
            self.hold = Some(Hold { node: node.clone(), epoch, since, why: Some(why) });
        }
        (self.open, self.unclaimed) = (None, None);
    }

    /// The highest epoch that is known of.
    pub(super) fn epoch(&self) -> u64 {
        let held = self.hold.as_ref().map_or(self.floor, |hold| hold.epoch.max(self.floor));
        self.tenure.as_ref().map_or(0, |tenure| tenure.epoch).max(held)
    }

    pub(super) fn is_written(&self) -> bool {
        self.tenure.as_ref().is_some_and(|tenure| tenure.written.is_some())
    }

    pub(super) fn leadership(&self, local: &NodeName) -> Leadership {
        let role = self.role;
        match (&self.tenure, &self.hold) {
            (Some(tenure), _) => Leadership {
                role,
                leader: Some(local.clone()),
                epoch: tenure.epoch,
                since: tenure.since,
                why: Some(tenure.why.clone()),
            },
            (None, Some(hold)) => Leadership {
                role,
                leader: Some(hold.node.clone()),
                epoch: hold.epoch,
                since: hold.since,
                why: hold.why.clone(),
            },
            (None, None) => Leadership { role, leader: None, epoch: 0, since: self.since, why: None },
        }
    }
}

impl Election {
    /// A leadership begins, with another role than leading perhaps.
    pub(super) fn begin(&mut self, vip: Vip, tenure: Tenure, role: Role, now: Duration) {
        let Some(place) = self.places.get_mut(&vip) else { return };
        let Tenure { epoch, why, .. } = tenure.clone();
        self.commands.push(Command::Publish(Item::Claim { vip, epoch, why }));
        (place.role, place.since, place.tenure) = (role, now, Some(tenure));
        (place.open, place.unclaimed, place.heir) = (None, None, None);
        (place.kept, place.unanswered) = (now, 0);
        self.overview.held.insert(vip);
        self.overview.touched.insert(vip);
        self.dirty = true;
        match role {
            Role::Detecting => {
                place.errand = Some(Errand::Detect);
                self.commands.push(Command::Probe { vip, detect: true });
            }
            _ => self.lead(vip, now),
        }
    }

    /// It answers, from now on or again. While the fence is closed its announcement would not leave the node, and when it
    /// opens nobody would learn of the new leader: then that waits.
    pub(super) fn lead(&mut self, vip: Vip, now: Duration) {
        let open = self.is_open(now);
        let Some(place) = self.places.get_mut(&vip) else { return };
        self.dirty = true;
        if !open {
            (place.role, place.since, place.heir) = (Role::Suspended, now, None);
            return;
        }
        let Some(tenure) = &place.tenure else { return };
        (place.role, place.since, place.heir) = (Role::Leading, now, None);
        self.commands.push(Command::Lead { vip, epoch: tenure.epoch, why: tenure.why.clone() });
    }

    /// It stops answering, but may go on holding the VIP.
    pub(super) fn stop(&mut self, vip: Vip, role: Role, why: Lost, now: Duration) {
        let Some(place) = self.places.get_mut(&vip) else { return };
        if place.role == Role::Leading {
            self.commands.push(Command::Follow { vip, why });
        }
        (place.role, place.since) = (role, now);
        self.dirty = true;
    }

    /// It is no longer this node's. The Lease as this node wrote it last.
    pub(super) fn give_up(&mut self, vip: Vip, why: Lost, now: Duration) -> Option<Lease> {
        self.stop(vip, Role::Following, why, now);
        let place = self.places.get_mut(&vip)?;
        (place.heir, place.open, place.unclaimed) = (None, None, None);
        place.errand = None;
        let tenure = place.tenure.take()?;
        // Whatever becomes of the Lease, what comes after is told from what was.
        place.floor = place.floor.max(tenure.epoch);
        self.overview.held.remove(&vip);
        self.overview.touched.insert(vip);
        self.commands.push(Command::Withdraw(Key::Claim(vip)));
        let Written { version, .. } = tenure.written?;
        Some(Lease { holder: self.local.clone(), epoch: tenure.epoch, version })
    }

    /// It stops answering for everything, until each Lease is seen to be its own.
    pub(super) fn suspend(&mut self, why: &Lost, now: Duration) {
        let led: Vec<_> = self
            .places
            .iter()
            .filter(|(_, place)| place.tenure.is_some() && place.role != Role::Conflicted)
            .map(|(vip, _)| *vip)
            .collect();
        for vip in led {
            self.stop(vip, Role::Suspended, why.clone(), now);
        }
    }

    /// A message for a peer.
    pub(super) fn tell(&mut self, to: NodeName, message: Message) {
        self.commands.push(Command::Tell { to, message });
    }
}
