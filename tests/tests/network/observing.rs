//! Tests what agents serve by HTTP: metrics, health and readiness.

use std::os::fd::AsRawFd as _;

use anyhow::{Context as _, Result, ensure};
use nix::sys::{
    signal::Signal,
    socket::{Shutdown, shutdown},
};
use vipmux_tests::{
    agent::Agent,
    client::{Kind, Request},
    cluster::{Cluster, PATIENCE, SILENCE, TIMEOUT},
    failover::await_stopped,
    lan::Options,
    manifests::{Service, VIP},
    scrape::{self, Metrics},
    wait,
};

use crate::services;

/// Requests a path of the agent on a node, from that node, as the kubelet does.
fn ask(cluster: &Cluster, node: &str, path: &str) -> Result<(u16, String)> {
    let node = cluster.lan.node(node)?;
    scrape::get(node.namespace(), node.address, path, TIMEOUT)
}

/// Waits until the agent on a node responds with this status and a line with this beginning.
fn await_answer(cluster: &Cluster, node: &str, path: &str, status: u16, line: &str) -> Result<()> {
    wait::until(&format!("{status} for {path}, with {line}"), PATIENCE, || {
        let (found, body) = ask(cluster, node, path)?;
        ensure!(found == status && body.lines().any(|it| it.starts_with(line)), "status {found}: {body}");
        Ok(())
    })
    .with_context(|| cluster.last_outputs())
}

/// Returns the sum of a metric over all nodes.
fn sum(cluster: &Cluster, name: &str, labels: &[(&str, &str)]) -> Result<f64> {
    let of_node = |node: &vipmux_tests::lan::Node| {
        Ok(Metrics::scrape(node.namespace(), node.address, TIMEOUT)?.sum(name, labels))
    };
    cluster.lan.nodes.iter().map(of_node).sum()
}

#[test]
fn an_agent_is_ready_while_it_can_answer_and_alive_all_the_time() -> Result<()> {
    let Some(mut cluster) = services::prepared(Options::default())? else { return Ok(()) };
    let name = cluster.lan.nodes[0].name.clone();
    // Without a carrier it has no evidence.
    cluster.lan.unplug(&name)?;
    let options = cluster.agent_options();
    for node in &cluster.lan.nodes {
        cluster.agents.push(Agent::start(node, &options)?);
    }
    await_answer(&cluster, &name, "/readyz", 503, "[-]fence failed: nothing says yet")?;
    await_answer(&cluster, &name, "/readyz", 503, "[+]source ok")?;
    await_answer(&cluster, &name, "/healthz", 200, "[+]event-loop ok")?;

    cluster.lan.plug(&name)?;
    await_answer(&cluster, &name, "/readyz", 200, "passed")?;
    for check in ["[+]source ok", "[+]attached ok", "[+]synced ok", "[+]fence ok", "[+]staying ok"] {
        await_answer(&cluster, &name, "/readyz", 200, check)?;
    }
    let node = cluster.lan.node(&name)?;
    let metrics = || Metrics::scrape(node.namespace(), node.address, TIMEOUT);
    let before = metrics()?;
    assert_eq!(before.sum("vipmux_ready", &[]).to_string(), "1");
    assert!(before.sum("vipmux_fence_remaining_seconds", &[]) > 0.0 && before.has("vipmux_fence_lapses_total"));

    cluster.lan.unplug(&name)?;
    await_answer(&cluster, &name, "/readyz", 503, "[-]fence failed: the fence deadline passed")?;
    assert_eq!(ask(&cluster, &name, "/healthz")?.0, 200);
    let lapses = |metrics: &Metrics| metrics.sum("vipmux_fence_lapses_total", &[]);
    // It is not ready as soon as the deadline passes. The event loop counts that later.
    let found = wait::until("the lapse to be counted", PATIENCE, || {
        let found = metrics()?;
        ensure!(lapses(&found) > lapses(&before), "{} and {} lapses", lapses(&before), lapses(&found));
        Ok(found)
    })?;
    assert_eq!(found.sum("vipmux_ready", &[]).to_string(), "0");
    assert!(found.sum("vipmux_fence_remaining_seconds", &[]) < 0.0);
    cluster.lan.plug(&name)?;
    await_answer(&cluster, &name, "/readyz", 200, "passed")
}

