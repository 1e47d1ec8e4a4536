//! Defines the result of an allocation: assignments and refusals.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    previous::{PreviousAssignment, PreviousAssignments},
    request_snapshot::RequestSnapshot,
};
use vipmux_model::{
    PortClaim, ServiceName, Vip,
    port::Port,
    reason::{Reason, Refusal},
};

/// The assignments and refusals of all Services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocation {
    /// Services with addresses.
    pub assignments: BTreeMap<ServiceName, Assignment>,
    /// Services that wait.
    pub refusals: BTreeMap<ServiceName, Refusal>,
    /// The addresses kept for Services that cannot be read now. Nothing is served there, and nobody
    /// else gets them.
    pub withheld: PreviousAssignments,
}

/// The addresses of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Its addresses; at least one.
    pub addresses: BTreeSet<Vip>,
    /// Its ports, claimed on each of the addresses.
    pub ports: BTreeSet<Port>,
    /// The request that it holds the addresses for.
    ///
    /// `None`: unknown, since the Service cannot be understood and only its status shows that it
    /// holds something.
    pub snapshot: Option<RequestSnapshot>,
    /// [`Reason::Allocated`] or [`Reason::Shared`]; or the reason why it keeps what it had instead
    /// of getting what it asks for.
    pub reason: Reason,
    /// The explanation for people.
    pub message: String,
    /// Warnings for the Service's owner, although the Service got an address.
    pub warnings: Vec<String>,
}

impl Assignment {
    /// Whether it is what the Service asks for.
    pub fn is_as_asked(&self) -> bool {
        matches!(self.reason, Reason::Allocated | Reason::Shared)
    }

    /// Returns the label that the Service's addresses carry.
    pub fn label(&self) -> Option<&str> {
        self.snapshot.as_ref()?.label.as_deref()
    }

    fn as_previous(&self) -> PreviousAssignment {
        PreviousAssignment { addresses: self.addresses.clone(), snapshot: self.snapshot.clone() }
    }
}

impl Allocation {
    /// Whether all Services got what they ask for.
    pub fn is_complete(&self) -> bool {
        self.refusals.is_empty() && self.assignments.values().all(Assignment::is_as_asked)
    }

    /// Returns the assignments as input for the next allocation.
    pub fn as_previous(&self) -> PreviousAssignments {
        let assigned = self.assignments.iter().map(|(name, assignment)| (name.clone(), assignment.as_previous()));
        assigned.chain(self.withheld.clone()).collect()
    }

    /// Returns the owner of each port claim.
    pub fn claims(&self) -> BTreeMap<PortClaim, ServiceName> {
        let mut claims = BTreeMap::new();
        for (name, assignment) in &self.assignments {
            for &vip in &assignment.addresses {
                let claim = |port: &Port| PortClaim { vip, protocol: port.protocol, port: port.number };
                claims.extend(assignment.ports.iter().map(|port| (claim(port), name.clone())));
            }
        }
        claims
    }

    /// Returns the label of each address that carries one.
    pub fn labels(&self) -> BTreeMap<Vip, &str> {
        let labeled = self.assignments.values().filter_map(|assignment| Some((assignment, assignment.label()?)));
        labeled.flat_map(|(given, label)| given.addresses.iter().map(move |vip| (*vip, label))).collect()
    }

    /// Returns the Services on each address.
    pub fn vips(&self) -> BTreeMap<Vip, BTreeSet<&ServiceName>> {
        let mut vips: BTreeMap<Vip, BTreeSet<&ServiceName>> = BTreeMap::new();
        for (name, assignment) in &self.assignments {
            for vip in &assignment.addresses {
                vips.entry(*vip).or_default().insert(name);
            }
        }
        vips
    }

    /// Returns the addresses that this Service holds, and the request that it holds them for.
    pub(crate) fn holding(&self, name: &ServiceName) -> Option<(&BTreeSet<Vip>, &Option<RequestSnapshot>)> {
        let withheld = || self.withheld.get(name).map(|held| (&held.addresses, &held.snapshot));
        self.assignments.get(name).map(|given| (&given.addresses, &given.snapshot)).or_else(withheld)
    }

    /// Returns the same as input for the next allocation.
    pub(crate) fn previous(&self, name: &ServiceName) -> Option<PreviousAssignment> {
        let (addresses, snapshot) = self.holding(name)?;
        Some(PreviousAssignment { addresses: addresses.clone(), snapshot: snapshot.clone() })
    }
}
