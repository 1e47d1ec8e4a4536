//! Who gets which address: the rules of sharing, as one pure function.
//!
//! `(Services, pools, holders) -> (assignments, refusals)`. No clock, no I/O, no hash order, and the input's order never
//! matters; given its own result as the holders, it returns that result again.

mod allocator;
mod exhaustion;
pub mod holders;
mod occupancy;
mod outcome;
mod placement;
mod trusted;

use std::collections::{BTreeMap, BTreeSet};

pub use self::allocator::{Allocator, Renewed};
use self::holders::{Held, Holders, Terms};
pub use self::trusted::{Trust, trusted};
use crate::model::{
    Model, PortClaim, ServiceName, Vip,
    name::Port,
    reason::{Reason, Refusal},
};

/// Who gets what, and who does not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocation {
    /// Services with addresses.
    pub assignments: BTreeMap<ServiceName, Assignment>,
    /// Services that wait.
    pub refusals: BTreeMap<ServiceName, Refusal>,
    /// What is kept for Services that cannot be read now: nothing is served there, and nobody else gets it.
    pub withheld: Holders,
}

/// What a Service got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Its addresses; at least one.
    pub addresses: BTreeSet<Vip>,
    /// Its ports, claimed on each of the addresses.
    pub ports: BTreeSet<Port>,
    /// On which terms it holds them; not known of one that cannot be understood and is only shown by its status to hold
    /// something.
    pub terms: Option<Terms>,
    /// [`Reason::Allocated`] or [`Reason::Shared`]; or why it did not get what it asks for, and keeps what it had.
    pub reason: Reason,
    /// For people.
    pub message: String,
    /// What its owner should know although it got an address.
    pub warnings: Vec<String>,
}

impl Assignment {
    /// Whether it is what the Service asks for.
    pub fn is_as_asked(&self) -> bool {
        matches!(self.reason, Reason::Allocated | Reason::Shared)
    }

    /// The label that it lets its addresses carry.
    pub fn label(&self) -> Option<&str> {
        self.terms.as_ref()?.label.as_deref()
    }

    fn held(&self) -> Held {
        Held { addresses: self.addresses.clone(), terms: self.terms.clone() }
    }
}

impl Allocation {
    /// Whether all Services got what they ask for.
    pub fn is_complete(&self) -> bool {
        self.refusals.is_empty() && self.assignments.values().all(Assignment::is_as_asked)
    }

    /// The same as holders, for the next allocation.
    pub fn holders(&self) -> Holders {
        let assigned = self.assignments.iter().map(|(name, assignment)| (name.clone(), assignment.held()));
        assigned.chain(self.withheld.clone()).collect()
    }

    /// The owner of each claim.
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

    /// The label of each address that carries one.
    pub fn labels(&self) -> BTreeMap<Vip, &str> {
        let labelled = self.assignments.values().filter_map(|assignment| Some((assignment, assignment.label()?)));
        labelled.flat_map(|(given, label)| given.addresses.iter().map(move |vip| (*vip, label))).collect()
    }

    /// What this Service holds, and on which terms.
    fn holding(&self, name: &ServiceName) -> Option<(&BTreeSet<Vip>, &Option<Terms>)> {
        let withheld = || self.withheld.get(name).map(|held| (&held.addresses, &held.terms));
        self.assignments.get(name).map(|given| (&given.addresses, &given.terms)).or_else(withheld)
    }

    fn held(&self, name: &ServiceName) -> Option<Held> {
        let (addresses, terms) = self.holding(name)?;
        Some(Held { addresses: addresses.clone(), terms: terms.clone() })
    }

    /// The Services on each address.
    pub fn vips(&self) -> BTreeMap<Vip, BTreeSet<&ServiceName>> {
        let mut vips: BTreeMap<Vip, BTreeSet<&ServiceName>> = BTreeMap::new();
        for (name, assignment) in &self.assignments {
            for vip in &assignment.addresses {
                vips.entry(*vip).or_default().insert(name);
            }
        }
        vips
    }
}

/// Decides who gets what. `holders` are those of the last allocation; holders that the model does not know are
/// ignored, if it is complete.
pub fn allocate(model: &Model, holders: &Holders) -> Allocation {
    Allocator::new(model, holders).into_allocation()
}

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
