//! Tests vipmux beside a real kube-proxy on every node, with CNIs' pods and rules, and with a
//! strict reverse path filter.

mod local;
mod policies;
mod services;
mod stray;

use std::{net::IpAddr, time::Duration};

use anyhow::{Context as _, Result, bail};
use vipmux_tests::{
    client::{Datagrams, HELD, HOLD, Kind, RELEASE, Request, Session},
    cluster::{LONG, TIMEOUT},
    conntrack,
    kube_proxy::Mode,
    lan::PodNetwork,
    manifests::Service,
    transfer::Transfer,
};

use self::services::{SharedServices, VIPS, of_family};

/// Bytes of a long transfer.
const WHOLE: u64 = 20_000_000;
/// Progress that a transfer must make while something restarts, bytes.
const PART: u64 = 500_000;
/// The pause between chunks of transfers that leave CPU time for others.
const EASY: Duration = Duration::from_millis(5);
/// The time limit for requests that must not be answered. Rules' counters, or another request's
/// answer, show that the machine is not just slow.
const SILENCE: Duration = Duration::from_millis(500);
const HELLO: &str = "hello";

#[test]
fn all_is_served_beside_kube_proxy_with_iptables_to_routed_pods() -> Result<()> {
    all_is_served(Mode::Iptables, PodNetwork::Routed)
}

#[test]
fn all_is_served_beside_kube_proxy_with_iptables_to_pods_of_a_bridge() -> Result<()> {
    all_is_served(Mode::Iptables, PodNetwork::Bridged)
}

#[test]
fn all_is_served_beside_kube_proxy_with_nftables_to_routed_pods() -> Result<()> {
    all_is_served(Mode::Nftables, PodNetwork::Routed)
}

#[test]
fn all_is_served_beside_kube_proxy_with_nftables_to_pods_of_a_bridge() -> Result<()> {
    all_is_served(Mode::Nftables, PodNetwork::Bridged)
}

fn all_is_served(mode: Mode, pods: PodNetwork) -> Result<()> {
    let Some(mut services) = SharedServices::new(mode, pods, |service| service)? else { return Ok(()) };
    services.without_resets("requests", |services| clients_are_seen(services))?;
    services.without_resets("transfers", |services| transfers_arrive(services))?;
    cluster_addresses_and_node_ports_are_served(&services)?;
    the_cluster_reaches_the_vip(&services)?;
    services.without_resets("stray segments", |services| stray::segments_harm_nobody(services))?;
    services.without_resets("late replies", |services| what_conntrack_has_forgotten_goes_on(services))?;
    services.without_resets("restarts", connections_outlive_restarts)
}

/// By pods on the leader and elsewhere: with two nodes, each address has both.
fn clients_are_seen(services: &SharedServices) -> Result<()> {
    let client = services.cluster.lan.client()?;
    for offer in services.offers() {
        for vip in VIPS {
            let seen = offer.seen_by(client.namespace(), offer.at(vip))?;
            assert_eq!(seen, of_family(vip, client.address, client.address_v6), "{}", offer.at(vip));
        }
    }
    Ok(())
}

fn transfers_arrive(services: &SharedServices) -> Result<()> {
    let client = services.cluster.lan.client()?.namespace();
    for offer in services.offers_of(Kind::Bulk) {
        for vip in VIPS {
            let server = offer.at(vip).server;
            let mut transfer = Transfer::start(client, server, Duration::ZERO)?;
            transfer.wait_for_more(WHOLE, LONG).with_context(|| format!("to {server}"))?;
            assert_eq!(transfer.finish()?.service, offer.service);
        }
    }
    Ok(())
}

/// kube-proxy's part works from everywhere, with pods here and elsewhere.
fn cluster_addresses_and_node_ports_are_served(services: &SharedServices) -> Result<()> {
    let lan = &services.cluster.lan;
    let outside = lan.client()?.namespace();
    let inside = services.inside();
    for offer in services.offers() {
        let service = services.service(&offer.service)?;
        let addresses = service["spec"]["clusterIPs"].as_array().context("no clusterIPs")?;
        assert_eq!(addresses.len(), VIPS.len(), "{service}");
        for address in addresses {
            let address: IpAddr = address.as_str().unwrap_or_default().parse()?;
            for from in &inside {
                offer.await_seen_by(from, offer.at(address))?;
            }
        }
        let port = u16::try_from(service["spec"]["ports"][0]["nodePort"].as_u64().context("no nodePort")?)?;
        for node in &lan.nodes {
            for address in [IpAddr::from(node.address), node.address_v6.into()] {
                let request = Request { server: (address, port).into(), ..offer.at(address) };
                for from in inside.iter().copied().chain([outside]) {
                    offer.await_seen_by(from, request)?;
                }
            }
        }
    }
    Ok(())
}

