//! Measures a cluster of 1,000 Services and 200 Nodes, two of which really exist: the agents'
//! requests to the API server, and the time of a change to the kernel. The figures are printed, and
//! no assertion depends on them.

use std::{
    collections::BTreeMap,
    fs,
    net::Ipv4Addr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use vipmux_common::abi::{ServiceKey, ServiceValue};
use vipmux_datapath::bpf::maps::Maps;
use vipmux_tests::{
    agent::{self, Agent},
    api_server::{ApiServer, Mark, Request, SYSTEM},
    cluster::{Cluster, PATIENCE},
    lan::{Lan, Options},
    manifests::{Endpoint, Service, VIP, conditions},
    wait,
};

const SERVICES: u16 = 1_000;
const ENDPOINTS: u32 = 10;
const NODES: u8 = 200;
const FIRST_PORT: u16 = 20_000;
const NAMESPACE: &str = "scale";
/// Threads that write objects.
const WRITERS: usize = 8;
/// The time in which only Nodes' heartbeats happen.
const STEADY: Duration = Duration::from_secs(20);
/// How often a time without writes is looked for.
const ATTEMPTS: u32 = 3;
/// The interval of a Node's heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(10);
const CHANGES: u32 = 300;
/// The pause between changes.
const PAUSE: Duration = Duration::from_millis(20);
/// The interval of looks at the map.
const LOOK: Duration = Duration::from_micros(50);
/// The time limit for writing all objects, and for the agents to follow.
const LONG: Duration = Duration::from_mins(3);

/// The cluster, before it has Services.
fn cluster() -> Result<Option<Cluster>> {
    let Some(lan) = Lan::for_test(Options { nodes: 2, ..Options::default() })? else { return Ok(None) };
    let Some(cluster) = Cluster::in_kubernetes(lan)? else { return Ok(None) };
    let api = cluster.api()?;
    for namespace in [NAMESPACE, "kube-node-lease"] {
        api.add_namespace(namespace)?;
    }
    in_parallel(&(3..=NODES).collect::<Vec<_>>(), |number| api.apply_all(&[node(number)]).map(drop))?;
    Ok(Some(cluster))
}

/// Does something with each item, several at a time.
fn in_parallel<T: Copy + Send + Sync>(items: &[T], work: impl Fn(T) -> Result<()> + Sync) -> Result<()> {
    let work = &work;
    thread::scope(|scope| {
        let share = items.len().div_ceil(WRITERS);
        let writers: Vec<_> = items
            .chunks(share)
            .map(|share| scope.spawn(move || share.iter().try_for_each(|item| work(*item))))
            .collect();
        writers.into_iter().try_for_each(|writer| writer.join().unwrap_or_else(|_| bail!("a writer panicked")))
    })
}

/// Returns a Node without a kubelet.
fn node(number: u8) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": { "name": format!("node-{number}"), "labels": { "kubernetes.io/os": "linux" } },
        "status": {
            "addresses": [{ "type": "InternalIP", "address": format!("192.0.3.{number}") }],
            "conditions": conditions(&format!("{}Z", time_of(0))),
        },
    })
}

/// Returns a heartbeat's time without fractions and zone.
fn time_of(beat: u64) -> String {
    format!("2026-01-01T00:{:02}:{:02}", beat / 60 % 60, beat % 60)
}

/// Writes a kubelet's heartbeat: the Node's status, less often, and its Lease.
fn beat(api: &ApiServer, number: u8, beat: u64) -> Result<()> {
    let (name, at) = (format!("node-{number}"), time_of(beat));
    api.set_status(&json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": { "name": name },
        "status": { "conditions": conditions(&format!("{at}Z")) },
    }))?;
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": { "namespace": "kube-node-lease", "name": name },
        "spec": { "holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": format!("{at}.000000Z") },
    });
    api.apply_all(&[lease]).map(drop)
}

