//! Remembers the results of writes until the watch shows them. So nothing is written twice, or on
//! an outdated object. Without clock or I/O.

#![cfg_attr(not(test), deny(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types))]

use std::{collections::BTreeMap, fmt};

use k8s_openapi::{
    api::core::v1::{LoadBalancerIngress, Service},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use vipmux_allocate::status::{DesiredStatus, ForeignStatus, ingress};
use vipmux_model::{
    ServiceName,
    api::{VipPolicyStatus, VipPoolStatus},
    objects::Objects,
};

/// The action for a status that differs from the desired one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteVerdict {
    /// Write it.
    Write,
    /// Wait until the watch shows what was written.
    Wait,
    /// Write it after a pause, or at once if the watch shows a newer object: the last write was a conflict.
    Retry,
    /// Nothing: the last write has led to this.
    Done,
}

impl WriteVerdict {
    /// Returns whether to write, now or after a pause.
    pub fn is_due(self) -> bool {
        matches!(self, Self::Write | Self::Retry)
    }
}

/// A pool or a policy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CustomResource {
    /// A VipPool.
    Pool(String),
    /// A VipPolicy.
    Policy(String),
}

impl fmt::Display for CustomResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pool(name) => write!(f, "VipPool {name}"),
            Self::Policy(name) => write!(f, "VipPolicy {name}"),
        }
    }
}

/// The status of a pool or policy.
#[derive(Clone, Debug, PartialEq)]
pub enum CustomResourceStatus {
    /// A VipPool's.
    Pool(VipPoolStatus),
    /// A VipPolicy's.
    Policy(VipPolicyStatus),
}

/// Results of writes, by object.
#[derive(Debug, Default)]
pub struct WriteCache {
    services: BTreeMap<ServiceName, LastWrite<DesiredStatus>>,
    foreign: BTreeMap<ServiceName, ForeignIngress>,
    /// Services that are not ours, with their versions after our part of the status was withdrawn.
    withdrawn: BTreeMap<ServiceName, u64>,
    custom_resources: BTreeMap<CustomResource, LastWrite<CustomResourceStatus>>,
}

/// The last write of an object.
#[derive(Debug)]
struct LastWrite<W> {
    /// The version that the write was based on.
    base: String,
    /// The version after the write and what was written; `None`: the write was a conflict.
    made: Option<(String, W)>,
}

/// The addresses that another controller wrote.
#[derive(Debug)]
struct ForeignIngress {
    by: ForeignStatus,
    ingress: Vec<LoadBalancerIngress>,
    /// The version of the object that showed them.
    found: String,
}

impl<W: PartialEq> LastWrite<W> {
    fn verdict(&self, version: &str, wanted: &W) -> WriteVerdict {
        match &self.made {
            Some((made, said)) if made == version && said == wanted => WriteVerdict::Done,
            Some((made, _)) if made == version => WriteVerdict::Write,
            Some(_) if self.base == version => WriteVerdict::Wait,
            None if self.base == version => WriteVerdict::Retry,
            _ => WriteVerdict::Write,
        }
    }

    fn is_about(&self, version: &str) -> bool {
        self.base == version || self.made.as_ref().is_some_and(|(made, _)| made == version)
    }
}

impl WriteCache {
    /// Returns what to do about this Service, whose status differs from `wanted`.
    pub fn verdict(&self, name: &ServiceName, service: &Service, wanted: &DesiredStatus) -> WriteVerdict {
        let version = version_of(&service.metadata);
        self.services.get(name).map_or(WriteVerdict::Write, |last| last.verdict(version, wanted))
    }

    /// Returns what to do about this pool or policy, whose status differs from `wanted`.
    pub fn custom_verdict(
        &self,
        object: &CustomResource,
        metadata: &ObjectMeta,
        wanted: &CustomResourceStatus,
    ) -> WriteVerdict {
        self.custom_resources.get(object).map_or(WriteVerdict::Write, |last| last.verdict(version_of(metadata), wanted))
    }

    /// Returns who else owns the addresses in the Service's status, if it still shows the same.
    pub fn foreign(&self, name: &ServiceName, service: &Service) -> Option<&ForeignStatus> {
        let taken = self.foreign.get(name)?;
        (taken.ingress == ingress(service)).then_some(&taken.by)
    }

