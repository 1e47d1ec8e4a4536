//! Measures vipmux in a real cluster: what clients notice of failures, how long a new Service takes, and
//! what agents and allocator cost at rest.

use std::{
    collections::BTreeMap,
    fmt,
    net::{Ipv4Addr, SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::{PATIENCE, RealCluster};
use crate::{api_server::SYSTEM, manifests::VIP, wait, watch::View};

/// The time after which kinds that are not installed are looked for less often (docs/cluster.md).
const SETTLED: Duration = Duration::from_mins(11);
/// The time limit of a connection to a Service that nobody serves yet.
const ATTEMPT: Duration = Duration::from_millis(20);
/// The unit of CPU times in /proc: 1/100 s on all of Linux' architectures that vipmux runs on.
const TICKS: f64 = 100.0;
const POOL: &str = "
apiVersion: v1
kind: Namespace
metadata: { name: shop }
---
apiVersion: vipmux.io/v1alpha1
kind: VipPool
metadata: { name: lan }
spec: { addresses: [192.0.2.200-192.0.2.219] }
";

/// The options.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Runs of each event, and new Services.
    pub runs: u8,
    /// How long the cluster at rest is observed.
    pub rest: Duration,
}

/// Something that happens to the node that leads the VIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    AgentKilled,
    PowerCut,
    LinkCut,
    Drain,
    Rollout,
}

impl Event {
    const ALL: [Self; 5] = [Self::AgentKilled, Self::PowerCut, Self::LinkCut, Self::Drain, Self::Rollout];

    fn happen(self, cluster: &mut RealCluster, leader: &str) -> Result<()> {
        match self {
            Self::AgentKilled => {
                let before = restarts(cluster, leader)?;
                let kill = for_each_process(r#"case $command in *" agent "*) kill -KILL $pid && echo $pid ;; esac"#);
                let killed = cluster.as_root_on(leader, &kill)?;
                ensure!(killed.lines().count() == 1, "not one agent was killed on {leader}: {killed:?}");
                wait::until("its next start", PATIENCE, || {
                    ensure!(restarts(cluster, leader)? > before);
                    Ok(())
                })
            }
            Self::PowerCut => cluster.cut_power(leader).and_then(|()| cluster.await_another_leader(VIP, leader)),
            Self::LinkCut => cluster.lan.unplug(leader).and_then(|()| cluster.await_another_leader(VIP, leader)),
            Self::Drain => {
                cluster.as_admin(&format!("kubectl drain {leader} --ignore-daemonsets --timeout=120s"))?;
                cluster.await_another_leader(VIP, leader)
            }
            Self::Rollout => {
                cluster.as_admin("kubectl --namespace vipmux-system rollout restart daemonset/vipmux-agent")?;
                await_agents(cluster)
            }
        }
    }

    fn repair(self, cluster: &mut RealCluster, leader: &str) -> Result<()> {
        match self {
            Self::AgentKilled | Self::Rollout => {}
            Self::PowerCut => cluster.restore_power(leader)?,
            Self::LinkCut => cluster.lan.plug(leader)?,
            Self::Drain => drop(cluster.as_admin(&format!("kubectl uncordon {leader}"))?),
        }
        wait::until("Ready nodes", PATIENCE, || {
            cluster.as_admin("kubectl wait --for=condition=Ready node --all --timeout=60s").map(drop)
        })?;
        await_agents(cluster)?;
        cluster.await_rollout("shop", "deployment/echo")
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::AgentKilled => "agent killed",
            Self::PowerCut => "power cut",
            Self::LinkCut => "link cut",
            Self::Drain => "drain",
            Self::Rollout => "rollout restart",
        })
    }
}

/// What clients noticed of one event.
#[derive(Clone, Copy, Debug)]
struct Noticed {
    connections: Duration,
    datagrams: Duration,
    arp: Duration,
    lost: usize,
}

