//! Changes a real cluster in a loop, and checks that nothing grows: memory, descriptors, maps,
//! pins, programs, Leases and files.
//!
//! Three agents and an allocator serve a few Services all the time, and a client asks one of them.
//! Each cycle (`cycle`) adds 200 Services, disturbs agents and API server, and removes the
//! Services. Then the cluster is in the same state as before, and a [`Sample`] of it is taken. The
//! [`Verdict`] compares later samples with earlier ones.
//!
//! The agent on the first node and the allocator run from the beginning to the end, so that their
//! leaks add up. The other agents are restarted.

mod cycle;
mod sample;
mod verdict;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

pub use self::{
    sample::Sample,
    verdict::{Change, Verdict},
};
use crate::{
    agent::{self, Origin},
    allocator::{self, Allocator},
    api_server::ApiServer,
    client::{Kind, Request},
    cluster::{Cluster, PATIENCE},
    lan::{Lan, Options},
    manifests::{Manifests, Service, VIP},
    pod::Listener,
    traffic::{Tally, Traffic},
    wait,
};

/// The node whose agent is never restarted.
const KEPT: &str = "node-1";
/// Services that stay.
const STAYING: u16 = 5;
/// The port of the first of them.
const FIRST_PORT: u16 = 80;
/// The port of the pods.
const POD_PORT: u16 = 8080;
/// The pause between a client's requests.
const PAUSE: Duration = Duration::from_millis(100);
/// Cycles that a verdict needs.
const LEAST_CYCLES: usize = 3;

/// The options of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The run ends with the first cycle that ends after this time.
    pub time: Duration,
    /// Services that each cycle adds and removes.
    pub services: u16,
}

impl Default for Plan {
    fn default() -> Self {
        Self { time: Duration::from_hours(1), services: 200 }
    }
}

/// A cluster that is changed in a loop.
#[derive(Debug)]
pub struct Churn {
    client: Traffic,
    allocator: Allocator,
    cluster: Cluster,
    services: u16,
}

impl Churn {
    /// Starts the cluster; `None` if a test is skipped.
    pub fn start(plan: &Plan) -> Result<Option<Self>> {
        let Some(lan) = Lan::for_test(Options::default())? else { return Ok(None) };
        let Some(api) = ApiServer::on(&lan)? else { return Ok(None) };
        let manifests = Manifests::applied_to(api)?.of_lan(&lan)?;
        let mut cluster = Cluster::new(lan, manifests)?;
        let kubeconfig = allocator::prepare(cluster.api()?)?;
        let allocator = Allocator::start(cluster.api()?, &kubeconfig, "allocator-1", &[])?;
        for node in ["node-1", "node-2", "node-3"] {
            let listeners = (0..STAYING).map(|n| Listener::new(Kind::Http, POD_PORT + n, &staying_name(n)));
            cluster.add_pod(node, &format!("on-{node}"), 10, &listeners.collect::<Vec<_>>())?;
        }
        let mut options = agent::Options { lease: "1s", hold_down: "5s", ..cluster.agent_options() };
        if let Origin::Cluster(access) = &mut options.origin {
            access.allocator = "on";
        }
        cluster.start_agents(&options)?;
        for number in 0..STAYING {
            let service = Service::sharing(&staying_name(number), FIRST_PORT + number, "TCP", POD_PORT + number);
            let endpoints = cluster.pods.iter().map(|pod| cluster.endpoint(&pod.name)).collect::<Result<Vec<_>>>()?;
            cluster.manifests.write_service(&service.with(endpoints))?;
        }
        cluster.api()?.add_namespace(cycle::NAMESPACE)?;
        let request = Request::new(Kind::Http, VIP, FIRST_PORT);
        cluster.await_service(request, &staying_name(0))?;
        let client = Traffic::start(cluster.lan.client()?.namespace(), request, PAUSE)?;
        Ok(Some(Self { client, allocator, cluster, services: plan.services }))
    }

    /// Runs cycles, and takes a sample after each. `progress` gets each sample and what its cycle
    /// did. What the first cycle makes may stay: the Lease of a VIP that nobody wants is kept for an
    /// hour.
    pub fn run(&mut self, time: Duration, progress: &mut dyn FnMut(&Sample, &str)) -> Result<Vec<Sample>> {
        let began = Instant::now();
        let mut samples = Vec::new();
        let mut number = 0;
        while began.elapsed() < time || samples.len() < LEAST_CYCLES {
            let did = self.cycle(number).with_context(|| format!("cycle {number}"));
            let did = did.with_context(|| self.cluster.last_outputs())?;
            let sample = self.sample(began)?;
            progress(&sample, &did);
            samples.push(sample);
            number += 1;
        }
        Ok(samples)
    }

    /// Waits until all counts are those of a sample. For a moment there may be more: a self-check
    /// opens maps.
    pub fn await_counts_of(&self, sample: &Sample) -> Result<()> {
        wait::until("the counts of the first sample", PATIENCE, || {
            let differences = self.sample(Instant::now())?.differences(sample);
            ensure!(differences.is_empty(), "{differences:?}");
            Ok(())
        })
    }

    /// Ends everything. Returns what the client saw.
    pub fn stop(self) -> Result<Tally> {
        self.client.stop()
    }
}

fn staying_name(number: u16) -> String {
    format!("staying/s{number}")
}
