//! What came of writes, as long as the watch does not show it: so that nothing is written twice, nor on what is past.
//! Without clock or I/O.

use std::{collections::BTreeMap, fmt};

use k8s_openapi::{
    api::core::v1::{LoadBalancerIngress, Service},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use crate::{
    api::{VipPolicyStatus, VipPoolStatus},
    model::ServiceName,
    source::Objects,
    status::{Foreign, Statement, ingress},
};

/// What is to be done about a status that differs from what it is to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Write it.
    Write,
    /// Wait until the watch shows a newer object.
    Wait,
    /// What can be done was done.
    Settled,
}

/// A pool or a policy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Custom {
    /// A VipPool.
    Pool(String),
    /// A VipPolicy.
    Policy(String),
}

impl fmt::Display for Custom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pool(name) => write!(f, "VipPool {name}"),
            Self::Policy(name) => write!(f, "VipPolicy {name}"),
        }
    }
}

/// What one's status is to say.
#[derive(Clone, Debug, PartialEq)]
pub enum CustomStatus {
    /// Of a pool.
    Pool(VipPoolStatus),
    /// Of a policy.
    Policy(VipPolicyStatus),
}

/// See the module.
#[derive(Debug, Default)]
pub struct Ledger {
    services: BTreeMap<ServiceName, Last<Statement>>,
    foreign: BTreeMap<ServiceName, Taken>,
    /// The versions of Services that are not ours, after all was taken back that is ours to take.
    withdrawn: BTreeMap<ServiceName, u64>,
    customs: BTreeMap<Custom, Last<CustomStatus>>,
}

/// The last write of an object.
#[derive(Debug)]
struct Last<W> {
    /// The version that it was made on.
    base: String,
    /// The version that it led to, and what was to be said; `None`: the object had another version by then.
    made: Option<(String, W)>,
}

/// What another controller wrote.
#[derive(Debug)]
struct Taken {
    by: Foreign,
    ingress: Vec<LoadBalancerIngress>,
    /// The version of the object on which that was found.
    found: String,
}

impl<W: PartialEq> Last<W> {
    fn verdict(&self, version: &str, wanted: &W) -> Verdict {
        match &self.made {
            Some((made, said)) if made == version && said == wanted => Verdict::Settled,
            Some((made, _)) if made == version => Verdict::Write,
            _ if self.base == version => Verdict::Wait,
            _ => Verdict::Write,
        }
    }

    fn is_about(&self, version: &str) -> bool {
        self.base == version || self.made.as_ref().is_some_and(|(made, _)| made == version)
    }
}

impl Ledger {
    /// What is to be done about this Service, whose status differs from `wanted`.
    pub fn verdict(&self, name: &ServiceName, service: &Service, wanted: &Statement) -> Verdict {
        let version = version(&service.metadata);
        self.services.get(name).map_or(Verdict::Write, |last| last.verdict(version, wanted))
    }

    /// What is to be done about this pool or policy, whose status differs from `wanted`.
    pub fn verdict_of(&self, object: &Custom, metadata: &ObjectMeta, wanted: &CustomStatus) -> Verdict {
        self.customs.get(object).map_or(Verdict::Write, |last| last.verdict(version(metadata), wanted))
    }

    /// Who else holds what the Service's status shows, as far as that is still so.
    pub fn foreign(&self, name: &ServiceName, service: &Service) -> Option<&Foreign> {
        let taken = self.foreign.get(name)?;
        (taken.ingress == ingress(service)).then_some(&taken.by)
    }

    /// `wanted` was written on `base`, and the object is now `made`. `manager`: who else wrote what that shows, if it is
    /// anything else than it was to be.
    pub fn wrote(
        &mut self,
        name: &ServiceName,
        base: &Service,
        wanted: Statement,
        made: &Service,
        manager: Option<&str>,
    ) {
        if !wanted.has_ingress(made) {
            self.taken(name, made, manager.unwrap_or("another controller"));
        }
        let last =
            Last { base: version(&base.metadata).to_owned(), made: Some((version(&made.metadata).to_owned(), wanted)) };
        self.services.insert(name.clone(), last);
    }

    /// The same of a pool or policy.
    pub fn wrote_custom(&mut self, object: Custom, base: &ObjectMeta, wanted: CustomStatus, made: &ObjectMeta) {
        let last = Last { base: version(base).to_owned(), made: Some((version(made).to_owned(), wanted)) };
        self.customs.insert(object, last);
    }

    /// The object has another version than `base` by now.
    pub fn conflicted(&mut self, name: &ServiceName, base: &Service) {
        self.services.insert(name.clone(), Last { base: version(&base.metadata).to_owned(), made: None });
    }

    /// This manager holds the addresses that the Service shows.
    pub fn taken(&mut self, name: &ServiceName, service: &Service, manager: &str) {
        let taken = Taken {
            by: Foreign::of(service, manager),
            ingress: ingress(service).to_vec(),
            found: version(&service.metadata).to_owned(),
        };
        self.foreign.insert(name.clone(), taken);
    }

    /// What was written into the status of this Service, which is not ours, was taken back. What it says still is held by
    /// somebody else too.
    pub fn withdrew(&mut self, name: &ServiceName, made: &Service) {
        self.withdrawn.insert(name.clone(), order(made));
    }

    /// Whether that was done, and the Service is no newer.
    pub fn has_withdrawn(&self, name: &ServiceName, service: &Service) -> bool {
        self.withdrawn.get(name).is_some_and(|made| order(service) <= *made)
    }

    /// Forgets what is of no use any more, by the objects as they are.
    pub fn retain(&mut self, objects: &Objects) {
        let Self { services, foreign, withdrawn, customs } = self;
        let of = |name: &ServiceName| objects.services.get(name);
        foreign.retain(|name, taken| {
            let awaited = |service: &Service| {
                let last = services.get(name);
                last.is_some_and(|last| {
                    last.base == version(&service.metadata)
                        && last.made.as_ref().is_some_and(|(made, _)| *made == taken.found)
                })
            };
            of(name).is_some_and(|service| taken.ingress == ingress(service) || awaited(service))
        });
        services.retain(|name, last| of(name).is_some_and(|service| last.is_about(version(&service.metadata))));
        withdrawn.retain(|name, made| of(name).is_some_and(|service| order(service) <= *made));
        customs.retain(|object, last| {
            let metadata = match object {
                Custom::Pool(name) => objects.vip_pools.get(name).map(|pool| &pool.metadata),
                Custom::Policy(name) => objects.vip_policies.get(name).map(|policy| &policy.metadata),
            };
            metadata.is_some_and(|metadata| last.is_about(version(metadata)))
        });
    }
}

fn version(metadata: &ObjectMeta) -> &str {
    metadata.resource_version.as_deref().unwrap_or_default()
}

/// Versions of one kind can be compared as numbers (KEP-5504); one that is none counts as old.
pub(super) fn order(service: &Service) -> u64 {
    version(&service.metadata).parse().unwrap_or_default()
}

#[cfg(test)]
mod tests;
