//! Measures changes from the file to the kernel: one real agent with few Services and one with
//! many, in turns.

use std::{
    net::Ipv4Addr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use vipmux_common::abi::{ServiceKey, ServiceValue};
use vipmux_datapath::bpf::maps::Maps;

use super::{
    cpu_time,
    statistics::{median, quantile},
};
use crate::{
    agent::{self, Agent},
    cleanup::Folder,
    lan::{self, Lan},
    manifests::{Endpoint, Manifests, Service, VIP},
};

/// The options of this part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Numbers of Services. Each has its own file, with its EndpointSlice.
    pub services: Vec<u32>,
    /// Starts of an agent that finds empty maps.
    pub starts: usize,
    /// Changes of one endpoint.
    pub changes: usize,
}

impl Default for Plan {
    fn default() -> Self {
        Self { services: vec![100, 10_000], starts: 3, changes: 300 }
    }
}

/// Milliseconds for this number of Services.
#[derive(Clone, Debug, Serialize)]
pub struct Latency {
    /// Services, each in a file of its own.
    pub services: u32,
    /// Endpoints of all Services.
    pub endpoints: u32,
    /// From an agent's start with empty maps until it is ready: the median.
    pub start: f64,
    /// From before a file is written (beside, then renamed) to the kernel's map: the median.
    pub change: f64,
    /// The 99th percentile.
    pub change_99: f64,
    /// The longest.
    pub change_most: f64,
    /// The agent's CPU time for a change: the mean.
    pub change_cpu: f64,
    /// The number of changes.
    pub changes: usize,
}

/// Endpoints of a Service.
const ENDPOINTS: u32 = 10;
/// Services on one address.
const SHARING: u32 = 1_000;
const PORT: u16 = 20_000;
/// The time limit for a start, and for a change.
const PATIENCE: Duration = Duration::from_mins(1);
/// The interval of looks at the map. The CPU is the agent's.
const LOOK: Duration = Duration::from_micros(50);
/// The pause between changes.
const PAUSE: Duration = Duration::from_millis(20);
/// An agent is idle once it used less than this much CPU in this time. After its start it reads its
/// own state file once more.
const REST: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// One agent and its input.
struct Instance {
    services: u32,
    manifests: Manifests,
    starts: Vec<f64>,
    changes: Vec<f64>,
    maps: Maps,
    cpu: Duration,
    agent: Agent,
    _lan: Lan,
    _state: Folder,
}

/// Measures all of this part.
pub fn run(plan: &Plan, progress: &mut dyn FnMut(&str)) -> Result<Vec<Latency>> {
    let mut instances = Vec::new();
    for &services in &plan.services {
        progress(&format!("sync: starting with {services} Services"));
        instances.push(Instance::start(services, plan.starts)?);
    }
    for instance in &mut instances {
        instance.rest()?;
    }
    for instance in &mut instances {
        instance.cpu = cpu(&instance.agent)?;
    }
    for number in 0..plan.changes {
        if number % 50 == 0 {
            progress(&format!("sync: change {number} of {}", plan.changes));
        }
        for instance in &mut instances {
            thread::sleep(PAUSE);
            instance.change(number)?;
        }
    }
    instances.into_iter().map(Instance::latency).collect()
}

impl Instance {
    fn start(services: u32, starts: usize) -> Result<Self> {
        let lan = Lan::new(lan::Options { nodes: 2, clients: 0, ..lan::Options::default() })?;
        let manifests = Manifests::for_lan(&lan)?;
        for number in 0..services {
            manifests.write_service(&service(number, 0)?)?;
        }
        let mut times = Vec::new();
        loop {
            let state = Folder::temporary("state")?;
            let begin = Instant::now();
            let agent = Agent::start(&lan.nodes[0], &agent::Options::new(manifests.path(), state.path()))?;
            agent.wait_ready(PATIENCE)?;
            times.push(milliseconds(begin));
            if times.len() < starts {
                continue;
            }
            let maps = Maps::open(agent.pins())?;
            let found = maps.read_services()?.len();
            if found != services as usize {
                bail!("the agent is ready with {found} of {services} Services");
            }
            let (changes, cpu) = (Vec::new(), Duration::ZERO);
            return Ok(Self {
                services,
                manifests,
                starts: times,
                changes,
                maps,
                cpu,
                agent,
                _lan: lan,
                _state: state,
            });
        }
    }

