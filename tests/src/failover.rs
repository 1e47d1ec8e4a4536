//! A cluster in which something is about to happen to the node that leads: agents on three nodes, a pod on each, and Services
//! whose endpoints are on the other nodes, so that what fails is the node that answers and not the one that serves.

mod scene;

use std::{fs, net::Ipv4Addr};

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;

pub use self::scene::Scene;
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

/// The LAN of it.
pub const LAN: Options = Options { clients: watch::CLIENTS, ..Options::DEFAULT };
/// The address.
pub const ADDRESS: Ipv4Addr = VIP;
/// The Service's port that answers datagrams.
pub const DATAGRAMS: u16 = 7_000;
/// The one that takes connections.
pub const LINES: u16 = 7_001;
/// The one for transfers.
pub const BULK: u16 = 7_002;
/// Services by their kinds.
const SERVICES: [(&str, u16, Kind); 3] = [
    ("failing/datagrams", DATAGRAMS, Kind::UdpEcho),
    ("failing/lines", LINES, Kind::Echo),
    ("failing/bulk", BULK, Kind::Bulk),
];
/// Of what a proxy leaves to chance.
const SEED: u64 = 1;
/// The lease that agents have unless they are told otherwise.
pub const DEFAULT_LEASE: &str = "300ms";
/// The lease in tests, which run beside others: a leader that is merely held up stays one.
const LEASE: &str = "2s";
/// Entries of each flow table: connections that are watched must not make room for those that come and go.
const FLOWS: u32 = 65_536;

/// The cluster.
#[derive(Debug)]
pub struct Stage {
    /// With an agent and a pod on each node.
    pub cluster: Cluster,
}

impl Stage {
    /// On a LAN like [`LAN`], with agents that are started and a Service that is answered for.
    pub fn new(lan: Lan, lease: &'static str) -> Result<Self> {
        let manifests = Manifests::for_lan(&lan)?;
        Self::of(Cluster::new(lan, manifests)?, lease)
    }

    /// The same with a real API server; `None` where the test is to be skipped.
    pub fn in_kubernetes(options: Options) -> Result<Option<Self>> {
        let Some(lan) = Lan::for_test(options)? else { return Ok(None) };
        Cluster::in_kubernetes(lan)?.map(|cluster| Self::of(cluster, LEASE)).transpose()
    }

    /// The same, where all that agents say to the API server goes through a proxy, which does no harm yet.
    pub fn in_kubernetes_by_proxy(options: Options) -> Result<Option<(Self, ApiProxy)>> {
        let Some(lan) = Lan::for_test(options)? else { return Ok(None) };
        let Some(mut cluster) = Cluster::in_kubernetes(lan)? else { return Ok(None) };
        let proxy = cluster.reach_api_by_proxy(SEED)?;
        Ok(Some((Self::of(cluster, LEASE)?, proxy)))
    }

    fn of(mut cluster: Cluster, lease: &'static str) -> Result<Self> {
        let nodes: Vec<_> = cluster.lan.nodes.iter().map(|node| node.name.clone()).collect();
        for node in nodes {
            let listeners = SERVICES.map(|(name, port, kind)| Listener::new(kind, port, name));
            cluster.add_pod(&node, &format!("on-{node}"), 10, &listeners)?;
        }
        let mut stage = Self { cluster };
        stage.write_services("")?;
        let options = agent::Options { flows: FLOWS, lease, ..stage.cluster.agent_options() };
        stage.cluster.start_agents(&options)?;
        stage.leader()?;
        Ok(stage)
    }

    /// The same for a test; `None` where it is to be skipped.
    pub fn for_test(options: Options) -> Result<Option<Self>> {
        Self::for_test_with(options, LEASE)
    }

    /// The same with this lease.
    pub fn for_test_with(options: Options, lease: &'static str) -> Result<Option<Self>> {
        Lan::for_test(options)?.map(|lan| Self::new(lan, lease)).transpose()
    }

    /// The node that answers.
    pub fn leader(&self) -> Result<&Node> {
        self.cluster.await_leader(ADDRESS)
    }

    /// Lets the Services have no endpoint on this node, and waits until all nodes know.
    pub fn spare(&self, node: &str) -> Result<()> {
        self.write_services(node)?;
        let pods = self.cluster.pods.iter().filter(|pod| pod.node != node).count();
        SERVICES.iter().try_for_each(|(_, port, _)| self.cluster.await_ready(*port, pods))
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

    /// Clients that ask all the time; each kind of requests is answered.
    pub fn watch(&self) -> Result<Watch> {
        let mut watch = Watch::start(&self.cluster.lan, ADDRESS, DATAGRAMS, LINES)?;
        watch.wait_for_answers(20, PATIENCE).with_context(|| self.cluster.last_outputs())?;
        Ok(watch)
    }

    /// So many connections that stay.
    pub fn sessions(&self, count: usize) -> Result<Vec<Session>> {
        let connect = || Session::connect((ADDRESS, LINES).into(), TIMEOUT);
        let namespace = self.cluster.lan.client()?.namespace();
        let mut sessions: Vec<_> = (0..count).map(|_| namespace.run(connect)).collect::<Result<_>>()?;
        sessions.iter_mut().try_for_each(|session| session.say("hello").map(drop))?;
        Ok(sessions)
    }

    /// Sends a node's agent a signal.
    pub fn signal(&self, node: &str, signal: Signal) -> Result<()> {
        self.cluster.agent(node)?.process().signal(signal)
    }

    /// Tells a node's agent to stop, and waits for its end.
    pub fn stop_agent(&mut self, node: &str) -> Result<()> {
        self.cluster.agent_mut(node)?.stop()
    }

    /// Starts a node's agent again after its end, and waits until it is ready.
    pub fn start_agent(&mut self, node: &str) -> Result<()> {
        self.cluster.restart_agent(node)
    }

    /// Kills the API server; or without one puts a file where the folder of the Leases is, so that no agent can read or write
    /// any.
    pub fn take_store_away(&mut self) -> Result<()> {
        if let Some(api) = self.cluster.manifests.api_mut() {
            return api.stop();
        }
        let (leases, aside) = self.leases();
        fs::rename(&leases, &aside).with_context(|| format!("cannot move {}", leases.display()))?;
        fs::write(&leases, "not a folder").with_context(|| format!("cannot write {}", leases.display()))
    }

    /// Undoes that.
    pub fn bring_store_back(&mut self) -> Result<()> {
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

/// Says something on each of these connections; how many are broken.
pub fn broken(sessions: &mut [Session]) -> usize {
    sessions.iter_mut().map(|session| session.say("still there?")).filter(Result::is_err).count()
}

/// Waits until a process with all its threads is stopped: SIGSTOP takes effect when a thread next leaves the kernel.
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
