//! Tests agents without a cluster whose state directories are their own, as on several machines
//! with the default one: with one gossip key, and with a key each.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use vipmux_tests::{
    agent::{self, Agent},
    arp,
    cleanup::Folder,
    cluster::{Cluster, PATIENCE, TIMEOUT},
    lan::{Node, Options},
    manifests::VIP,
    scrape, wait,
};

use crate::{leading::WINDOW, services};

/// So many ARP requests in a row have one answer only if no node takes the VIP from another: two
/// that do so take turns each second.
const REQUESTS: usize = 30;

/// The machines, each with a state directory. Their order is that of the nodes.
struct Machines {
    cluster: Cluster,
    states: Vec<Folder>,
}

impl Machines {
    /// Makes the five Services. `key`: the gossip key that all machines get.
    fn new(key: Option<&str>) -> Result<Option<Self>> {
        let Some(cluster) = services::prepared(Options::default())? else { return Ok(None) };
        let states = cluster.lan.nodes.iter().map(|_| Folder::temporary("own-state")).collect::<Result<Vec<_>>>()?;
        if let Some(key) = key {
            states.iter().try_for_each(|state| fs::write(state.path().join("gossip.key"), key))?;
        }
        Ok(Some(Self { cluster, states }))
    }

    /// Starts the agent on a node, by its place.
    fn start(&mut self, place: usize) -> Result<()> {
        let options = agent::Options { state: self.states[place].path().to_owned(), ..self.cluster.agent_options() };
        let agent = Agent::start(&self.cluster.lan.nodes[place], &options)?;
        agent.wait_ready(PATIENCE)?;
        self.cluster.agents.push(agent);
        Ok(())
    }

    fn node(&self, place: usize) -> &Node {
        &self.cluster.lan.nodes[place]
    }

    /// Waits until this node answers for the VIP, and no other does.
    fn await_sole_leader(&self, places: &[usize]) -> Result<usize> {
        let client = self.cluster.lan.client()?;
        wait::until("one leader", PATIENCE, || {
            let first = arp::answers(client.namespace(), client.address, VIP, WINDOW)?;
            for _ in 0..REQUESTS {
                let answers = arp::answers(client.namespace(), client.address, VIP, WINDOW)?;
                ensure!(answers.len() == 1 && answers == first, "{first:?}, then {answers:?}");
            }
            let place = places.iter().find(|place| first == [self.node(**place).mac]);
            place.copied().with_context(|| format!("{first:?} answers"))
        })
        .with_context(|| self.cluster.last_outputs())
    }

    /// Returns the status and text of `/readyz`.
    fn readiness(&self, place: usize) -> Result<(u16, String)> {
        let node = self.node(place);
        scrape::get(node.namespace(), node.address, "/readyz", TIMEOUT)
    }
}

#[test]
fn agents_with_different_gossip_keys_have_one_leader_and_the_others_say_why_they_lead_nothing() -> Result<()> {
    let Some(mut machines) = Machines::new(None)? else { return Ok(()) };
    machines.start(2)?;
    machines.await_sole_leader(&[2])?;
    machines.start(0)?;
    machines.start(1)?;
    machines.await_sole_leader(&[0])?;
    let cluster = &machines.cluster;
    for place in [1, 2] {
        let node = machines.node(place);
        let agent = cluster.agent(&node.name)?;
        agent.process().wait_for_line("what it lacks", PATIENCE, |line| {
            line.contains("another gossip key, leading nothing") && line.contains("--gossip-key")
        })?;
        let (status, body) = machines.readiness(place)?;
        ensure!(status == 503 && body.contains("[-]gossip-key failed") && body.contains("node-1"), "{status}: {body}");
        let (code, explained) = agent.explain(node, "shop/web", &[])?;
        let broken = &explained["broken"];
        ensure!(code == 2 && broken["step"] == "agent", "{explained}");
        ensure!(broken["finding"].as_str().is_some_and(|finding| finding.contains("gossip key")), "{broken}");
        cluster.await_standing(&node.name, "node-1", "other_key")?;
    }
    let (status, body) = machines.readiness(0)?;
    ensure!(status == 200, "{body}");
    cluster.await_standing("node-1", "node-2", "other_key")?;

    // When it is gone, the next one leads.
    machines.cluster.agent_mut("node-1")?.process_mut().kill()?;
    machines.await_sole_leader(&[1])?;

    // One key for all, without a restart of those that run.
    let key = fs::read(machines.states[1].path().join("gossip.key"))?;
    machines.states.iter().try_for_each(|state| fs::write(state.path().join("gossip.key"), &key))?;
    machines.cluster.restart_agent("node-1")?;
    machines.cluster.await_all_alive()?;
    wait::until("readiness", PATIENCE, || {
        for place in 0..3 {
            let (status, body) = machines.readiness(place)?;
            ensure!(status == 200, "{body}");
        }
        Ok(())
    })?;
    machines.await_sole_leader(&[0, 1, 2])?;
    services::await_all(&machines.cluster)
}

#[test]
fn agents_with_one_gossip_key_and_states_of_their_own_have_one_leader_and_fail_over() -> Result<()> {
    let Some(mut machines) = Machines::new(Some(&"77".repeat(32)))? else { return Ok(()) };
    // Nobody hears another, and no Lease names another. The first one answers the others' questions on the LAN.
    for node in &machines.cluster.lan.nodes {
        node.filter_gossip("drop")?;
    }
    for place in 0..3 {
        machines.start(place)?;
        machines.await_sole_leader(&[0])?;
    }
    for node in &machines.cluster.lan.nodes {
        node.unfilter_gossip()?;
    }
    machines.cluster.await_all_alive()?;
    let leader = machines.await_sole_leader(&[0, 1, 2])?;
    services::await_all(&machines.cluster)?;
    let name = machines.node(leader).name.clone();
    machines.cluster.agent_mut(&name)?.process_mut().kill()?;
    let others: Vec<_> = (0..3).filter(|place| *place != leader).collect();
    let next = machines.await_sole_leader(&others)?;
    machines.cluster.restart_agent(&name)?;
    machines.cluster.await_all_alive()?;
    assert_eq!(machines.await_sole_leader(&[0, 1, 2])?, next);
    services::await_all(&machines.cluster)
}