    /// Waits until the agent is idle after its start.
    fn rest(&self) -> Result<()> {
        let (little, long) = REST;
        let begin = Instant::now();
        loop {
            let before = cpu(&self.agent)?;
            thread::sleep(long);
            if cpu(&self.agent)?.saturating_sub(before) <= little {
                return Ok(());
            }
            if begin.elapsed() > PATIENCE {
                bail!("the agent with {} Services does not come to rest", self.services);
            }
        }
    }

    /// Replaces one of a Service's endpoints, and waits until the kernel's map has it.
    fn change(&mut self, number: usize) -> Result<()> {
        // One Service after the other, from all over the folder.
        let number = u32::try_from(number)?;
        let which = number.wrapping_mul(7_919) % self.services;
        let generation = number / self.services + 1;
        let key = self.key(which)?;
        let before = self.value(key)?;
        let service = service(which, generation)?;
        let begin = Instant::now();
        self.manifests.write_service(&service)?;
        while self.value(key)? == before {
            if begin.elapsed() > PATIENCE {
                bail!("{} did not change in the kernel:\n{}", service.full_name(), self.agent.process().last_output());
            }
            thread::sleep(LOOK);
        }
        self.changes.push(milliseconds(begin));
        Ok(())
    }

    fn key(&self, service: u32) -> Result<ServiceKey> {
        let (address, port) = place(service)?;
        let vip = self.maps.read_vip(&address.into())?.with_context(|| format!("{address} is no VIP"))?;
        Ok(ServiceKey { vip: vip.id, port: port.to_be(), protocol: 6, padding: 0 })
    }

    fn value(&self, key: ServiceKey) -> Result<ServiceValue> {
        self.maps.services.get(&key, 0).context("the Service is not in the kernel")
    }

    fn latency(self) -> Result<Latency> {
        let cpu = cpu(&self.agent)?.saturating_sub(self.cpu);
        let changes = self.changes.len();
        Ok(Latency {
            services: self.services,
            endpoints: self.services * ENDPOINTS,
            start: median(self.starts),
            change: median(self.changes.clone()),
            change_99: quantile(self.changes.clone(), 0.99),
            change_most: quantile(self.changes, 1.0),
            change_cpu: cpu.as_secs_f64() * 1e3 / f64::from(u32::try_from(changes)?),
            changes,
        })
    }
}

/// Returns a Service's address and port.
fn place(service: u32) -> Result<(Ipv4Addr, u16)> {
    let address = Ipv4Addr::from(u32::from(VIP) + service / SHARING);
    Ok((address, PORT + u16::try_from(service % SHARING)?))
}

/// Returns a Service with half of its endpoints here and half elsewhere. In each generation, up to
/// 800, one endpoint is another.
fn service(number: u32, generation: u32) -> Result<Service> {
    let (address, port) = place(number)?;
    let mut service = Service::sharing(&format!("bench/s{number}"), port, "TCP", 8080);
    service.address = Some(address);
    let endpoint = |n: u32| {
        let changed = n == 0 && generation > 0;
        let host = if changed { (2 << 20) + (generation << 14) + number } else { (1 << 20) + number * ENDPOINTS + n };
        let node = if n.is_multiple_of(2) { "node-2" } else { "node-1" };
        Endpoint::new(Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 0, 0, 0)) + host), node)
    };
    Ok(service.with((0..ENDPOINTS).map(endpoint)))
}

/// Returns the CPU time that an agent has used.
fn cpu(agent: &Agent) -> Result<Duration> {
    cpu_time::process_time(agent.process().id())
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}
