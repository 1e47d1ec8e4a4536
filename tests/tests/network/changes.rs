//! Tests changes of manifests while traffic runs.

use std::{fs, thread, time::Duration};

use anyhow::{Result, bail, ensure};
use nix::sys::signal::Signal;
use vipmux_tests::{
    agent,
    client::{Datagrams, Kind, Request, Session},
    cluster::{Cluster, PATIENCE, SHORT_TIMEOUT, TIMEOUT},
    failover::await_stopped,
    lan::Options,
    manifests::{Condition, Endpoint, Service, VIP},
    pod::{Listener, Pod},
    traffic::Traffic,
    wait,
};

use crate::{policies, services};

const SILENCE: Duration = Duration::from_millis(500);
const CHANGES: usize = 1_000;
/// Services that change.
const CHURNING: usize = 8;
const PAUSE: Duration = Duration::from_millis(5);

#[test]
fn a_service_comes_and_goes_without_a_lost_request_on_others() -> Result<()> {
    let Some(mut cluster) = services::served(Options::default())? else { return Ok(()) };
    cluster.add_pod("node-3", "metrics-1", 20, &[Listener::new(Kind::Http, 9100, "ops/metrics")])?;
    let traffic = start_all(&cluster)?;
    let metrics = Service::sharing("ops/metrics", 9100, "TCP", 9100).with([cluster.endpoint("metrics-1")?]);
    let request = Request::new(Kind::Http, VIP, 9100);
    for _ in 0..3 {
        cluster.manifests.write_service(&metrics)?;
        cluster.await_service(request, "ops/metrics")?;
        cluster.manifests.remove_service(&metrics)?;
        await_silence(&cluster, request)?;
    }
    stop_all(traffic)
}

/// As a copy into the folder changes files, one after the other: first the one that gets the port.
#[test]
fn two_services_that_exchange_their_ports_in_two_files_stay_on_their_address() -> Result<()> {
    let Some(mut cluster) = services::served(Options::default())? else { return Ok(()) };
    cluster.add_pod("node-3", "metrics-1", 20, &[Listener::new(Kind::Http, 9100, "ops/metrics")])?;
    cluster.add_pod("node-2", "admin-2", 21, &[Listener::new(Kind::Http, 9200, "ops/admin")])?;
    // They name no address: an address that such a Service loses is lost for good.
    let service = |name, port, target, pod| -> Result<Service> {
        let service = Service { address: None, ..Service::sharing(name, port, "TCP", target) };
        Ok(service.with([cluster.endpoint(pod)?]))
    };
    let ask = |port, pod: &str| {
        wait::until(&format!("port {port} leads to {pod}"), PATIENCE, || {
            let answer = cluster.ask(Request::new(Kind::Http, VIP, port), SHORT_TIMEOUT)?;
            ensure!(answer.pod == pod, "{answer}");
            Ok(())
        })
    };
    cluster.manifests.write_service(&service("ops/metrics", 9100, 9100, "metrics-1")?)?;
    cluster.manifests.write_service(&service("ops/admin", 9200, 9200, "admin-2")?)?;
    ask(9100, "metrics-1")?;
    ask(9200, "admin-2")?;
    for (metrics, admin) in [(9200, 9100), (9100, 9200)] {
        cluster.manifests.write_service(&service("ops/metrics", metrics, 9100, "metrics-1")?)?;
        // The agents read the file at once. Without the pause, they may see both changes together.
        thread::sleep(SILENCE);
        cluster.manifests.write_service(&service("ops/admin", admin, 9200, "admin-2")?)?;
        ask(metrics, "metrics-1")?;
        ask(admin, "admin-2")?;
    }
    Ok(())
}

/// As a shell's redirection writes a file: empty at first.
#[test]
fn a_file_that_is_written_anew_in_place_costs_no_request() -> Result<()> {
    let Some(cluster) = services::served(Options::default())? else { return Ok(()) };
    let file = cluster.manifests.path().join("shop-web.yaml");
    let text = fs::read_to_string(&file)?;
    let traffic = start_all(&cluster)?;
    for _ in 0..10 {
        for part in ["", &text[..text.len() / 2]] {
            fs::write(&file, part)?;
            thread::sleep(Duration::from_millis(50));
            fs::write(&file, &text)?;
        }
        traffic.iter().try_for_each(|traffic| traffic.wait_for_more(5, PATIENCE).map(drop))?;
    }
    stop_all(traffic)
}

