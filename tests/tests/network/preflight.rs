//! Tests `vipmux check` on nodes with and without faults.

use std::{
    ffi::OsString,
    fs,
    net::{IpAddr, Ipv4Addr, UdpSocket},
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use aya::{
    Ebpf, EbpfLoader,
    programs::{SchedClassifier, TcAttachType, XdpMode},
};
use serde_json::Value;
use vipmux_tests::{
    agent,
    cleanup::Folder,
    lan::{Lan, Node, Options},
    manifests::{Manifests, Service, VIP},
    process,
    program::{self, TESTING_OBJECT},
};

use crate::services;

/// `nobody` on Debian.
const NOBODY: u32 = 65_534;
/// The gateway of a node's second route.
const OTHER_GATEWAY: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);

/// A LAN with one complete node, and the options of the check.
struct Setup {
    lan: Lan,
    manifests: Manifests,
    state: Folder,
    pins: Folder,
}

impl Setup {
    /// `None` if the test is skipped.
    fn new() -> Result<Option<Self>> {
        let options = Options { nodes: 1, clients: 0, kubernetes_rules: true, ..Options::default() };
        let Some(lan) = Lan::for_test(options)? else { return Ok(None) };
        let (manifests, state) = (Manifests::for_lan(&lan)?, Folder::temporary("state")?);
        let setup = Self { lan, manifests, state, pins: Folder::of_pins("check") };
        setup.route()?;
        Ok(Some(setup))
    }

    fn node(&self) -> &Node {
        &self.lan.nodes[0]
    }

    /// The default route, through eth0.
    fn route(&self) -> Result<()> {
        let any = (IpAddr::from(Ipv4Addr::UNSPECIFIED), 0);
        self.node().namespace().links(|links| links.add_route("eth0", any, Some(Ipv4Addr::new(192, 0, 2, 1).into())))
    }

    fn arguments(&self) -> Vec<OsString> {
        let mut arguments =
            ["--node-name", "node-1", "--interface", "eth0", "--manifests"].map(OsString::from).to_vec();
        arguments.push(self.manifests.path().into());
        // The LAN is made for it.
        arguments.extend(["--xdp-mode", "native"].map(OsString::from));
        arguments.extend([
            "--state-dir".into(),
            self.state.path().into(),
            "--pin-path".into(),
            self.pins.path().into(),
        ]);
        arguments
    }

    fn check(&self) -> Result<Checked> {
        Checked::of(self.node(), self.arguments())
    }
}

/// The exit status and the results of `vipmux check`.
struct Checked {
    status: i32,
    checks: Vec<Value>,
}

impl Checked {
    fn of(node: &Node, arguments: impl IntoIterator<Item = OsString>) -> Result<Self> {
        let (status, mut said) = agent::check(node, arguments)?;
        let checks =
            serde_json::from_value(said["checks"].take()).with_context(|| format!("status {status}: {said}"))?;
        Ok(Self { status, checks })
    }

    /// Returns the names of the checks with this result.
    fn of_verdict(&self, verdict: &str) -> Vec<&str> {
        self.checks
            .iter()
            .filter(|check| check["verdict"] == verdict)
            .filter_map(|check| check["check"].as_str())
            .collect()
    }

    /// Checks that a check has this result, with these words in its finding and remedy. If it
    /// failed, no other check may have failed, and the exit status must say so.
    fn expect(&self, check: &str, verdict: &str, found: &str, remedy: &str) -> Result<()> {
        let contains = |value: &Value, words| value.as_str().unwrap_or_default().contains(words);
        let is_it = |one: &&Value| {
            one["check"] == check
                && one["verdict"] == verdict
                && contains(&one["found"], found)
                && contains(&one["remedy"], remedy)
        };
        ensure!(
            self.checks.iter().any(|one| is_it(&one)),
            "no {check} with {found:?} and {remedy:?}: {:#?}",
            self.checks
        );
        let failed = self.of_verdict("fail");
        ensure!(failed.iter().all(|failed| *failed == check), "{failed:?} failed: {:#?}", self.checks);
        ensure!(self.status == if verdict == "fail" { 2 } else { 0 }, "status {}", self.status);
        Ok(())
    }
}

