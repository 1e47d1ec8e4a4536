//! What the statuses of Services, pools and policies are to say, and what of that they do not say yet.
//!
//! Pure: from objects as they are, who got what, and who leads. Where a status says it already, there is nothing to write:
//! in steady state nobody writes anything.

mod announced;
mod condition;
mod events;
mod ingress;
mod leading;
mod service;

use std::collections::BTreeSet;

use imbl::OrdMap;
use k8s_openapi::api::core::v1::Service;

pub use self::{
    condition::{Told, Truth},
    events::{News, Weight},
    ingress::{ingress, shows},
    leading::{policies, pools},
    service::{Difference, FOREIGN_STATUS, Statement, body, is_marked, withdrawal},
};
use crate::{
    allocate::Allocation,
    model::{Model, NodeName, Vip, shown::Shown},
    source::Objects,
};

/// All that statuses are made of.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The objects as they are.
    pub objects: &'a Objects,
    /// What they mean.
    pub model: &'a Model,
    /// Who got what.
    pub allocation: &'a Allocation,
    /// Who leads each VIP, as the Leases say.
    pub leaders: &'a Leaders,
}

/// Who leads each VIP.
pub type Leaders = OrdMap<Vip, NodeName>;

/// Another controller holds the addresses in a Service's status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// Its field manager.
    pub manager: String,
    /// What the status shows, as people read it.
    pub shown: String,
    /// The addresses among that.
    pub addresses: BTreeSet<Vip>,
}

impl Foreign {
    /// What this Service's status shows is of this manager.
    pub fn of(service: &Service, manager: impl Into<String>) -> Self {
        let entries = ingress(service);
        Self { manager: manager.into(), shown: ingress::text(entries), addresses: Shown::of_ingress(entries) }
    }
}

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;
