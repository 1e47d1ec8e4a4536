//! A real Kubernetes cluster on this machine: a control plane, nodes with kubelet, containerd and
//! kube-proxy, in namespaces on a LAN, and CoreDNS in Pods.
//!
//! ```text
//!   etcd, kube-apiserver,      client-1       client behind a router
//!   kube-controller-manager,      |              |
//!   kube-scheduler                |            router
//!        |                        |              |
//!   =====+===========+============+======+=======+==    the LAN's switch
//!                    |                   |
//!                 node-1   ...        node-N            kubelet, containerd, kube-proxy; Pods on cni0
//! ```

pub mod bench;
mod cgroups;
mod cni;
pub mod conformance;
mod image;
mod node;
mod system;

use std::{
    collections::BTreeSet,
    env,
    ffi::{OsStr, OsString},
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::json;

use self::image::Image;
pub use self::{cni::Cni, node::RealNode, system::System};
use crate::{
    api_server::{ADMIN, ApiServer, SYSTEM},
    arp,
    cleanup::Folder,
    cluster_programs, guide,
    ip_families::IpFamilies,
    kube_proxy::Mode,
    lan::{self, Lan, Options},
    netns::Namespace,
    process::{self, Process},
    router::Router,
    wait,
    watch::{View, Watch},
};

/// The time limit for whatever Kubernetes does on a busy machine.
pub const PATIENCE: Duration = Duration::from_mins(3);
/// The time for which one call of kubectl waits: less than a program may run.
const WAIT: &str = "--timeout=60s";
/// The address of the cluster's DNS, IPv4 and IPv6.
const DNS: (Ipv4Addr, Ipv6Addr) = (Ipv4Addr::new(10, 96, 0, 10), Ipv6Addr::new(0x2001, 0xdb8, 0x96, 0, 0, 0, 0, 0xa));
const COREDNS: &str = include_str!("real_cluster/coredns.yaml");
const ECHO: &str = include_str!("real_cluster/echo.yaml");
/// The port of the Service `shop/echo`, for TCP and UDP.
const ECHO_PORT: u16 = 9000;
/// The machines' own addresses have the lengths of the LAN's prefixes.
const FORGET: &str = "ip -oneline address show dev eth0 scope global | while read -r _ _ _ address _; do
    case $address in */32|*/128) ip address del $address dev eth0 ;; esac
done";
/// The number of ARP requests that only one node must answer, and the time for answers to each.
const STEADY: usize = 10;
const ANSWER: Duration = Duration::from_millis(500);
/// The number of answers to each kind of requests before and after what clients observe.
const ANSWERS: usize = 50;

/// What a cluster is made of.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The number of nodes.
    pub nodes: u8,
    /// The number of clients on the LAN.
    pub clients: u8,
    /// kube-proxy's mode.
    pub mode: Mode,
    /// The network of Pods.
    pub cni: Cni,
    /// The families of Nodes, Pods and Services.
    pub families: IpFamilies,
    /// The files of vipmux's image, as `cargo xtask image` makes them; `None`: the nodes do not have it.
    pub vipmux: Option<PathBuf>,
    /// The other load balancers whose images the nodes have.
    pub others: Vec<System>,
    /// Whether the nodes have the images that Kubernetes' own tests want.
    pub conformance: bool,
}

impl Default for Plan {
    /// Three nodes and a client with both families, without a load balancer.
    fn default() -> Self {
        Self {
            nodes: 3,
            clients: 1,
            mode: Mode::Nftables,
            cni: Cni::Bridge,
            families: IpFamilies::Dual,
            vipmux: None,
            others: Vec::new(),
            conformance: false,
        }
    }
}

/// The cluster. On drop nothing is left of it.
#[derive(Debug)]
pub struct RealCluster {
    /// The nodes, ordered by name.
    pub nodes: Vec<RealNode>,
    /// The client behind a router.
    pub router: Router,
    /// The LAN, with a client.
    pub lan: Lan,
    plan: Plan,
    images: Vec<PathBuf>,
    _images: Folder,
    _controllers: [Process; 2],
    /// The API server.
    pub api: ApiServer,
}

impl RealCluster {
    /// Starts a cluster, and waits until its nodes are Ready. `step` is told what happens.
    pub fn start(plan: &Plan, step: &mut dyn FnMut(&str)) -> Result<Self> {
        let lan = Lan::new(Options {
            nodes: plan.nodes,
            clients: plan.clients,
            families: plan.families,
            pod_routes: plan.cni.pod_routes(),
            ..Options::default()
        })?;
        let router = Router::plug_in(&lan)?;
        step("starting the control plane");
        let api = ApiServer::on(&lan)?.context("this machine lacks what the API server needs")?;
        router.serve(&api.machine().namespace)?;
        let controllers = [api.start_controller_manager()?, api.start_scheduler()?];
        let folder = Folder::temporary("images")?;
        step("making images");
        let images = make_images(folder.path(), plan)?;
        let mut nodes = Vec::new();
        for node in &lan.nodes {
            step(&format!("starting {}", node.name));
            nodes.push(RealNode::start(node, &api, plan, &images)?);
        }
        let plan = plan.clone();
        let cluster = Self { nodes, router, lan, plan, images, _images: folder, _controllers: controllers, api };
        step("waiting until the nodes are Ready");
        cluster.await_nodes()?;
        step("waiting for the cluster's DNS");
        cluster.api.kubectl_apply(&COREDNS.replace("DNS_ADDRESS", &dns(cluster.plan.families).to_string()), &[])?;
        cluster.await_rollout("kube-system", "deployment/coredns")?;
        Ok(cluster)
    }

