//! Restarts the allocator at each step of a long history, and compares its statuses with the decisions of an
//! allocator that goes on: a status is all that a new one knows.

use std::{collections::BTreeMap, path::Path, sync::Arc, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Service;
use kube::{Api, api::ListParams};
use serde_json::{Value, json};
use vipmux_allocate::{
    allocate,
    previous::{PreviousAssignments, with_statuses},
    status::{DesiredStatus, Leaders, StatusDifference, StatusInputs},
};
use vipmux_model::{IngestOptions, Model, ServiceName, api::VipPool, objects::Objects};
use vipmux_tests::{
    allocator::{self, Allocator},
    api_server::ApiServer,
    cluster::PATIENCE,
    wait,
};

/// The changes of the history.
const STEPS: u32 = 30;
const SERVICES: u32 = 6;

/// Numbers that look random, the same ones in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from((self.0 >> 33) % u64::from(bound)).unwrap_or_default()
    }

    fn choose<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::try_from(self.below(u32::try_from(of.len()).unwrap_or(1))).unwrap_or_default()]
    }
}

/// Returns a Service that may clash with the others.
fn service(name: u32, dice: &mut Dice) -> Value {
    let mut annotations = BTreeMap::new();
    if let Some(key) = dice.choose(&[None, Some("x"), Some("x"), Some("y")]) {
        annotations.insert("metallb.io/allow-shared-ip", key);
    }
    if dice.below(3) == 0 {
        annotations.insert("vipmux.io/pool", "lan");
    }
    if dice.below(5) == 0 {
        annotations.insert("vipmux.io/addresses", "192.0.2.201");
    }
    let ports: &[u16] = dice.choose(&[&[80][..], &[443], &[80, 443], &[53], &[8080, 53]]);
    let ports: Vec<_> = ports.iter().map(|port| json!({"name": format!("p{port}"), "port": port})).collect();
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "namespace": "shop", "name": format!("s{name}"), "annotations": annotations },
        "spec": { "type": "LoadBalancer", "allocateLoadBalancerNodePorts": false, "ports": ports },
    })
}

/// Returns a pool of so many addresses.
fn pool(addresses: u32) -> Value {
    json!({
        "apiVersion": "vipmux.io/v1alpha1", "kind": "VipPool", "metadata": { "name": "lan" },
        "spec": { "addresses": [format!("192.0.2.200-192.0.2.{}", 199 + addresses)] },
    })
}

/// Makes the next change of the history.
fn change(api: &ApiServer, step: u32, dice: &mut Dice) -> Result<()> {
    let name = dice.below(SERVICES);
    match dice.below(6) {
        0 => api.apply_all(&[pool(1 + dice.below(5))]).map(drop),
        1 => {
            let one = service(name, dice);
            if api.get(&one)?.is_some() { api.delete_all(&[one]) } else { api.apply_all(&[one]).map(drop) }
        }
        _ => api.apply_all(&[service(name, dice)]).map(drop),
    }
    .with_context(|| format!("step {step}"))
}

/// Returns the objects that the allocator reads.
fn objects(api: &ApiServer) -> Result<Objects> {
    let client = api.client()?;
    api.block_on(async {
        let services: Api<Service> = Api::namespaced(client.clone(), "shop");
        let pools: Api<VipPool> = Api::all(client);
        let mut objects = Objects::default();
        for service in services.list(&ListParams::default()).await?.items {
            let name = service.metadata.name.clone().unwrap_or_default();
            objects.services.insert(ServiceName::new("shop", &name), Arc::new(service));
        }
        for pool in pools.list(&ListParams::default()).await?.items {
            objects.vip_pools.insert(pool.metadata.name.clone().unwrap_or_default(), Arc::new(pool));
        }
        Ok(objects)
    })
}

/// An allocator that goes on all the time.
#[derive(Default)]
struct Reference {
    holders: PreviousAssignments,
}

impl Reference {
    /// Waits until the statuses are those of this allocator after the last change.
    fn compare(&mut self, api: &ApiServer, step: u32) -> Result<()> {
        let options = IngestOptions::default();
        let decided = objects(api)?;
        let model = Model::ingest(&decided, &options);
        self.holders.retain(|name, _| decided.services.contains_key(name));
        let allocation = allocate(&model, &with_statuses(self.holders.clone(), &model));
        let leaders = Leaders::new();
        wait::until(&format!("the statuses after step {step}"), PATIENCE, || {
            for (name, service) in objects(api)?.services {
                let inputs =
                    StatusInputs { objects: &decided, model: &model, allocation: &allocation, leaders: &leaders };
                let desired = DesiredStatus::of(&name, inputs, None).with_context(|| format!("{name} is not ours"))?;
                let differs = desired.differs(&service) == Some(StatusDifference::Outcome);
                ensure!(!differs, "{name}: {:?} instead of {desired:?}", service.status);
            }
            Ok(())
        })?;
        self.holders = allocation.as_previous();
        Ok(())
    }
}

/// Two allocators, of which one waits for the end of the other.
struct Pair<'a> {
    api: &'a ApiServer,
    kubeconfig: &'a Path,
    started: u32,
    running: Vec<(String, Allocator)>,
}

impl Pair<'_> {
    fn start(&mut self) -> Result<()> {
        while self.running.len() < 2 {
            self.started += 1;
            let name = format!("a{}", self.started);
            let allocator = Allocator::start(self.api, self.kubeconfig, &name, &[])?;
            self.running.push((name, allocator));
        }
        Ok(())
    }

    /// Makes the change in the way of this step: while both run, while none runs, or just before the leader's end.
    fn at(&mut self, step: u32, change: impl FnOnce() -> Result<()>) -> Result<()> {
        match step % 3 {
            0 => change()?,
            1 => {
                self.running.iter_mut().try_for_each(|(_, allocator)| allocator.stop())?;
                self.running.clear();
                change()?;
            }
            _ => {
                change()?;
                let holder = Allocator::holder(self.api)?;
                if let Some(leader) = self.running.iter().position(|(name, _)| *name == holder) {
                    self.running.remove(leader).1.stop()?;
                }
            }
        }
        self.start()
    }
}

#[test]
fn an_allocator_that_starts_anew_at_each_step_decides_as_one_that_goes_on() -> Result<()> {
    let Some(api) = ApiServer::alone()? else { return Ok(()) };
    let kubeconfig = allocator::prepare(&api)?;
    api.add_namespace("shop")?;
    api.apply_all(&[pool(4)])?;
    let mut dice = Dice(7);
    for name in 0..SERVICES {
        api.apply_all(&[service(name, &mut dice)])?;
        // A time of creation has whole seconds. Within one, the UID decides, which differs from run to run.
        thread::sleep(Duration::from_secs(1));
    }
    let mut pair = Pair { api: &api, kubeconfig: &kubeconfig, started: 0, running: Vec::new() };
    pair.start()?;
    let mut reference = Reference::default();
    reference.compare(&api, 0)?;
    for step in 1..=STEPS {
        pair.at(step, || change(&api, step, &mut dice))?;
        reference.compare(&api, step)?;
    }
    Ok(())
}
