//! The cluster that this runs in: how its API server is reached, and under which namespace vipmux keeps its own objects.

use std::{fmt, path::PathBuf, time::Duration};

use kube::{
    Client, Config,
    config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError},
};

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a connection may be silent: the API server sends bookmarks of most kinds once a minute, so a watch whose other
/// end is gone is noticed then, and is taken up again elsewhere.
const SILENCE: Duration = Duration::from_secs(90);

/// How the API server is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// A kubeconfig file, of which the current context is used; `None`: the Pod's service account.
    pub kubeconfig: Option<PathBuf>,
    /// The namespace of vipmux's own objects; `None`: the service account's, or the context's.
    pub namespace: Option<String>,
}

/// A cluster.
#[derive(Clone)]
pub struct Cluster {
    /// Speaks to its API server. Nothing has been asked yet.
    pub client: Client,
    /// The namespace of vipmux's own objects.
    pub namespace: String,
}

/// Why there is no cluster.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// A kubeconfig that cannot be used.
    #[error("cannot use the kubeconfig {path:?}: {why}")]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// Why. It names its own causes, so it is no source, of which they would be told once more.
        why: Box<KubeconfigError>,
    },
    /// This is no Pod, or its service account's token is not mounted.
    #[error("this is no Pod of a cluster: name a kubeconfig (--kubeconfig), or a directory of manifests (--manifests)")]
    ServiceAccount(#[source] Box<InClusterError>),
    /// What they say makes no client.
    #[error("cannot speak to the API server")]
    Client(#[source] Box<kube::Error>),
}

impl Cluster {
    /// Prepares to speak to the API server; it need not be there. Within a tokio runtime.
    pub async fn connect(access: &Access) -> Result<Self, AccessError> {
        Self::connect_within(access, SILENCE).await
    }

    /// The same, where a connection may be silent for so long. Less than a minute interrupts all watches, which costs
    /// requests and loses nothing.
    pub async fn connect_within(access: &Access, silence: Duration) -> Result<Self, AccessError> {
        let mut config = match &access.kubeconfig {
            Some(path) => {
                let failed = |why| AccessError::Kubeconfig { path: path.clone(), why: Box::new(why) };
                let file = Kubeconfig::read_from(path).map_err(failed)?;
                Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.map_err(failed)?
            }
            None => Config::incluster().map_err(|source| AccessError::ServiceAccount(Box::new(source)))?,
        };
        config.connect_timeout = Some(CONNECT);
        config.read_timeout = Some(silence);
        config.write_timeout = Some(CONNECT);
        // Who asks knows better whether and when to ask again: kube would go on for minutes, and say nothing.
        config.default_retry = false;
        let namespace = access.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).map_err(|source| AccessError::Client(Box::new(source)))?;
        Ok(Self { client, namespace })
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}
