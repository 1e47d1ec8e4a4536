//! A cluster whose leading node is about to fail. There are agents and pods on three nodes. The
//! Services' endpoints are on the other nodes, so the node that answers fails, not the one that
//! serves.

mod observed;

use std::{fs, net::Ipv4Addr, time::Duration};

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;

pub use self::observed::ObservedFailover;
use crate::{
    agent,
    api_proxy::ApiProxy,
    client::{Kind, Session},
    cluster::{Cluster, PATIENCE, TIMEOUT},
    lan::{Lan, Node, Options},
    manifests::{Manifests, Service, VIP},
    pod::Listener,
    wait,
    watch::{self, Watch},
};

/// The LAN of the cluster.
pub const LAN: Options = Options { clients: watch::CLIENTS, ..Options::DEFAULT };
/// The VIP.
pub const ADDRESS: Ipv4Addr = VIP;
/// The Service's port for datagrams.
pub const DATAGRAMS: u16 = 7_000;
/// The Service's port for connections.
pub const LINES: u16 = 7_001;
/// The Service's port for transfers.
pub const BULK: u16 = 7_002;
/// Services with their ports and kinds.
const SERVICES: [(&str, u16, Kind); 3] = [
    ("failing/datagrams", DATAGRAMS, Kind::UdpEcho),
    ("failing/lines", LINES, Kind::Echo),
    ("failing/bulk", BULK, Kind::Bulk),
];
/// The seed of a proxy's random decisions.
const SEED: u64 = 1;
/// The agents' default lease.
pub const DEFAULT_LEASE: &str = "300ms";
/// The lease in tests, which run beside others. A slow leader stays the leader.
const LEASE: &str = "2s";
/// The longest time for which two nodes may answer in tests, if gossip is filtered or is lost in one
/// direction: the lease and a heartbeat (docs/failover.md, "Can two nodes answer at once?").
pub const MOST_OVERLAP: Duration = Duration::from_millis(2_100);
/// Entries of each flow table. Short connections must not evict those that are watched.
const FLOWS: u32 = 65_536;

/// The cluster before the failure.
#[derive(Debug)]
pub struct FailoverCluster {
    /// The cluster, with an agent and a pod on each node.
    pub cluster: Cluster,
}

impl FailoverCluster {
    /// Makes it on a LAN like [`LAN`], with running agents and a VIP with a leader.
    pub fn new(lan: Lan, lease: &'static str) -> Result<Self> {
        let manifests = Manifests::for_lan(&lan)?;
        Self::of(Cluster::new(lan, manifests)?, lease)
    }

    /// Makes it with a real API server; `None` if the test is skipped.
    pub fn in_kubernetes(options: Options) -> Result<Option<Self>> {
        let Some(lan) = Lan::for_test(options)? else { return Ok(None) };
        Cluster::in_kubernetes(lan)?.map(|cluster| Self::of(cluster, LEASE)).transpose()
    }

    /// Makes it with a real API server. All agents' requests go through a proxy, which injects no
    /// faults yet.
    pub fn in_kubernetes_by_proxy(options: Options) -> Result<Option<(Self, ApiProxy)>> {
        Self::in_kubernetes_by_proxy_with(options, LEASE)
    }

    /// Like [`Self::in_kubernetes_by_proxy`], with this lease.
    pub fn in_kubernetes_by_proxy_with(options: Options, lease: &'static str) -> Result<Option<(Self, ApiProxy)>> {
        let Some(lan) = Lan::for_test(options)? else { return Ok(None) };
        let Some(mut cluster) = Cluster::in_kubernetes(lan)? else { return Ok(None) };
        let proxy = cluster.reach_api_by_proxy(SEED)?;
        Ok(Some((Self::of(cluster, lease)?, proxy)))
    }

    fn of(mut cluster: Cluster, lease: &'static str) -> Result<Self> {
        let nodes: Vec<_> = cluster.lan.nodes.iter().map(|node| node.name.clone()).collect();
        for node in nodes {
            let listeners = SERVICES.map(|(name, port, kind)| Listener::new(kind, port, name));
            cluster.add_pod(&node, &format!("on-{node}"), 10, &listeners)?;
        }
        let mut setup = Self { cluster };
        setup.write_services("")?;
        let options = agent::Options { flows: FLOWS, lease, ..setup.cluster.agent_options() };
        setup.cluster.start_agents(&options)?;
        setup.leader()?;
        Ok(setup)
    }

    /// Makes it for a test; `None` if the test is skipped.
    pub fn for_test(options: Options) -> Result<Option<Self>> {
        Self::for_test_with(options, LEASE)
    }

    /// Like [`Self::for_test`], with this lease.
    pub fn for_test_with(options: Options, lease: &'static str) -> Result<Option<Self>> {
        Lan::for_test(options)?.map(|lan| Self::new(lan, lease)).transpose()
    }

