//! Measures a load balancer in a real cluster: what clients notice of failures, how long a new Service takes,
//! and what its processes cost at rest.

use std::{
    collections::BTreeMap,
    fmt,
    net::{Ipv4Addr, SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::{ANSWERS, ECHO_PORT, PATIENCE, RealCluster, System};
use crate::{
    manifests::VIP,
    wait,
    watch::{View, Watch},
};

/// The time for which an address may stay away after an event.
const LIMIT: Duration = Duration::from_mins(1);
/// The time for which clients go on asking when an event is over: leases of others end late.
const AFTERMATH: Duration = Duration::from_secs(15);
/// The time limit of a connection to a Service that nobody serves yet.
const ATTEMPT: Duration = Duration::from_millis(20);
/// The unit of CPU times in /proc: 1/100 s on all of Linux' architectures that vipmux runs on.
const TICKS: f64 = 100.0;
const NAMESPACE: &str = "
apiVersion: v1
kind: Namespace
metadata: { name: shop }
";

/// The options.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Runs of each event, and new Services.
    pub runs: u8,
    /// How long the cluster is left alone before it is observed at rest.
    pub settle: Duration,
    /// How long the cluster at rest is observed.
    pub rest: Duration,
}

/// Something that happens to the node that announces the VIP.
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

    fn happen(self, system: System, cluster: &mut RealCluster, node: &str) -> Result<()> {
        match self {
            Self::AgentKilled => {
                let before = restarts(system, cluster, node)?;
                let [announcer, _] = system.processes();
                let kill = for_each_process(&[announcer], "kill -KILL $pid && echo $pid");
                let killed = cluster.as_root_on(node, &kill)?;
                ensure!(killed.lines().count() == 1, "not one agent was killed on {node}: {killed:?}");
                wait::until("its next start", PATIENCE, || {
                    ensure!(restarts(system, cluster, node)? > before);
                    Ok(())
                })
            }
            Self::PowerCut => cluster.cut_power(node),
            Self::LinkCut => cluster.lan.unplug(node),
            Self::Drain => {
                let drain = format!("kubectl drain {node} --ignore-daemonsets --delete-emptydir-data --timeout=120s");
                cluster.as_admin(&drain).map(drop)
            }
            Self::Rollout => {
                let (namespace, (announcer, _)) = (system.namespace(), system.workloads());
                cluster.as_admin(&format!("kubectl --namespace {namespace} rollout restart {announcer}"))?;
                system.await_rollouts(cluster)
            }
        }
    }

    fn repair(self, system: System, cluster: &mut RealCluster, node: &str) -> Result<()> {
        match self {
            Self::AgentKilled | Self::Rollout => {}
            Self::PowerCut => cluster.restore_power(node)?,
            Self::LinkCut => cluster.lan.plug(node)?,
            Self::Drain => drop(cluster.as_admin(&format!("kubectl uncordon {node}"))?),
        }
        wait::until("Ready nodes", PATIENCE, || {
            cluster.as_admin("kubectl wait --for=condition=Ready node --all --timeout=60s").map(drop)
        })?;
        system.await_rollouts(cluster)?;
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
    /// ARP requests that two nodes answered.
    twice: usize,
    /// The address did not come back in time.
    stayed_away: bool,
}

impl Noticed {
    fn of(view: &View, stayed_away: bool) -> Self {
        Self {
            connections: view.connections.outage(),
            datagrams: view.warm.outage().max(view.anew.outage()),
            arp: view.arp_requests.outage(),
            lost: view.connections.lost() + view.warm.lost() + view.anew.lost(),
            twice: view.arp_requests.answered_twice(),
            stayed_away,
        }
    }
}

/// Lets an event happen to the node that announces the VIP, under traffic. The time limit is the same for
/// every system: an address that stays away is a result.
fn observe(system: System, cluster: &mut RealCluster, event: Event) -> Result<Noticed> {
    let node = cluster.announcer(VIP)?;
    let mut watch = Watch::start(&cluster.lan, VIP, ECHO_PORT, ECHO_PORT)?;
    watch.wait_for_answers(ANSWERS, PATIENCE)?;
    event.happen(system, cluster, &node)?;
    // A client that gave up is an error of `stop`.
    let stayed_away = watch.wait_for_answers(ANSWERS, LIMIT).is_err();
    std::thread::sleep(AFTERMATH);
    let noticed = Noticed::of(&watch.stop()?, stayed_away);
    ensure!(system != System::Vipmux || noticed.twice == 0, "{} requests were answered by two nodes", noticed.twice);
    event.repair(system, cluster, &node)?;
    Ok(noticed)
}

/// Deploys a load balancer in a new cluster and measures. `outcome` gets the results.
pub fn run(system: System, cluster: &mut RealCluster, plan: &Plan, outcome: &mut dyn FnMut(&str)) -> Result<()> {
    outcome(&system.title());
    system.deploy(cluster)?;
    cluster.api.kubectl_apply(NAMESPACE, &[])?;
    cluster.add_echo()?;
    cluster.announcer(VIP)?;

    let times = (0..plan.runs).map(|run| first_answer(system, cluster, run)).collect::<Result<Vec<_>>>()?;
    outcome(&format!("{:<16} {} ms (median, worst of {})", "first answer", of(times), plan.runs));

    let mut all: Vec<(Event, Vec<Noticed>)> = Event::ALL.into_iter().map(|event| (event, Vec::new())).collect();
    for _ in 0..plan.runs {
        for (event, results) in &mut all {
            results.push(observe(system, cluster, *event).with_context(|| format!("{event}"))?);
        }
    }
    outcome(
        "milliseconds without an answer (median, worst), requests of three clients lost, and ARP requests that two",
    );
    outcome("nodes answered:");
    let heads = ("connections", "datagrams", "ARP", "lost", "double");
    outcome(&format!("{:<16} {:>14} {:>14} {:>14} {:>12} {:>12}", "", heads.0, heads.1, heads.2, heads.3, heads.4));
    for (event, results) in &all {
        let time = |get: fn(&Noticed) -> Duration| of(results.iter().map(get).collect());
        let count = |get: fn(&Noticed) -> usize| of_counts(results.iter().map(get).collect());
        let (connections, datagrams, arp) =
            (time(|noticed| noticed.connections), time(|noticed| noticed.datagrams), time(|noticed| noticed.arp));
        let (lost, twice) = (count(|noticed| noticed.lost), count(|noticed| noticed.twice));
        outcome(&format!("{event:<16} {connections:>14} {datagrams:>14} {arp:>14} {lost:>12} {twice:>12}"));
        let away = results.iter().filter(|noticed| noticed.stayed_away).count();
        if away > 0 {
            outcome(&format!(
                "  in {away} of {} runs not all clients had answers {} s later",
                results.len(),
                LIMIT.as_secs()
            ));
        }
    }

    // The last event has started agents anew.
    std::thread::sleep(plan.settle);
    at_rest(system, cluster, plan.rest, outcome)
}

/// Returns the median and the greatest number.
fn of_counts(mut counts: Vec<usize>) -> String {
    counts.sort_unstable();
    format!("{}, {}", counts[counts.len() / 2], counts[counts.len() - 1])
}

/// Returns the median and the longest time, in milliseconds.
fn of(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let (median, worst) = (times.get(times.len() / 2), times.last());
    let ms = |time: Option<&Duration>| time.map_or(0, Duration::as_millis);
    format!("{}, {}", ms(median), ms(worst))
}

/// Returns the time from the write of a Service to its first answer.
fn first_answer(system: System, cluster: &RealCluster, run: u8) -> Result<Duration> {
    // An address that nobody has led or asked for yet.
    let address = Ipv4Addr::new(192, 0, 2, 210 + run);
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "namespace": "shop", "name": format!("new-{run}"),
            "annotations": { system.address_annotation(): address.to_string() },
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
        // Without a pause, which would count.
        while let Err(error) = TcpStream::connect_timeout(&server, ATTEMPT) {
            ensure!(begin.elapsed() < PATIENCE, "no answer: {error}");
        }
        Ok(())
    })?;
    let time = begin.elapsed();
    cluster.api.delete_all(&[service])?;
    Ok(time)
}