    /// Remembers that `wanted` was written on `base`, which made the object `made`. `manager`: the
    /// other owner of the addresses that `made` shows, if they differ from the wanted ones.
    pub fn record_write(
        &mut self,
        name: &ServiceName,
        base: &Service,
        wanted: DesiredStatus,
        made: &Service,
        manager: Option<&str>,
    ) {
        if !wanted.has_ingress(made) {
            self.record_foreign(name, made, manager.unwrap_or("another controller"));
        } else if wanted.ingress.is_some() {
            // They are vipmux's now, also if another controller wrote the same before.
            self.foreign.remove(name);
        }
        let last = LastWrite {
            base: version_of(&base.metadata).to_owned(),
            made: Some((version_of(&made.metadata).to_owned(), wanted)),
        };
        self.services.insert(name.clone(), last);
    }

    /// Remembers a write of the status of a pool or policy.
    pub fn record_custom_write(
        &mut self,
        object: CustomResource,
        base: &ObjectMeta,
        wanted: CustomResourceStatus,
        made: &ObjectMeta,
    ) {
        let last = LastWrite { base: version_of(base).to_owned(), made: Some((version_of(made).to_owned(), wanted)) };
        self.custom_resources.insert(object, last);
    }

    /// Remembers that a write on `base` was a conflict: the object has another version now, or is gone.
    pub fn record_conflict(&mut self, name: &ServiceName, base: &Service) {
        self.services.insert(name.clone(), LastWrite { base: version_of(&base.metadata).to_owned(), made: None });
    }

    /// Remembers that this field manager owns the addresses that the Service shows.
    pub fn record_foreign(&mut self, name: &ServiceName, service: &Service, manager: &str) {
        let taken = ForeignIngress {
            by: ForeignStatus::of(service, manager),
            ingress: ingress(service).to_vec(),
            found: version_of(&service.metadata).to_owned(),
        };
        self.foreign.insert(name.clone(), taken);
    }

    /// Remembers that our part of the status of a Service that is not ours was withdrawn. What it
    /// still shows is owned by another field manager too.
    pub fn record_withdrawal(&mut self, name: &ServiceName, made: &Service) {
        self.withdrawn.insert(name.clone(), version_number(made));
    }

    /// Returns whether our part was withdrawn and the Service is no newer than that.
    pub fn has_withdrawn(&self, name: &ServiceName, service: &Service) -> bool {
        self.withdrawn.get(name).is_some_and(|made| version_number(service) <= *made)
    }

    /// Forgets what these objects make obsolete.
    pub fn retain(&mut self, objects: &Objects) {
        let Self { services, foreign, withdrawn, custom_resources } = self;
        let of = |name: &ServiceName| objects.services.get(name);
        foreign.retain(|name, taken| {
            let awaited = |service: &Service| {
                let last = services.get(name);
                last.is_some_and(|last| {
                    last.base == version_of(&service.metadata)
                        && last.made.as_ref().is_some_and(|(made, _)| *made == taken.found)
                })
            };
            of(name).is_some_and(|service| taken.ingress == ingress(service) || awaited(service))
        });
        services.retain(|name, last| of(name).is_some_and(|service| last.is_about(version_of(&service.metadata))));
        withdrawn.retain(|name, made| of(name).is_some_and(|service| version_number(service) <= *made));
        custom_resources.retain(|object, last| {
            let metadata = match object {
                CustomResource::Pool(name) => objects.vip_pools.get(name).map(|pool| &pool.metadata),
                CustomResource::Policy(name) => objects.vip_policies.get(name).map(|policy| &policy.metadata),
            };
            metadata.is_some_and(|metadata| last.is_about(version_of(metadata)))
        });
    }
}

fn version_of(metadata: &ObjectMeta) -> &str {
    metadata.resource_version.as_deref().unwrap_or_default()
}

/// Returns a Service's version as a number. Versions of one kind can be compared as numbers
/// (KEP-5504). A version that is no number counts as old.
pub(super) fn version_number(service: &Service) -> u64 {
    version_of(&service.metadata).parse().unwrap_or_default()
}

#[cfg(test)]
mod tests;
