//! Tests the real kube-proxy in the nodes' namespaces, without vipmux.

use std::net::IpAddr;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use vipmux_tests::{
    api_server::ApiServer,
    client::{Kind, Request},
    cluster::{PATIENCE, TIMEOUT},
    kube_proxy::{KubeProxy, Mode},
    lan::{Lan, Options},
    manifests::{Endpoint, Service},
    netns::Namespace,
    pod::Listener,
    requirement, wait,
};

const POD_PORT: u16 = 8080;

#[test]
fn kube_proxy_with_iptables_leads_cluster_addresses_and_node_ports_to_pods() -> Result<()> {
    services_reach_their_pods(Mode::Iptables)
}

#[test]
fn kube_proxy_with_nftables_leads_cluster_addresses_and_node_ports_to_pods() -> Result<()> {
    services_reach_their_pods(Mode::Nftables)
}

fn services_reach_their_pods(mode: Mode) -> Result<()> {
    if !requirement::kube_proxy(mode)? {
        return Ok(());
    }
    let Some(lan) = Lan::for_test(Options { nodes: 2, ..Options::default() })? else { return Ok(()) };
    let Some(api) = ApiServer::on(&lan)? else { return Ok(()) };
    let mut pod = lan.nodes[0].add_pod("web-1", 10)?;
    pod.serve(&[Listener::new(Kind::Http, POD_PORT, "shop/web")])?;
    let caller = lan.nodes[1].add_pod("caller", 11)?;

    api.add_nodes(&lan)?;
    api.add_namespace("shop")?;
    let documents = Service::sharing("shop/web", 80, "TCP", POD_PORT)
        .dual_stack()
        .with([Endpoint::new(pod.address, &pod.node), Endpoint::new(pod.address_v6, &pod.node)])
        .documents();
    let service = api.apply_all(&documents)?.swap_remove(0);
    let proxies = lan.nodes.iter().map(|node| KubeProxy::start(node, &api, mode)).collect::<Result<Vec<_>>>()?;

    for address in cluster_addresses(&service)? {
        for namespace in [lan.nodes[1].namespace(), caller.namespace()] {
            assert_eq!(ask(namespace, address, 80, mode)?, "web-1", "{address} in {}", namespace.name());
        }
    }
    let port = service["spec"]["ports"][0]["nodePort"].as_u64().context("no node port")?;
    let client = lan.client()?.namespace();
    for address in [lan.nodes[1].address.into(), lan.nodes[1].address_v6.into()] {
        assert_eq!(ask(client, address, u16::try_from(port)?, mode)?, "web-1", "node port at {address}");
    }

    // Without endpoints it refuses connections. Only kube-proxy has the cluster address, so nothing
    // else could.
    let gone: Vec<Value> = documents[1..].to_vec();
    api.delete_all(&gone)?;
    let address = cluster_addresses(&service)?[0];
    wait::until("kube-proxy to refuse a Service without endpoints", PATIENCE, || {
        let answer =
            lan.nodes[1].namespace().run(|| Ok(Request::new(Kind::Http, address, 80).send(TIMEOUT).is_err()))?;
        anyhow::ensure!(answer, "{address} still answers");
        Ok(())
    })?;
    drop(proxies);
    Ok(())
}

/// Returns the pod that answers, once the EndpointSlice has come to the node.
fn ask(namespace: &Namespace, address: IpAddr, port: u16, mode: Mode) -> Result<String> {
    let request = Request::new(Kind::Http, address, port);
    let answer = wait::until(&format!("kube-proxy with {mode} to lead {request} to a pod"), PATIENCE, || {
        namespace.run(|| request.send(TIMEOUT))
    })?;
    assert_eq!(answer.service, "shop/web");
    Ok(answer.pod)
}

fn cluster_addresses(service: &Value) -> Result<Vec<IpAddr>> {
    let addresses = service["spec"]["clusterIPs"].as_array().context("no cluster addresses")?;
    assert_eq!(addresses.len(), 2, "{}", json!(addresses));
    addresses.iter().map(|address| Ok(address.as_str().unwrap_or_default().parse()?)).collect()
}
