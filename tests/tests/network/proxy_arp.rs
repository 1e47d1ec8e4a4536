//! Tests a switch that answers ARP in the name of a node that is gone.

use anyhow::{Context as _, Result, ensure};
use vipmux_tests::{
    client::{Kind, Request},
    cluster::{Cluster, PATIENCE, TIMEOUT},
    lan::{Lan, Node, Options},
    manifests::{Manifests, Service, VIP},
    pod::Listener,
    process, wait,
};

/// The bridge that is the LAN's switch.
const SWITCH: &str = "br0";

#[test]
fn the_last_of_two_nodes_takes_over_although_the_switch_answers_in_the_name_of_the_other() -> Result<()> {
    let Some(lan) = Lan::for_test(Options { nodes: 2, ..Options::default() })? else { return Ok(()) };
    let manifests = Manifests::for_lan(&lan)?;
    let mut cluster = Cluster::new(lan, manifests)?;
    for node in ["node-1", "node-2"] {
        cluster.add_pod(node, &format!("web-on-{node}"), 10, &[Listener::new(Kind::Http, 8080, "shop/web")])?;
    }
    let endpoints = [cluster.endpoint("web-on-node-1")?, cluster.endpoint("web-on-node-2")?];
    cluster.manifests.write_service(&Service::sharing("shop/web", 80, "TCP", 8080).with(endpoints))?;
    cluster.start_agents(&cluster.agent_options())?;
    let request = Request::new(Kind::Http, VIP, 80);
    cluster.await_service(request, "shop/web")?;
    let leader = cluster.await_leader(VIP)?;
    let last = cluster.lan.nodes.iter().find(|node| node.name != leader.name).context("one node")?;

    proxy_arp(&cluster, leader, last)?;
    cluster.lan.unplug(&leader.name)?;
    let agent = cluster.agent(&last.name)?;
    wait::until("the reason why nobody takes over", PATIENCE, || {
        let (status, explanation) = agent.explain(last, "shop/web", &[])?;
        ensure!(status != 0, "{explanation}");
        ensure!(explanation.to_string().contains("something on the LAN answers for the address"), "{explanation}");
        Ok(())
    })?;
    wait::until("an answer of the last node", PATIENCE, || {
        let answer = cluster.ask(request, TIMEOUT)?;
        ensure!(answer.pod == format!("web-on-{}", last.name), "{answer}");
        Ok(())
    })
}

/// Lets the switch answer a node's ARP for the VIP with the MAC of another one, as a fabric does from its table of
/// stations.
fn proxy_arp(cluster: &Cluster, station: &Node, asker: &Node) -> Result<()> {
    let mac = station.mac.to_string();
    let commands: [(&str, &[&str]); 3] = [
        ("ip", &["neigh", "replace", &VIP.to_string(), "lladdr", &mac, "dev", SWITCH, "nud", "permanent"]),
        ("bridge", &["fdb", "replace", &mac, "dev", &station.name, "master", "static"]),
        ("ip", &["link", "set", &asker.name, "type", "bridge_slave", "proxy_arp", "on"]),
    ];
    for (program, arguments) in commands {
        let mut command = cluster.lan.switch().command(program)?;
        command.args(arguments);
        process::run(command)?;
    }
    Ok(())
}
