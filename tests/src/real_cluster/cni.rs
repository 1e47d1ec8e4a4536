//! How the Pods of a node are connected: its CNI configuration, and the daemon that it takes.

use std::{fmt, fs, path::Path};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::{
    api_server::{ADMIN, ApiServer},
    cluster_programs,
    lan::{self, POD_NETWORKS, PodRoutes},
};

/// The folder of CNI configurations, on a node.
const CONFIGURATIONS: &str = "etc/cni/net.d";
/// The place of the MTU in a configuration that flanneld's answer completes.
const MTU: &str = "MTU";

/// A network of Pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Cni {
    /// The CNI project's bridge plugin. The LAN routes to the nodes' Pods.
    Bridge,
    /// Flannel, with VXLAN between the nodes.
    Flannel,
}

impl fmt::Display for Cni {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bridge => "bridge",
            Self::Flannel => "flannel",
        })
    }
}

impl Cni {
    /// Returns who makes the nodes' routes to Pods.
    pub(super) const fn pod_routes(self) -> PodRoutes {
        match self {
            Self::Bridge => PodRoutes::Static,
            Self::Flannel => PodRoutes::Cni,
        }
    }

    /// Writes what the node's first process needs into its folder.
    pub(super) fn prepare(self, node: &lan::Node, api: &ApiServer, folder: &Path) -> Result<()> {
        let write = |file: &str, text: &str| {
            let path = folder.join(file);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
        };
        match self {
            Self::Bridge => write(&format!("{CONFIGURATIONS}/10-bridge.conflist"), &bridge(node, None).to_string()),
            Self::Flannel => {
                write("flannel.conflist", &bridge(node, Some(MTU)).to_string())?;
                write("net-conf.json", &flannel(node).to_string())?;
                write("cni.sh", &flannel_script(node, api, folder)?)
            }
        }
    }
}

/// Returns the configuration of the CNI project's bridge plugin.
fn bridge(node: &lan::Node, mtu: Option<&str>) -> Value {
    let ranges: Vec<_> = node.pod_ranges().into_iter().map(|range| json!([{ "subnet": range }])).collect();
    let mut bridge = json!({
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": true,
        "isDefaultGateway": true,
        "hairpinMode": true,
        "ipMasq": false,
        "ipam": { "type": "host-local", "dataDir": "/run/cni-ipam", "ranges": ranges },
    });
    if let Some(mtu) = mtu {
        bridge["mtu"] = mtu.into();
    }
    json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [bridge, { "type": "portmap", "capabilities": { "portMappings": true } }],
    })
}

/// Returns flanneld's configuration.
fn flannel(node: &lan::Node) -> Value {
    let has = |range: &str| node.pod_ranges().iter().any(|of_node| of_node.contains(':') == range.contains(':'));
    json!({
        "Network": POD_NETWORKS.0,
        "EnableIPv4": has(POD_NETWORKS.0),
        "IPv6Network": POD_NETWORKS.1,
        "EnableIPv6": has(POD_NETWORKS.1),
        "Backend": { "Type": "vxlan" },
    })
}

/// Returns a script that runs flanneld. It ends while the Node has no ranges, and is started again. When it
/// has said what its tunnel carries, the node gets the configuration that flannel's CNI plugin would make
/// of that.
fn flannel_script(node: &lan::Node, api: &ApiServer, folder: &Path) -> Result<String> {
    let (program, kubeconfig) = (cluster_programs::find("flanneld")?, api.kubeconfig(ADMIN)?);
    let (program, kubeconfig, folder) = (program.display(), kubeconfig.display(), folder.display());
    Ok(format!(
        "answer=/run/flannel/subnet.env
        (
            until [ -e $answer ]; do sleep 0.1; done
            sed 's/\"{MTU}\"/'$(sed -n s/FLANNEL_MTU=//p $answer)'/' '{folder}/flannel.conflist' >/{CONFIGURATIONS}/10-flannel.conflist
        ) &
        export NODE_NAME={}
        exec '{program}' --kube-subnet-mgr --kubeconfig-file '{kubeconfig}' --net-config-path '{folder}/net-conf.json' --iface eth0 --ip-masq\n",
        node.name
    ))
}
