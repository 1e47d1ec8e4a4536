//! Opens the source of the objects, and with it the source of addresses and the place of the
//! Leases.

use std::{
    future::Future,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
};

use tokio::sync::watch;

use super::pipeline::AllocationSource;
use crate::{AgentError, problems::conflict_events};
use vipmux_allocate::StatusAuthor;
use vipmux_cluster::{
    access::{ClusterAccess, ClusterClient},
    events::EventRecorder,
    gossip_secret::GossipSecret,
    rollback::{self, Rollbacks},
    source::{
        SourceGuard,
        kubernetes::{self, Consumer},
        manifests,
    },
    store::{ConfiguredStore, DirectoryStore, KubernetesStore},
};
use vipmux_model::{NodeName, desired::Unreachable, objects::Objects};
use vipmux_supervisor::Supervisor;

/// The source of the objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectSource {
    /// A directory of manifests. The agents that share a state directory assign the addresses. The
    /// Leases are there, too.
    Manifests(PathBuf),
    /// A cluster's API server.
    Cluster {
        /// The way to reach it.
        access: ClusterAccess,
        /// The statuses to take addresses from.
        trust: StatusAuthor,
    },
}

impl ObjectSource {
    /// Returns the default treatment of Service ports whose endpoints cannot be reached. In a
    /// cluster kube-proxy may know a way, such as through a tunnel.
    pub fn unreachable(&self) -> Unreachable {
        match self {
            Self::Manifests(_) => Unreachable::default(),
            Self::Cluster { .. } => Unreachable::Kernel,
        }
    }
}

/// Waits for the first objects; `None`: the source ended before.
pub(crate) type Listed = Pin<Box<dyn Future<Output = Option<watch::Receiver<Arc<Objects>>>> + Send>>;

/// An open source.
pub(crate) struct OpenSource {
    pub(crate) listed: Listed,
    pub(crate) guard: SourceGuard,
    pub(crate) allocation: AllocationSource,
    pub(crate) leases: ConfiguredStore,
    pub(crate) rollbacks: Rollbacks,
    /// Sends Events to the owners of Services; `None`: there is no API server.
    pub(crate) events: Option<EventRecorder>,
    /// The Secret with the gossip key; `None`: there is no API server.
    pub(crate) gossip_secret: Option<GossipSecret>,
}

/// Opens a source for the agent of this node. `state`: the state directory.
pub(crate) async fn open(
    origin: &ObjectSource,
    node: &NodeName,
    state: &Path,
    supervisor: &Supervisor,
) -> Result<OpenSource, AgentError> {
    match origin {
        ObjectSource::Manifests(directory) => {
            let (objects, guard) = manifests::watch(directory, supervisor)?;
            Ok(OpenSource {
                listed: Box::pin(async { Some(objects) }),
                guard: SourceGuard::Manifests(guard),
                allocation: AllocationSource::File(state.join("assignments.yaml")),
                leases: ConfiguredStore::Directory(DirectoryStore::new(state)),
                rollbacks: rollback::never(),
                events: None,
                gossip_secret: None,
            })
        }
        ObjectSource::Cluster { access, trust } => {
            let cluster = ClusterClient::connect(access).await?;
            let (listing, guard) = kubernetes::follow(&cluster.client, Consumer::Agent, supervisor);
            Ok(OpenSource {
                listed: Box::pin(listing.listed()),
                rollbacks: guard.rollbacks(),
                guard: SourceGuard::Kubernetes(guard),
                allocation: AllocationSource::Statuses(*trust),
                leases: ConfiguredStore::Kubernetes(KubernetesStore::new(&cluster)),
                gossip_secret: Some(GossipSecret::new(&cluster)),
                events: Some(EventRecorder::start(cluster.client, conflict_events::author(node), supervisor)),
            })
        }
    }
}
