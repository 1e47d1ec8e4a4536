//! Tests agents that start while something is missing, or disturbs them.

use std::{
    fs,
    net::Ipv4Addr,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    process::Command,
    thread,
    time::Duration,
};

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;
use vipmux_tests::{
    agent::{self, Agent},
    cleanup::Folder,
    client::{Kind, Request},
    cluster::{Cluster, PATIENCE},
    lan::{Lan, Options},
    manifests::{Manifests, Service, VIP},
    pod::Listener,
    process::{self, Process},
};

use crate::services;

/// The address of another sharing group.
const OTHER_VIP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 210);
/// `nobody` on Debian.
const NOBODY: u32 = 65_534;

#[test]
fn an_agent_without_manifests_waits_for_them() -> Result<()> {
    let Some(lan) = Lan::for_test(Options { nodes: 2, ..Options::default() })? else { return Ok(()) };
    let full = Manifests::for_lan(&lan)?;
    let mut cluster = Cluster::new(lan, Manifests::empty()?)?;
    cluster.start_agents(&cluster.agent_options())?;
    cluster.add_pod("node-2", "web-1", 10, &[Listener::new(Kind::Http, 8080, "shop/web")])?;
    for file in ["nodes.yaml", "pool.yaml"] {
        cluster.manifests.write_text(file, &fs::read_to_string(full.path().join(file))?)?;
    }
    let endpoint = cluster.endpoint("web-1")?;
    cluster.manifests.write_service(&Service::sharing("shop/web", 80, "TCP", 8080).with([endpoint]))?;
    cluster.await_service(Request::new(Kind::Http, VIP, 80), "shop/web").map(drop)
}

/// As by a debugger, or where the containers of a machine are frozen for a moment. The verifier gives up then.
#[test]
fn an_agent_that_is_stopped_and_continued_while_it_loads_its_programs_starts() -> Result<()> {
    const STOPS: u32 = 40;
    let Some(lan) = Lan::for_test(Options { nodes: 1, clients: 0, ..Options::default() })? else { return Ok(()) };
    let manifests = Manifests::for_lan(&lan)?;
    let cluster = Cluster::new(lan, manifests)?;
    let agent = Agent::start(cluster.lan.node("node-1")?, &cluster.agent_options())?;
    for _ in 0..STOPS {
        agent.process().signal(Signal::SIGSTOP)?;
        thread::sleep(Duration::from_millis(10));
        agent.process().signal(Signal::SIGCONT)?;
        thread::sleep(Duration::from_millis(40));
    }
    agent.wait_ready(PATIENCE)
}

#[test]
fn an_agent_without_privileges_says_what_is_missing() -> Result<()> {
    let Some(lan) = Lan::for_test(Options { nodes: 1, clients: 0, ..Options::default() })? else { return Ok(()) };
    let manifests = Manifests::for_lan(&lan)?;
    // `nobody` may have no access to cargo's target folder.
    let folder = Folder::temporary("binary")?;
    let binary = folder.path().join("vipmux");
    fs::copy(agent::binary()?, &binary)?;
    for path in [folder.path(), manifests.path(), &binary] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    }
    let mut command = Command::new(&binary);
    command.args(["agent", "--node-name", "node-1", "--interface", "lo", "--manifests"]).arg(manifests.path());
    command.arg("--state-dir").arg(folder.path()).arg("--pin-path").arg(Folder::of_pins("nobody").path());
    command.uid(NOBODY).gid(NOBODY);
    let mut process = Process::spawn("the agent", command)?;
    let status = process.wait(PATIENCE)?;
    let output = process.output();
    assert!(!status.success(), "{output}");
    assert!(output.contains("CAP_BPF") || output.contains("root"), "no word of what is missing: {output}");
    assert!(!output.contains("panicked"), "{output}");
    Ok(())
}

