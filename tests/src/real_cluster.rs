//! A real Kubernetes cluster on this machine: a control plane and nodes with kubelet, containerd and
//! kube-proxy, in namespaces on a LAN.
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

mod cgroups;
mod image;
mod node;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use self::image::Image;
pub use self::node::RealNode;
use crate::{
    api_server::ApiServer,
    cleanup::Folder,
    cluster_programs,
    kube_proxy::Mode,
    lan::{Lan, Options},
    process::Process,
    router::Router,
    wait,
};

/// The time limit for the nodes' readiness on a busy machine.
const READY: Duration = Duration::from_mins(3);

/// What a cluster is made of.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The number of nodes.
    pub nodes: u8,
    /// kube-proxy's mode.
    pub mode: Mode,
    /// The files of vipmux's image, as `cargo xtask image` makes them; `None`: the nodes do not have it.
    pub vipmux: Option<PathBuf>,
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
    _controllers: [Process; 2],
    /// The API server.
    pub api: ApiServer,
}

impl RealCluster {
    /// Starts a cluster, and waits until its nodes are Ready. `step` is told what happens.
    pub fn start(plan: &Plan, step: &mut dyn FnMut(&str)) -> Result<Self> {
        let lan = Lan::new(Options { nodes: plan.nodes, ..Options::default() })?;
        let router = Router::plug_in(&lan)?;
        step("starting the control plane");
        let api = ApiServer::on(&lan)?.context("this machine lacks what the API server needs")?;
        let controllers = [api.start_controller_manager()?, api.start_scheduler()?];
        let images = Folder::temporary("images")?;
        step("making images");
        let images = make_images(images.path(), plan.vipmux.as_deref())?;
        let mut nodes = Vec::new();
        for node in &lan.nodes {
            step(&format!("starting {}", node.name));
            nodes.push(RealNode::start(node, &api, plan.mode, &images)?);
        }
        let cluster = Self { nodes, router, lan, _controllers: controllers, api };
        step("waiting until the nodes are Ready");
        cluster.await_nodes()?;
        Ok(cluster)
    }

    fn await_nodes(&self) -> Result<()> {
        for node in &self.lan.nodes {
            let ranges = [format!("{}/{}", node.pod_address(0), 24), format!("{}/{}", node.pod_address_v6(0), 64)];
            // The routes of the LAN lead there already, so the controller manager gives no ranges.
            let patch = json!({ "spec": { "podCIDR": ranges[0], "podCIDRs": ranges } }).to_string();
            wait::until(&format!("the Node {}", node.name), READY, || {
                self.api.kubectl(&["patch", "node", &node.name, "--patch", &patch]).map(drop)
            })?;
        }
        let seconds = format!("--timeout={}s", READY.as_secs());
        self.api.kubectl(&["wait", "--for=condition=Ready", "node", "--all", &seconds])?;
        Ok(())
    }
}

/// Makes the archives of the images that the nodes have.
fn make_images(folder: &Path, vipmux: Option<&Path>) -> Result<Vec<PathBuf>> {
    let root = folder.join("agnhost");
    let busybox = Path::new("/bin/busybox");
    image::install(&root, &[(&cluster_programs::find("agnhost")?, "agnhost"), (busybox, "bin/busybox")])?;
    image::link(&root, "busybox", &["sh", "cat", "ip", "ls", "nc", "ping", "ps", "sleep"])?;
    let mut images = vec![
        (Image { name: "localhost/pause:latest", entrypoint: &["/agnhost", "pause"] }, root.clone()),
        (Image { name: "localhost/agnhost:latest", entrypoint: &["/agnhost"] }, root),
    ];
    let name = concat!("docker.io/library/vipmux:", env!("CARGO_PKG_VERSION"));
    if let Some(vipmux) = vipmux {
        ensure!(vipmux.join("usr/bin/vipmux").is_file(), "{} has no /usr/bin/vipmux", vipmux.display());
        images.push((Image { name, entrypoint: &["/usr/bin/vipmux"] }, vipmux.to_owned()));
    }
    let mut archives = Vec::new();
    for (number, (image, root)) in images.iter().enumerate() {
        let archive = folder.join(format!("{number}.tar"));
        image.write(root, &archive)?;
        archives.push(archive);
    }
    Ok(archives)
}