/// Returns how often the agent of a node was started again in its Pod.
fn restarts(system: System, cluster: &RealCluster, node: &str) -> Result<u32> {
    let (namespace, selector) = (system.namespace(), system.announcers());
    let path = "{.items[*].status.containerStatuses[0].restartCount}";
    let of =
        format!("kubectl --namespace {namespace} get pods --selector {selector} --field-selector spec.nodeName={node}");
    let count = cluster.as_admin(&format!("{of} --output \"jsonpath={path}\""))?;
    count.trim().parse().with_context(|| format!("{node} has not one agent: {count:?}"))
}

/// Returns a shell script that does something with each process on a node whose command line is of one of
/// these patterns. `$pid` and `$command` name it.
fn for_each_process(patterns: &[&str], what: &str) -> String {
    // Spaces are part of the patterns.
    let patterns = patterns.join("|").replace(' ', "\\ ");
    format!(
        "for folder in /proc/[0-9]*; do
            command=$(tr '\\0' ' ' <$folder/cmdline 2>/dev/null) pid=${{folder#/proc/}}
            case $command in {patterns}) {what} ;; esac
        done"
    )
}

/// The CPU time (seconds) and memory (KiB) of processes, by what the process does, node, and the process's
/// id there.
type Costs = BTreeMap<(String, String, u32), (f64, u64)>;

/// Returns the costs of all processes so far.
fn costs(system: System, cluster: &RealCluster) -> Result<Costs> {
    let mut costs = BTreeMap::new();
    let what = "echo \"$pid|$command|$(cat $folder/stat)|$(grep VmRSS $folder/status)\"";
    let script = for_each_process(&system.processes(), what);
    for node in &cluster.nodes {
        for line in cluster.as_root_on(&node.name, &script)?.lines() {
            let [pid, command, stat, memory] = line.split('|').collect::<Vec<_>>()[..] else { continue };
            let mut words = command.split_whitespace();
            let program = words.next().and_then(|path| path.rsplit('/').next());
            let part = if system == System::Vipmux { words.next() } else { program };
            let part = part.context("a process has no command")?;
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

fn at_rest(system: System, cluster: &RealCluster, time: Duration, outcome: &mut dyn FnMut(&str)) -> Result<()> {
    let (mark, before, begin) = (cluster.api.mark()?, costs(system, cluster)?, Instant::now());
    std::thread::sleep(time);
    let (after, seconds) = (costs(system, cluster)?, begin.elapsed().as_secs_f64());
    outcome("at rest: share of a CPU, and memory");
    let (mut cpu_of_all, mut kib_of_all) = (0.0, 0);
    for (process, (cpu, kib)) in &after {
        let (part, node, _) = process;
        let (cpu_before, _) = before.get(process).with_context(|| format!("a new {part} on {node} is not at rest"))?;
        let share = (cpu - cpu_before) / seconds * 100.0;
        outcome(&format!("{part:<24} {node:<8} {share:.2} %  {} MiB", kib / 1024));
        (cpu_of_all, kib_of_all) = (cpu_of_all + share, kib_of_all + kib);
    }
    outcome(&format!("{:<24} {:<8} {cpu_of_all:.2} %  {} MiB", "together", "", kib_of_all / 1024));
    let (mut requests, users) = (BTreeMap::new(), system.users());
    for request in cluster.api.requests(mark)?.iter().filter(|request| request.user.starts_with(&users)) {
        let account = request.user.rsplit(':').next().unwrap_or_default();
        let what = format!("{account} {} {} {}", request.verb, request.resource, request.code);
        *requests.entry(what).or_insert(0_u32) += 1;
    }
    let all: u32 = requests.values().sum();
    outcome(&format!("at rest: {:.1} requests a minute", f64::from(all) * 60.0 / seconds));
    for (what, count) in requests {
        outcome(&format!("  {:>5.1}  {what}", f64::from(count) * 60.0 / seconds));
    }
    Ok(())
}
