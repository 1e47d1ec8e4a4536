//! Connects to the cluster's API server, and finds the namespace of vipmux's own objects.

use std::{fmt, path::PathBuf, time::Duration};

use http::header::{HeaderValue, USER_AGENT};
use kube::{
    Client, Config,
    config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError},
    runtime::watcher,
};

/// The time limit for a new connection, and for sending a request.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection may be silent. The API server sends bookmarks of most kinds once a minute.
/// So this detects a watch whose other end is gone, and the watch continues on another connection.
///
/// hyper's client keeps an unused connection for 90 s. It must not be silent for too long when it is used
/// again.
const MAX_SILENCE: Duration = Duration::from_secs(100);
/// The API server ends a watch after this time, or after up to twice as long. That is its own default,
/// too (`--min-request-timeout`). A watch whose other end is gone ends earlier, since it is silent.
const WATCH_LENGTH: Duration = Duration::from_mins(30);

/// The settings for access to the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterAccess {
    /// The program's name in `User-Agent`, which has its version too. The API server's audit log and
    /// metrics show it.
    pub component: &'static str,
    /// A kubeconfig file, whose current context is used; `None`: the Pod's service account.
    pub kubeconfig: Option<PathBuf>,
    /// The namespace of vipmux's own objects; `None`: the namespace of the service account or of
    /// the context.
    pub namespace: Option<String>,
}

impl Default for ClusterAccess {
    fn default() -> Self {
        Self { component: "vipmux", kubeconfig: None, namespace: None }
    }
}

/// A client for a cluster.
#[derive(Clone)]
pub struct ClusterClient {
    /// The client of its API server. No request has been sent yet.
    pub client: Client,
    /// The namespace of vipmux's own objects.
    pub namespace: String,
}

/// The API server's address or credentials are missing or wrong.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The kubeconfig cannot be used.
    #[error("cannot use the kubeconfig {path:?}: {error}")]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// The error. Its text includes its causes, so it is no `#[source]`: they would be printed
        /// twice.
        error: Box<KubeconfigError>,
    },
    /// This is no Pod, or its service account's token is not mounted.
    #[error("not in a Pod of a cluster: name a kubeconfig (--kubeconfig), or a directory of manifests (--manifests)")]
    ServiceAccount(#[source] Box<InClusterError>),
    /// No client can be made of the settings.
    #[error("cannot set up the client of the API server")]
    Client(#[source] Box<kube::Error>),
}

impl ClusterClient {
    /// Returns a client. The API server need not answer yet. Must be called within a tokio runtime.
    pub async fn connect(access: &ClusterAccess) -> Result<Self, AccessError> {
        Self::connect_within(access, MAX_SILENCE).await
    }

    /// Like [`connect`](Self::connect), with another limit for a silent connection. A limit under a
    /// minute interrupts all watches. That costs requests and loses nothing.
    pub async fn connect_within(access: &ClusterAccess, silence: Duration) -> Result<Self, AccessError> {
        let mut config = match &access.kubeconfig {
            Some(path) => {
                let failed = |error| AccessError::Kubeconfig { path: path.clone(), error: Box::new(error) };
                let file = Kubeconfig::read_from(path).map_err(failed)?;
                Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.map_err(failed)?
            }
            None => Config::incluster().map_err(|source| AccessError::ServiceAccount(Box::new(source)))?,
        };
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        config.read_timeout = Some(silence);
        config.write_timeout = Some(CONNECT_TIMEOUT);
        let user_agent = HeaderValue::try_from(format!("{}/{}", access.component, env!("CARGO_PKG_VERSION")));
        config.headers.extend(user_agent.map(|value| (USER_AGENT, value)));
        // The callers know better whether and when to retry. kube would retry for minutes and log
        // nothing.
        config.default_retry = false;
        let namespace = access.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).map_err(|source| AccessError::Client(Box::new(source)))?;
        Ok(Self { client, namespace })
    }
}

/// Returns the settings of a watch. Its length is random, so that not all watches end together.
pub fn watch_config() -> watcher::Config {
    let seconds = with_jitter(WATCH_LENGTH).as_secs();
    watcher::Config::default().timeout(u32::try_from(seconds).unwrap_or(u32::MAX))
}

/// Adds up to as much again at random.
pub(crate) fn with_jitter(delay: Duration) -> Duration {
    let mut jitter = [0; 1];
    // Without randomness all agents retry together, which the API server can bear.
    let _ = getrandom::fill(&mut jitter);
    delay + delay * u32::from(jitter[0]) / 256
}

impl fmt::Debug for ClusterClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterClient").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}