#[test]
fn metrics_rise_with_the_traffic_and_with_what_happens() -> Result<()> {
    let Some(mut cluster) = services::served(Options::default())? else { return Ok(()) };
    let web = [("namespace", "shop"), ("service", "web"), ("vip", "192.0.2.200"), ("port", "80"), ("protocol", "TCP")];
    assert_eq!(VIP.to_string(), web[2].1, "the address that the labels have");
    let counted = |cluster: &Cluster| -> Result<[f64; 4]> {
        let of = |name| sum(cluster, name, &web);
        let drops = sum(cluster, "vipmux_dropped_packets_total", &[("reason", "no_service")])?;
        Ok([
            of("vipmux_service_packets_total")?,
            of("vipmux_service_bytes_total")?,
            of("vipmux_service_flows_total")?,
            drops,
        ])
    };
    let before = counted(&cluster)?;
    for _ in 0..20 {
        cluster.ask(Request::new(Kind::Http, VIP, 80), TIMEOUT)?;
    }
    assert!(cluster.ask(Request::new(Kind::Http, VIP, 81), TIMEOUT).is_err(), "nobody has this port");
    let [packets, bytes, flows, drops] = counted(&cluster)?;
    // A request has at least a SYN, an ACK, the request itself and a FIN, of 54 bytes or more.
    assert!(
        packets >= before[0] + 80.0 && bytes >= before[1] + 80.0 * 54.0,
        "{packets} packets, {bytes} bytes, {before:?}"
    );
    assert!(flows >= before[2] + 20.0 && drops > before[3], "{flows} flows, {drops} drops, {before:?}");

    wait::until("what three nodes have in common", PATIENCE, || {
        for (name, label, expected) in [
            ("vipmux_vip_leading", Some(("vip", "192.0.2.200")), "1"),
            // Five Services on each node.
            ("vipmux_services", Some(("state", "allocated")), "15"),
            ("vipmux_vips_without_leader", None, "0"),
            ("vipmux_map_entries", Some(("map", "SERVICES")), "15"),
            ("vipmux_members", Some(("standing", "alive")), "6"),
            ("vipmux_members", Some(("standing", "this_node")), "3"),
        ] {
            let found = sum(&cluster, name, label.as_slice())?.to_string();
            ensure!(found == expected, "{name} {label:?} is {found}, not {expected}");
        }
        Ok(())
    })?;
    for name in ["vipmux_gossip_datagrams_total", "vipmux_plan_steps_total", "vipmux_announcements_total"] {
        assert!(sum(&cluster, name, &[])? > 0.0, "{name}");
    }

    let (first, gained) =
        (cluster.await_leader(VIP)?.name.clone(), sum(&cluster, "vipmux_leaderships_gained_total", &[])?);
    let delays = sum(&cluster, "vipmux_event_to_kernel_seconds_count", &[])?;
    let (code, said, error) = cluster.agent(&first)?.drain(cluster.lan.node(&first)?, &[])?;
    ensure!(code == 0, "{said}{error}");
    wait::until("a leader after the handover", PATIENCE, || {
        let handed = sum(&cluster, "vipmux_leaderships_gained_total", &[("why", "handed")])?;
        let leading = sum(&cluster, "vipmux_vip_leading", &[("vip", "192.0.2.200")])?.to_string();
        ensure!(handed >= 1.0 && leading == "1", "{handed} handed over, {gained} before in all, {leading} lead");
        Ok(())
    })?;
    assert!(sum(&cluster, "vipmux_leaderships_lost_total", &[("why", "handed")])? >= 1.0);

    let web = services::web(&cluster)?;
    cluster.manifests.write_service(&Service { local: true, ..web })?;
    wait::until("the change in the histograms of all nodes", PATIENCE, || {
        let now = sum(&cluster, "vipmux_event_to_kernel_seconds_count", &[])?;
        ensure!(now >= delays + 3.0, "{now}, and {delays} before");
        Ok(())
    })?;

    cluster.agent_mut(&first)?.stop()?;
    assert!(ask(&cluster, &first, "/healthz").is_err(), "somebody answers for an agent that has ended");
    Ok(())
}