/// Without an InternalIP there is no interface to announce on, since none is configured.
#[test]
fn an_agent_that_is_not_ready_yet_is_drained_and_says_that_there_is_nothing_to_compare() -> Result<()> {
    let Some(lan) = Lan::for_test(Options { nodes: 1, clients: 0, ..Options::default() })? else { return Ok(()) };
    let (manifests, state, pins) = (Manifests::empty()?, Folder::temporary("state")?, Folder::of_pins("waiting"));
    let (namespace, socket) = (lan.nodes[0].namespace(), state.path().join("agent.sock"));
    let mut command = namespace.command(agent::binary()?)?;
    command.args(["agent", "--node-name", "node-1", "--flows", "1024", "--manifests"]).arg(manifests.path());
    command.arg("--state-dir").arg(state.path()).arg("--pin-path").arg(pins.path()).arg("--socket").arg(&socket);
    let agent = Process::spawn("the agent", command)?;
    agent.wait_for_line("what it waits for", PATIENCE, |line| line.contains("no interface to announce on yet"))?;
    let ask = |what: &[&str]| -> Result<_> {
        let mut command = namespace.command(agent::binary()?)?;
        command.args(what).arg("--socket").arg(&socket);
        let output = process::output(command)?;
        let reported = [output.stdout, output.stderr].concat();
        Ok((output.status.code(), String::from_utf8(reported)?))
    };
    let (status, reported) = ask(&["drain"])?;
    assert!(status == Some(0) && reported.contains("drained: 0 VIPs handed over"), "{status:?}: {reported}");
    let (status, reported) = ask(&["inspect", "diff"])?;
    assert!(status == Some(1) && reported.contains("it is not ready yet"), "{status:?}: {reported}");
    Ok(())
}

#[test]
fn a_log_as_text_has_no_colors_in_a_file() -> Result<()> {
    let Some(lan) = Lan::for_test(Options { nodes: 1, clients: 0, ..Options::default() })? else { return Ok(()) };
    let (manifests, state, pins) = (Manifests::for_lan(&lan)?, Folder::temporary("state")?, Folder::of_pins("text"));
    let options = agent::Options::new(manifests.path(), state.path());
    let mut command = agent::command(&lan.nodes[0], &options, pins.path())?;
    command.args(["--log-format", "text"]).env_remove("NO_COLOR");
    let process = Process::spawn("the agent", command)?;
    let line = process.wait_for_line("that it is attached", PATIENCE, |line| line.contains("attached"))?;
    assert!(line.contains("INFO") && !process.output().contains('\x1b'), "{line:?}");
    Ok(())
}

/// An agent that cannot start leaves nothing in its state directory: no key, which another agent
/// would not have, and no lock.
#[test]
fn a_start_that_fails_leaves_no_file() -> Result<()> {
    let Some(lan) = Lan::for_test(Options { nodes: 1, clients: 0, ..Options::default() })? else { return Ok(()) };
    let (manifests, state) = (Manifests::for_lan(&lan)?, Folder::temporary("state")?);
    let (options, pins) = (agent::Options::new(manifests.path(), state.path()), Folder::of_pins("unstarted"));
    let fails = |options: &agent::Options, pins: &std::path::Path, why: &str| -> Result<()> {
        let mut process = Process::spawn("the agent", agent::command(&lan.nodes[0], options, pins)?)?;
        let status = process.wait(PATIENCE)?;
        assert!(!status.success() && process.output().contains(why), "{}", process.output());
        let left: Vec<_> = fs::read_dir(state.path())?.map(|entry| Ok(entry?.file_name())).collect::<Result<_>>()?;
        assert!(left.is_empty(), "after {why}: {left:?}");
        Ok(())
    };
    fails(&agent::Options { interface: "eth7".to_owned(), ..options.clone() }, pins.path(), "eth7")?;
    fails(&options, state.path(), "bpffs")?;
    let port = format!("[::]:{}", 7945);
    let _taken = lan.nodes[0].namespace().run(|| Ok(std::net::TcpListener::bind(&port)?))?;
    fails(&options, pins.path(), "7945")
}

