//! Beside a real kube-proxy on every node, with pods and rules as CNIs have them, and with a strict reverse path filter.

mod local;
mod policies;
mod scene;
mod stray;

use std::{net::IpAddr, time::Duration};

use anyhow::{Context as _, Result, bail};
use vipmux_tests::{
    client::{Datagrams, HELD, HOLD, Kind, RELEASE, Request, Session},
    cluster::TIMEOUT,
    conntrack,
    kube_proxy::Mode,
    manifests::Service,
    pod_network::PodNetwork,
    transfer::Transfer,
};

use self::scene::{Scene, VIPS, of_family};

/// The whole of a long transfer, bytes.
const WHOLE: u64 = 20_000_000;
/// What a transfer has to get on by while something is started again.
const PART: u64 = 500_000;
const LONG: Duration = Duration::from_mins(2);
/// Between the chunks of transfers that are to leave room for other things.
const EASY: Duration = Duration::from_millis(5);
/// For what is not to be answered; rules' counters or another's answers tell that it is not just slow.
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
    let Some(mut scene) = Scene::new(mode, pods, |service| service)? else { return Ok(()) };
    scene.without_resets("requests", |scene| clients_are_seen(scene))?;
    scene.without_resets("transfers", |scene| transfers_arrive(scene))?;
    cluster_addresses_and_node_ports_are_served(&scene)?;
    the_cluster_reaches_the_vip(&scene)?;
    scene.without_resets("stray segments", |scene| stray::segments_harm_nobody(scene))?;
    scene.without_resets("late replies", |scene| what_conntrack_has_forgotten_goes_on(scene))?;
    scene.without_resets("restarts", connections_outlive_restarts)
}

/// By pods on the leader and elsewhere: with two nodes, each address has both.
fn clients_are_seen(scene: &Scene) -> Result<()> {
    let client = scene.cluster.lan.client()?;
    for offer in scene.offers() {
        for vip in VIPS {
            let seen = offer.seen_by(client.namespace(), offer.at(vip))?;
            assert_eq!(seen, of_family(vip, client.address, client.address_v6), "{}", offer.at(vip));
        }
    }
    Ok(())
}

fn transfers_arrive(scene: &Scene) -> Result<()> {
    let client = scene.cluster.lan.client()?.namespace();
    for offer in scene.offers_of(Kind::Bulk) {
        for vip in VIPS {
            let server = offer.at(vip).server;
            let mut transfer = Transfer::start(client, server, Duration::ZERO)?;
            transfer.wait_for_more(WHOLE, LONG).with_context(|| format!("to {server}"))?;
            assert_eq!(transfer.finish()?.service, offer.service);
        }
    }
    Ok(())
}

/// kube-proxy's part, from everywhere: to pods here and elsewhere.
fn cluster_addresses_and_node_ports_are_served(scene: &Scene) -> Result<()> {
    let lan = &scene.cluster.lan;
    let outside = lan.client()?.namespace();
    let inside = scene.inside();
    for offer in scene.offers() {
        let service = scene.service(&offer.service)?;
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

/// A pod's and a node's packets to the VIP are kube-proxy's, wherever the VIP's leader is: it programs an address whose `ipMode`
/// is `VIP` on every node. It masquerades them where the policy is `Cluster`.
fn the_cluster_reaches_the_vip(scene: &Scene) -> Result<()> {
    for offer in scene.offers() {
        for vip in VIPS {
            for from in scene.inside() {
                offer.await_seen_by(from, offer.at(vip))?;
            }
        }
    }
    Ok(())
}

/// A reply that comes so late that conntrack has forgotten what it is for: neither dropped nor masqueraded.
fn what_conntrack_has_forgotten_goes_on(scene: &Scene) -> Result<()> {
    let client = scene.cluster.lan.client()?.namespace();
    for (lines, datagrams) in scene.offers_of(Kind::Echo).iter().zip(scene.offers_of(Kind::UdpEcho)) {
        for vip in VIPS {
            let connect = || Session::connect(lines.at(vip).server, TIMEOUT);
            let (mut session, mut other) = (client.run(connect)?, client.run(connect)?);
            let socket = client.run(|| Datagrams::connect(datagrams.at(vip).server, TIMEOUT))?;
            session.say(HELLO)?;
            session.send(HOLD)?;
            other.say(HELD)?;
            forget(scene)?;
            other.say(RELEASE)?;
            session.receive(HOLD).with_context(|| format!("the late reply of {}", lines.at(vip)))?;
            session.say(HELLO)?;

            socket.say(HELLO)?;
            socket.send(HOLD)?;
            other.say(HELD)?;
            forget(scene)?;
            other.say(RELEASE)?;
            socket.receive().with_context(|| format!("the late reply of {}", datagrams.at(vip)))?;
            socket.say(HELLO)?;
        }
    }
    Ok(())
}

fn forget(scene: &Scene) -> Result<()> {
    scene.cluster.lan.nodes.iter().try_for_each(|node| node.namespace().run(conntrack::flush))
}

/// kube-proxy and the agent are killed on each node, and started again.
fn connections_outlive_restarts(scene: &mut Scene) -> Result<()> {
    let mut sessions = scene.sessions()?;
    let client = scene.cluster.lan.client()?.namespace();
    let start = |vip| {
        let servers = scene.offers_of(Kind::Bulk).into_iter().map(move |offer| offer.at(vip).server);
        servers.map(|server| Transfer::start(client, server, EASY)).collect::<Result<Vec<_>>>()
    };
    let mut transfers: Vec<_> =
        VIPS.into_iter().map(start).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
    let mut go_on = |what: &str| {
        sessions.iter_mut().try_for_each(|session| session.say("still there?").map(drop)).context(what.to_owned())?;
        transfers.iter_mut().try_for_each(|transfer| transfer.wait_for_more(PART, LONG)).context(what.to_owned())
    };
    let nodes: Vec<_> = scene.cluster.lan.nodes.iter().map(|node| node.name.clone()).collect();
    for (number, node) in nodes.iter().enumerate() {
        scene.proxies[number].stop()?;
        go_on("without a kube-proxy")?;
        scene.start_proxy(number)?;
        go_on("after kube-proxy's restart")?;
        scene.cluster.restart_agent(node)?;
        go_on("after the agent's restart")?;
    }
    for transfer in transfers {
        transfer.finish()?;
    }
    Ok(())
}

/// A Service whose `externalTrafficPolicy` is `Local`.
fn local(service: Service) -> Service {
    Service { local: true, ..service }
}

/// That a request is not answered, in whichever way.
fn unanswered<T: std::fmt::Debug>(answer: &Result<T>) -> Result<()> {
    match answer {
        Err(_) => Ok(()),
        Ok(answer) => bail!("it was answered: {answer:?}"),
    }
}