/// A mapping counts as the agent's memory. The flow table has 64 MiB and more on a node, and the tables of Services
/// have 24.
#[test]
fn large_maps_are_memory_of_an_agent_only_while_it_uses_them() -> Result<()> {
    let Some(cluster) = services::served(Options::default())? else { return Ok(()) };
    let name = &cluster.lan.nodes[0].name;
    let node = cluster.lan.node(name)?;
    let web = Service { endpoints: vec![cluster.endpoint("web-1")?], ..services::web(&cluster)? };
    cluster.manifests.write_service(&web)?;
    wait::until("one backend", PATIENCE, || {
        let view = cluster.agent(name)?.inspect_json(node, &["services"])?;
        let claims = view["services"].as_array().context("no services")?;
        let web = claims.iter().find(|claim| claim["name"] == "web").context("no web")?;
        ensure!(web["ready"] == 1, "{web}");
        Ok(())
    })?;
    // The metrics read the flow table, too.
    Metrics::scrape(node.namespace(), node.address, TIMEOUT)?;
    let process = cluster.agent(name)?.process().id();
    wait::until("small mappings of maps", PATIENCE, || {
        let mappings = std::fs::read_to_string(format!("/proc/{process}/maps"))?;
        let of_maps = mappings.lines().filter(|line| line.ends_with("anon_inode:bpf-map"));
        let sizes: Vec<u64> = of_maps.map(size).collect::<Result<_>>()?;
        ensure!(!sizes.is_empty() && sizes.iter().sum::<u64>() < 1 << 20, "{sizes:?} bytes");
        Ok(())
    })
}

/// Returns the size of a mapping in a line of `/proc/PID/maps`, in bytes.
fn size(line: &str) -> Result<u64> {
    let (start, end) = line.split(' ').next().and_then(|range| range.split_once('-')).context("no range")?;
    Ok(u64::from_str_radix(end, 16)? - u64::from_str_radix(start, 16)?)
}

/// The kubelet's view of a completely stuck agent. If only the event loop hangs, the agent reports
/// it (`vitals`).
#[test]
fn a_stopped_agent_does_not_answer_its_probes() -> Result<()> {
    let Some(cluster) = services::served(Options::default())? else { return Ok(()) };
    let node = &cluster.lan.nodes[0];
    let process = cluster.agent(&node.name)?.process();
    assert_eq!(ask(&cluster, &node.name, "/healthz")?.0, 200);
    process.signal(Signal::SIGSTOP)?;
    await_stopped(process.id())?;
    assert!(scrape::get(node.namespace(), node.address, "/healthz", SILENCE).is_err());
    process.signal(Signal::SIGCONT)?;
    await_answer(&cluster, &node.name, "/healthz", 200, "passed")?;
    await_answer(&cluster, &node.name, "/readyz", 200, "passed")
}

#[test]
fn an_agent_whose_port_is_taken_says_so_and_leaves_nothing_behind() -> Result<()> {
    let Some(mut cluster) = services::prepared(Options::default())? else { return Ok(()) };
    let options = cluster.agent_options();
    let node = &cluster.lan.nodes[0];
    let taken = node.namespace().run(|| Ok(std::net::TcpListener::bind("0.0.0.0:7945")?))?;
    let mut agent = Agent::start(node, &options)?;
    let status = agent.process_mut().wait(PATIENCE)?;
    let output = agent.process().output();
    assert_eq!(status.code(), Some(1), "{output}");
    ensure!(
        output.contains("something else listens on [::]:7945: stop it, or choose another --http-listen"),
        "{output}"
    );
    ensure!(!agent.pins().join("maps").exists(), "maps were pinned");
    // Now, even if a process that another test just starts has inherited the socket.
    shutdown(taken.as_raw_fd(), Shutdown::Both)?;
    drop(taken);
    agent.restart(node)?;
    agent.wait_ready(PATIENCE)?;
    cluster.agents.push(agent);
    Ok(())
}
