//! What a source tells of this Node and of VIPs.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    path::{Path, PathBuf},
};

use super::{Options, cluster, kernel::chain};
use crate::{
    cli::planned::Planned,
    link::Links,
    model::{NodeName, node::Node as Ingested},
    preflight::cluster::{Node, Source},
};

/// What other checks need of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Read {
    /// This Node's InternalIPs; `None`: not known.
    pub(super) addresses: Option<Vec<IpAddr>>,
    pub(super) vips: BTreeSet<IpAddr>,
    pub(super) daemon_sets: Option<BTreeSet<String>>,
}

pub(super) async fn observe(options: &Options, links: &Links) -> (Source, Read) {
    match &options.manifests {
        Some(path) => manifests(options, links, path),
        None => cluster::observe(options, links).await,
    }
}

fn manifests(options: &Options, links: &Links, path: &Path) -> (Source, Read) {
    let planned = match Planned::read(&[PathBuf::from(path)], crate::allocate::holders::Holders::new(), &[]) {
        Ok(planned) => planned,
        Err(error) => {
            return (Source::Manifests { read: Err(chain(&error)), node: Node::Unnamed }, Read::default());
        }
    };
    let found = |name: &NodeName| match planned.objects.nodes.get(name) {
        Some(object) => here(&Ingested::ingest(name, object), links),
        None => Node::Absent(name.0.clone(), planned.objects.nodes.keys().map(|name| name.0.clone()).collect()),
    };
    let node = options.node.as_ref().map_or(Node::Unnamed, found);
    let vips = planned.allocation.vips().into_keys().map(|vip| vip.0).collect();
    let read = Read { addresses: addresses(&node), vips, daemon_sets: None };
    let source = Source::Manifests { read: Ok((path.display().to_string(), planned.objects.problems.len())), node };
    (source, read)
}

/// A Node, with those of its addresses that this machine has.
pub(super) fn here(node: &Ingested, links: &Links) -> Node {
    let own: BTreeSet<IpAddr> =
        links.iter().flat_map(|one| one.addresses.iter().map(|(address, _)| *address)).collect();
    let internal: Vec<_> = node.internal.iter().copied().collect();
    let here = internal.iter().copied().filter(|address| own.contains(address)).collect();
    Node::Found(node.name.0.clone(), internal, here)
}

/// The InternalIPs, as far as they are known.
pub(super) fn addresses(node: &Node) -> Option<Vec<IpAddr>> {
    match node {
        Node::Found(_, addresses, _) => Some(addresses.clone()),
        _ => None,
    }
}
