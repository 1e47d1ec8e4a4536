//! A LAN with an agent on each node. All agents read the same folder of manifests.

use std::{fs, net::IpAddr, time::Duration};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

pub use crate::wait::PATIENCE;
use crate::{
    agent::{self, Access, Agent, Origin, Plan},
    api_proxy::ApiProxy,
    api_server::{self, ApiServer},
    arp,
    cleanup::Folder,
    client::Request,
    identity::Answer,
    lan::{Lan, Node},
    manifests::{Endpoint, Manifests},
    ndp,
    pod::{Listener, Pod},
    wait,
};

/// The time limit for a request that must be answered.
pub const TIMEOUT: Duration = Duration::from_secs(20);
/// The time limit for what takes long on a busy machine: a bulk transfer, many attempts.
pub const LONG: Duration = Duration::from_mins(2);
/// The time limit for requests that must fail.
pub const SILENCE: Duration = Duration::from_millis(700);
/// The time limit for requests that often fail.
pub const SHORT_TIMEOUT: Duration = Duration::from_millis(200);
/// The time limit for one of several attempts at a request.
const ATTEMPT: Duration = Duration::from_millis(500);
/// The time limit for one of several ARP requests or neighbor solicitations.
const ASK_ATTEMPT: Duration = Duration::from_millis(200);

/// The cluster. On drop it is removed, processes first.
#[derive(Debug)]
pub struct Cluster {
    /// Agents, in the order of the nodes.
    pub agents: Vec<Agent>,
    /// Pods, in the order in which they were added.
    pub pods: Vec<Pod>,
    /// The manifests that the agents read.
    pub manifests: Manifests,
    state: Folder,
    /// The agents' and allocators' access to the API server, if there is one.
    access: Option<Access>,
    /// The LAN.
    pub lan: Lan,
}

impl Cluster {
    /// Makes a cluster without running agents.
    pub fn new(lan: Lan, manifests: Manifests) -> Result<Self> {
        let state = Folder::temporary("state")?;
        let access = manifests.api().map(|api| access(api, &state)).transpose()?;
        Ok(Self { agents: Vec::new(), pods: Vec::new(), manifests, state, access, lan })
    }

    /// Makes a cluster with a real API server, which has the LAN's Nodes and a pool; `None` if the
    /// test is skipped.
    pub fn in_kubernetes(lan: Lan) -> Result<Option<Self>> {
        let Some(api) = ApiServer::on(&lan)? else { return Ok(None) };
        let manifests = Manifests::applied_to(api)?.of_lan(&lan)?;
        Self::new(lan, manifests).map(Some)
    }

    /// Returns the API server.
    pub fn api(&self) -> Result<&ApiServer> {
        self.manifests.api().context("this cluster has no API server")
    }

    /// Lets agents that start from now on reach the API server through a proxy, with the same
    /// rights. The proxy injects no faults yet. `seed` is for its random decisions.
    pub fn reach_api_by_proxy(&mut self, seed: u64) -> Result<ApiProxy> {
        let (api, access) = self.manifests.api().zip(self.access.as_mut()).context("this cluster has no API server")?;
        let proxy = ApiProxy::start_as(api, access.kubeconfig.clone(), seed)?;
        access.kubeconfig = proxy.kubeconfig();
        Ok(proxy)
    }

    /// Returns the agents' default options.
    pub fn agent_options(&self) -> agent::Options {
        let origin = match &self.access {
            Some(access) => Origin::Cluster(access.clone()),
            None => Origin::Manifests(self.manifests.path().to_owned()),
        };
        agent::Options::with(origin, self.state.path())
    }

    /// Starts an agent on every node, and waits until all are ready.
    pub fn start_agents(&mut self, options: &agent::Options) -> Result<()> {
        self.agents = self.lan.nodes.iter().map(|node| Agent::start(node, options)).collect::<Result<_>>()?;
        self.agents.iter().try_for_each(|agent| agent.wait_ready(PATIENCE))
    }