#[test]
fn a_damaged_gossip_key_is_reported_and_nothing_is_put_into_the_kernel() -> Result<()> {
    let Some(lan) = Lan::for_test(Options { nodes: 1, clients: 0, ..Options::default() })? else { return Ok(()) };
    let (manifests, state) = (Manifests::for_lan(&lan)?, Folder::temporary("state")?);
    fs::write(state.path().join("gossip.key"), "no key\n")?;
    let (options, pins) = (agent::Options::new(manifests.path(), state.path()), Folder::of_pins("keyless"));
    let mut process = Process::spawn("the agent", agent::command(&lan.nodes[0], &options, pins.path())?)?;
    let status = process.wait(PATIENCE)?;
    assert!(!status.success() && process.output().contains("line 1 is not a key"), "{}", process.output());
    assert!(!pins.path().join("maps").exists(), "maps stay behind");
    Ok(())
}

/// Starts an agent with the first of these state folders, and waits until it is ready. Returns the
/// options of another agent on the same node.
fn ready_beside(lan: &Lan, manifests: &Manifests, states: [&Folder; 2]) -> Result<(Agent, agent::Options)> {
    let [options, other] = states.map(|state| agent::Options::new(manifests.path(), state.path()));
    let agent = Agent::start(&lan.nodes[0], &options)?;
    agent.wait_ready(PATIENCE)?;
    Ok((agent, agent::Options { http_listen: "off", ..other }))
}

#[test]
fn a_second_agent_on_the_same_pins_is_refused() -> Result<()> {
    let Some(lan) = Lan::for_test(Options { nodes: 1, clients: 0, ..Options::default() })? else { return Ok(()) };
    let manifests = Manifests::for_lan(&lan)?;
    let (state, other_state) = (Folder::temporary("state")?, Folder::temporary("other-state")?);
    let (first, options) = ready_beside(&lan, &manifests, [&state, &other_state])?;
    let mut second = Process::spawn("another agent", agent::command(&lan.nodes[0], &options, first.pins())?)?;
    assert!(!second.wait(PATIENCE)?.success(), "{}", second.output());
    assert!(second.output().contains("another agent or `vipmux unload` works with the pins"), "{}", second.output());
    Ok(())
}

#[test]
fn an_interface_that_has_another_xdp_program_is_refused() -> Result<()> {
    let Some(lan) = Lan::for_test(Options { nodes: 1, clients: 0, ..Options::default() })? else { return Ok(()) };
    let manifests = Manifests::for_lan(&lan)?;
    let (state, other_state) = (Folder::temporary("state")?, Folder::temporary("other-state")?);
    let (_first, options) = ready_beside(&lan, &manifests, [&state, &other_state])?;
    let mut second = Agent::start(&lan.nodes[0], &options)?;
    let status = second.process_mut().wait(PATIENCE)?;
    let output = second.process().output();
    assert!(!status.success(), "{output}");
    assert!(output.contains("eth0 already has an XDP program that is not vipmux's"), "{output}");
    Ok(())
}