    /// Returns the administrator's kubeconfig.
    pub fn kubeconfig(&self) -> Result<PathBuf> {
        self.api.kubeconfig(ADMIN)
    }

    /// Runs a line of shell in the repository's folder, with kubectl, helm and vipmux as the administrator,
    /// and returns its stdout. The machine is on the LAN, and no node.
    pub fn as_admin(&self, line: &str) -> Result<String> {
        let mut shell = self.api.machine().namespace.command("sh")?;
        shell.env("PATH", self.with_vipmux(&cluster_programs::search_path()?)?);
        shell.env("KUBECONFIG", self.kubeconfig()?);
        in_shell(shell, line)
    }

    /// Runs a line of shell on the client that is on the LAN.
    pub fn on_the_client(&self, line: &str) -> Result<String> {
        Self::on(self.lan.client()?.namespace(), line)
    }

    /// Runs a line of shell on a machine that is no node.
    pub fn on(machine: &Namespace, line: &str) -> Result<String> {
        in_shell(machine.command("sh")?, line)
    }

    /// Runs a line of shell on a node, as its root, with the program `vipmux`.
    pub fn as_root_on(&self, node: &str, line: &str) -> Result<String> {
        let node = self.nodes.iter().find(|real| real.name == node).with_context(|| format!("no node {node}"))?;
        let mut shell = node.command("sh")?;
        shell.env("PATH", self.with_vipmux(&env::var_os("PATH").unwrap_or_default())?);
        in_shell(shell, line)
    }

    /// Returns a value of `PATH` with the folder of vipmux before these ones.
    fn with_vipmux(&self, folders: &OsStr) -> Result<OsString> {
        let vipmux = self.plan.vipmux.iter().map(|root| root.join("usr/bin"));
        Ok(env::join_paths(vipmux.chain(env::split_paths(folders)))?)
    }

    /// Adds a Service to observe, in the namespace `shop`, which exists.
    pub fn add_echo(&self) -> Result<()> {
        self.api.kubectl_apply(ECHO, &[])?;
        self.await_rollout("shop", "deployment/echo")
    }

    /// Waits until a DaemonSet or Deployment has what it wants.
    pub fn await_rollout(&self, namespace: &str, what: &str) -> Result<()> {
        wait::until(&format!("the rollout of {namespace}/{what}"), PATIENCE, || {
            self.api.kubectl(&["--namespace", namespace, "rollout", "status", what, WAIT]).map(drop)
        })
    }

    /// Returns the node that leads a VIP.
    pub fn leader(&self, vip: Ipv4Addr) -> Result<String> {
        let name = format!("vip-{:08x}", vip.to_bits());
        let of = ["get", "lease", &name, "--namespace", SYSTEM, "--output", "jsonpath={.spec.holderIdentity}"];
        self.api.kubectl(&of)
    }

    /// Waits until another node leads a VIP.
    pub fn await_another_leader(&self, vip: Ipv4Addr, before: &str) -> Result<()> {
        wait::until("another leader", PATIENCE, || {
            let now = self.leader(vip)?;
            ensure!(now != before && !now.is_empty(), "{now:?} leads");
            Ok(())
        })
    }

    /// Returns the node that answers ARP requests for an address, as soon as one node has been the only one
    /// for a while. It does not matter which load balancer serves the cluster.
    pub fn announcer(&self, vip: Ipv4Addr) -> Result<String> {
        let client = self.lan.client()?;
        wait::until(&format!("one node that answers for {vip}"), PATIENCE, || {
            let mut macs = BTreeSet::new();
            for _ in 0..STEADY {
                let answers = arp::answers(client.namespace(), client.address, vip, ANSWER)?;
                ensure!(!answers.is_empty(), "nobody answers");
                macs.extend(answers);
            }
            let names: Vec<_> = macs.iter().map(|mac| self.lan.node_of(*mac).map(|node| node.name.clone())).collect();
            let [Some(name)] = &names[..] else { bail!("{macs:?} answer") };
            Ok(name.clone())
        })
    }

    /// Observes that Service at an address while something happens. The LAN has enough clients.
    pub fn observe(&mut self, vip: Ipv4Addr, event: impl FnOnce(&mut Self) -> Result<()>) -> Result<View> {
        let mut watch = Watch::start(&self.lan, vip, ECHO_PORT, ECHO_PORT)?;
        watch.wait_for_answers(ANSWERS, PATIENCE)?;
        event(self)?;
        watch.wait_for_answers(ANSWERS, PATIENCE)?;
        watch.stop()
    }

