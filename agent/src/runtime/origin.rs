//! Where the agent's objects come from, and with them who gives addresses and where the Leases are.

use std::{
    future::Future,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
};

use tokio::sync::watch;

use super::{AgentError, conflicts::owners, settle::Authority};
use crate::{
    allocate::Trust,
    cluster::{Access, Cluster},
    events::Teller,
    model::NodeName,
    plan::Unreachable,
    source::{
        Follower, Objects,
        kubernetes::{self, Audience},
        manifests,
    },
    store::{Directory, Kubernetes, Place},
};

/// Where the agent's objects come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A directory of manifests. Addresses are given by the agents that share a state directory, and Leases are there too.
    Manifests(PathBuf),
    /// A cluster's API server.
    Cluster {
        /// How it is reached.
        access: Access,
        /// Who gives addresses.
        trust: Trust,
    },
}

impl Origin {
    /// What becomes of Service ports whose endpoints cannot be reached, if nothing is said: in a cluster kube-proxy may know
    /// a way, such as through a tunnel.
    pub fn unreachable(&self) -> Unreachable {
        match self {
            Self::Manifests(_) => Unreachable::default(),
            Self::Cluster { .. } => Unreachable::Kernel,
        }
    }
}

/// The objects, once they are known; `None`: they will not be any more.
pub(super) type Listed = Pin<Box<dyn Future<Output = Option<watch::Receiver<Arc<Objects>>>> + Send>>;

/// A source that is being followed.
pub(super) struct Opened {
    pub(super) listed: Listed,
    pub(super) follower: Follower,
    pub(super) authority: Authority,
    pub(super) leases: Place,
    /// Who makes Events of what Services' owners should know; `None`: there is nobody to read them.
    pub(super) teller: Option<Teller>,
}

/// Begins to follow it, as the agent of this node. `state`: the state directory.
pub(super) async fn open(origin: &Origin, node: &NodeName, state: &Path) -> Result<Opened, AgentError> {
    match origin {
        Origin::Manifests(directory) => {
            let (objects, guard) = manifests::watch(directory)?;
            Ok(Opened {
                listed: Box::pin(async { Some(objects) }),
                follower: Follower::Manifests(guard),
                authority: Authority::File(state.join("assignments.yaml")),
                leases: Place::Directory(Directory::new(state)),
                teller: None,
            })
        }
        Origin::Cluster { access, trust } => {
            let cluster = Cluster::connect(access).await?;
            let (listing, guard) = kubernetes::follow(&cluster.client, Audience::Agent);
            Ok(Opened {
                listed: Box::pin(listing.listed()),
                follower: Follower::Kubernetes(guard),
                authority: Authority::Statuses(*trust),
                leases: Place::Kubernetes(Kubernetes::new(&cluster)),
                teller: Some(Teller::start(cluster.client, owners::author(node))),
            })
        }
    }
}