    /// Starts an agent on every node except one, and waits until all are ready.
    pub fn start_agents_but(&mut self, node: &str, options: &agent::Options) -> Result<()> {
        let nodes = self.lan.nodes.iter().filter(|other| other.name != node);
        self.agents = nodes.map(|node| Agent::start(node, options)).collect::<Result<_>>()?;
        self.agents.iter().try_for_each(|agent| agent.wait_ready(PATIENCE))
    }

    /// Restarts the agent on a node with the same pins, and waits until it is ready.
    pub fn restart_agent(&mut self, node: &str) -> Result<()> {
        let agent = self.agents.iter_mut().find(|agent| agent.node() == node);
        let agent = agent.with_context(|| format!("no agent on {node}"))?;
        agent.restart(self.lan.node(node)?)?;
        agent.wait_ready(PATIENCE)
    }

    /// Adds a pod with its servers.
    pub fn add_pod(&mut self, node: &str, name: &str, host: u8, listeners: &[Listener]) -> Result<&mut Pod> {
        let mut pod = self.lan.node(node)?.add_pod(name, host)?;
        pod.serve(listeners)?;
        self.pods.push(pod);
        self.pods.last_mut().context("the pod was just added")
    }

    /// Returns a pod.
    pub fn pod(&self, name: &str) -> Result<&Pod> {
        self.pods.iter().find(|pod| pod.name == name).with_context(|| format!("no pod {name}"))
    }

    /// Returns a pod as a ready endpoint.
    pub fn endpoint(&self, pod: &str) -> Result<Endpoint> {
        let pod = self.pod(pod)?;
        Ok(Endpoint::new(pod.address, &pod.node))
    }

    /// Returns a pod as a ready endpoint with its IPv6 address.
    pub fn endpoint_v6(&self, pod: &str) -> Result<Endpoint> {
        let pod = self.pod(pod)?;
        Ok(Endpoint::new(pod.address_v6, &pod.node))
    }

    /// Returns the agent on a node.
    pub fn agent(&self, node: &str) -> Result<&Agent> {
        self.agents.iter().find(|agent| agent.node() == node).with_context(|| format!("no agent on {node}"))
    }

    /// Returns the agent on a node.
    pub fn agent_mut(&mut self, node: &str) -> Result<&mut Agent> {
        self.agents.iter_mut().find(|agent| agent.node() == node).with_context(|| format!("no agent on {node}"))
    }

    /// Returns the node that `vipmux plan` names as an address's leader.
    pub fn planned_leader(&self, vip: impl Into<IpAddr>) -> Result<&Node> {
        self.lan.node(&Plan::of(self.manifests.path())?.leader(vip)?)
    }

    /// Waits for a node that answers for an address on the LAN, and returns it.
    pub fn await_leader(&self, vip: impl Into<IpAddr>) -> Result<&Node> {
        let (client, vip) = (self.lan.client()?, vip.into());
        wait::until(&format!("somebody who answers for {vip}"), PATIENCE, || {
            let answer = match vip {
                IpAddr::V4(vip) => arp::first_answer(client.namespace(), client.address, vip, ASK_ATTEMPT)?,
                IpAddr::V6(vip) => ndp::first_answer(client.namespace(), client.address_v6, vip, ASK_ATTEMPT)?,
            };
            let mac = answer.context("no answer")?;
            self.lan.node_of(mac).with_context(|| format!("{mac} is no node's MAC"))
        })
    }

    /// Returns a member as the agent on node `by` sees it.
    pub fn member(&self, by: &str, node: &str) -> Result<Value> {
        let view = self.agent(by)?.inspect_json(self.lan.node(by)?, &["members"])?;
        let members = view["members"].as_array().context("no members")?;
        let member = members.iter().find(|member| member["node"] == node);
        member.cloned().with_context(|| format!("{node} is not among {view}"))
    }

