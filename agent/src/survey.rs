//! Looks at this node for `vipmux check`: what [`crate::preflight`] judges. Nothing stays changed; what a look has to make
//! (maps, programs, a folder, a network namespace) it takes out again.
//!
//! All that is the network namespace's is read on the calling thread.

mod cluster;
mod firewall;
mod gossip;
mod interfaces;
mod kernel;
mod netlink;
mod others;
mod source;
mod sysctls;

use std::{collections::BTreeSet, path::PathBuf};

use crate::{
    datapath::pins::Pins,
    link::{LinkError, Links},
    model::NodeName,
    preflight::{Observed, Unseen, interface::Mode, others::Others},
};

/// What the agent would be told.
#[derive(Clone, Debug)]
pub struct Options {
    /// Interfaces to announce on; empty: whose subnet holds the Node's InternalIP.
    pub interfaces: Vec<String>,
    /// The Node that this is.
    pub node: Option<NodeName>,
    /// A directory of manifests; `None`: the API server.
    pub manifests: Option<PathBuf>,
    /// How to reach the API server; `None`: as the Pod's service account.
    pub kubeconfig: Option<PathBuf>,
    /// Where the Leases are; `None`: the service account's namespace.
    pub namespace: Option<String>,
    /// The root of the pins.
    pub pin_path: PathBuf,
    /// How XDP programs are to run.
    pub mode: Mode,
    /// The UDP port on which the agents speak to each other.
    pub gossip_port: u16,
    /// Where the gossip's keys are; `None`: in the state directory.
    pub gossip_key: Option<PathBuf>,
    /// The agent's state directory.
    pub state_dir: PathBuf,
}

/// Looks at everything. An error means that not even the interfaces could be listed.
pub async fn observe(options: &Options) -> Result<Observed, LinkError> {
    let pins = Pins::new(&options.pin_path);
    let links = Links::read().await?;
    let (source, read) = source::observe(options, &links).await;
    let loaded = others::Loaded::read(&pins);
    let details = interfaces::Details::read(&pins).await?;
    let chosen = interfaces::chosen(options, &links, read.addresses.as_deref());
    let firewall = firewall::observe();
    let vips: BTreeSet<_> = read.vips.iter().chain(&loaded.vips).copied().collect();
    let others = Others {
        interfaces: links.iter().map(|interface| interface.name.clone()).collect(),
        chains: firewall::names(&firewall),
        daemon_sets: read.daemon_sets,
        vips: others::held(&vips, &links),
        ..others::observe()
    };
    Ok(Observed {
        kernel: kernel::observe(options),
        interfaces: chosen.map(|chosen| details.segments(&links, chosen)),
        settings: sysctls::observe(),
        firewall,
        routes: interfaces::routes(options, &links, read.addresses.as_deref()).await.map_err(Unseen::without_rights),
        others,
        gossip: gossip::observe(options, loaded.agent),
        source,
    })
}
