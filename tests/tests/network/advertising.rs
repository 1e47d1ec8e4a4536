//! Tests that only the nodes and interfaces which L2Advertisements and VipPolicies allow answer for
//! an address.

use std::net::Ipv4Addr;

use anyhow::{Result, ensure};
use pnet::util::MacAddr;
use serde_json::{Value, json};
use vipmux_tests::{
    agent::{self, Plan},
    client::{Kind, Request},
    cluster::{Cluster, PATIENCE},
    lan::{Lan, Options},
    manifests::{Manifests, Service},
    pod::Listener,
    wait,
};

use crate::leading::answers;

/// An address in MetalLB's pool `front`.
const FRONT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 200);
/// An address in vipmux's pool `back`.
const BACK: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 210);
/// Connections to each Service, so that both of its pods get some.
const CONNECTIONS: usize = 20;

fn front(spec: &Value) -> Value {
    advertisement("metallb.io/v1beta1", "L2Advertisement", "front", spec)
}

fn back(spec: &Value) -> Value {
    advertisement("vipmux.io/v1alpha1", "VipPolicy", "back", spec)
}

fn advertisement(version: &str, kind: &str, name: &str, spec: &Value) -> Value {
    json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec})
}

/// Returns node selectors for only this node.
fn on(node: &str) -> Value {
    json!([{"matchLabels": {"kubernetes.io/hostname": node}}])
}

/// Makes two Services, `shop/front` and `shop/back`, each with pods on node-2 and node-3, on an
/// address of each pool.
fn prepared(lan: Lan) -> Result<Cluster> {
    let manifests = Manifests::for_lan(&lan)?;
    let pool = |version, kind, name, address: Ipv4Addr| {
        advertisement(version, kind, name, &json!({"addresses": [format!("{address}/32")]}))
    };
    let pools = [
        pool("metallb.io/v1beta1", "IPAddressPool", "front", FRONT),
        pool("vipmux.io/v1alpha1", "VipPool", "back", BACK),
    ];
    manifests.write("pool.yaml", &pools)?;
    let mut cluster = Cluster::new(lan, manifests)?;
    for (name, host, address) in [("shop/front", 10, FRONT), ("shop/back", 11, BACK)] {
        let pods = ["node-2", "node-3"].map(|node| (node, format!("{}-{node}", &name[5..])));
        for (node, pod) in &pods {
            cluster.add_pod(node, pod, host, &[Listener::new(Kind::Http, 8080, name)])?;
        }
        let endpoints = [cluster.endpoint(&pods[0].1)?, cluster.endpoint(&pods[1].1)?];
        let mut service = Service::sharing(name, 80, "TCP", 8080).with(endpoints);
        (service.address, service.sharing_key) = (Some(address), None);
        cluster.manifests.write_service(&service)?;
    }
    Ok(cluster)
}

/// Checks that both Services answer, from any pods.
fn await_both(cluster: &Cluster) -> Result<()> {
    for (name, address) in [("shop/front", FRONT), ("shop/back", BACK)] {
        let request = Request::new(Kind::Http, address, 80);
        cluster.await_service(request, name)?;
        for _ in 0..CONNECTIONS {
            assert_eq!(cluster.ask(request, PATIENCE)?.service, name);
        }
    }
    Ok(())
}

/// Waits until exactly these nodes answer for the address, several times in a row.
fn await_answers(cluster: &Cluster, address: Ipv4Addr, expected: &[MacAddr]) -> Result<()> {
    wait::until(&format!("{expected:?} alone for {address}"), PATIENCE, || {
        for _ in 0..4 {
            let found = answers(cluster, address)?;
            ensure!(found == expected, "{found:?}\n{}", cluster.last_outputs());
        }
        Ok(())
    })
}