#[test]
fn a_node_that_is_set_up_right_passes_and_nothing_is_left_there() -> Result<()> {
    let Some(setup) = Setup::new()? else { return Ok(()) };
    let node = setup.node();
    let rules = node.nft("list ruleset")?;
    let checked = setup.check()?;
    assert_eq!((checked.status, checked.of_verdict("fail")), (0, vec![]), "{:#?}", checked.checks);
    // Warnings for an old kernel, and for the keepalived of a test that runs now.
    let warned = checked.of_verdict("warn");
    let expected = |check: &&str| ["kernel", "other-balancers"].contains(check);
    assert!(warned.iter().all(expected), "{:#?}", checked.checks);
    checked.expect("xdp-mode", "pass", "native (veth)", "")?;
    checked.expect("kube-proxy", "pass", "nftables", "")?;
    checked.expect("node", "pass", "InternalIP 192.0.2.11", "")?;

    assert!(!setup.pins.path().exists() && fs::read_dir(setup.state.path())?.next().is_none());
    assert!(!node.namespace().links(|links| links.has_xdp("eth0"))?);
    assert_eq!(node.nft("list ruleset")?, rules);
    assert!(!node.tc(&["qdisc", "show"])?.contains("clsact"));
    Ok(())
}

#[test]
fn people_get_a_line_for_each_check() -> Result<()> {
    let Some(setup) = Setup::new()? else { return Ok(()) };
    setup.node().namespace().links(|links| links.set_down("eth0"))?;
    let mut command = setup.node().namespace().command(agent::binary()?)?;
    command.arg("check").args(setup.arguments());
    let output = process::output(command)?;
    let text = String::from_utf8(output.stdout)?;
    assert_eq!(output.status.code(), Some(2), "{text}");
    let line = text.lines().find(|line| line.starts_with("fail")).context("no line of a failure")?;
    let words: Vec<_> = line.split_ascii_whitespace().collect();
    assert_eq!(words[..3], ["fail", "carrier", "eth0"], "{text}");
    assert!(line.contains("-> `ip link set eth0 up`"), "{line}");
    assert!(text.lines().last().context("no last line")?.ends_with("1 failed"), "{text}");
    Ok(())
}

#[test]
fn a_strict_reverse_path_filter_is_reported_and_fails_where_replies_leave_elsewhere() -> Result<()> {
    let Some(setup) = Setup::new()? else { return Ok(()) };
    let namespace = setup.node().namespace();
    namespace.sysctl("net/ipv4/conf/all/rp_filter", "1")?;
    let remedy = "net.ipv4.conf.eth0.rp_filter=2";
    setup.check()?.expect("rp-filter", "warn", "strict (1)", remedy)?;
    namespace.links(|links| {
        links.add_macvlan("mac0", "eth0")?;
        links.add_address("mac0", Ipv4Addr::new(198, 51, 100, 2), 24)?;
        links.add_route("mac0", (Ipv4Addr::new(203, 0, 113, 0), 24), Some(OTHER_GATEWAY))
    })?;
    setup.check()?.expect("rp-filter", "fail", "routes use mac0", remedy)?;
    namespace.sysctl("net/ipv4/conf/eth0/rp_filter", "2")?;
    setup.check()?.expect("rp-filter", "pass", "loose (2)", "")
}

#[test]
fn programs_of_others_on_the_card_are_named() -> Result<()> {
    let Some(setup) = Setup::new()? else { return Ok(()) };
    let namespace = setup.node().namespace();
    // Any program will do.
    let mut other = Ebpf::load(vipmux_datapath::bpf::OBJECT)?;
    let egress: &mut SchedClassifier = other.program_mut("vipmux_egress").context("no program")?.try_into()?;
    egress.load()?;
    let has_tcx = namespace.run(|| Ok(egress.attach("eth0", TcAttachType::Egress).is_ok()))?;
    if has_tcx {
        let id = egress.info()?.id();
        setup.check()?.expect("tc-programs", "pass", &format!("all: vipmux_egress (id {id})"), "")?;
    }
    let mut testing = EbpfLoader::new().load(TESTING_OBJECT)?;
    let pass = program::xdp_mut(&mut testing, "pass")?;
    pass.load()?;
    namespace.run(|| Ok(pass.attach("eth0", XdpMode::Driver)?))?;
    let id = pass.info()?.id();
    setup.check()?.expect("xdp-program", "fail", &format!("pass (id {id}) on eth0"), "ip link set eth0 xdp off")
}

