//! How long a change takes from the file to the kernel: a real agent each for few and for many Services, in turns.

use std::{
    net::Ipv4Addr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use nix::{
    time::{ClockId, clock_gettime},
    unistd::Pid,
};
use serde::Serialize;
use vipmux::datapath::maps::Maps;
use vipmux_common::abi::{ServiceKey, ServiceValue};

use super::report::{median, quantile};
use crate::{
    agent::{self, Agent},
    cleanup::Folder,
    lan::{self, Lan},
    manifests::{Endpoint, Manifests, Service, VIP},
};

/// What is measured how often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Numbers of Services, each in a file of its own with its EndpointSlice.
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

/// Milliseconds, with so many Services.
#[derive(Clone, Debug, Serialize)]
pub struct Latency {
    /// Services, each in a file of its own.
    pub services: u32,
    /// Endpoints of all of them.
    pub endpoints: u32,
    /// From an agent's start, with empty maps, to its being ready: the median.
    pub start: f64,
    /// From before a file is written (beside, and renamed into place) to the kernel's map: the median.
    pub change: f64,
    /// The 99th percentile.
    pub change_99: f64,
    /// The longest.
    pub change_most: f64,
    /// The agent's CPU time for a change: the mean.
    pub change_cpu: f64,
    /// How many changes there were.
    pub changes: usize,
}

/// Endpoints of a Service.
const ENDPOINTS: u32 = 10;
/// Services on one address.
const SHARING: u32 = 1_000;
const PORT: u16 = 20_000;
/// For a start, and for a change.
const PATIENCE: Duration = Duration::from_mins(1);
/// How often the map is looked at: the CPU is the agent's.
const LOOK: Duration = Duration::from_micros(50);
/// Between changes.
const PAUSE: Duration = Duration::from_millis(20);
/// An agent is at rest that used so little of the CPU in so long: after its start, it reads once more what it wrote to its
/// state file itself.
const REST: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// One agent and what it follows.
struct Site {
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

/// Measures all of it.
pub fn run(plan: &Plan, progress: &mut dyn FnMut(&str)) -> Result<Vec<Latency>> {
    let mut sites = Vec::new();
    for &services in &plan.services {
        progress(&format!("sync: starting with {services} Services"));
        sites.push(Site::start(services, plan.starts)?);
    }
    for site in &mut sites {
        site.rest()?;
    }
    for site in &mut sites {
        site.cpu = cpu(&site.agent)?;
    }
    for number in 0..plan.changes {
        if number % 50 == 0 {
            progress(&format!("sync: change {number} of {}", plan.changes));
        }
        for site in &mut sites {
            thread::sleep(PAUSE);
            site.change(number)?;
        }
    }
    sites.into_iter().map(Site::latency).collect()
}

impl Site {
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

    /// Waits until the start is over with all that follows from it.
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

    /// Gives a Service another endpoint for one that it has, and waits until packets would see it.
    fn change(&mut self, number: usize) -> Result<()> {
        // One after the other from all over the folder.
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

/// Where a Service is: its address and port.
fn place(service: u32) -> Result<(Ipv4Addr, u16)> {
    let address = Ipv4Addr::from(u32::from(VIP) + service / SHARING);
    Ok((address, PORT + u16::try_from(service % SHARING)?))
}

/// A Service, half of its endpoints here and half elsewhere; in each generation, up to 800, one of them is another.
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

/// The CPU time that an agent has used.
fn cpu(agent: &Agent) -> Result<Duration> {
    let pid = Pid::from_raw(i32::try_from(agent.process().id())?);
    let clock = ClockId::pid_cpu_clock_id(pid).context("asking for the agent's CPU clock")?;
    Ok(clock_gettime(clock).context("reading the agent's CPU clock")?.into())
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}