/// Half of its endpoints are here and half elsewhere. Each generation changes one of them.
fn service(number: u16, generation: u32) -> Service {
    let service = Service::sharing(&format!("{NAMESPACE}/s{number}"), FIRST_PORT + number, "TCP", 8080);
    service.with((0..ENDPOINTS).map(|n| {
        let host = if n == 0 { (2 << 20) + (generation << 11) } else { 1 << 20 } + u32::from(number) * ENDPOINTS + n;
        let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 0, 0, 0)) + host);
        Endpoint::new(address, if n.is_multiple_of(2) { "node-2" } else { "node-1" })
    }))
}

fn add_services(cluster: &Cluster) -> Result<()> {
    let api = cluster.api()?;
    in_parallel(&(0..SERVICES).collect::<Vec<_>>(), |number| {
        let service = service(number, 0);
        api.apply_all(&service.documents())?;
        api.give(&service.full_name(), &[VIP.into()])
    })
}

/// Returns what an agent has written to the kernel.
fn maps(agent: &Agent) -> Result<Maps> {
    let maps = Maps::open(agent.pins())?;
    wait::until("all Services in the kernel", LONG, || {
        let found = maps.read_services()?.len();
        ensure!(found == usize::from(SERVICES), "{found} are there");
        Ok(())
    })?;
    Ok(maps)
}

/// Returns the agents' requests.
fn requests(api: &ApiServer, after: Mark) -> Result<Vec<Request>> {
    let account = format!("system:serviceaccount:{SYSTEM}:{}", agent::ACCOUNT);
    Ok(api.requests(after)?.into_iter().filter(|request| request.user == account).collect())
}

/// Groups them by what they request.
fn counted(requests: &[Request]) -> String {
    let mut counts = BTreeMap::<_, usize>::new();
    for Request { verb, resource, .. } in requests {
        *counts.entry(format!("{verb} {resource}")).or_default() += 1;
    }
    let counts: Vec<_> = counts.into_iter().map(|(what, count)| format!("{count} {what}")).collect();
    if counts.is_empty() { "none".to_owned() } else { counts.join(", ") }
}

/// Returns a process's memory in MiB.
fn resident(agent: &Agent) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{}/status", agent.process().id()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kibibytes: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kibibytes / 1024.0)
}

/// Lets Nodes' heartbeats happen and nothing else. Returns the agents' requests, none of which is a write,
/// and the number of heartbeats.
///
/// Where the machine holds agents up, each finds the other one down and writes records. Not so each time.
fn steady(cluster: &Cluster) -> Result<(Vec<Request>, usize)> {
    let api = cluster.api()?;
    for attempt in 0..ATTEMPTS {
        let mark = api.mark()?;
        beat_for(api, STEADY, STEADY * attempt)?;
        let requested = requests(api, mark)?;
        let beats = api.requests(mark)?.iter().filter(|request| request.is_write()).count();
        ensure!(beats >= 2 * usize::from(NODES), "{beats} heartbeats");
        let writes: Vec<_> = requested.iter().filter(|request| request.is_write()).collect();
        if writes.is_empty() {
            return Ok((requested, beats));
        }
        println!("{writes:?}");
    }
    bail!("agents write without a reason: {}", cluster.last_outputs())
}

/// Writes times that are `later` than those of the first heartbeats.
fn beat_for(api: &ApiServer, time: Duration, later: Duration) -> Result<()> {
    let begin = Instant::now();
    let mut next = Duration::ZERO;
    while begin.elapsed() < time {
        next += HEARTBEAT;
        in_parallel(&(1..=NODES).collect::<Vec<_>>(), |number| beat(api, number, (later + next).as_secs()))?;
        thread::sleep(next.saturating_sub(begin.elapsed()));
    }
    Ok(())
}