    /// Ends a node as a power cut does: its link goes, and then its processes.
    pub fn cut_power(&mut self, node: &str) -> Result<()> {
        self.lan.unplug(node)?;
        self.nodes.retain(|real| real.name != node);
        forget_addresses(self.lan.node(node)?)
    }

    /// Starts such a node again.
    pub fn restore_power(&mut self, node: &str) -> Result<()> {
        let machine = self.lan.node(node)?;
        self.lan.plug(node)?;
        self.nodes.push(RealNode::start(machine, &self.api, &self.plan, &self.images)?);
        self.nodes.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(())
    }

    fn await_nodes(&self) -> Result<()> {
        for node in &self.lan.nodes {
            let ranges = node.pod_ranges();
            // The routes of the LAN lead there already, so the controller manager gives no ranges.
            let patch = json!({ "spec": { "podCIDR": ranges[0], "podCIDRs": ranges } }).to_string();
            wait::until(&format!("the Node {}", node.name), PATIENCE, || {
                self.api.kubectl(&["patch", "node", &node.name, "--patch", &patch]).map(drop)
            })?;
        }
        wait::until("Ready nodes", PATIENCE, || {
            self.api.kubectl(&["wait", "--for=condition=Ready", "node", "--all", WAIT]).map(drop)
        })
    }
}

/// Removes what a machine's kernel would not have after a power cut, and its namespace still has: addresses
/// that a program put on eth0 for a Service.
fn forget_addresses(node: &lan::Node) -> Result<()> {
    let mut shell = node.namespace().command("sh")?;
    shell.args(["-c", FORGET]);
    process::run(shell).map(drop)
}

/// Returns the address of the cluster's DNS.
fn dns(families: IpFamilies) -> IpAddr {
    families.first(DNS.0, DNS.1)
}

fn in_shell(mut shell: Command, line: &str) -> Result<String> {
    shell.args(["-c", line]).current_dir(guide::repository());
    process::run(shell)
}

/// Makes the archives of the images that the nodes have.
fn make_images(folder: &Path, plan: &Plan) -> Result<Vec<PathBuf>> {
    /// The image of vipmux that `deploy` names.
    const VIPMUX: &str = concat!("docker.io/library/vipmux:", env!("CARGO_PKG_VERSION"));
    let mut images = Vec::new();
    for (name, program, entrypoint) in [
        ("localhost/pause", "agnhost", &["/agnhost", "pause"][..]),
        ("localhost/agnhost", "agnhost", &["/agnhost"]),
        ("localhost/coredns", "coredns", &["/coredns"]),
        ("docker.io/mccutchen/go-httpbin", "go-httpbin", &["/go-httpbin"]),
    ] {
        let root = folder.join(program);
        image::install(&root, &[(&cluster_programs::find(program)?, program)])?;
        images.push((Image::named(&format!("{name}:latest"), entrypoint)?, root));
    }
    let shell = folder.join("agnhost");
    image::install(&shell, &[(Path::new("/bin/busybox"), "bin/busybox")])?;
    image::link(&shell, "busybox", &["sh", "cat", "ip", "ls", "nc", "nslookup", "ping", "ps", "sleep"])?;
    if let Some(vipmux) = &plan.vipmux {
        ensure!(vipmux.join("usr/bin/vipmux").is_file(), "{} has no /usr/bin/vipmux", vipmux.display());
        images.push((Image::named(VIPMUX, &["/usr/bin/vipmux"])?, vipmux.clone()));
    }
    for system in &plan.others {
        for made in system.images() {
            let root = folder.join(made.program);
            let place = made.entrypoint[0].trim_start_matches('/');
            image::install(&root, &[(&cluster_programs::find(made.program)?, place)])?;
            images.push((Image::named(&made.reference()?, &made.entrypoint)?, root));
        }
    }
    if plan.conformance {
        let root = folder.join("conformance");
        image::install(&root, &[(&cluster_programs::find("agnhost")?, "agnhost")])?;
        // The tests use options that BusyBox does not have.
        let programs = ["dash", "cat", "curl", "ls", "nc.openbsd", "seq", "sleep", "wget"];
        let programs = programs.map(|program| Path::new("/usr/bin").join(program));
        image::install_with_libraries(&root, &programs.each_ref().map(PathBuf::as_path))?;
        // The tests expect BusyBox's wget, which crashes as Debian builds it. It tries once.
        fs::create_dir_all(root.join("etc")).context("cannot make a folder of an image")?;
        fs::write(root.join("etc/wgetrc"), "tries = 1\n").context("cannot write a file of an image")?;
        image::link(&root, "/usr/bin/dash", &["sh"])?;
        image::link(&root, "/usr/bin/nc.openbsd", &["nc"])?;
        let all = [("agnhost", &["/agnhost"][..], &root), ("pause", &["/agnhost", "pause"], &shell)];
        for (kind, entrypoint, root) in all {
            for name in conformance::images(kind)? {
                images.push((Image::named(&name, entrypoint)?, root.clone()));
            }
        }
    }
    let mut archives = Vec::new();
    for (number, (image, root)) in images.iter().enumerate() {
        let archive = folder.join(format!("{number}.tar"));
        image.write(root, &archive)?;
        archives.push(archive);
    }
    Ok(archives)
}