    /// Waits until the agent on node `by` sees `node` with this standing.
    pub fn await_standing(&self, by: &str, node: &str, standing: &str) -> Result<()> {
        wait::until(&format!("{by} has {node} as {standing}"), PATIENCE, || {
            let member = self.member(by, node)?;
            ensure!(member["standing"] == standing, "{member}");
            Ok(())
        })
        .with_context(|| self.last_outputs())
    }

    /// Waits until each agent sees all others as alive.
    pub fn await_all_alive(&self) -> Result<()> {
        let names = || self.lan.nodes.iter().map(|node| node.name.as_str());
        let mut pairs = names().flat_map(|by| names().filter(move |node| *node != by).map(move |node| (by, node)));
        pairs.try_for_each(|(by, node)| self.await_standing(by, node, "alive"))
    }

    /// Sends a request from the first client until the Service answers. A reply of another Service
    /// is an error.
    pub fn await_service(&self, request: Request, service: &str) -> Result<Answer> {
        let answer = wait::until(&format!("{service} at {request}"), PATIENCE, || self.ask(request, ATTEMPT))
            .with_context(|| self.last_outputs())?;
        ensure!(answer.service == service, "{request} is for {service} and was answered by {answer}");
        Ok(answer)
    }

    /// Waits until every node has so many ready pods for a port, at each address. A node that does
    /// not know the Service yet drops packets that others hand over to it.
    pub fn await_ready(&self, port: u16, pods: usize) -> Result<()> {
        for (node, agent) in self.lan.nodes.iter().zip(&self.agents) {
            wait::until(&format!("{pods} pods of port {port} on {}", node.name), PATIENCE, || {
                let view = agent.inspect_json(node, &["services"])?;
                let all = view["services"].as_array().context("no services")?;
                let mut of_port = all.iter().filter(|service| service["port"] == port).peekable();
                ensure!(of_port.peek().is_some() && of_port.all(|service| service["ready"] == pods), "{view}");
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Sends a request once from the first client.
    pub fn ask(&self, request: Request, timeout: Duration) -> Result<Answer> {
        self.lan.client()?.namespace().run(|| request.send(timeout))
    }

    /// Returns the packets that all nodes have counted under a name. `kind`: `stats` or `drops`.
    pub fn counted(&self, kind: &str, name: &str) -> Result<u64> {
        let of_node = |(node, agent): (&Node, &Agent)| {
            let stats = agent.inspect_json(node, &["stats", "--all"])?;
            let counters = stats[kind].as_array().with_context(|| format!("no {kind}"))?;
            let counter = counters.iter().find(|counter| counter["name"] == name);
            let counter = counter.with_context(|| format!("{name} is not among the {kind}"))?;
            counter["packets"].as_u64().context("no packets")
        };
        self.lan.nodes.iter().zip(&self.agents).map(of_node).sum()
    }

    /// Returns the agents' last output, for an error.
    pub fn last_outputs(&self) -> String {
        self.agents.iter().fold(String::new(), |text, agent| {
            text + &format!("{}'s agent:\n{}", agent.node(), agent.process().last_output())
        })
    }
}

/// The agents' rights, as deployed.
const RIGHTS: &str = include_str!("../../deploy/kustomize/rbac-agent.yaml");

/// Grants the agents access to the API server, with exactly their rights. Their gossip key is in
/// the state folder.
fn access(api: &ApiServer, state: &Folder) -> Result<Access> {
    api.add_namespace(api_server::SYSTEM)?;
    api.apply(RIGHTS)?;
    let gossip_key = state.path().join("gossip.key");
    fs::write(&gossip_key, "76".repeat(32) + "\n").with_context(|| format!("cannot write {}", gossip_key.display()))?;
    Ok(Access {
        kubeconfig: api.service_account(api_server::SYSTEM, agent::ACCOUNT)?.kubeconfig,
        namespace: api_server::SYSTEM.to_owned(),
        gossip_key,
        allocator: "off",
    })
}