#[test]
fn a_malformed_file_changes_nothing_and_holds_up_nobody() -> Result<()> {
    let Some(mut cluster) = services::served(Options::default())? else { return Ok(()) };
    cluster.add_pod("node-3", "metrics-1", 20, &[Listener::new(Kind::Http, 9100, "ops/metrics")])?;
    let metrics = Service::sharing("ops/metrics", 9100, "TCP", 9100).with([cluster.endpoint("metrics-1")?]);
    cluster.manifests.write_text("shop-web.yaml", "apiVersion: v1\nkind: Service\nspec: [not, a, spec]\n")?;
    cluster.manifests.write_service(&metrics)?;
    cluster.await_service(Request::new(Kind::Http, VIP, 9100), "ops/metrics")?;
    services::ask_all(&cluster, 1)?;
    for agent in &cluster.agents {
        agent.process().wait_for_line("naming the malformed file", PATIENCE, |line| line.contains("shop-web.yaml"))?;
    }
    Ok(())
}

#[test]
fn a_draining_backend_keeps_its_connections_and_gets_no_new_ones() -> Result<()> {
    let Some(mut cluster) = services::served(Options::default())? else { return Ok(()) };
    cluster.add_pod("node-3", "secure-2", 20, &[Listener::new(Kind::Echo, 8443, "shop/secure")])?;
    let client = cluster.lan.client()?;
    let mut session = client.namespace().run(|| Session::connect((VIP, 443).into(), TIMEOUT))?;
    assert_eq!(session.echo("before")?.pod, "secure-1");
    let mut draining = cluster.endpoint("secure-1")?;
    draining.condition = Condition::Terminating;
    let endpoints = [draining, cluster.endpoint("secure-2")?];
    cluster.manifests.write_service(&Service::sharing("shop/secure", 443, "TCP", 8443).with(endpoints))?;
    let request = Request::new(Kind::Echo, VIP, 443);
    wait::until("the new pod gets ten connections in a row", PATIENCE, || {
        for _ in 0..10 {
            let answer = cluster.ask(request, TIMEOUT)?;
            ensure!(answer.pod == "secure-2", "{answer}");
        }
        Ok(())
    })?;
    assert_eq!(session.echo("after")?.pod, "secure-1");
    Ok(())
}

/// Blue and green Services: the pod has two, and leaves one of them.
#[test]
fn a_datagram_flow_leaves_a_pod_that_only_another_service_still_has() -> Result<()> {
    let Some(cluster) = policies::prepared(Options::default(), &["node-1", "node-2"])? else { return Ok(()) };
    let service = |name, port, pods: &[&str]| -> Result<Service> {
        let service = Service::sharing(name, port, "UDP", policies::VOICE.2).dual_stack();
        Ok(service.with(policies::endpoints(&cluster, pods)?))
    };
    let blue = service("shop/voice", policies::VOICE.0, &["web-1"])?;
    let green = service("shop/radio", policies::VOICE.1, &["web-1"])?;
    let moved = service("shop/voice", policies::VOICE.0, &["web-2"])?;
    let cluster = policies::started(cluster, &[blue, green])?;
    let client = cluster.lan.client()?;
    let open = |vip, port| -> Result<Datagrams> {
        cluster.await_service(Request::new(Kind::UdpEcho, vip, port), "shop/voice")?;
        let flow = client.namespace().run(|| Datagrams::connect((vip, port).into(), SHORT_TIMEOUT))?;
        assert_eq!(flow.echo("at first")?.pod, "web-1");
        Ok(flow)
    };
    let all = |port| policies::VIPS.map(|vip| open(vip, port)).into_iter().collect::<Result<Vec<_>>>();
    let (blue, green) = (all(policies::VOICE.0)?, all(policies::VOICE.1)?);
    cluster.manifests.write_service(&moved)?;
    for flow in &blue {
        wait::until("the flow at the pod that its Service has", PATIENCE, || {
            let answer = flow.echo("where to?")?;
            ensure!(answer.pod == "web-2", "{answer}");
            Ok(())
        })?;
    }
    for flow in &green {
        assert_eq!(flow.echo("still there?")?.pod, "web-1");
    }
    Ok(())
}

