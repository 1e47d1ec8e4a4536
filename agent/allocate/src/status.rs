//! Computes the desired statuses of Services, pools and policies, and finds those that differ.
//!
//! It is pure: the input is the objects, the allocation and the leaders. If a status is already as
//! desired, there is nothing to write. So in steady state nobody writes anything.

mod announced;
mod condition;
mod events;
mod ingress;
mod pools;
mod service;

use std::collections::BTreeSet;

use imbl::OrdMap;
use k8s_openapi::api::core::v1::Service;

pub(crate) use self::service::list;
pub use self::{
    condition::{ConditionStatus, DesiredCondition},
    events::{EventContent, EventType},
    ingress::{ingress, shows},
    pools::{policies, pools},
    service::{DesiredStatus, StatusDifference, body, is_marked, withdrawal},
};
use crate::allocation::Allocation;
use vipmux_model::{Model, NodeName, Vip, objects::Objects, published_status::PublishedStatus};

/// The input of all statuses.
#[derive(Clone, Copy, Debug)]
pub struct StatusInputs<'a> {
    /// The objects.
    pub objects: &'a Objects,
    /// The same objects, parsed and checked.
    pub model: &'a Model,
    /// The allocation.
    pub allocation: &'a Allocation,
    /// The leader of each VIP, as the Leases say.
    pub leaders: &'a Leaders,
}

/// The leader of each VIP.
pub type Leaders = OrdMap<Vip, NodeName>;

/// Addresses in a Service's status that another controller wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignStatus {
    /// The field manager of that controller.
    pub manager: String,
    /// The text that the status shows to people.
    pub shown: String,
    /// The addresses in it.
    pub addresses: BTreeSet<Vip>,
}

impl ForeignStatus {
    /// Returns the status of this Service as one that `manager` wrote.
    pub fn of(service: &Service, manager: impl Into<String>) -> Self {
        let entries = ingress(service);
        Self { manager: manager.into(), shown: ingress::text(entries), addresses: PublishedStatus::of_ingress(entries) }
    }
}

#[cfg(test)]
mod tests;
