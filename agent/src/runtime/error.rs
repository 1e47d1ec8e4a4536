//! Why the agent cannot start, or cannot go on.

use std::{io, path::PathBuf};

use tokio::sync::watch::error::RecvError;

use super::{KernelError, PrivilegeError};
use crate::{
    announce::SendError,
    cluster::AccessError,
    control::ListenError,
    datapath::{load::LoadError, maps::MapsError},
    gossip::{KeyFileError, StartError},
    http,
    link::{EthtoolError, InterfaceError, LinkError},
    model::NodeName,
    probe::TlsError,
    snat::SnatError,
    source::manifests::WatchError,
};

/// The agent cannot start, or cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// It lacks rights.
    #[error(transparent)]
    Privileges(#[from] PrivilegeError),
    /// The state directory cannot be used.
    #[error("cannot use the state directory {}", path.display())]
    State {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Another agent has this node's name and state directory.
    #[error("another agent is running as {node} (it holds {})", path.display())]
    Running {
        /// The node.
        node: NodeName,
        /// The lock file.
        path: PathBuf,
    },
    /// The manifests cannot be followed.
    #[error(transparent)]
    Manifests(#[from] WatchError),
    /// There is no cluster.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The network's state cannot be followed.
    #[error("cannot follow the network interfaces")]
    Links(#[from] LinkError),
    /// VIPs cannot be announced on an interface.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// A driver was asked or told in vain.
    #[error(transparent)]
    Ethtool(#[from] EthtoolError),
    /// Too many of them.
    #[error("{0} interfaces are too many: VIPs can be announced on {most}", most = u32::BITS)]
    TooManyInterfaces(usize),
    /// The data plane failed.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The announcement socket cannot be opened.
    #[error(transparent)]
    Announce(#[from] SendError),
    /// Nobody can ask it anything.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Nobody can see its metrics.
    #[error(transparent)]
    Http(#[from] http::ListenError),
    /// The SNAT chain's socket cannot be opened.
    #[error(transparent)]
    Snat(#[from] SnatError),
    /// Backends cannot be probed.
    #[error(transparent)]
    Probes(#[from] TlsError),
    /// The asynchronous runtime cannot be started.
    #[error("cannot start the asynchronous runtime")]
    Runtime(#[source] io::Error),
    /// The gossip's keys cannot be had.
    #[error(transparent)]
    Keys(#[from] KeyFileError),
    /// In a cluster somebody has to make one for all nodes.
    #[error(
        "in a cluster all agents need the same key: name its file (--gossip-key); `vipmux allocator` makes it as a Secret"
    )]
    NoKey,
    /// The agents cannot speak to each other.
    #[error(transparent)]
    Gossip(#[from] StartError),
    /// Signals cannot be waited for.
    #[error("cannot wait for signals")]
    Signal(#[source] io::Error),
    /// What it goes by is not followed any more, so it must not go on by what it was last.
    #[error("a part of the agent failed that follows the objects, the network, the peers or the backends' health")]
    Blind(#[from] RecvError),
}

impl From<MapsError> for AgentError {
    fn from(error: MapsError) -> Self {
        KernelError::from(error).into()
    }
}

impl From<LoadError> for AgentError {
    fn from(error: LoadError) -> Self {
        KernelError::from(error).into()
    }
}
