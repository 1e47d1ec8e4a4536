//! Tests agents with an API server, from objects to packets, without vipmux's allocator.

use std::{collections::BTreeSet, ffi::OsStr, net::IpAddr, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use vipmux_cluster::store::lease_name;
use vipmux_model::Vip;
use vipmux_tests::{
    agent,
    api_server::{ADMIN, ApiServer},
    arp,
    cleanup::Folder,
    client::{Kind, Request},
    cluster::{Cluster, PATIENCE},
    lan::{Lan, Options},
    manifests::{Manifests, Service, VIP, VIP_V6},
    pod::Listener,
    process::Process,
    wait,
};

const PORT: u16 = 80;
const POD_PORT: u16 = 8080;
const PAUSE: Duration = Duration::from_secs(1);

/// A cluster of two nodes with a pod and an agent on each, and an API server. Only the test assigns
/// addresses.
fn cluster() -> Result<Option<Cluster>> {
    let options = Options { nodes: 2, kubernetes_rules: true, ..Options::default() };
    let Some(lan) = Lan::for_test(options)? else { return Ok(None) };
    let Some(mut cluster) = Cluster::in_kubernetes(lan)? else { return Ok(None) };
    for node in ["node-1", "node-2"] {
        let listener = Listener::new(Kind::Http, POD_PORT, "shop/web");
        cluster.add_pod(node, &format!("on-{node}"), 10, &[listener])?;
    }
    Ok(Some(cluster))
}

fn web(cluster: &Cluster) -> Result<Service> {
    let endpoints = ["on-node-1", "on-node-2"];
    let v4 = endpoints.map(|pod| cluster.endpoint(pod)).into_iter().collect::<Result<Vec<_>>>()?;
    let v6 = endpoints.map(|pod| cluster.endpoint_v6(pod)).into_iter().collect::<Result<Vec<_>>>()?;
    Ok(Service::sharing("shop/web", PORT, "TCP", POD_PORT).dual_stack().with(v4.into_iter().chain(v6)))
}

#[test]
fn addresses_of_another_controller_are_served_with_the_clients_address() -> Result<()> {
    let Some(mut cluster) = cluster()? else { return Ok(()) };
    let options = cluster.agent_options();
    cluster.start_agents(&options)?;
    cluster.manifests.write_service(&web(&cluster)?)?;
    let addresses: [IpAddr; 2] = [VIP.into(), VIP_V6.into()];
    cluster.api()?.give("shop/web", &addresses)?;
    let client = cluster.lan.client()?;
    for (address, seen) in addresses.into_iter().zip([IpAddr::from(client.address), client.address_v6.into()]) {
        cluster.await_leader(address)?;
        let answer = cluster.await_service(Request::new(Kind::Http, address, PORT), "shop/web")?;
        assert_eq!(answer.client.ip(), seen);
    }
    // Each VIP has a Lease, held by the node that answers.
    for address in addresses {
        wait::until("the Lease of who answers", PATIENCE, || {
            let (leader, holder) = (&cluster.await_leader(address)?.name, holder(&cluster, address)?);
            ensure!(holder == *leader, "{holder}, and {leader} answers");
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn a_removed_address_is_no_longer_answered_for() -> Result<()> {
    let Some(mut cluster) = cluster()? else { return Ok(()) };
    let options = cluster.agent_options();
    cluster.start_agents(&options)?;
    let service = web(&cluster)?;
    cluster.manifests.write_service(&service)?;
    cluster.api()?.give("shop/web", &[VIP.into()])?;
    cluster.await_leader(VIP)?;
    cluster.manifests.remove_service(&service)?;
    wait::until("the agents to let go of the address", PATIENCE, || {
        for (node, agent) in cluster.lan.nodes.iter().zip(&cluster.agents) {
            let vips = agent.inspect_json(node, &["vips"])?;
            ensure!(vips["vips"].as_array().is_some_and(Vec::is_empty), "{vips}");
        }
        Ok(())
    })
}

/// Users look at their Service, not at a node's log.
#[test]
fn owners_of_services_get_an_event_about_a_foreign_speaker() -> Result<()> {
    let Some(mut cluster) = cluster()? else { return Ok(()) };
    let options = cluster.agent_options();
    cluster.start_agents(&options)?;
    cluster.manifests.write_service(&web(&cluster)?)?;
    cluster.api()?.give("shop/web", &[VIP.into()])?;
    let foreign = cluster.lan.client()?;
    let mut leaders = BTreeSet::new();
    let event = wait::until("an Event about the foreign speaker", PATIENCE, || {
        // An Event that the API server rejects is not repeated. Every leader reports the foreign
        // speakers that it hears.
        leaders.insert(cluster.await_leader(VIP)?.name.clone());
        arp::announce(foreign.namespace(), VIP)?;
        thread::sleep(PAUSE);
        let events = cluster.api()?.kubectl(&["get", "events", "--namespace", "shop", "--output", "json"])?;
        let events: Value = serde_json::from_str(&events)?;
        let mut events = events["items"].as_array().into_iter().flatten();
        let found = events.find(|event| event["reason"] == "AddressInUse").cloned();
        found.with_context(|| cluster.last_outputs())
    })?;
    assert_eq!(event["involvedObject"]["name"], "web");
    assert_eq!(event["type"], "Warning");
    let teller = event["reportingInstance"].as_str().unwrap_or_default();
    assert!(leaders.contains(teller), "{teller} is none of {leaders:?}");
    let message = event["message"].as_str().unwrap_or_default();
    assert!(message.contains(&format!("the address {VIP} is also used by {}", foreign.mac)), "{message}");
    // The Event is found by the Service's uid.
    let described = cluster.api()?.kubectl(&["describe", "service", "web", "--namespace", "shop"])?;
    assert!(described.contains("AddressInUse"), "{described}");
    Ok(())
}

/// If another controller assigns addresses, the kinds of vipmux and MetalLB are not needed.
#[test]
fn agents_need_no_custom_kind() -> Result<()> {
    let Some(lan) = Lan::for_test(Options { nodes: 1, ..Options::default() })? else { return Ok(()) };
    let Some(api) = ApiServer::on(&lan)? else { return Ok(()) };
    let manifests = Manifests::applied_to_bare(api)?;
    manifests.write_nodes(&lan, &[])?;
    let mut cluster = Cluster::new(lan, manifests)?;
    cluster.add_pod("node-1", "on-node-1", 10, &[Listener::new(Kind::Http, POD_PORT, "shop/web")])?;
    let options = cluster.agent_options();
    cluster.start_agents(&options)?;
    let service = Service::sharing("shop/web", PORT, "TCP", POD_PORT).with([cluster.endpoint("on-node-1")?]);
    cluster.manifests.write_service(&service)?;
    cluster.api()?.give("shop/web", &[VIP.into()])?;
    cluster.await_service(Request::new(Kind::Http, VIP, PORT), "shop/web")?;
    Ok(())
}

/// The API server is killed, and objects change while it comes back. Services keep working in
/// between.
#[test]
fn an_outage_of_the_api_server_changes_nothing_and_what_changed_meanwhile_is_seen_after_it() -> Result<()> {
    let Some(mut cluster) = cluster()? else { return Ok(()) };
    let options = cluster.agent_options();
    cluster.start_agents(&options)?;
    cluster.manifests.write_service(&web(&cluster)?)?;
    cluster.api()?.give("shop/web", &[VIP.into()])?;
    let request = Request::new(Kind::Http, VIP, PORT);
    cluster.await_service(request, "shop/web")?;
    cluster.await_ready(PORT, 2)?;

    let leader = cluster.await_leader(VIP)?.name.clone();
    cluster.manifests.api_mut().context("no API server")?.stop()?;
    for _ in 0..20 {
        let answer = cluster.ask(request, PATIENCE)?;
        ensure!(answer.service == "shop/web", "{answer}");
    }
    assert_eq!(cluster.await_leader(VIP)?.name, leader);

    cluster.manifests.api_mut().context("no API server")?.start()?;
    let one = Service::sharing("shop/web", PORT, "TCP", POD_PORT).dual_stack();
    cluster.manifests.write_service(&one.with([cluster.endpoint("on-node-1")?]))?;
    cluster.await_ready(PORT, 1)
}

#[test]
fn an_agent_that_lacks_an_option_names_it() -> Result<()> {
    let Some(lan) = Lan::for_test(Options { nodes: 1, ..Options::default() })? else { return Ok(()) };
    let Some(api) = ApiServer::on(&lan)? else { return Ok(()) };
    let (state, pins) = (Folder::temporary("state")?, Folder::of_pins("lacking"));
    let say = |arguments: &[&OsStr]| {
        let mut command = lan.nodes[0].namespace().command(agent::binary()?)?;
        command.args(["agent", "--node-name", "node-1", "--state-dir"]).arg(state.path());
        command.arg("--pin-path").arg(pins.path()).arg("--socket").arg(state.path().join("agent.sock"));
        command.args(arguments).env_remove("KUBECONFIG");
        let mut process = Process::spawn("the agent", command)?;
        let status = process.wait(PATIENCE)?;
        ensure!(status.code() == Some(1), "{status}: {}", process.output());
        Ok(process.output())
    };
    let kubeconfig = api.kubeconfig(ADMIN)?;
    for (arguments, expected) in [
        (
            vec![],
            "not in a Pod of a cluster: name a kubeconfig (--kubeconfig), or a directory of manifests (--manifests)",
        ),
        (vec!["--kubeconfig".as_ref(), "/nowhere".as_ref()], "cannot use the kubeconfig \"/nowhere\""),
        (vec!["--kubeconfig".as_ref(), kubeconfig.as_os_str()], "in a cluster all agents need the same key"),
    ] {
        let said = say(&arguments)?;
        ensure!(said.contains(expected), "{expected}:\n{said}");
    }
    Ok(())
}

/// Returns the node in a VIP's Lease.
pub(crate) fn holder(cluster: &Cluster, address: IpAddr) -> Result<String> {
    let named = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": { "namespace": "vipmux-system", "name": lease_name(Vip::new(address)) },
    });
    let lease = cluster.api()?.get(&named)?.with_context(|| format!("{address} has no Lease"))?;
    lease["spec"]["holderIdentity"].as_str().map(str::to_owned).with_context(|| lease.to_string())
}
