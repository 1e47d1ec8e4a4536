//! A migration under traffic: how long is the address away?

use std::{fs, time::Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use vipmux_tests::{
    agent::{self, Origin},
    allocator::{self, Allocator},
    api_server::ADMIN,
    cleanup::Folder,
    client::Kind,
    cluster::{Cluster, PATIENCE},
    lan::{Lan, Node, Options},
    manifests::{Service, VIP},
    pod::{self, Listener},
    process::Process,
    watch::{self, Watch},
};

use super::peers::METALLB;

const DATAGRAMS: u16 = 7_000;
const LINES: u16 = 7_001;
const SERVICES: [(&str, u16, Kind); 2] =
    [("shop/datagrams", DATAGRAMS, Kind::UdpEcho), ("shop/lines", LINES, Kind::Echo)];

/// The old load balancer: a node has the address, and its kernel answers for it.
struct OldSpeaker {
    server: Process,
}

impl OldSpeaker {
    fn start(node: &Node) -> Result<Self> {
        node.namespace().links(|links| links.add_address("eth0", VIP, 32))?;
        let listeners = SERVICES.map(|(name, port, kind)| Listener::new(kind, port, name));
        Ok(Self { server: pod::start(node.namespace(), "old", VIP, &listeners)? })
    }

    fn stop(mut self, node: &Node) -> Result<()> {
        let mut command = node.namespace().command("ip")?;
        command.args(["address", "del", &format!("{VIP}/32"), "dev", "eth0"]);
        vipmux_tests::process::run(command)?;
        self.server.kill()
    }
}

/// Makes Services whose addresses another controller wrote, with a pod on each node.
fn cluster() -> Result<Option<Cluster>> {
    let Some(lan) = Lan::for_test(Options { clients: watch::CLIENTS, ..Options::default() })? else { return Ok(None) };
    let Some(mut cluster) = Cluster::in_kubernetes(lan)? else { return Ok(None) };
    let nodes: Vec<_> = cluster.lan.nodes.iter().map(|node| node.name.clone()).collect();
    for node in nodes {
        let listeners = SERVICES.map(|(name, port, kind)| Listener::new(kind, port, name));
        cluster.add_pod(&node, &format!("on-{node}"), 10, &listeners)?;
    }
    let endpoints = cluster.pods.iter().map(|pod| cluster.endpoint(&pod.name)).collect::<Result<Vec<_>>>()?;
    for (name, port, kind) in SERVICES {
        let service = Service::sharing(name, port, kind.protocol(), port);
        cluster.manifests.write_service(&service.with(endpoints.clone()))?;
        METALLB.give(cluster.api()?, &service_name(name), &VIP.to_string())?;
    }
    Ok(Some(cluster))
}

fn service_name(name: &str) -> String {
    name.split('/').next_back().unwrap_or(name).to_owned()
}

#[test]
fn an_address_is_away_only_between_the_old_speaker_and_the_agents() -> Result<()> {
    let Some(mut cluster) = cluster()? else { return Ok(()) };
    let access = allocator::prepare(cluster.api()?)?;
    let folder = Folder::temporary("migration")?;
    let files = folder.path().join("out");
    let (old, beside) = ("node-1", "node-2");
    let speaker = OldSpeaker::start(cluster.lan.node(old)?)?;
    let kubeconfig = cluster.api()?.kubeconfig(ADMIN)?;
    let migrate = |cluster: &Cluster, command: &str, arguments: &[&str]| -> Result<(i32, Value)> {
        agent::migrate(cluster.lan.node(beside)?.namespace(), &kubeconfig, command, &files, arguments)
    };
    let mut watch = Watch::start(&cluster.lan, VIP, DATAGRAMS, LINES)?;
    watch.wait_for_answers(20, PATIENCE)?;

    let (status, plan) = migrate(&cluster, "plan", &[])?;
    assert_eq!(status, 0, "{plan:#}");
    cluster.api()?.apply(&fs::read_to_string(files.join("pools.yaml"))?)?;
    let (status, found) = migrate(&cluster, "ready", &[])?;
    let answered = found["checks"].as_array().into_iter().flatten().find(|it| it["check"] == "lan");
    let answered = answered.context("the LAN was not asked")?;
    assert_eq!((status, &answered["verdict"], &answered["subject"]), (2, &json!("fail"), &json!(VIP.to_string())));
    let mac = cluster.lan.node(old)?.mac;
    assert!(answered["found"].as_str().unwrap_or_default().contains(&mac.to_string()), "{answered}");

    let begun = Instant::now();
    speaker.stop(cluster.lan.node(old)?)?;
    let (status, found) = migrate(&cluster, "ready", &["--wait", "60s"])?;
    ensure!(status == 0, "{found:#}");
    let checked = begun.elapsed();
    let _allocator = Allocator::start(cluster.api()?, &access, "allocator", &["--adopt"])?;
    let mut options = cluster.agent_options();
    if let Origin::Cluster(access) = &mut options.origin {
        access.allocator = "on";
    }
    cluster.start_agents(&options)?;
    watch.wait_for_answers(200, PATIENCE).with_context(|| cluster.last_outputs())?;
    let (status, found) = migrate(&cluster, "verify", &["--wait", "60s"])?;
    ensure!(status == 0, "{found:#}\n{}", cluster.last_outputs());
    let view = watch.stop()?;
    assert_eq!(view.arp_requests.answered_twice(), 0, "two announced the address");
    println!(
        "the check took {checked:?}; the address was away for {:?} (ARP), {:?} (a client that knows the MAC), {:?} (a \
         client that asks anew)",
        view.arp_requests.outage(),
        view.warm.outage(),
        view.anew.outage()
    );
    Ok(())
}
