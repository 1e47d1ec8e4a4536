//! One cycle: Services come, agents and API server are disturbed, Services go.

use std::{collections::BTreeSet, net::Ipv4Addr, slice, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::{Churn, KEPT, STAYING};
use crate::{
    agent::Agent,
    lan::Node,
    manifests::{Endpoint, Service, VIP},
    wait,
};

/// The namespace of the Services that come and go.
pub(super) const NAMESPACE: &str = "churn";
/// Their addresses, after the one of the Services that stay.
const ADDRESSES: u16 = 19;
const FIRST_PORT: u16 = 20_000;
const POD_PORT: u16 = 9000;
/// How long the API server does not answer.
const SILENCE: Duration = Duration::from_secs(4);
/// The time limit of each wait: the run shares the machine with others for an hour.
const LIMIT: Duration = Duration::from_mins(10);

impl Churn {
    /// Runs a cycle, and returns what it did besides the Services.
    pub(super) fn cycle(&mut self, number: usize) -> Result<String> {
        let documents: Vec<Value> = (0..self.services).flat_map(|n| service(n).documents()).collect();
        documents.iter().try_for_each(|document| self.apply(document))?;
        self.await_served(self.services)?;
        let did = [self.move_leaders(number)?, self.disturb_api(number)?, self.restart_agent(number)?];
        documents.iter().try_for_each(|document| self.delete(document))?;
        self.settle()?;
        Ok(did.iter().filter(|text| !text.is_empty()).map(String::as_str).collect::<Vec<_>>().join(", "))
    }

    /// Applies a document. On a busy machine a request may take etcd too long.
    fn apply(&self, document: &Value) -> Result<()> {
        let api = self.cluster.api()?;
        wait::until("a written object", LIMIT, || api.apply_all(slice::from_ref(document)).map(drop))
    }

    /// Deletes the object of a document. A deletion that failed may have been carried out.
    fn delete(&self, document: &Value) -> Result<()> {
        let api = self.cluster.api()?;
        wait::until("a deleted object", LIMIT, || match api.delete_all(slice::from_ref(document)) {
            Err(error) if api.get(document)?.is_some() => Err(error),
            _ => Ok(()),
        })
    }

    /// Waits for the state between cycles: all agents work, and only the Services that stay are
    /// there.
    pub(super) fn settle(&self) -> Result<()> {
        wait::until("all agents see each other", LIMIT, || {
            for (node, agent) in self.nodes() {
                let view = agent.inspect_json(node, &["members"])?;
                let others = view["members"].as_array().context("no members")?;
                let alive = others.iter().filter(|member| member["standing"] == "alive").count();
                ensure!(alive + 1 == self.cluster.agents.len(), "{view}");
            }
            Ok(())
        })?;
        self.await_served(0)?;
        self.client.wait_for_more(10, LIMIT)
    }

    /// Waits until the maps of all nodes have so many Services besides those that stay, with all
    /// their backends, and until one node leads each VIP.
    fn await_served(&self, services: u16) -> Result<()> {
        let vips = usize::from(services.min(ADDRESSES)) + 1;
        for (node, agent) in self.nodes() {
            wait::until(&format!("{services} more Services on {}", node.name), LIMIT, || {
                let view = agent.inspect_json(node, &["services"])?;
                let all = view["services"].as_array().context("no services")?;
                let (count, wanted) = (all.len(), usize::from(services + STAYING));
                ensure!(count == wanted, "{count} of {wanted}");
                ensure!(all.iter().all(|service| service["ready"].as_u64() > Some(0)), "one has no ready backend");
                Ok(())
            })?;
        }
        wait::until(&format!("one leader for each of {vips} VIPs"), LIMIT, || {
            let led = self.nodes().map(|(node, agent)| led(node, agent)).collect::<Result<Vec<_>>>()?;
            let all: BTreeSet<_> = led.iter().flatten().collect();
            ensure!(all.len() == vips && led.iter().flatten().count() == vips, "{led:?}");
            Ok(())
        })
    }

    /// Drains a node, and lets it take part again.
    fn move_leaders(&self, number: usize) -> Result<String> {
        let (node, agent) = self.nodes().nth(number % 3).context("three nodes")?;
        for arguments in [&[][..], &["--cancel"]] {
            let (code, said, error) = agent.drain(node, arguments)?;
            ensure!(code == 0, "vipmux drain {arguments:?} on {}: {code}, {said}{error}", node.name);
        }
        Ok(format!("drained {}", node.name))
    }

    /// Now and then suspends the API server for a while, or kills it and starts it again.
    fn disturb_api(&mut self, number: usize) -> Result<String> {
        if number % 10 == 9 {
            let api = self.cluster.manifests.api_mut().context("no API server")?;
            api.stop()?;
            api.start()?;
            return Ok("restarted the API server".to_owned());
        }
        if number % 3 == 1 {
            let server = self.cluster.api()?.process();
            server.signal(Signal::SIGSTOP)?;
            // The length of the disturbance, not a wait.
            thread::sleep(SILENCE);
            server.signal(Signal::SIGCONT)?;
            return Ok("suspended the API server".to_owned());
        }
        Ok(String::new())
    }

    /// Restarts an agent, but never the one that is kept.
    fn restart_agent(&mut self, number: usize) -> Result<String> {
        let node = ["node-2", "node-3"][number % 2];
        ensure!(node != KEPT, "{KEPT} is kept");
        let signal = if number % 4 < 2 { Signal::SIGTERM } else { Signal::SIGKILL };
        let place = self.cluster.lan.nodes.iter().position(|other| other.name == node).context("no such node")?;
        let agent = &mut self.cluster.agents[place];
        agent.process().signal(signal)?;
        agent.process_mut().wait(LIMIT)?;
        agent.restart(&self.cluster.lan.nodes[place])?;
        agent.wait_ready(LIMIT)?;
        Ok(format!("{signal} to {node}"))
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = (&Node, &Agent)> {
        self.cluster.lan.nodes.iter().zip(&self.cluster.agents)
    }
}

/// Returns the VIPs that an agent leads.
fn led(node: &Node, agent: &Agent) -> Result<Vec<String>> {
    let view = agent.inspect_json(node, &["vips"])?;
    let vips = view["vips"].as_array().context("no vips")?;
    let led = vips.iter().filter(|vip| vip["role"] == "leading");
    led.map(|vip| vip["address"].as_str().map(str::to_owned).context("no address")).collect()
}

/// Returns a Service with two backends on each node.
fn service(number: u16) -> Service {
    let address = number % ADDRESSES;
    let mut service = Service::sharing(&format!("{NAMESPACE}/s{number}"), FIRST_PORT + number, "TCP", POD_PORT);
    service.address = Some(Ipv4Addr::from(u32::from(VIP) + 1 + u32::from(address)));
    service.sharing_key = Some(format!("churn-{address}"));
    let endpoint = |n: u16| {
        let [_, host] = (2 + (number * 2 + n) % 250).to_be_bytes();
        let node = u8::try_from(1 + n % 3).unwrap_or(1);
        Endpoint::new(Ipv4Addr::new(10, 244, node, host), &format!("node-{node}"))
    };
    service.with((0..6).map(endpoint))
}
