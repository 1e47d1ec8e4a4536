//! Tests the harness itself, without vipmux.

use std::{
    net::{IpAddr, Ipv4Addr},
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use vipmux_tests::{
    arp,
    client::{self, Kind, Request, Session},
    cluster::TIMEOUT,
    conntrack,
    frames::{ACK, Ethernet, Tcp},
    lan::{Lan, Options},
    manifests::VIP_V6,
    ndp,
    pod::{self, Listener, Pod},
    resets, sctp,
    traffic::Traffic,
    wait,
    wire::{self, Tap},
};

/// The port of the echo server of [`serving_pod`].
const ECHO: u16 = 8001;

/// Returns all kinds of servers that this kernel can run.
fn kinds() -> Result<Vec<Kind>> {
    let has_sctp = sctp::is_supported()?;
    Ok(Kind::ALL.into_iter().filter(|kind| *kind != Kind::Sctp || has_sctp).collect())
}

fn serving_pod(lan: &Lan, node: usize, name: &str) -> Result<Pod> {
    let mut pod = lan.nodes[node].add_pod(name, 10)?;
    let listeners = kinds()?.into_iter().zip(8000..).map(|(kind, port)| Listener::new(kind, port, "shop/web"));
    pod.serve(&listeners.collect::<Vec<_>>())?;
    Ok(pod)
}

#[test]
fn every_kind_of_server_names_itself_and_its_client() -> Result<()> {
    let Some(lan) = Lan::for_test(Options { kubernetes_rules: true, reverse_path_filter: 1, ..Options::default() })?
    else {
        return Ok(());
    };
    let pod = serving_pod(&lan, 1, "web-1")?;
    let client = lan.client()?;
    client.route_pods_of(&lan.nodes[1])?;
    for (kind, port) in kinds()?.into_iter().zip(8000..) {
        let v4 = (IpAddr::V4(pod.address), IpAddr::V4(client.address));
        let v6 = (IpAddr::V6(pod.address_v6), IpAddr::V6(client.address_v6));
        for (pod, seen) in [v4, v6] {
            let request = Request::new(kind, pod, port);
            let answer = client.namespace().run(|| request.send(TIMEOUT))?;
            assert_eq!((answer.service.as_str(), answer.pod.as_str()), ("shop/web", "web-1"), "{request}");
            assert_eq!(answer.client.ip(), seen, "{request}");
        }
    }
    Ok(())
}

#[test]
fn pods_reach_pods_on_other_nodes() -> Result<()> {
    let Some(lan) = Lan::for_test(Options { clients: 0, nodes: 2, kubernetes_rules: true, ..Options::default() })?
    else {
        return Ok(());
    };
    let (one, two) = (serving_pod(&lan, 0, "web-1")?, serving_pod(&lan, 1, "web-2")?);
    let v4 = (IpAddr::V4(one.address), IpAddr::V4(two.address));
    let v6 = (IpAddr::V6(one.address_v6), IpAddr::V6(two.address_v6));
    for (from, to) in [v4, v6] {
        let answer = one.namespace().run(|| Request::new(Kind::Http, to, 8000).send(TIMEOUT))?;
        assert_eq!((answer.pod.as_str(), answer.client.ip()), ("web-2", from));
    }
    Ok(())
}

#[test]
fn an_arp_probe_sees_every_answer() -> Result<()> {
    let Some(lan) = Lan::for_test(Options { nodes: 2, ..Options::default() })? else { return Ok(()) };
    let vip = Ipv4Addr::new(192, 0, 2, 200);
    let client = lan.client()?;
    let ask = |window| arp::answers(client.namespace(), client.address, vip, window);
    assert!(ask(Duration::from_millis(100))?.is_empty());

    let capture = arp::Capture::start(client.namespace())?;
    for node in &lan.nodes {
        node.namespace().links(|links| {
            links.add_holder("kube-ipvs0")?;
            links.add_address("kube-ipvs0", vip, 32)
        })?;
    }
    let mut answers = ask(Duration::from_secs(1))?;
    answers.sort_unstable();
    assert_eq!(answers, [lan.nodes[0].mac, lan.nodes[1].mac]);
    wait::until("both in the capture", TIMEOUT, || {
        let claims = capture.claims(vip);
        ensure!(claims.len() == 2, "{claims:?}");
        Ok(())
    })?;

    let server = pod::start(lan.nodes[0].namespace(), "web", vip, &[Listener::new(Kind::Http, 80, "shop/web")])?;
    client.namespace().links(|links| links.add_neighbor("eth0", vip, lan.nodes[0].mac))?;
    client.namespace().run(|| Request::new(Kind::Http, vip, 80).send(TIMEOUT))?;
    assert_eq!(client.neighbor(vip)?, Some(lan.nodes[0].mac));
    drop(server);
    Ok(())
}

#[test]
fn an_ndp_probe_sees_every_answer() -> Result<()> {
    let Some(lan) = Lan::for_test(Options { nodes: 2, ..Options::default() })? else { return Ok(()) };
    let prober = lan.client()?;
    let ask = |window| ndp::answers(prober.namespace(), prober.address_v6, VIP_V6, window);
    assert!(ask(Duration::from_millis(100))?.is_empty());
    for node in &lan.nodes {
        node.namespace().links(|links| links.add_address("eth0", VIP_V6, 128))?;
    }
    // A kernel joins an address's multicast group some time after the address was added.
    wait::until("both nodes to answer", TIMEOUT, || {
        let mut answers = ask(Duration::from_millis(200))?;
        answers.sort_unstable();
        ensure!(answers == [lan.nodes[0].mac, lan.nodes[1].mac], "{answers:?} answered");
        Ok(())
    })?;
    prober.namespace().run(|| client::ping_v6(lan.nodes[0].address_v6, 56, TIMEOUT))
}

#[test]
fn traffic_counts_answers_and_losses() -> Result<()> {
    let Some(lan) = Lan::for_test(Options { nodes: 1, ..Options::default() })? else { return Ok(()) };
    let mut pod = serving_pod(&lan, 0, "web-1")?;
    let client = lan.client()?;
    client.route_pods_of(&lan.nodes[0])?;
    let request = Request::new(Kind::Http, pod.address, 8000);
    lan.nodes[0].namespace().run(conntrack::flush)?;
    let mut session = client.namespace().run(|| Session::connect((pod.address, 8001).into(), TIMEOUT))?;
    assert_eq!(session.echo("one")?.client, session.local_address()?);

    let traffic = Traffic::start(client.namespace(), request, Duration::from_millis(1))?;
    traffic.wait_for_more(20, TIMEOUT)?;
    traffic.stop()?.check_all_by("shop/web")?;

    let traffic = Traffic::start(client.namespace(), request, Duration::from_millis(1))?;
    traffic.wait_for_more(1, TIMEOUT)?;
    pod.stop()?;
    assert!(session.echo("two").is_err());
    traffic.wait_for_a_loss(TIMEOUT)?;
    let tally = traffic.stop()?;
    assert!(tally.lost > 0 && tally.check_all_by("shop/web").is_err(), "{tally:?}");
    Ok(())
}

#[test]
fn resets_are_noted_except_those_after_the_end_of_their_connection() -> Result<()> {
    let Some(lan) = Lan::for_test(Options { nodes: 1, ..Options::default() })? else { return Ok(()) };
    let pod = serving_pod(&lan, 0, "web-1")?;
    let client = lan.client()?;
    client.route_pods_of(&lan.nodes[0])?;
    resets::watch(pod.namespace())?;
    let to_node = Ethernet::new(client.mac.octets(), lan.nodes[0].mac.octets());
    let mut replies = Tap::open(client.namespace(), "eth0")?;
    let v4 = (IpAddr::V4(client.address), IpAddr::V4(pod.address));
    let v6 = (IpAddr::V6(client.address_v6), IpAddr::V6(pod.address_v6));
    for (own, server) in [v4, v6] {
        let mut session = client.namespace().run(|| Session::connect((server, ECHO).into(), TIMEOUT))?;
        session.echo("hello")?;
        let port = session.local_address()?.port();
        session.close()?;
        let mut send_late_ack = |port: u16| {
            replies.packets_to(own)?;
            let late = to_node.tcp((own, server), Tcp::new(port, ECHO, ACK))?;
            wire::send(client.namespace(), "eth0", &late, 1)?;
            wait::until("the RST", TIMEOUT, || {
                ensure!(replies.packets_to(own)? > 0, "none has come");
                Ok(())
            })
        };
        send_late_ack(port)?;
        let before = resets::noted(pod.namespace())?;
        assert!(!before.iter().any(|reset| reset.contains(&own.to_string())), "{before:?}");

        let other = port ^ 1;
        send_late_ack(other)?;
        let noted = resets::noted(pod.namespace())?;
        let noted: Vec<_> = noted.difference(&before).collect();
        let connection = format!("{server} . {ECHO} . {own} . {other} counter packets 1 ");
        assert!(noted.len() == 1 && noted[0].starts_with(&connection), "{noted:?} for {connection}");
    }
    Ok(())
}

#[test]
fn nothing_of_a_lan_remains() -> Result<()> {
    let Some(lan) = Lan::for_test(Options { nodes: 1, ..Options::default() })? else { return Ok(()) };
    let pod = serving_pod(&lan, 0, "web-1")?;
    let paths = [lan.switch(), lan.nodes[0].namespace(), lan.client()?.namespace(), pod.namespace()]
        .map(|namespace| namespace.path().to_owned());
    assert!(paths.iter().all(|path| path.exists()));
    let process = pod.process().context("the pod has no process")?.id();
    drop(pod);
    drop(lan);
    assert!(paths.iter().all(|path| !path.exists()));
    assert!(!Path::new("/proc").join(process.to_string()).exists());
    Ok(())
}
