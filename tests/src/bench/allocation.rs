//! Measures allocations: a full one and single changes, in this process without I/O.

use std::{collections::BTreeSet, sync::Arc};

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1 as api;
use serde::Serialize;
use serde_json::json;
use vipmux_allocate::{Allocator, previous::PreviousAssignments};
use vipmux_model::{IngestOptions, Model, ServiceName, objects::Objects};

use super::{cpu_time::thread_time, statistics::median};

/// The options of this part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Services. They form groups.
    pub services: u32,
    /// Services of a group, each with its own port.
    pub group: u32,
    /// Repetitions of full allocations.
    pub repetitions: usize,
    /// Changes of one Service.
    pub changes: u32,
}

impl Default for Plan {
    fn default() -> Self {
        Self { services: 10_000, group: 10, repetitions: 15, changes: 500 }
    }
}

/// CPU time in milliseconds: the median.
#[derive(Clone, Debug, Serialize)]
pub struct Cost {
    /// The work.
    pub case: &'static str,
    /// Its CPU time.
    pub milliseconds: f64,
    /// The longest CPU time.
    pub most: f64,
    /// The goal, if there is one.
    pub goal: Option<f64>,
}

/// Goals, milliseconds.
const WHOLE: f64 = 200.0;
const CHANGE: f64 = 5.0;

/// A change of a Service.
#[derive(Clone, Copy, Debug)]
enum Change {
    Goes,
    Port,
    Key,
}

/// Measures all of this part.
pub fn run(plan: &Plan, progress: &mut dyn FnMut(&str)) -> Result<Vec<Cost>> {
    let (services, options) = (plan.services, IngestOptions::default());
    progress(&format!("allocation: {services} Services"));
    let objects = cluster(plan)?;
    let mut model = Model::ingest(&objects, &options);
    let none = PreviousAssignments::new();
    let mut allocator = Allocator::new(&model, &none);
    let held = allocator.allocation().as_previous();
    let (complete, groups) = (allocator.allocation().is_complete(), allocator.allocation().vips().len());
    ensure!(complete && groups == services.div_ceil(plan.group) as usize, "{groups} addresses for {services} Services");
    let whole = |work: &dyn Fn()| (0..plan.repetitions).map(|_| milliseconds(work)).collect::<Result<Vec<_>>>();
    let mut costs = vec![
        Cost::of("reading all, without endpoints", whole(&|| drop(Model::ingest(&objects, &options)))?, None),
        Cost::of("all, and nobody held anything", whole(&|| drop(Allocator::new(&model, &none)))?, Some(WHOLE)),
        Cost::of("all, and all held what they get", whole(&|| drop(Allocator::new(&model, &held)))?, Some(WHOLE)),
    ];
    for (case, change) in [
        ("one Service goes, or comes", Change::Goes),
        ("one Service has another port", Change::Port),
        ("one Service has another key", Change::Key),
    ] {
        progress(&format!("allocation: {case}"));
        let mut times = Vec::new();
        for number in (0..plan.changes).map(|number| number.wrapping_mul(7_919) % services) {
            for change in [Some(change), None] {
                let name = put(&mut model, plan, number, change)?;
                let changed: BTreeSet<ServiceName> = [name].into();
                let mut others = None;
                times.push(milliseconds(|| others = allocator.renew(&model, &changed))?);
                ensure!(others.is_some_and(|others| others.assignments_changed), "{case}: nothing became of it");
            }
        }
        ensure!(allocator.allocation().as_previous() == held, "{case}: undone, and others hold something else");
        costs.push(Cost::of(case, times, Some(CHANGE)));
    }
    Ok(costs)
}

impl Cost {
    fn of(case: &'static str, times: Vec<f64>, goal: Option<f64>) -> Self {
        let most = times.iter().copied().fold(0.0, f64::max);
        Self { case, milliseconds: median(times), most, goal }
    }
}

/// Returns one large pool, and Services with a port of their own and a sharing key per group.
fn cluster(plan: &Plan) -> Result<Objects> {
    let mut objects = Objects::default();
    let pool = json!({"spec": {"addresses": ["10.64.0.0/16"]}});
    objects.address_pools.insert("lan".to_owned(), Arc::new(serde_json::from_value(pool)?));
    for number in 0..plan.services {
        let (name, service) = service(plan, number, None)?;
        objects.services.insert(name, Arc::new(service));
    }
    Ok(objects)
}

fn service(plan: &Plan, number: u32, change: Option<Change>) -> Result<(ServiceName, api::Service)> {
    let group = number / plan.group + u32::from(matches!(change, Some(Change::Key)));
    let port = 1_000 + number + if matches!(change, Some(Change::Port)) { plan.services } else { 0 };
    let service = json!({
        "metadata": {"annotations": {"vipmux.io/sharing-key": format!("g{group}")}},
        "spec": {"type": "LoadBalancer", "ports": [{"port": port}]},
    });
    // A namespace may hold 256 addresses.
    let namespace = number / plan.group / 100;
    let name = ServiceName::new(format!("bench-{namespace}"), format!("s{number}"));
    Ok((name, serde_json::from_value(service)?))
}

/// Updates the model with a Service, changed or unchanged.
fn put(model: &mut Model, plan: &Plan, number: u32, change: Option<Change>) -> Result<ServiceName> {
    let (name, object) = service(plan, number, change)?;
    model.services.remove(&name);
    if !matches!(change, Some(Change::Goes)) {
        let alone =
            Objects { services: [(name.clone(), Arc::new(object))].into_iter().collect(), ..Objects::default() };
        model.services.extend(Model::ingest(&alone, &IngestOptions::default()).services);
    }
    Ok(name)
}

/// Returns the CPU time of the work.
fn milliseconds(work: impl FnOnce()) -> Result<f64> {
    let before = thread_time()?;
    work();
    Ok(thread_time()?.saturating_sub(before).as_secs_f64() * 1e3)
}