#[test]
fn each_pool_is_answered_for_by_the_nodes_that_may_and_by_no_other() -> Result<()> {
    let Some(lan) = Lan::for_test(Options::default())? else { return Ok(()) };
    let mut cluster = prepared(lan)?;
    let write = |cluster: &Cluster, documents: &[Value]| cluster.manifests.write("advertisements.yaml", documents);
    let only = |node: &str| [front(&json!({"ipAddressPools": ["front"], "nodeSelectors": on(node)}))];
    write(&cluster, &[only("node-1"), [back(&json!({"pools": ["back"], "nodeSelectors": on("node-2")}))]].concat())?;
    cluster.start_agents(&cluster.agent_options())?;
    await_both(&cluster)?;
    let mac = |node: &str| cluster.lan.node(node).map(|node| node.mac);
    await_answers(&cluster, FRONT, &[mac("node-1")?])?;
    await_answers(&cluster, BACK, &[mac("node-2")?])?;

    write(&cluster, &[only("node-3"), [back(&json!({"pools": ["back"], "nodeSelectors": on("node-1")}))]].concat())?;
    await_answers(&cluster, FRONT, &[mac("node-3")?])?;
    await_answers(&cluster, BACK, &[mac("node-1")?])?;
    await_both(&cluster)?;

    // Now nothing advertises the other pool.
    write(&cluster, &only("node-3"))?;
    await_answers(&cluster, BACK, &[])?;
    await_answers(&cluster, FRONT, &[mac("node-3")?])?;
    let plan = Plan::of(cluster.manifests.path())?;
    assert!(plan.leader(BACK).is_err());
    let reported = plan.service("shop/back")?["warnings"].to_string();
    assert!(
        reported.contains("192.0.2.210 is announced by nobody: no L2Advertisement or VipPolicy covers pool back"),
        "{reported}"
    );

    // Now nothing restricts the advertisements.
    write(&cluster, &[])?;
    await_both(&cluster)
}

#[test]
fn each_pool_is_answered_for_on_the_interfaces_that_are_named_and_served_by_pods_everywhere() -> Result<()> {
    let Some(mut lan) = Lan::for_test(Options::default())? else { return Ok(()) };
    let cards = lan.add_cards()?;
    // As with kube-proxy's ipvs mode, the kernel would answer on every interface.
    for node in &lan.nodes {
        node.namespace().sysctl("net/ipv4/conf/all/arp_ignore", "0")?;
        node.namespace().links(|links| {
            links.add_holder("kube-ipvs0")?;
            links.add_address("kube-ipvs0", FRONT, 32)?;
            links.add_address("kube-ipvs0", BACK, 32)
        })?;
    }
    let mut cluster = prepared(lan)?;
    let advertisements = [
        front(&json!({"ipAddressPools": ["front"], "interfaces": ["eth0"], "nodeSelectors": on("node-1")})),
        back(&json!({"pools": ["back"], "interfaces": ["eth1"]})),
    ];
    cluster.manifests.write("advertisements.yaml", &advertisements)?;
    let options = agent::Options { interface: "eth0,eth1".to_owned(), ..cluster.agent_options() };
    cluster.start_agents(&options)?;
    await_both(&cluster)?;
    await_answers(&cluster, FRONT, &[cluster.lan.node("node-1")?.mac])?;
    let first = wait::until("an answer", PATIENCE, || {
        let first = answers(&cluster, BACK)?;
        ensure!(cards.iter().any(|card| first == [*card]), "{first:?} answered, and not one of {cards:?}");
        Ok(first)
    })?;
    await_answers(&cluster, BACK, &first)
}

#[test]
fn the_node_with_the_highest_score_answers_as_long_as_it_can() -> Result<()> {
    let Some(lan) = Lan::for_test(Options::default())? else { return Ok(()) };
    let mut cluster = prepared(lan)?;
    let prefer = |cluster: &Cluster, node: &str| {
        let by = |weight: u32, node: &str| json!({"weight": weight, "preference": on(node)[0]});
        let preferred = [by(10, node), by(100, node), by(50, "node-2")];
        cluster.manifests.write("advertisements.yaml", &[front(&json!({"preferredNodeSelectors": preferred}))])
    };
    prefer(&cluster, "node-3")?;
    let options = agent::Options { hold_down: "1s", ..cluster.agent_options() };
    cluster.start_agents(&options)?;
    let mac = |cluster: &Cluster, node: &str| cluster.lan.node(node).map(|node| node.mac);
    for address in [FRONT, BACK] {
        await_answers(&cluster, address, &[mac(&cluster, "node-3")?])?;
    }
    assert_eq!(cluster.planned_leader(FRONT)?.name, "node-3");

    cluster.agent_mut("node-3")?.stop()?;
    for address in [FRONT, BACK] {
        await_answers(&cluster, address, &[mac(&cluster, "node-2")?])?;
    }
    cluster.restart_agent("node-3")?;
    for address in [FRONT, BACK] {
        await_answers(&cluster, address, &[mac(&cluster, "node-3")?])?;
    }
    prefer(&cluster, "node-1")?;
    for address in [FRONT, BACK] {
        await_answers(&cluster, address, &[mac(&cluster, "node-1")?])?;
    }
    await_both(&cluster)
}
