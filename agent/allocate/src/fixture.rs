//! Builds small clusters for tests.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{
    api::core::v1::{self as api, ServicePort, ServiceSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
    jiff::Timestamp,
};

use crate::{
    Allocation, allocate,
    previous::{PreviousAssignments, with_statuses},
    status::{self, DesiredStatus, Leaders, StatusInputs},
};
use vipmux_model::{
    AddressLimits, IngestOptions, Model, ServiceName, Vip,
    objects::Objects,
    pool::{OnConflict, PoolSharing},
    port::Port,
    request::{ByAddress, PoolChoice, Request},
    service::Families,
};
use vipmux_testing::{
    names::{node_name, service_name, vip},
    object,
};

/// A cluster, and the addresses that its Services hold.
#[derive(Clone, Debug, Default)]
pub(super) struct Cluster {
    pub(super) objects: Objects,
    pub(super) previous: PreviousAssignments,
    /// Requests of Services beside those of their annotations, in any dialect.
    pub(super) wishes: BTreeMap<ServiceName, Wishes>,
    /// Pools with other settings than the defaults.
    pub(super) settings: BTreeMap<String, (PoolSharing, OnConflict)>,
    /// The configuration.
    pub(super) options: IngestOptions,
}

/// A request that some dialect can express.
#[derive(Clone, Debug, Default)]
pub(super) struct Wishes {
    pub(super) label: Option<&'static str>,
    pub(super) alike: &'static [(&'static str, &'static str)],
    pub(super) additional: &'static [&'static str],
    pub(super) by_address: Option<ByAddress>,
    pub(super) never_spills: bool,
    pub(super) fewest_claims: bool,
}

impl Wishes {
    fn apply(&self, request: &mut Request, families: Families) {
        request.label = self.label.map(str::to_owned);
        request.alike = self.alike.iter().map(|(what, value)| (*what, (*value).to_owned())).collect();
        let may_be = |vip: &Vip| families.wanted().any(|family| family == vip.family());
        request.additional = self.additional.iter().map(|text| vip(text)).filter(may_be).collect();
        request.sharing.by_address = self.by_address.unwrap_or(request.sharing.by_address);
        request.never_spills |= self.never_spills;
        if self.fewest_claims {
            request.pool = PoolChoice::FewestClaims;
        }
    }
}

impl Cluster {
    /// Returns a cluster with a pool `lan`.
    pub(super) fn new(addresses: &[&str]) -> Self {
        Self::default().pool("lan", &serde_json::json!({ "addresses": addresses }))
    }

    pub(super) fn pool(mut self, name: &str, spec: &serde_json::Value) -> Self {
        let pool = object(serde_json::json!({ "spec": spec }));
        self.objects.address_pools.insert(name.to_owned(), pool);
        self
    }

    /// Adds a VipPool.
    pub(super) fn vip_pool(mut self, name: &str, spec: &serde_json::Value) -> Self {
        let pool = object(serde_json::json!({"metadata": {"name": name}, "spec": spec}));
        self.objects.vip_pools.insert(name.to_owned(), pool);
        self
    }

    /// Removes the pools of this name.
    pub(super) fn without_pool(mut self, name: &str) -> Self {
        assert!(self.objects.vip_pools.remove(name).is_some() | self.objects.address_pools.remove(name).is_some());
        self
    }

    /// Adds a VipPolicy.
    pub(super) fn policy(mut self, name: &str, spec: &serde_json::Value) -> Self {
        let policy = object(serde_json::json!({"metadata": {"name": name}, "spec": spec}));
        self.objects.vip_policies.insert(name.to_owned(), policy);
        self
    }

    pub(super) fn node(mut self, name: &str, address: &str) -> Self {
        let node = serde_json::json!({"status": {"addresses": [{"type": "InternalIP", "address": address}]}});
        self.objects.nodes.insert(node_name(name), object(node));
        self
    }

    /// Reserves the address by the configuration.
    pub(super) fn reserving(mut self, address: &str) -> Self {
        self.options.reserved.insert(address.parse().unwrap(), "a router's address".to_owned());
        self
    }

    /// Limits the addresses of Services and of namespaces.
    pub(super) fn limited(mut self, of_service: usize, of_namespace: usize) -> Self {
        self.options.limits = AddressLimits { of_service, of_namespace };
        self
    }

    /// Adds a Service with ports such as `80/TCP` and annotations.
    pub(super) fn service(mut self, service: &str, ports: &[&str], annotations: &[(&str, &str)]) -> Self {
        let port = |text: &&str| {
            let port: Port = text.parse().unwrap();
            ServicePort {
                name: Some(format!("{}-{}", port.protocol, u16::from(port.number)).to_lowercase()),
                port: u16::from(port.number).into(),
                protocol: Some(port.protocol.to_string()),
                ..ServicePort::default()
            }
        };
        let annotations = annotations.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let object = api::Service {
            metadata: ObjectMeta { annotations: Some(annotations), ..ObjectMeta::default() },
            spec: Some(ServiceSpec {
                type_: Some("LoadBalancer".to_owned()),
                ports: Some(ports.iter().map(port).collect()),
                ..ServiceSpec::default()
            }),
            status: None,
        };
        self.objects.services.insert(service_name(service), object.into());
        self
    }

    /// Adds this to the Service's request.
    pub(super) fn wishing(mut self, service: &str, wishes: Wishes) -> Self {
        self.wishes.insert(service_name(service), wishes);
        self
    }

    /// Changes the pool's settings.
    pub(super) fn sharing(mut self, pool: &str, sharing: PoolSharing, on_conflict: OnConflict) -> Self {
        self.settings.insert(pool.to_owned(), (sharing, on_conflict));
        self
    }