    /// Returns the node that answers.
    pub fn leader(&self) -> Result<&Node> {
        self.cluster.await_leader(ADDRESS)
    }

    /// Removes the Services' endpoints on this node, and waits until all nodes know.
    pub fn remove_endpoints_of(&self, node: &str) -> Result<()> {
        // With all of them first: the number of pods without another node's is the same.
        for spared in ["", node] {
            self.write_services(spared)?;
            let pods = self.cluster.pods.iter().filter(|pod| pod.node != spared).count();
            SERVICES.iter().try_for_each(|(_, port, _)| self.cluster.await_ready(*port, pods))?;
        }
        Ok(())
    }

    fn write_services(&self, spared: &str) -> Result<()> {
        let pods = self.cluster.pods.iter().filter(|pod| pod.node != spared);
        let endpoints: Vec<_> = pods.map(|pod| self.cluster.endpoint(&pod.name)).collect::<Result<_>>()?;
        SERVICES.iter().try_for_each(|(name, port, kind)| {
            let service = Service::sharing(name, *port, kind.protocol(), *port);
            self.cluster.manifests.write_service(&service.with(endpoints.clone()))?;
            self.cluster.manifests.api().map_or(Ok(()), |api| api.give(name, &[ADDRESS.into()]))
        })
    }

    /// Starts clients that send requests all the time, and waits until each kind is answered.
    pub fn watch(&self) -> Result<Watch> {
        let mut watch = Watch::start(&self.cluster.lan, ADDRESS, DATAGRAMS, LINES)?;
        watch.wait_for_answers(20, PATIENCE).with_context(|| self.cluster.last_outputs())?;
        Ok(watch)
    }

    /// Opens connections that stay.
    pub fn sessions(&self, count: usize) -> Result<Vec<Session>> {
        let connect = || Session::connect((ADDRESS, LINES).into(), TIMEOUT);
        let namespace = self.cluster.lan.client()?.namespace();
        let mut sessions: Vec<_> = (0..count).map(|_| namespace.run(connect)).collect::<Result<_>>()?;
        sessions.iter_mut().try_for_each(|session| session.echo("hello").map(drop))?;
        Ok(sessions)
    }

    /// Sends a node's agent a signal.
    pub fn signal(&self, node: &str, signal: Signal) -> Result<()> {
        self.cluster.agent(node)?.process().signal(signal)
    }

    /// Stops a node's agent with SIGTERM, and waits for its end.
    pub fn stop_agent(&mut self, node: &str) -> Result<()> {
        self.cluster.agent_mut(node)?.stop()
    }

    /// Starts a node's agent again after its end, and waits until it is ready.
    pub fn start_agent(&mut self, node: &str) -> Result<()> {
        self.cluster.restart_agent(node)
    }

    /// Kills the API server. Without one, puts a file in place of the Leases' folder, so that no
    /// agent can read or write Leases.
    pub fn break_store(&mut self) -> Result<()> {
        if let Some(api) = self.cluster.manifests.api_mut() {
            return api.stop();
        }
        let (leases, aside) = self.leases();
        fs::rename(&leases, &aside).with_context(|| format!("cannot move {}", leases.display()))?;
        fs::write(&leases, "not a folder").with_context(|| format!("cannot write {}", leases.display()))
    }

    /// Undoes [`Self::break_store`].
    pub fn restore_store(&mut self) -> Result<()> {
        if let Some(api) = self.cluster.manifests.api_mut() {
            return api.start();
        }
        let (leases, aside) = self.leases();
        fs::remove_file(&leases).with_context(|| format!("cannot remove {}", leases.display()))?;
        fs::rename(&aside, &leases).with_context(|| format!("cannot move {}", aside.display()))
    }

    fn leases(&self) -> (std::path::PathBuf, std::path::PathBuf) {
        let state = self.cluster.agent_options().state;
        (state.join("leases"), state.join("leases.aside"))
    }
}

/// Sends a line on each of these connections. Returns how many are broken.
pub fn broken(sessions: &mut [Session]) -> usize {
    sessions.iter_mut().map(|session| session.echo("still there?")).filter(Result::is_err).count()
}

/// Waits until all threads of a process are stopped. SIGSTOP takes effect when a thread next leaves
/// the kernel.
pub fn await_stopped(pid: u32) -> Result<()> {
    let tasks = format!("/proc/{pid}/task");
    wait::until(&format!("process {pid} is stopped"), PATIENCE, || {
        for task in fs::read_dir(&tasks)? {
            let status = fs::read_to_string(task?.path().join("status"))?;
            let state = status.lines().find(|line| line.starts_with("State:")).unwrap_or_default();
            anyhow::ensure!(state.contains('T'), "{state}");
        }
        Ok(())
    })
}
