//! Tests states that last for less than some seconds: they end no flow.

use std::{fs, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use vipmux_tests::{
    client::{Kind, Request, Session},
    cluster::{Cluster, PATIENCE, TIMEOUT},
    lan::Options,
    manifests::{Service, VIP},
    pod::Listener,
};

use crate::services;

/// The port of a Service whose only pod is on another node than the leader.
const FAR: u16 = 9443;
/// The times that something goes and comes back.
const TIMES: usize = 3;
/// Enough for the agent to notice that something is away.
const ECHOES: usize = 30;
const PAUSE: Duration = Duration::from_millis(10);

/// A connection through `leader` to a pod on `other`. The client keeps sending to `leader`.
struct Setup {
    cluster: Cluster,
    leader: String,
    other: String,
    session: Session,
}

fn connected() -> Result<Option<Setup>> {
    let Some(mut cluster) = services::served(Options::default())? else { return Ok(None) };
    let leader = cluster.await_leader(VIP)?.name.clone();
    let other = cluster.lan.nodes.iter().find(|node| node.name != leader).context("no other node")?.name.clone();
    cluster.add_pod(&other, "far", 40, &[Listener::new(Kind::Echo, FAR, "shop/far")])?;
    let service = Service::sharing("shop/far", FAR, "TCP", FAR).with([cluster.endpoint("far")?]);
    cluster.manifests.write_service(&service)?;
    cluster.await_service(Request::new(Kind::Echo, VIP, FAR), "shop/far")?;
    cluster.await_ready(FAR, 1)?;
    let client = cluster.lan.client()?;
    let mac = cluster.lan.node(&leader)?.mac;
    client.namespace().links(|links| links.add_neighbor("eth0", VIP, mac))?;
    let session = client.namespace().run(|| Session::connect((VIP, FAR).into(), TIMEOUT))?;
    Ok(Some(Setup { cluster, leader, other, session }))
}

impl Setup {
    /// Uses the connection, and opens others.
    fn goes_on(&mut self, when: &str) -> Result<()> {
        for _ in 0..ECHOES {
            thread::sleep(PAUSE);
            let answer =
                self.session.echo("hello").with_context(|| format!("{when}: {}", self.cluster.last_outputs()))?;
            ensure!(answer.pod == "far", "{when}: {answer}");
        }
        self.cluster.ask(Request::new(Kind::Echo, VIP, FAR), TIMEOUT).with_context(|| format!("a new one {when}"))?;
        Ok(())
    }
}

/// As by a DHCP renewal, or a reload of networkd.
#[test]
fn a_leader_without_its_address_for_a_moment_ends_no_connection() -> Result<()> {
    let Some(mut setup) = connected()? else { return Ok(()) };
    for _ in 0..TIMES {
        let node = setup.cluster.lan.node(&setup.leader)?;
        let address = node.address;
        node.namespace().links(|links| links.remove_address("eth0", address, 24))?;
        setup.goes_on("without an address")?;
        let node = setup.cluster.lan.node(&setup.leader)?;
        node.namespace().links(|links| links.add_address("eth0", address, 24))?;
        setup.goes_on("with the address")?;
    }
    Ok(())
}

/// The address is really gone then, and so is the way to other nodes.
#[test]
fn a_leader_without_its_address_for_long_says_so() -> Result<()> {
    let Some(setup) = connected()? else { return Ok(()) };
    let node = setup.cluster.lan.node(&setup.leader)?;
    node.namespace().links(|links| links.remove_address("eth0", node.address, 24))?;
    setup.cluster.agent(&setup.leader)?.process().wait_for_line("no way to others", PATIENCE, |line| {
        line.contains("gets no packets") && line.contains("not on a subnet")
    })?;
    Ok(())
}

/// As by `kubectl delete node` and a kubelet that registers again, or by what writes its addresses.
#[test]
fn a_node_object_that_is_gone_for_a_moment_ends_no_connection() -> Result<()> {
    let Some(mut setup) = connected()? else { return Ok(()) };
    let all = fs::read_to_string(setup.cluster.manifests.path().join("nodes.yaml"))?;
    let name = format!("{:?}: {:?}", "name", setup.other);
    let others: Vec<_> = all.split("---\n").filter(|node| !node.contains(&name)).collect();
    ensure!(others.len() == all.split("---\n").count() - 1, "{all} has no {name}");
    for _ in 0..TIMES {
        setup.cluster.manifests.write_text("nodes.yaml", &others.join("---\n"))?;
        setup.goes_on("without the Node")?;
        setup.cluster.manifests.write_text("nodes.yaml", &all)?;
        setup.goes_on("with the Node")?;
    }
    Ok(())
}