    /// Sets the address that the Service's status shows.
    pub(super) fn showing(mut self, service: &str, address: &str) -> Self {
        let status = serde_json::json!({"loadBalancer": {"ingress": [{"ip": address}]}});
        self.object(service).status = serde_json::from_value(status).unwrap();
        self
    }

    /// Sets the condition in the Service's status that says whether an allocator assigned the
    /// address.
    pub(super) fn given(mut self, service: &str, given: &str) -> Self {
        let condition = serde_json::json!({
            "type": vipmux_model::api::ALLOCATED, "status": given, "reason": "Allocated", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let status = self.object(service).status.get_or_insert_default();
        status.conditions = Some(vec![serde_json::from_value(condition).unwrap()]);
        self
    }

    /// Sets the reason of that condition.
    pub(super) fn reason(mut self, service: &str, reason: &str) -> Self {
        let conditions = self.object(service).status.iter_mut().flat_map(|status| &mut status.conditions).flatten();
        conditions.for_each(|condition| reason.clone_into(&mut condition.reason));
        self
    }

    /// Sets the request that the Service's status says was judged.
    pub(super) fn judged(mut self, service: &str, request: &str) -> Self {
        let condition = serde_json::json!({
            "type": vipmux_model::api::REQUEST, "status": "True", "reason": "Judged", "message": request,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let conditions = self.object(service).status.get_or_insert_default().conditions.get_or_insert_default();
        conditions.push(serde_json::from_value(condition).unwrap());
        self
    }

    /// Edits the ports of the Service after its status was written.
    pub(super) fn edited(self, service: &str) -> Self {
        self.judged(service, "1 ports=1/TCP")
    }

    /// Writes the statuses as an allocator does.
    pub(super) fn published(mut self) -> Self {
        let (before, model, allocation) = (self.clone(), self.model(), self.allocate());
        let leaders = Leaders::new();
        let inputs =
            StatusInputs { objects: &before.objects, model: &model, allocation: &allocation, leaders: &leaders };
        for (name, service) in &before.objects.services {
            if let Some(desired) = DesiredStatus::of(name, inputs, None) {
                let body = status::body(name, service, &desired, Timestamp::UNIX_EPOCH);
                self.object(&name.to_string()).status = serde_json::from_value(body["status"].clone()).unwrap();
            }
        }
        self
    }

    pub(super) fn object(&mut self, service: &str) -> &mut api::Service {
        Arc::make_mut(self.objects.services.get_mut(&service_name(service)).unwrap())
    }

    /// Changes the Service's `spec`.
    pub(super) fn spec(mut self, service: &str, change: impl FnOnce(&mut ServiceSpec)) -> Self {
        change(self.object(service).spec.as_mut().unwrap());
        self
    }

    /// Sets the time at which the Service was created, in years AD.
    pub(super) fn created(mut self, service: &str, year: u16) -> Self {
        let time = serde_json::from_value(format!("{year}-01-01T00:00:00Z").into()).unwrap();
        self.object(service).metadata.creation_timestamp = Some(time);
        self
    }

    pub(super) fn without(mut self, service: &str) -> Self {
        self.objects.services.remove(&service_name(service)).unwrap();
        self
    }

    pub(super) fn model(&self) -> Model {
        let mut model = Model::ingest(&self.objects, &self.options);
        for service in model.services.values_mut().filter(|service| service.fault.is_none()) {
            if let Some(wishes) = self.wishes.get(&service.name) {
                wishes.apply(&mut service.request, service.families);
            }
        }
        for pool in &mut model.pools {
            if let Some(settings) = self.settings.get(&pool.name) {
                (pool.sharing, pool.on_conflict) = *settings;
            }
        }
        model
    }

    pub(super) fn allocate(&self) -> Allocation {
        allocate(&self.model(), &self.previous)
    }

    /// Takes the statuses as previous assignments.
    pub(super) fn restarted(mut self) -> Self {
        self.previous = with_statuses(std::mem::take(&mut self.previous), &self.model());
        self
    }

    /// Takes the present allocation as previous assignments.
    pub(super) fn assigned(mut self) -> Self {
        self.previous = self.allocate().as_previous();
        self
    }

    /// Returns `service=address,...` or `service:Reason`, in order of names.
    pub(super) fn outcome(&self) -> String {
        let allocation = self.allocate();
        let mut all: BTreeMap<String, String> = BTreeMap::new();
        for (name, assignment) in &allocation.assignments {
            let addresses: Vec<_> = assignment.addresses.iter().map(ToString::to_string).collect();
            let short = |address: &String| {
                let of_ours = address.strip_prefix("192.0.2.").or_else(|| address.strip_prefix("2001:db8"));
                of_ours.unwrap_or(address).to_owned()
            };
            all.insert(name.to_string(), format!("={}", addresses.iter().map(short).collect::<Vec<_>>().join(",")));
        }
        for (name, refusal) in &allocation.refusals {
            all.insert(name.to_string(), format!(":{}", refusal.reason));
        }
        all.iter().map(|(name, what)| format!("{name}{what}")).collect::<Vec<_>>().join(" ")
    }

    pub(super) fn message(&self, service: &str) -> String {
        let allocation = self.allocate();
        let refused = allocation.refusals.get(&service_name(service)).map(|refusal| refusal.message.clone());
        refused.unwrap_or_else(|| allocation.assignments[&service_name(service)].message.clone())
    }

    pub(super) fn warnings(&self, service: &str) -> Vec<String> {
        self.allocate().assignments[&service_name(service)].warnings.clone()
    }
}
