//! Observes the source of objects: this Node and the VIPs.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    path::{Path, PathBuf},
};

use super::{CheckOptions, kernel::error_chain};
use crate::{
    dry_run::ManifestAllocation,
    findings::cluster::{NodeObservation, ObjectSourceObservation},
};
use vipmux_datapath::link::Links;
use vipmux_model::{NodeName, Vip, node::Node as Ingested};

/// Observations of the source that other checks need.
#[derive(Clone, Debug, Default)]
pub(super) struct Read {
    /// This Node's InternalIPs; `None`: not known.
    pub(super) addresses: Option<Vec<IpAddr>>,
    pub(super) vips: BTreeSet<IpAddr>,
    pub(super) daemon_sets: Option<BTreeSet<String>>,
}

pub(super) fn manifests(options: &CheckOptions, links: &Links, path: &Path) -> (ObjectSourceObservation, Read) {
    let planned = match ManifestAllocation::read(
        &[PathBuf::from(path)],
        &vipmux_allocate::previous::PreviousAssignments::new(),
        &options.allocation,
    ) {
        Ok(planned) => planned,
        Err(error) => {
            return (
                ObjectSourceObservation::Manifests { read: Err(error_chain(&error)), node: NodeObservation::Unnamed },
                Read::default(),
            );
        }
    };
    let found = |name: &NodeName| match planned.objects.nodes.get(name) {
        Some(object) => here(&Ingested::ingest(name, object), links),
        None => NodeObservation::Absent(
            name.as_str().to_owned(),
            planned.objects.nodes.keys().map(|name| name.as_str().to_owned()).collect(),
        ),
    };
    let node = options.node.as_ref().map_or(NodeObservation::Unnamed, found);
    let vips = planned.allocation.vips().into_keys().map(Vip::address).collect();
    let read = Read { addresses: addresses(&node), vips, daemon_sets: None };
    let source = ObjectSourceObservation::Manifests {
        read: Ok((path.display().to_string(), planned.objects.problems.len())),
        node,
    };
    (source, read)
}

/// Returns a Node with those of its addresses that this machine has.
pub(super) fn here(node: &Ingested, links: &Links) -> NodeObservation {
    let own: BTreeSet<IpAddr> =
        links.iter().flat_map(|one| one.addresses.iter().map(|(address, _)| *address)).collect();
    let internal: Vec<_> = node.internal.iter().copied().collect();
    let here = internal.iter().copied().filter(|address| own.contains(address)).collect();
    NodeObservation::Found(node.name.as_str().to_owned(), internal, here)
}

/// Returns the InternalIPs, if they are known.
pub(super) fn addresses(node: &NodeObservation) -> Option<Vec<IpAddr>> {
    match node {
        NodeObservation::Found(_, addresses, _) => Some(addresses.clone()),
        _ => None,
    }
}