impl Noticed {
    fn of(view: &View) -> Result<Self> {
        let twice = view.arp_requests.answered_twice();
        ensure!(twice == 0, "{twice} ARP requests were answered by two nodes");
        Ok(Self {
            connections: view.connections.outage(),
            datagrams: view.warm.outage().max(view.anew.outage()),
            arp: view.arp_requests.outage(),
            lost: view.connections.lost() + view.warm.lost() + view.anew.lost(),
        })
    }
}

/// Deploys vipmux in a new cluster and measures. `outcome` gets the results.
pub fn run(cluster: &mut RealCluster, plan: &Plan, outcome: &mut dyn FnMut(&str)) -> Result<()> {
    cluster.as_admin("kubectl apply -k deploy/kustomize")?;
    await_agents(cluster)?;
    cluster.api.kubectl_apply(POOL, &[])?;
    cluster.add_echo()?;

    let times = (0..plan.runs).map(|run| first_answer(cluster, run)).collect::<Result<Vec<_>>>()?;
    outcome(&format!("{:<16} {} ms (median, worst of {})", "first answer", of(times), plan.runs));

    let mut all: Vec<(Event, Vec<Noticed>)> = Event::ALL.into_iter().map(|event| (event, Vec::new())).collect();
    for _ in 0..plan.runs {
        for (event, results) in &mut all {
            let leader = cluster.leader(VIP)?;
            let view = cluster.observe(VIP, |cluster| event.happen(cluster, &leader))?;
            results.push(Noticed::of(&view).with_context(|| format!("{event}"))?);
            event.repair(cluster, &leader)?;
        }
    }
    outcome("milliseconds without an answer (median, worst), and requests of three clients lost:");
    outcome(&format!("{:<16} {:>14} {:>14} {:>14} {:>12}", "", "connections", "datagrams", "ARP", "lost"));
    for (event, results) in &all {
        let column = |get: fn(&Noticed) -> Duration| of(results.iter().map(get).collect());
        let mut lost: Vec<_> = results.iter().map(|noticed| noticed.lost).collect();
        lost.sort_unstable();
        let lost = format!("{}, {}", lost[lost.len() / 2], lost[lost.len() - 1]);
        let (connections, datagrams, arp) =
            (column(|noticed| noticed.connections), column(|noticed| noticed.datagrams), column(|noticed| noticed.arp));
        outcome(&format!("{event:<16} {connections:>14} {datagrams:>14} {arp:>14} {lost:>12}"));
    }

    // The last event has started agents anew.
    std::thread::sleep(SETTLED);
    at_rest(cluster, plan.rest, outcome)
}

/// Returns the median and the longest time, in milliseconds.
fn of(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let (median, worst) = (times.get(times.len() / 2), times.last());
    let ms = |time: Option<&Duration>| time.map_or(0, Duration::as_millis);
    format!("{}, {}", ms(median), ms(worst))
}

/// Returns the time from the write of a Service to its first answer.
fn first_answer(cluster: &RealCluster, run: u8) -> Result<Duration> {
    // An address that nobody has led or asked for yet.
    let address = Ipv4Addr::new(192, 0, 2, 210 + run);
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "namespace": "shop", "name": format!("new-{run}"),
            "annotations": { "vipmux.io/addresses": address.to_string() },
        },
        "spec": {
            "type": "LoadBalancer", "selector": { "app": "echo" },
            "ports": [{ "port": 80, "targetPort": 8080 }],
        },
    });
    let begin = Instant::now();
    cluster.api.apply_all(std::slice::from_ref(&service))?;
    let server = SocketAddr::new(address.into(), 80);
    cluster.lan.client()?.namespace().run(|| {
        wait::until("the first answer", PATIENCE, || {
            TcpStream::connect_timeout(&server, ATTEMPT)?;
            Ok(())
        })
    })?;
    let time = begin.elapsed();
    cluster.api.delete_all(&[service])?;
    Ok(time)
}