/// A macvlan's driver has no native XDP.
#[test]
fn where_the_driver_has_no_native_xdp_the_agent_falls_back_to_generic_and_says_so() -> Result<()> {
    let Some(lan) = Lan::for_test(Options { nodes: 1, clients: 0, ..Options::default() })? else { return Ok(()) };
    let node = &lan.nodes[0];
    node.namespace().links(|links| links.add_macvlan("mac0", "eth0"))?;
    let manifests = Manifests::for_lan(&lan)?;
    let state = Folder::temporary("state")?;
    let start = |xdp_mode| {
        let options = agent::Options::new(manifests.path(), state.path());
        Agent::start(node, &agent::Options { interface: "mac0".into(), xdp_mode, ..options })
    };
    let mut native = start("native")?;
    assert!(!native.process_mut().wait(PATIENCE)?.success(), "{}", native.process().output());
    let auto = start("auto")?;
    auto.wait_ready(PATIENCE)?;
    let output = auto.process().output();
    assert!(
        output.contains("no native XDP, using the slower generic mode") && output.contains(r#""mode":"generic""#),
        "{output}"
    );
    assert!(node.namespace().links(|links| links.has_xdp("mac0"))?);
    Ok(())
}

#[test]
fn an_interface_that_is_not_there_is_named() -> Result<()> {
    let Some(lan) = Lan::for_test(Options { nodes: 1, clients: 0, ..Options::default() })? else { return Ok(()) };
    let manifests = Manifests::for_lan(&lan)?;
    let state = Folder::temporary("state")?;
    let options = agent::Options { interface: "eth7".into(), ..agent::Options::new(manifests.path(), state.path()) };
    let mut agent = Agent::start(&lan.nodes[0], &options)?;
    let status = agent.process_mut().wait(PATIENCE)?;
    let output = agent.process().output();
    assert!(!status.success(), "{output}");
    assert!(output.contains("eth7"), "no word of the interface: {output}");
    assert!(!output.contains("panicked"), "{output}");
    assert!(!lan.nodes[0].namespace().links(|links| links.has_xdp("eth0"))?);
    Ok(())
}

#[test]
fn an_address_that_an_interface_has_is_refused_and_the_others_are_served() -> Result<()> {
    let Some(mut cluster) = services::prepared(Options::default())? else { return Ok(()) };
    let mut other = services::web(&cluster)?;
    other.name.1 = "other".to_owned();
    other.address = Some(OTHER_VIP);
    other.sharing_key = None;
    cluster.manifests.write_service(&other)?;
    let node = cluster.planned_leader(OTHER_VIP)?.name.clone();
    cluster.lan.node(&node)?.namespace().links(|links| {
        links.add_address("eth0", OTHER_VIP, 24)?;
        links.add_holder("kube-ipvs0")?;
        links.add_address("kube-ipvs0", VIP, 32)
    })?;
    cluster.start_agents(&cluster.agent_options())?;
    services::await_all(&cluster)?;
    let agent = cluster.agent(&node)?;
    let line = agent.process().wait_for_line("refusing the address", PATIENCE, |line| {
        line.contains(&OTHER_VIP.to_string()) && line.contains("eth0")
    })?;
    assert!(!line.contains("panicked"), "{line}");
    let vips = agent.inspect_json(cluster.lan.node(&node)?, &["vips"])?.to_string();
    assert!(vips.contains(&VIP.to_string()) && !vips.contains(&OTHER_VIP.to_string()), "{vips}");
    Ok(())
}

/// The programs know only the kernel's clock. A deadline of another one would hold for hours, or never.
#[test]
fn an_agent_in_a_time_namespace_does_not_start_and_check_says_why() -> Result<()> {
    const OFFSET: &str = "100000";
    let Some(lan) = Lan::for_test(Options { nodes: 1, clients: 0, ..Options::default() })? else { return Ok(()) };
    let (manifests, state, pins) = (Manifests::for_lan(&lan)?, Folder::temporary("state")?, Folder::of_pins("time"));
    let namespace = lan.nodes[0].namespace();
    let run = |what: &str| -> Result<(Option<i32>, String)> {
        let mut command = namespace.command("unshare")?;
        command.args(["--time", "--boottime", OFFSET, "--fork"]).arg(agent::binary()?);
        command.args([what, "--node-name", "node-1", "--interface", "eth0", "--manifests"]).arg(manifests.path());
        command.arg("--state-dir").arg(state.path()).arg("--pin-path").arg(pins.path());
        let output = process::output(command)?;
        Ok((output.status.code(), String::from_utf8([output.stdout, output.stderr].concat())?))
    };
    let (status, reported) = run("agent")?;
    ensure!(status == Some(1) && reported.contains("time namespace"), "{status:?}: {reported}");
    let (status, reported) = run("check")?;
    let found = reported.lines().find(|line| line.contains(" clock ")).unwrap_or_default();
    ensure!(
        status == Some(2) && found.starts_with("fail") && found.contains("time namespace"),
        "{status:?}: {reported}"
    );
    Ok(())
}
