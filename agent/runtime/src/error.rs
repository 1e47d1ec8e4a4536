//! The errors that end the agent.

use std::{io, path::PathBuf};

use crate::{KernelError, control::ListenError, probe::TlsError};
use vipmux_cluster::{access::AccessError, source::manifests::WatchError};
use vipmux_datapath::{
    announce::SendError,
    bpf::{maps::MapsError, programs::LoadError},
    capabilities::PrivilegeError,
    link::{EthtoolError, InterfaceError, LinkError},
    snat::SnatError,
};
use vipmux_gossip::KeyFileError;
use vipmux_model::NodeName;
use vipmux_supervisor::TaskFailure;
use vipmux_telemetry::http;

/// The agent cannot start, or cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The process lacks rights.
    #[error(transparent)]
    Privileges(#[from] PrivilegeError),
    /// This process has another `CLOCK_BOOTTIME` than the kernel.
    #[error(
        "this process is in a time namespace, in which CLOCK_BOOTTIME is {0:+} s ahead of the kernel's: the programs would \
         answer for VIPs at the wrong time; start the agent outside of it"
    )]
    TimeNamespace(f64),
    /// `/proc` cannot be read.
    #[error("cannot read the offsets of this process's time namespace")]
    TimeOffsets(#[source] io::Error),
    /// The state directory cannot be used.
    #[error("cannot use the state directory {}", path.display())]
    State {
        /// The directory.
        path: PathBuf,
        /// The error of the system.
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
    /// The cluster cannot be reached.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The network's state cannot be followed.
    #[error("cannot follow the network interfaces")]
    Links(#[from] LinkError),
    /// VIPs cannot be announced on an interface.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// A driver refused a request.
    #[error(transparent)]
    Ethtool(#[from] EthtoolError),
    /// There are more interfaces than bits for them.
    #[error("{0} interfaces are too many: VIPs can be announced on {most}", most = u32::BITS)]
    TooManyInterfaces(usize),
    /// The data plane failed.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The pins are gone, and with them the programs.
    #[error(
        "somebody removed vipmux from the kernel: {} or a folder in it is gone; the agent loads it when it starts again",
        path.display()
    )]
    Unloaded {
        /// The pin path.
        path: PathBuf,
    },
    /// The announcement socket cannot be opened.
    #[error(transparent)]
    Announce(#[from] SendError),
    /// The socket for queries cannot be opened.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The metrics cannot be served.
    #[error(transparent)]
    Http(#[from] http::HttpListenError),
    /// The SNAT chain's socket cannot be opened.
    #[error(transparent)]
    Snat(#[from] SnatError),
    /// Backends cannot be probed.
    #[error(transparent)]
    HealthProbes(#[from] TlsError),
    /// The gossip keys cannot be read or made.
    #[error(transparent)]
    Keys(#[from] KeyFileError),
    /// No gossip key is named, and in a cluster all nodes need the same.
    #[error(
        "in a cluster all agents need the same key: name its file (--gossip-key); `vipmux allocator` makes it as a Secret"
    )]
    NoKey,
    /// There are no random numbers for the gossip.
    #[error("cannot get random numbers for the gossip session")]
    Gossip(#[from] getrandom::Error),
    /// Signals cannot be waited for.
    #[error("cannot wait for signals")]
    Signal(#[source] io::Error),
    /// A task ended. The event loop must not go on with an old state.
    #[error(transparent)]
    Task(#[from] TaskFailure),
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