/// Returns how often the agent of a node was started again in its Pod.
fn restarts(cluster: &RealCluster, node: &str) -> Result<u32> {
    let selector = "app.kubernetes.io/component=agent";
    let path = "{.items[*].status.containerStatuses[0].restartCount}";
    let of =
        format!("kubectl --namespace {SYSTEM} get pods --selector {selector} --field-selector spec.nodeName={node}");
    let count = cluster.as_admin(&format!("{of} --output \"jsonpath={path}\""))?;
    count.trim().parse().with_context(|| format!("{node} has not one agent: {count:?}"))
}

fn await_agents(cluster: &RealCluster) -> Result<()> {
    cluster.await_rollout(SYSTEM, "daemonset/vipmux-agent")?;
    cluster.await_rollout(SYSTEM, "deployment/vipmux-allocator")
}

/// Returns a shell script that does something with each process of vipmux on a node, which `$pid` and
/// `$command` name.
fn for_each_process(what: &str) -> String {
    format!(
        "for folder in /proc/[0-9]*; do
            [ \"$(cat $folder/comm 2>/dev/null)\" = vipmux ] || continue
            pid=${{folder#/proc/}} command=$(tr '\\0' ' ' <$folder/cmdline)
            {what}
        done"
    )
}

/// The CPU time (seconds) and memory (KiB) of processes, by `agent` or `allocator`, node, and the process's
/// id there.
type Costs = BTreeMap<(String, String, u32), (f64, u64)>;

/// Returns the costs of all processes so far.
fn costs(cluster: &RealCluster) -> Result<Costs> {
    let mut costs = BTreeMap::new();
    let script = for_each_process("echo \"$pid|$command|$(cat $folder/stat)|$(grep VmRSS $folder/status)\"");
    for node in &cluster.nodes {
        for line in cluster.as_root_on(&node.name, &script)?.lines() {
            let [pid, command, stat, memory] = line.split('|').collect::<Vec<_>>()[..] else { continue };
            let part = command.split_whitespace().nth(1).context("a process has no command")?;
            // The fields behind the name, which is in parentheses (proc(5)).
            let fields: Vec<_> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
            let ticks: f64 =
                fields.get(11..13).context("no CPU times")?.iter().filter_map(|field| field.parse::<f64>().ok()).sum();
            let kib = memory.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).context("no memory")?;
            costs.insert((part.to_owned(), node.name.clone(), pid.parse()?), (ticks / TICKS, kib));
        }
    }
    Ok(costs)
}

fn at_rest(cluster: &RealCluster, time: Duration, outcome: &mut dyn FnMut(&str)) -> Result<()> {
    let (mark, before, begin) = (cluster.api.mark()?, costs(cluster)?, Instant::now());
    std::thread::sleep(time);
    let (after, seconds) = (costs(cluster)?, begin.elapsed().as_secs_f64());
    outcome("at rest: share of a CPU, and memory");
    for (process, (cpu, kib)) in &after {
        let (part, node, _) = process;
        let (cpu_before, _) = before.get(process).with_context(|| format!("a new {part} on {node} is not at rest"))?;
        outcome(&format!("{part:<10} {node:<8} {:.2} %  {} MiB", (cpu - cpu_before) / seconds * 100.0, kib / 1024));
    }
    let mut requests = BTreeMap::new();
    for request in cluster.api.requests(mark)?.iter().filter(|request| request.agent.starts_with("vipmux-")) {
        let program = request.agent.split('/').next().unwrap_or_default();
        let what = format!("{program} {} {} {}", request.verb, request.resource, request.code);
        *requests.entry(what).or_insert(0_u32) += 1;
    }
    let all: u32 = requests.values().sum();
    outcome(&format!("at rest: {:.1} requests a minute", f64::from(all) * 60.0 / seconds));
    for (what, count) in requests {
        outcome(&format!("  {:>5.1}  {what}", f64::from(count) * 60.0 / seconds));
    }
    Ok(())
}
