//! Collects the observations of this node for [`findings`](super::findings).
//!
//! Nothing stays changed. Whatever an observation creates (maps, programs, a folder, a network
//! namespace) is removed again. Everything that depends on the network namespace is read on the
//! calling thread.

mod cluster;
mod firewall;
mod generic_netlink;
mod gossip;
mod interfaces;
mod kernel;
mod others;
mod source;
mod sysctls;

use std::{collections::BTreeSet, path::PathBuf};

use crate::findings::{Observations, Unseen, others::Others};
use vipmux_cluster::access::ClusterAccess;
use vipmux_datapath::{
    bpf::attach::{TcAttachMode, XdpAttachMode},
    link::{LinkError, Links},
};
use vipmux_model::{IngestOptions, NodeName};

/// The agent's options that matter for the checks.
#[derive(Clone, Debug)]
pub struct CheckOptions {
    /// Interfaces to announce on; empty: those whose subnet has the Node's InternalIP.
    pub interfaces: Vec<String>,
    /// This Node's name.
    pub node: Option<NodeName>,
    /// A directory of manifests; `None`: the API server.
    pub manifests: Option<PathBuf>,
    /// How to reach the API server.
    pub access: ClusterAccess,
    /// Which Services are vipmux's, and what they may get.
    pub allocation: IngestOptions,
    /// The directory of the pins.
    pub pin_path: PathBuf,
    /// How XDP programs run.
    pub mode: XdpAttachMode,
    /// How classifiers are attached.
    pub tc: TcAttachMode,
    /// The UDP port of the gossip.
    pub gossip_port: u16,
    /// The file with the gossip key; `None`: in the state directory.
    pub gossip_key: Option<PathBuf>,
    /// The agent's state directory.
    pub state_dir: PathBuf,
}

/// Collects all observations. Fails only if the interfaces cannot be listed.
pub async fn observe(options: &CheckOptions) -> Result<Observations, LinkError> {
    let links = Links::read().await?;
    let (source, read) = match &options.manifests {
        Some(path) => source::manifests(options, &links, path),
        None => cluster::observe(options, &links).await,
    };
    let chosen = interfaces::chosen(options, &links, read.addresses.as_deref());
    let veths = interfaces::veths(&links, &chosen);
    let details = interfaces::InterfaceDetails::read(&options.pin_path, &veths).await?;
    let loaded = others::LoadedAgent::read(&details.pins);
    let firewall = firewall::observe(options.gossip_port);
    let vips: BTreeSet<_> = read.vips.iter().chain(&loaded.vips).copied().collect();
    let others = Others {
        interfaces: links.iter().map(|interface| interface.name.clone()).collect(),
        chains: firewall::names(&firewall),
        daemon_sets: read.daemon_sets,
        vips: others::held(&vips, &links),
        ..others::observe()
    };
    Ok(Observations {
        kernel: kernel::observe(options),
        classifiers: chosen.as_ref().map(|(segments, _)| details.classifiers(&links, segments)).map_err(Clone::clone),
        interfaces: chosen.map(|chosen| details.segments(&links, chosen)),
        settings: sysctls::observe(),
        firewall,
        routes: interfaces::routes(options, &links, read.addresses.as_deref()).await.map_err(Unseen::without_rights),
        others,
        gossip: gossip::observe(options, loaded.agent),
        source,
    })
}