/// The nodes do not learn of a drain at the same time.
#[test]
fn a_pod_that_drains_takes_what_a_node_hands_over_that_has_not_heard_of_it() -> Result<()> {
    let Some(mut cluster) = policies::prepared(Options::default(), &["node-1", "node-2", "node-3"])? else {
        return Ok(());
    };
    // It stays the leader while it is stopped.
    let options = agent::Options { lease: "30s", ..cluster.agent_options() };
    cluster.start_agents(&options)?;
    let leader = cluster.await_leader(VIP)?.name.clone();
    let others = cluster.pods.iter().filter(|pod| pod.node != leader && pod.name != "admin-1");
    let [draining, fresh] = others.collect::<Vec<_>>()[..] else { bail!("not one pod on each node") };
    cluster.manifests.write_service(&policies::web(&cluster, &[&draining.name])?)?;
    let request = policies::to_web(VIP.into());
    cluster.await_service(request, "shop/web")?;
    policies::await_ready(&cluster, 1)?;

    let agent = cluster.agent(&leader)?.process();
    agent.signal(Signal::SIGSTOP)?;
    await_stopped(agent.id())?;
    let mut endpoints = policies::endpoints(&cluster, &[&draining.name])?;
    for endpoint in &mut endpoints {
        endpoint.condition = Condition::Terminating;
    }
    endpoints.extend(policies::endpoints(&cluster, &[&fresh.name])?);
    let web = policies::web(&cluster, &[])?.with(endpoints);
    cluster.manifests.write_service(&web)?;
    let node = cluster.lan.node(&draining.node)?;
    wait::until("the pod's node drains it", PATIENCE, || {
        let view = cluster.agent(&draining.node)?.inspect_json(node, &["services"])?;
        let web = view["services"].as_array().and_then(|all| all.iter().find(|web| web["name"] == "web"));
        ensure!(web.is_some_and(|web| web["local"] == 0 && web["ready"] == 1), "{view}");
        Ok(())
    })?;
    for _ in 0..5 {
        assert_eq!(cluster.ask(request, TIMEOUT)?.pod, draining.name);
    }
    agent.signal(Signal::SIGCONT)?;
    wait::until("new flows at the other pod", PATIENCE, || {
        let answer = cluster.ask(request, TIMEOUT)?;
        ensure!(answer.pod == fresh.name, "{answer}");
        Ok(())
    })
}

/// The nodes do not learn at the same time that a pod is ready.
#[test]
fn a_pod_that_became_ready_takes_what_a_node_hands_over_before_its_own_node_has_heard_of_it() -> Result<()> {
    let Some(mut cluster) = policies::prepared(Options::default(), &["node-1", "node-2", "node-3"])? else {
        return Ok(());
    };
    // The others hand over to a node whose agent is stopped.
    let options = agent::Options { lease: "30s", ..cluster.agent_options() };
    cluster.start_agents(&options)?;
    let leader = cluster.await_leader(VIP)?.name.clone();
    let others = cluster.pods.iter().filter(|pod| pod.node != leader && pod.name != "admin-1");
    let [old, fresh] = others.collect::<Vec<_>>()[..] else { bail!("not one pod on each node") };
    let web = |old_is: Condition, fresh_is: Condition| -> Result<_> {
        let of = |pod: &Pod, condition| -> Result<_> {
            let endpoints = policies::endpoints(&cluster, &[&pod.name])?.into_iter();
            Ok(endpoints.map(move |endpoint| Endpoint { condition, ..endpoint }))
        };
        Ok(policies::web(&cluster, &[])?.with(of(old, old_is)?.chain(of(fresh, fresh_is)?)))
    };
    cluster.manifests.write_service(&web(Condition::Ready, Condition::NotReady)?)?;
    let request = policies::to_web(VIP.into());
    cluster.await_service(request, "shop/web")?;
    policies::await_ready(&cluster, 1)?;
    for _ in 0..5 {
        assert_eq!(cluster.ask(request, TIMEOUT)?.pod, old.name);
    }

    let agent = cluster.agent(&fresh.node)?.process();
    agent.signal(Signal::SIGSTOP)?;
    await_stopped(agent.id())?;
    cluster.manifests.write_service(&web(Condition::Terminating, Condition::Ready)?)?;
    wait::until("an answer of the new pod", PATIENCE, || {
        let answer = cluster.ask(request, SHORT_TIMEOUT)?;
        ensure!(answer.pod == fresh.name, "{answer}");
        Ok(())
    })?;
    for _ in 0..5 {
        assert_eq!(cluster.ask(request, TIMEOUT)?.pod, fresh.name);
    }
    agent.signal(Signal::SIGCONT)
}

