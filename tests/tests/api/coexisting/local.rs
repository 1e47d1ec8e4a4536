//! Tests `externalTrafficPolicy: Local`: vipmux handles the VIP, kube-proxy node ports and health
//! checks.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result, ensure};
use vipmux_tests::{
    client::{Kind, Request},
    cluster::PATIENCE,
    kube_proxy::{self, Mode},
    lan::PodNetwork,
    netns::Namespace,
    wait,
};

use super::{
    SILENCE, local,
    services::{SharedServices, VIPS, of_family},
    unanswered,
};

#[test]
fn kube_proxy_with_iptables_answers_health_checks_of_local_services_that_vipmux_serves() -> Result<()> {
    health_checks_are_answered(Mode::Iptables, PodNetwork::Routed)
}

#[test]
fn kube_proxy_with_nftables_answers_health_checks_of_local_services_that_vipmux_serves() -> Result<()> {
    health_checks_are_answered(Mode::Nftables, PodNetwork::Bridged)
}

fn health_checks_are_answered(mode: Mode, pods: PodNetwork) -> Result<()> {
    let Some(services) = SharedServices::new(mode, pods, local)? else { return Ok(()) };
    let lan = &services.cluster.lan;
    let client = lan.client()?;
    for offer in services.offers_of(Kind::Http) {
        let service = services.service(&offer.service)?;
        let port = |value: &serde_json::Value| u16::try_from(value.as_u64()?).ok();
        let check = port(&service["spec"]["healthCheckNodePort"]).context("no healthCheckNodePort")?;
        let node_port = port(&service["spec"]["ports"][0]["nodePort"]).context("no nodePort")?;
        // One node leads and one has the pod. They may be the same.
        for vip in VIPS {
            let own = of_family(vip, client.address, client.address_v6);
            assert_eq!(offer.seen_by(client.namespace(), offer.at(vip))?, own);
            for caller in &services.callers {
                let seen = offer.await_seen_by(caller.namespace(), offer.at(vip))?;
                assert_eq!(seen, of_family(vip, caller.address, caller.address_v6));
            }
            for node in &lan.nodes {
                offer.await_seen_by(node.namespace(), offer.at(vip))?;
                let address = of_family(vip, node.address, node.address_v6);
                let request = Request { server: SocketAddr::new(address, node_port), ..offer.at(vip) };
                let here = node.name == offer.node.name;
                await_health(client.namespace(), (address, check), here)?;
                if here {
                    assert_eq!(offer.await_seen_by(client.namespace(), request)?, own);
                } else {
                    client.namespace().run(|| unanswered(&request.send(SILENCE)))?;
                }
            }
        }
    }
    Ok(())
}

/// 200 on the pod's node, 503 on the others.
fn await_health(client: &Namespace, server: (IpAddr, u16), here: bool) -> Result<()> {
    let expected = if here { (200, 1) } else { (503, 0) };
    wait::until(&format!("the health check at {}", server.0), PATIENCE, || {
        let answer = client.run(|| kube_proxy::local_endpoints(server.into()))?;
        ensure!(answer == expected, "{answer:?} instead of {expected:?}");
        Ok(())
    })
}