/// Returns milliseconds from before an EndpointSlice is written: to the API server's response, and
/// to the kernel.
fn change(api: &ApiServer, maps: &Maps, number: u16, generation: u32) -> Result<(f64, f64)> {
    let vip = maps.read_vip(&VIP.into())?.context("the address is no VIP")?;
    let key = ServiceKey { vip: vip.id, port: (FIRST_PORT + number).to_be(), protocol: 6, padding: 0 };
    let value = || -> Result<ServiceValue> { maps.services.get(&key, 0).context("the Service is not in the kernel") };
    let before = value()?;
    let slice = service(number, generation).documents().pop().context("no EndpointSlice")?;
    let begin = Instant::now();
    let milliseconds = |begin: Instant| begin.elapsed().as_secs_f64() * 1e3;
    thread::scope(|scope| {
        let written = scope.spawn(|| {
            api.apply_all(&[slice])?;
            anyhow::Ok(milliseconds(begin))
        });
        while value()? == before {
            ensure!(begin.elapsed() < PATIENCE, "Service {number} did not change in the kernel");
            thread::sleep(LOOK);
        }
        let seen = milliseconds(begin);
        let written = written.join().unwrap_or_else(|_| bail!("the writer panicked"))?;
        Ok((written, seen))
    })
}

/// Returns median, 99th percentile and maximum.
fn quantiles(mut figures: Vec<f64>) -> Result<[f64; 3]> {
    figures.sort_by(f64::total_cmp);
    let last = figures.len().checked_sub(1).context("no figures")?;
    Ok([last / 2, last * 99 / 100, last].map(|index| figures[index]))
}

#[test]
fn a_thousand_services_on_two_hundred_nodes_cost_the_api_server_no_write_in_steady_state() -> Result<()> {
    let Some(mut cluster) = cluster()? else { return Ok(()) };
    // An agent that is held up for longer than its lease must write the Lease again.
    let options = agent::Options { lease: "30s", ..cluster.agent_options() };
    // Started before the Services exist, so that all agents take part in the first elections.
    cluster.start_agents(&options)?;
    let begin = Instant::now();
    add_services(&cluster)?;
    let written = begin.elapsed();
    let maps = cluster.agents.iter().map(maps).collect::<Result<Vec<_>>>()?;
    cluster.await_leader(VIP)?;
    let api = cluster.api()?;
    wait::until("the Lease", PATIENCE, || {
        let writes = requests(api, Mark::default())?.into_iter().filter(Request::is_write).count();
        ensure!(writes > 0, "no agent has written anything");
        Ok(())
    })?;
    let started = requests(api, Mark::default())?;
    let other = started.iter().find(|request| !request.agent.starts_with("vipmux-agent/"));
    ensure!(other.is_none(), "{other:?}");

    let complaints = |cluster: &Cluster| -> usize {
        cluster.agents.iter().map(|agent| agent.process().output().matches("cannot watch the API server").count()).sum()
    };
    let before = complaints(&cluster);
    let (steady, beats) = steady(&cluster)?;
    ensure!(complaints(&cluster) == before, "nothing is wrong with the API server: {}", cluster.last_outputs());

    let mut changes = Vec::new();
    for number in 0..CHANGES {
        thread::sleep(PAUSE);
        let which = u16::try_from(number * 7_919 % u32::from(SERVICES))?;
        changes.push(change(api, &maps[0], which, number / u32::from(SERVICES) + 1)?);
    }
    let (answers, kernels): (Vec<_>, Vec<_>) = changes.into_iter().unzip();
    let [median, most_of_them, most] = quantiles(kernels)?;
    let [answer, slow_answer, _] = quantiles(answers)?;
    let memory = cluster.agents.iter().map(resident).collect::<Result<Vec<_>>>()?;
    println!(
        "{SERVICES} Services of {ENDPOINTS} endpoints, written in {written:.1?}; {NODES} Nodes, two of them with agents"
    );
    println!("requests of both agents until then: {}", counted(&started));
    println!("requests of both agents in {STEADY:?} with {beats} heartbeats: {}", counted(&steady));
    println!("memory (resident) of the agents: {memory:.1?} MiB");
    println!(
        "from the write of an EndpointSlice to the kernel: median {median:.2} ms, 99th percentile {most_of_them:.2} ms, most {most:.2} ms"
    );
    println!("to the API server's answer: median {answer:.2} ms, 99th percentile {slow_answer:.2} ms");
    Ok(())
}