/// kube-proxy handles a pod's and a node's packets to the VIP, whichever node leads: it programs an
/// address whose `ipMode` is `VIP` on every node. With the policy `Cluster` it masquerades them.
fn the_cluster_reaches_the_vip(services: &SharedServices) -> Result<()> {
    for offer in services.offers() {
        for vip in VIPS {
            for from in services.inside() {
                offer.await_seen_by(from, offer.at(vip))?;
            }
        }
    }
    Ok(())
}

/// A reply comes after conntrack has forgotten its connection. It is neither dropped nor
/// masqueraded.
fn what_conntrack_has_forgotten_goes_on(services: &SharedServices) -> Result<()> {
    let client = services.cluster.lan.client()?.namespace();
    for (lines, datagrams) in services.offers_of(Kind::Echo).iter().zip(services.offers_of(Kind::UdpEcho)) {
        for vip in VIPS {
            let connect = || Session::connect(lines.at(vip).server, TIMEOUT);
            let (mut session, mut other) = (client.run(connect)?, client.run(connect)?);
            let socket = client.run(|| Datagrams::connect(datagrams.at(vip).server, TIMEOUT))?;
            session.echo(HELLO)?;
            session.send(HOLD)?;
            other.echo(HELD)?;
            forget(services)?;
            other.echo(RELEASE)?;
            session.receive(HOLD).with_context(|| format!("the late reply of {}", lines.at(vip)))?;
            session.echo(HELLO)?;

            socket.echo(HELLO)?;
            socket.send(HOLD)?;
            other.echo(HELD)?;
            forget(services)?;
            other.echo(RELEASE)?;
            socket.receive().with_context(|| format!("the late reply of {}", datagrams.at(vip)))?;
            socket.echo(HELLO)?;
        }
    }
    Ok(())
}

fn forget(services: &SharedServices) -> Result<()> {
    services.cluster.lan.nodes.iter().try_for_each(|node| node.namespace().run(conntrack::flush))
}

/// kube-proxy and the agent are killed on each node and started again.
fn connections_outlive_restarts(services: &mut SharedServices) -> Result<()> {
    let mut sessions = services.sessions()?;
    let client = services.cluster.lan.client()?.namespace();
    let start = |vip| {
        let servers = services.offers_of(Kind::Bulk).into_iter().map(move |offer| offer.at(vip).server);
        servers.map(|server| Transfer::start(client, server, EASY)).collect::<Result<Vec<_>>>()
    };
    let mut transfers: Vec<_> =
        VIPS.into_iter().map(start).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
    let mut go_on = |what: &str| {
        sessions.iter_mut().try_for_each(|session| session.echo("still there?").map(drop)).context(what.to_owned())?;
        transfers.iter_mut().try_for_each(|transfer| transfer.wait_for_more(PART, LONG)).context(what.to_owned())
    };
    let nodes: Vec<_> = services.cluster.lan.nodes.iter().map(|node| node.name.clone()).collect();
    for (number, node) in nodes.iter().enumerate() {
        services.proxies[number].stop()?;
        go_on("without a kube-proxy")?;
        services.start_proxy(number)?;
        go_on("after kube-proxy's restart")?;
        services.cluster.restart_agent(node)?;
        go_on("after the agent's restart")?;
    }
    for transfer in transfers {
        transfer.finish()?;
    }
    Ok(())
}

/// A Service with `externalTrafficPolicy: Local`.
fn local(service: Service) -> Service {
    Service { local: true, ..service }
}

/// Checks that a request fails.
fn unanswered<T: std::fmt::Debug>(answer: &Result<T>) -> Result<()> {
    match answer {
        Err(_) => Ok(()),
        Ok(answer) => bail!("it was answered: {answer:?}"),
    }
}