/// Services come, go and change their pods a thousand times. The five constant Services lose no
/// request, and only a changing Service answers at its port.
#[test]
fn a_storm_of_changes_sends_no_request_to_a_wrong_service() -> Result<()> {
    let Some(mut cluster) = services::served(Options::default())? else { return Ok(()) };
    // Each changing Service has its own server in a pod on every node.
    for (node, number) in [("node-1", 1), ("node-2", 2), ("node-3", 3)] {
        let listeners: Vec<_> =
            (0..CHURNING).map(|service| Listener::new(Kind::Http, churn_port(service), &churn_name(service))).collect();
        cluster.add_pod(node, &format!("churn-{number}"), 30, &listeners)?;
    }
    let steady = start_all(&cluster)?;
    let client = cluster.lan.client()?;
    let churning: Vec<_> = (0..CHURNING)
        .map(|service| {
            let request = Request::new(Kind::Http, VIP, churn_port(service));
            Traffic::with_timeout(client.namespace(), request, PAUSE, SHORT_TIMEOUT)
        })
        .collect::<Result<_>>()?;
    for change in 0..CHANGES {
        match churned(&cluster, change)? {
            None => {
                let (name, port) = (churn_name(change % CHURNING), churn_port(change % CHURNING));
                cluster.manifests.remove_service(&Service::sharing(&name, port, "TCP", port))?;
            }
            Some(service) => {
                cluster.manifests.write_service(&service)?;
                // The agents may catch up now and then, so that they go through many states, not
                // only the last one.
                if change % 50 == 0 {
                    let request = Request::new(Kind::Http, VIP, service.port);
                    cluster.await_service(request, &service.full_name())?;
                }
            }
        }
    }
    for (service, traffic) in churning.into_iter().enumerate() {
        let tally = traffic.stop()?;
        tally.check_none_by_others(&churn_name(service))?;
        ensure!(tally.answered > 0, "{} was never reached: {:?}", churn_name(service), tally.failures);
    }
    stop_all(steady)
}

/// Both Services are in one file, so their ports change owners at one moment. Both pods are on the
/// same node.
#[test]
fn services_that_exchange_their_ports_are_told_apart_at_once() -> Result<()> {
    const PORTS: [u16; 2] = [11_000, 11_001];
    const NAMES: [&str; 2] = ["swap/one", "swap/two"];
    let Some(mut cluster) = services::served(Options::default())? else { return Ok(()) };
    for node in ["node-1", "node-2"] {
        let listeners = [Listener::new(Kind::Http, 7001, NAMES[0]), Listener::new(Kind::Http, 7002, NAMES[1])];
        cluster.add_pod(node, &format!("swap-{node}"), 50, &listeners)?;
    }
    for round in 0..20 {
        // Returns the owner of each port.
        let owner = |port: usize| NAMES[(port + round) % 2];
        let mut documents = Vec::new();
        for (port, number) in PORTS.iter().enumerate() {
            let target = 7001 + u16::from(owner(port) == NAMES[1]);
            let endpoints = [cluster.endpoint("swap-node-1")?, cluster.endpoint("swap-node-2")?];
            documents.extend(Service::sharing(owner(port), *number, "TCP", target).with(endpoints).documents());
        }
        cluster.manifests.write("swap.yaml", &documents)?;
        for (node, agent) in cluster.lan.nodes.iter().zip(&cluster.agents) {
            wait::until("the agent holds the exchange", PATIENCE, || {
                let services = agent.inspect(node, &["services"])?;
                let holds = |line: &str, port: usize| {
                    line.contains(owner(port)) && line.contains(&format!("{}/TCP", PORTS[port]))
                };
                ensure!((0..2).all(|port| services.lines().any(|line| holds(line, port))), "{services}");
                Ok(())
            })?;
        }
        for (port, number) in PORTS.iter().enumerate() {
            for _ in 0..10 {
                let answer = cluster.ask(Request::new(Kind::Http, VIP, *number), TIMEOUT)?;
                assert_eq!(answer.service, owner(port), "round {round}, port {number}");
            }
        }
    }
    Ok(())
}

fn churn_name(service: usize) -> String {
    format!("churn/service-{service}")
}

fn churn_port(service: usize) -> u16 {
    10_000 + u16::try_from(service).unwrap_or_default()
}

/// Returns a Service of a round: gone in every fifth round, otherwise with one to three of its
/// pods.
fn churned(cluster: &Cluster, change: usize) -> Result<Option<Service>> {
    let (round, service) = (change / CHURNING, change % CHURNING);
    if round % 5 == 4 {
        return Ok(None);
    }
    let pods = ["churn-1", "churn-2", "churn-3"];
    let endpoints = (0..=round % 3).map(|n| cluster.endpoint(pods[(n + round) % 3])).collect::<Result<Vec<_>>>()?;
    let port = churn_port(service);
    Ok(Some(Service::sharing(&churn_name(service), port, "TCP", port).with(endpoints)))
}

fn start_all(cluster: &Cluster) -> Result<Vec<Traffic>> {
    let client = cluster.lan.client()?;
    services::expected().iter().map(|expected| Traffic::start(client.namespace(), expected.request, PAUSE)).collect()
}

fn stop_all(traffic: Vec<Traffic>) -> Result<()> {
    for (traffic, expected) in traffic.into_iter().zip(services::expected()) {
        traffic.wait_for_more(5, PATIENCE)?;
        traffic.stop()?.check_all_by(expected.name)?;
    }
    Ok(())
}

fn await_silence(cluster: &Cluster, request: Request) -> Result<()> {
    wait::until("no more answers", PATIENCE, || {
        ensure!(cluster.ask(request, SILENCE).is_err(), "{request} is answered");
        Ok(())
    })
}
