//! Tests that vipmux serves clusters with other networks of Pods, and of one address family.

use anyhow::{Result, ensure};
use vipmux_tests::{
    api_server::SYSTEM,
    ip_families::IpFamilies,
    real_cluster::{Cni, PATIENCE, Plan, RealCluster},
    requirement, wait,
};

const POOL: &str = "
apiVersion: v1
kind: Namespace
metadata: { name: shop }
---
apiVersion: vipmux.io/v1alpha1
kind: VipPool
metadata: { name: lan }
spec: { addresses: [192.0.2.200-192.0.2.219, 2001:db8::200/120] }
";
/// Requests to each address from each client. Each of the three Pods gets some of them.
const REQUESTS: usize = 40;

/// Checks that Pods on all nodes answer clients on the LAN and behind a router at all addresses of a
/// Service, and see the clients' addresses.
fn a_service_answers(cni: Cni, families: IpFamilies) -> Result<()> {
    if !requirement::api_server()? {
        return Ok(());
    }
    let Some(vipmux) = requirement::image()? else { return Ok(()) };
    let plan = Plan { nodes: 2, cni, families, vipmux: Some(vipmux), ..Plan::default() };
    let cluster = RealCluster::start(&plan, &mut |step| println!("==> {step}"))?;
    cluster.as_admin("kubectl apply -k deploy/kustomize")?;
    cluster.await_rollout(SYSTEM, "daemonset/vipmux-agent")?;
    cluster.await_rollout(SYSTEM, "deployment/vipmux-allocator")?;
    cluster.api.kubectl_apply(POOL, &[])?;
    cluster.add_echo()?;
    let both = "{\"spec\": {\"ipFamilyPolicy\": \"PreferDualStack\"}}";
    cluster.as_admin(&format!("kubectl --namespace shop patch service echo --patch '{both}'"))?;
    let expected = families.of("4", "6").len();
    let addresses = wait::until("the Service's addresses", PATIENCE, || {
        let path = "{.status.loadBalancer.ingress[*].ip}";
        let shown =
            cluster.as_admin(&format!("kubectl --namespace shop get service echo --output 'jsonpath={path}'"))?;
        let addresses: Vec<_> = shown.split_whitespace().map(str::to_owned).collect();
        ensure!(addresses.len() == expected, "{shown:?}");
        Ok(addresses)
    })?;
    let nodes = "kubectl --namespace shop get pods --selector app=echo --output 'jsonpath={.items[*].spec.nodeName}'";
    let nodes = cluster.as_admin(nodes)?;
    ensure!(["node-1", "node-2"].iter().all(|node| nodes.contains(node)), "the Pods are on {nodes} alone");
    let client = cluster.lan.client()?;
    let clients = [
        (client.namespace(), (client.address, client.address_v6)),
        (cluster.router.client(), (cluster.router.address, cluster.router.address_v6)),
    ];
    for address in &addresses {
        for (namespace, (v4, v6)) in clients {
            let six = address.contains(':');
            let (host, source) =
                if six { (format!("[{address}]"), v6.to_string()) } else { (address.clone(), v4.to_string()) };
            let ask = |page: &str| {
                RealCluster::on(namespace, &format!("curl --silent --fail --max-time 1 'http://{host}:9000/{page}'"))
            };
            wait::until(&format!("{address} asked from {source}"), PATIENCE, || ask("clientip"))?;
            let mut pods = std::collections::BTreeSet::new();
            for _ in 0..REQUESTS {
                let seen = ask("clientip")?;
                ensure!(seen.contains(&source), "{address}: a Pod sees {seen}, not {source}");
                pods.insert(ask("hostname")?);
            }
            ensure!(pods.len() == 3, "{address}: only {pods:?} answered {source}");
        }
    }
    Ok(())
}

#[test]
fn pods_behind_flannels_tunnel_answer_with_both_families() -> Result<()> {
    a_service_answers(Cni::Flannel, IpFamilies::Dual)
}

#[test]
fn a_cluster_with_only_ipv6_is_served() -> Result<()> {
    a_service_answers(Cni::Bridge, IpFamilies::Ipv6)
}
