//! Scenarios of MetalLB's own layer 2 tests, written anew (docs/conformance.md has the list).

use std::{net::Ipv4Addr, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use vipmux_tests::{
    allocator::{self, Allocator},
    api_server::ApiServer,
    cluster::{Cluster, PATIENCE},
    lan::{Lan, Options},
    manifests::{Service, VIP},
    wait,
};

/// The time in which the agents see a change of a Node.
const SETTLED: Duration = Duration::from_secs(2);
/// `shop` may use all three pools, the first one first.
const POOLS: &str = "
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: { namespace: metallb-system, name: first }
spec: { addresses: [192.0.2.200/32], serviceAllocation: { priority: 10, namespaces: [shop] } }
---
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: { namespace: metallb-system, name: second }
spec: { addresses: [192.0.2.210-192.0.2.210], serviceAllocation: { priority: 20, namespaces: [shop] } }
---
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: { namespace: metallb-system, name: named }
spec: { addresses: [192.0.2.220-192.0.2.221], autoAssign: false }
";

fn service(name: &str, annotations: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "namespace": "shop", "name": name, "annotations": annotations },
        "spec": { "type": "LoadBalancer", "ports": [{ "port": 80 }] },
    })
}

/// Waits until a Service has exactly these addresses.
fn await_addresses(api: &ApiServer, name: &str, expected: &[&str]) -> Result<()> {
    wait::until(&format!("{name} has {expected:?}"), PATIENCE, || {
        let service = api.get(&service(name, &Value::Null))?.context("no Service")?;
        let ingress = service["status"]["loadBalancer"]["ingress"].as_array();
        let found: Vec<_> = ingress.into_iter().flatten().filter_map(|entry| entry["ip"].as_str()).collect();
        ensure!(found == expected, "it has {found:?}: {}", service["status"]);
        Ok(())
    })
}

#[test]
fn pools_give_addresses_by_priority_and_name_and_a_free_one_goes_to_who_waits() -> Result<()> {
    let Some(api) = ApiServer::alone()? else { return Ok(()) };
    let account = allocator::prepare(&api)?;
    api.add_metallb_kinds()?;
    api.add_namespace("shop")?;
    api.add_namespace("metallb-system")?;
    api.apply(POOLS)?;
    let _allocator = Allocator::start(&api, &account, "a", &[])?;
    for (name, address) in [("a", "192.0.2.200"), ("b", "192.0.2.210")] {
        api.apply_all(&[service(name, &json!({}))])?;
        await_addresses(&api, name, &[address])?;
    }
    let named = json!({ "metallb.io/address-pool": "named" });
    api.apply_all(&[service("c", &named)])?;
    await_addresses(&api, "c", &["192.0.2.220"])?;

    // Both automatic pools are full. A Service of another class is not vipmux's.
    let mut of_another_class = service("foreign", &named);
    of_another_class["spec"]["loadBalancerClass"] = json!("example.com/other");
    api.apply_all(&[of_another_class])?;
    api.apply_all(&[service("d", &json!({}))])?;
    wait::until("a condition that says why d waits", PATIENCE, || {
        let service = api.get(&service("d", &json!({})))?.context("no Service")?;
        let conditions = service["status"]["conditions"].as_array().context("no conditions")?;
        let reasons: Vec<_> = conditions.iter().filter_map(|condition| condition["reason"].as_str()).collect();
        ensure!(reasons.contains(&"PoolExhausted"), "{reasons:?}");
        Ok(())
    })?;
    await_addresses(&api, "d", &[])?;
    api.kubectl(&["--namespace", "shop", "patch", "service", "a", "--patch", r#"{"spec": {"type": "ClusterIP"}}"#])?;
    await_addresses(&api, "d", &["192.0.2.200"])?;
    api.apply_all(&[service("e", &json!({}))])?;
    api.delete_all(&[service("b", &json!({}))])?;
    await_addresses(&api, "e", &["192.0.2.210"])?;
    await_addresses(&api, "foreign", &[])
}

#[test]
fn an_address_leaves_a_node_whose_network_is_unavailable_or_that_is_excluded() -> Result<()> {
    let Some(lan) = Lan::for_test(Options { nodes: 3, ..Options::default() })? else { return Ok(()) };
    let Some(mut cluster) = Cluster::in_kubernetes(lan)? else { return Ok(()) };
    let options = cluster.agent_options();
    cluster.start_agents(&options)?;
    cluster.manifests.write_service(&Service::sharing("shop/web", 80, "TCP", 8080))?;
    cluster.api()?.give("shop/web", &[VIP.into()])?;

    let first = cluster.await_leader(VIP)?.name.clone();
    let unavailable = |status: &str| {
        let condition =
            json!({ "type": "NetworkUnavailable", "status": status, "reason": "Test", "message": "a test" });
        let patch = json!({ "status": { "conditions": [condition] } }).to_string();
        cluster.api()?.kubectl(&["patch", "node", &first, "--subresource", "status", "--patch", &patch])
    };
    unavailable("True")?;
    let second = await_leader_but(&cluster, VIP, &[&first])?;
    unavailable("False")?;
    thread::sleep(SETTLED);
    ensure!(cluster.await_leader(VIP)?.name == second, "the address moved back");
    cluster.api()?.kubectl(&["label", "node", &second, "node.kubernetes.io/exclude-from-external-load-balancers="])?;
    await_leader_but(&cluster, VIP, &[&second]).map(drop)
}

/// Waits until a node that is none of these answers for an address. Returns it.
fn await_leader_but(cluster: &Cluster, vip: Ipv4Addr, others: &[&str]) -> Result<String> {
    wait::until(&format!("a leader that is not among {others:?}"), PATIENCE, || {
        let leader = &cluster.await_leader(vip)?.name;
        ensure!(!others.contains(&leader.as_str()), "{leader} answers");
        Ok(leader.clone())
    })
}