/// Runs the command that a remedy names.
fn follow(node: &Node, checked: &Checked, check: &str) -> Result<()> {
    let is_warning = |one: &&Value| one["check"] == check && one["verdict"] == "warn";
    let warning = checked.checks.iter().find(is_warning).context("no warning")?;
    let command = warning["remedy"].as_str().and_then(|remedy| remedy.split('`').nth(1)).context("no command")?;
    node.nft(&command.replace("POD-CIDR", "10.244.0.0/16").replacen("nft ", "", 1)).map(drop)
}

#[test]
fn chains_that_drop_what_is_forwarded_or_what_agents_say_are_named() -> Result<()> {
    let Some(setup) = Setup::new()? else { return Ok(()) };
    let node = setup.node();
    node.nft("table ip filter { chain FORWARD { type filter hook forward priority 0; policy drop; }; }")?;
    let checked = setup.check()?;
    checked.expect("forward", "warn", "chain FORWARD of nftables table ip filter drops", "POD-CIDR accept")?;
    follow(node, &checked, "forward")?;
    ensure!(node.nft("list chain ip filter FORWARD")?.contains("ip daddr 10.244.0.0/16 accept"));
    node.nft("chain ip filter FORWARD { policy accept; }")?;
    setup.check()?.expect("forward", "pass", "", "")?;

    node.nft("table inet host { chain in { type filter hook input priority 0; policy drop; udp dport 53 accept; }; }")?;
    let checked = setup.check()?;
    checked.expect("gossip-firewall", "warn", "table inet host drops UDP port 7944", "udp dport 7944 accept")?;
    follow(node, &checked, "gossip-firewall")?;
    setup.check()?.expect("gossip-firewall", "pass", "", "")
}

#[test]
fn a_pin_path_without_a_bpffs_is_reported() -> Result<()> {
    let Some(setup) = Setup::new()? else { return Ok(()) };
    let mut arguments = setup.arguments();
    *arguments.last_mut().context("no pin path")? = setup.state.path().into();
    Checked::of(setup.node(), arguments)?.expect("bpffs", "fail", "is not on a bpffs", "mount -t bpf bpf /sys/fs/bpf")
}

#[test]
fn vips_on_interfaces_and_a_used_gossip_port_are_reported() -> Result<()> {
    let Some(setup) = Setup::new()? else { return Ok(()) };
    let namespace = setup.node().namespace();
    setup.manifests.write_service(&Service::sharing("shop/web", 80, "TCP", 8080))?;
    setup.check()?.expect("vip-addresses", "pass", "none of 1 VIPs", "")?;
    let classed = setup.arguments().into_iter().chain(["--unset-class", "false"].map(OsString::from));
    Checked::of(setup.node(), classed)?.expect("vip-addresses", "pass", "no VIP is known yet", "")?;
    namespace.links(|links| links.add_holder("kube-ipvs0").and_then(|()| links.add_address("kube-ipvs0", VIP, 32)))?;
    let checked = setup.check()?;
    checked.expect("vip-addresses", "pass", "", "")?;
    checked.expect("kube-proxy", "pass", "VIPs on kube-ipvs0 are correct", "")?;
    checked.expect("arp", "warn", "arp_ignore is 0", "strictARP: true")?;
    namespace.sysctl("net/ipv4/conf/all/arp_ignore", "1")?;
    setup.check()?.expect("arp", "pass", "strictARP", "")?;
    namespace.links(|links| links.add_address("eth0", VIP, 32))?;
    let found = format!("{VIP} is on eth0");
    setup.check()?.expect("vip-addresses", "fail", &found, &format!("ip address del {VIP} dev eth0"))?;
    namespace.links(|links| links.delete("kube-ipvs0"))?;

    let Some(other) = Setup::new()? else { return Ok(()) };
    let _socket = other.node().namespace().run(|| Ok(UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 7944))?))?;
    let holder = format!("(pid {})", std::process::id());
    other.check()?.expect("gossip-port", "fail", &holder, "--gossip-port")
}

