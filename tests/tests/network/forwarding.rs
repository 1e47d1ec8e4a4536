//! Tests Services whose packets are left to the node's own stack.

use std::{io, net::IpAddr};

use anyhow::{Context as _, Result, ensure};
use vipmux_tests::{
    agent,
    cluster::{Cluster, PATIENCE, TIMEOUT},
    lan::{Node, Options},
    manifests::{VIP, VIP_V6},
    wait,
};

use crate::policies::{VIPS, WEB, address_for, bystanders, check_bystanders, prepared, started, to_web, web};

/// Rules like kube-proxy's on every node for packets to `shop/web`: to one of its pods, with the
/// node's address as the client's.
fn proxy_web(cluster: &Cluster, pod: &str) -> Result<()> {
    let pod = cluster.pod(pod)?;
    let (v4, v6, (port, target)) = (pod.address, pod.address_v6, WEB);
    let rules = format!(
        "table inet services {{
            chain prerouting {{
                type nat hook prerouting priority -100;
                ip daddr {VIP} tcp dport {port} dnat ip to {v4}:{target}
                ip6 daddr {VIP_V6} tcp dport {port} dnat ip6 to [{v6}]:{target}
            }}
            chain postrouting {{
                type nat hook postrouting priority 100;
                ct status dnat masquerade
            }}
        }}"
    );
    cluster.lan.nodes.iter().try_for_each(|node| node.nft(&rules).map(drop))
}

/// Returns a node's address of the same family.
fn node_address(node: &Node, vip: IpAddr) -> IpAddr {
    if vip.is_ipv4() { node.address.into() } else { node.address_v6.into() }
}

/// Waits until `shop/web` sees this client at an address ten times in a row, then checks ten more.
/// A node that learns of a change later than the leader leaves handed-over packets to its own stack
/// until then.
fn await_seen(cluster: &Cluster, vip: IpAddr, seen: IpAddr) -> Result<()> {
    let look = || {
        let answer = cluster.ask(to_web(vip), TIMEOUT)?;
        ensure!(answer.service == "shop/web" && answer.client.ip() == seen, "{answer}");
        Ok(())
    };
    let often = || (0..10).try_for_each(|_| look());
    wait::until(&format!("{seen} seen through {vip}"), PATIENCE, often)?;
    often()
}

/// Checks that at both addresses, with the client itself.
fn await_client_seen(cluster: &Cluster) -> Result<()> {
    let client = cluster.lan.client()?;
    VIPS.into_iter().try_for_each(|vip| await_seen(cluster, vip, address_for(client, vip)))
}

/// Checks that at both addresses, with the leading node.
fn await_leader_seen(cluster: &Cluster) -> Result<()> {
    VIPS.into_iter().try_for_each(|vip| await_seen(cluster, vip, node_address(cluster.await_leader(vip)?, vip)))
}

#[test]
fn a_service_that_is_left_to_the_kernel_is_served_by_the_leaders_rules_and_comes_back() -> Result<()> {
    let Some(cluster) = prepared(Options::HOSTILE, &["node-1", "node-2"])? else { return Ok(()) };
    let service = web(&cluster, &["web-1", "web-2"])?;
    let cluster = started(cluster, std::slice::from_ref(&service))?;
    proxy_web(&cluster, "web-2")?;
    await_client_seen(&cluster)?;
    let bystanders = bystanders(&cluster)?;
    for _ in 0..2 {
        cluster.manifests.write_service(&service.clone().annotated("vipmux.io/forwarding", "kernel"))?;
        await_leader_seen(&cluster)?;
        cluster.manifests.write_service(&service)?;
        await_client_seen(&cluster)?;
    }
    check_bystanders(bystanders)
}

/// The pod is on a node, but its endpoint names a node that is no Node.
#[test]
fn endpoints_on_no_known_node_are_refused_or_left_to_the_kernel() -> Result<()> {
    let Some(cluster) = prepared(Options::HOSTILE, &["node-2"])? else { return Ok(()) };
    let there = web(&cluster, &["web-1"])?;
    let mut elsewhere = there.clone();
    elsewhere.endpoints.iter_mut().for_each(|endpoint| "node-9".clone_into(&mut endpoint.node));
    let mut cluster = started(cluster, std::slice::from_ref(&elsewhere))?;
    proxy_web(&cluster, "web-1")?;
    for vip in VIPS {
        let error = cluster.ask(to_web(vip), TIMEOUT).err().context("it was answered")?;
        let cause = error.root_cause().downcast_ref::<io::Error>().map(io::Error::kind);
        assert_eq!(cause, Some(io::ErrorKind::ConnectionRefused), "{vip}: {error:#}");
    }
    let bystanders = bystanders(&cluster)?;
    let options = agent::Options { unreachable_endpoints: "kernel", ..cluster.agent_options() };
    for (node, agent) in cluster.lan.nodes.iter().zip(&mut cluster.agents) {
        agent.restart_with(node, options.clone())?;
        agent.wait_ready(PATIENCE)?;
    }
    await_leader_seen(&cluster)?;
    cluster.manifests.write_service(&there)?;
    await_client_seen(&cluster)?;
    cluster.manifests.write_service(&elsewhere)?;
    await_leader_seen(&cluster)?;
    check_bystanders(bystanders)
}
