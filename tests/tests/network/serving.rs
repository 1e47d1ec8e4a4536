//! Tests that a packet reaches the right Service, wherever its pods are, and its reply comes back.

use anyhow::{Context as _, Result, ensure};
use vipmux_tests::{
    client::{self, Kind, Request},
    cluster::{PATIENCE, SILENCE, TIMEOUT},
    lan::Options,
    manifests::{Condition, Service, VIP},
    pod::{self, Listener},
};

use crate::services;

/// With 40 new connections, the chance that one of two equal backends gets none is below 10^-11.
const CONNECTIONS: usize = 40;

#[test]
fn each_port_reaches_its_own_service_which_sees_the_client() -> Result<()> {
    let Some(cluster) = services::served(Options::default())? else { return Ok(()) };
    assert_eq!(services::ask_all(&cluster, CONNECTIONS)?, services::expected().map(|expected| expected.pods));
    Ok(())
}

#[test]
fn generic_xdp_serves_as_well() -> Result<()> {
    let Some(mut cluster) = services::prepared(Options::default())? else { return Ok(()) };
    let options = vipmux_tests::agent::Options { xdp_mode: "generic", ..cluster.agent_options() };
    cluster.start_agents(&options)?;
    services::await_all(&cluster)?;
    for (node, agent) in cluster.lan.nodes.iter().zip(&cluster.agents) {
        let programs = agent.inspect_json(node, &["prog"])?.to_string();
        ensure!(programs.contains(r#""generic":true"#), "{programs}");
    }
    services::ask_all(&cluster, CONNECTIONS).map(drop)
}

#[test]
fn a_network_that_takes_one_mac_of_each_node_is_served_as_well() -> Result<()> {
    let Some(mut cluster) = services::prepared(Options::HOSTILE)? else { return Ok(()) };
    let options = vipmux_tests::agent::Options { handover_mac: "own", ..cluster.agent_options() };
    cluster.start_agents(&options)?;
    services::await_all(&cluster)?;
    services::ask_all(&cluster, CONNECTIONS)?;
    ensure!(cluster.counted("stats", "handed_over")? > 0, "no frame was handed over");
    assert_eq!(cluster.counted("stats", "from_peer")?, 0, "frames came from a hand-over MAC");
    Ok(())
}

#[test]
fn a_node_that_does_not_lead_serves_what_still_arrives() -> Result<()> {
    let Some(cluster) = services::served(Options::default())? else { return Ok(()) };
    let leader = cluster.await_leader(VIP)?.name.clone();
    let client = cluster.lan.client()?;
    for other in cluster.lan.nodes.iter().filter(|node| node.name != leader) {
        client.namespace().links(|links| links.add_neighbor("eth0", VIP, other.mac))?;
        let served = services::await_all(&cluster).and_then(|()| services::ask_all(&cluster, 1));
        served.with_context(|| format!("by way of {}", other.name))?;
    }
    Ok(())
}

#[test]
fn a_port_that_no_service_claims_is_not_left_to_the_node() -> Result<()> {
    let Some(cluster) = services::served(Options::default())? else { return Ok(()) };
    let leader = cluster.await_leader(VIP)?;
    leader.namespace().links(|links| {
        links.add_holder("kube-ipvs0")?;
        links.add_address("kube-ipvs0", VIP, 32)
    })?;
    let listeners = [Listener::new(Kind::Http, 81, "host/sshd"), Listener::new(Kind::UdpEcho, 80, "host/udp")];
    let _server = pod::start(leader.namespace(), "sshd", VIP, &listeners)?;
    for request in [Request::new(Kind::Http, VIP, 81), Request::new(Kind::UdpEcho, VIP, 80)] {
        assert!(cluster.ask(request, SILENCE).is_err(), "{request} was answered");
    }
    services::await_all(&cluster)
}

#[test]
fn a_vip_answers_echo_requests() -> Result<()> {
    let Some(cluster) = services::served(Options::default())? else { return Ok(()) };
    cluster.lan.client()?.namespace().run(|| {
        for length in [0, 56, 1_400] {
            client::ping(VIP, length, TIMEOUT).with_context(|| format!("{length} bytes"))?;
        }
        Ok(())
    })
}

#[test]
fn a_connection_to_a_pod_past_the_vip_is_left_alone() -> Result<()> {
    let Some(cluster) = services::served(Options::default())? else { return Ok(()) };
    services::connect_to_pod_and_vip(&cluster, cluster.pod("secure-1")?.address.into(), VIP.into())
}

#[test]
fn a_pod_in_its_nodes_network_is_a_backend_like_others() -> Result<()> {
    let Some(cluster) = services::served(Options::default())? else { return Ok(()) };
    let exporter = Service::sharing("ops/exporter", 9100, "TCP", 9100);
    services::serve_from_nodes(&cluster, exporter, VIP.into(), 2 * CONNECTIONS)
}

#[test]
fn a_service_without_ready_backends_disturbs_nobody_and_comes_back() -> Result<()> {
    let Some(cluster) = services::served(Options::default())? else { return Ok(()) };
    let mut web = services::web(&cluster)?;
    web.endpoints.iter_mut().for_each(|endpoint| endpoint.condition = Condition::NotReady);
    cluster.manifests.write_service(&web)?;
    let request = Request::new(Kind::Http, VIP, 80);
    vipmux_tests::wait::until("shop/web without an answer", PATIENCE, || {
        ensure!(cluster.ask(request, SILENCE).is_err(), "it is answered");
        Ok(())
    })?;
    for expected in services::expected().into_iter().filter(|expected| expected.name != "shop/web") {
        assert_eq!(cluster.ask(expected.request, TIMEOUT)?.service, expected.name);
    }
    cluster.manifests.write_service(&services::web(&cluster)?)?;
    cluster.await_service(request, "shop/web").map(drop)
}