#[test]
fn a_node_with_an_agent_passes_and_the_agent_is_not_disturbed() -> Result<()> {
    let Some(cluster) = services::served(Options { kubernetes_rules: true, ..Options::default() })? else {
        return Ok(());
    };
    let node = cluster.await_leader(VIP)?;
    let agent = cluster.agent(&node.name)?;
    let manifests = cluster.manifests.path();
    let arguments = ["--interface", "eth0", "--node-name", &node.name, "--manifests"].map(OsString::from);
    let arguments = arguments.into_iter().chain([manifests.into()]);
    let with_path = arguments.clone().chain(["--pin-path".into(), agent.pins().into()]);
    let checked = Checked::of(node, with_path)?;
    checked.expect("xdp-program", "pass", "vipmux's own", "")?;
    checked.expect("xdp-mode", "pass", "native: the agent's program runs in veth", "")?;
    checked.expect("gossip-port", "pass", "used by the agent on this node", "")?;
    checked.expect("tc-programs", "pass", "", "")?;
    checked.expect("vip-addresses", "pass", "none of 1 VIPs", "")?;
    // Without the path, it finds the agent that runs on the node.
    let found = Checked::of(node, arguments)?;
    found.expect("xdp-program", "pass", "vipmux's own", "")?;
    found.expect("gossip-port", "pass", "used by the agent on this node", "")?;
    found.expect("tc-programs", "pass", "", "")?;
    let (status, differences) = agent.diff(node)?;
    assert_eq!(status, 0, "{differences}");
    services::ask_all(&cluster, 1).map(drop)
}

#[test]
fn an_api_server_that_does_not_answer_fails_and_the_rest_is_reported() -> Result<()> {
    let Some(setup) = Setup::new()? else { return Ok(()) };
    let kubeconfig = setup.state.path().join("kubeconfig");
    fs::write(
        &kubeconfig,
        r#"{"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "k", "cluster": {"server": "https://192.0.2.11:1", "insecure-skip-tls-verify": true}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}]}"#,
    )?;
    let arguments = ["--interface", "eth0", "--kubeconfig"].map(OsString::from).into_iter().chain([kubeconfig.into()]);
    let checked = Checked::of(setup.node(), arguments.chain(["--pin-path".into(), setup.pins.path().into()]))?;
    checked.expect("api", "fail", "does not answer", "kubeconfig")?;
    checked.expect("carrier", "fail", "", "").unwrap_err();
    assert!(checked.of_verdict("pass").contains(&"carrier"), "{:#?}", checked.checks);
    Ok(())
}

#[test]
fn missing_rights_are_reported() -> Result<()> {
    let Some(setup) = Setup::new()? else { return Ok(()) };
    // `nobody` may have no access to cargo's target folder.
    let folder = Folder::temporary("binary")?;
    let binary = folder.path().join("vipmux");
    fs::copy(agent::binary()?, &binary)?;
    for path in [folder.path(), setup.manifests.path(), &binary] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    }
    let mut command = Command::new(&binary);
    command.args(["check", "-j"]).args(setup.arguments()).uid(NOBODY).gid(NOBODY);
    let output = process::output(command)?;
    let said: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(output.status.code(), Some(2), "{said:#}");
    let missing = said["checks"].as_array().context("no checks")?.iter().find(|check| check["check"] == "capabilities");
    let missing = missing.context("no word of capabilities")?;
    assert!(missing["verdict"] == "fail" && missing["found"].to_string().contains("CAP_BPF"), "{missing}");
    Ok(())
}
