//! Finds the gossip keys when the agent starts, and follows their file.

use std::{path::PathBuf, time::Duration};

use tokio::{sync::watch, time::sleep};

use crate::{AgentError, runtime_options::RuntimeOptions};
use vipmux_cluster::gossip_secret::GossipSecret;
use vipmux_election::membership::sealing::SealingKeys;
use vipmux_gossip::{self, KeyFileError};
use vipmux_supervisor::Supervisor;

/// The time from one attempt to find the keys of a cluster to the next.
const RETRY: Duration = Duration::from_secs(1);

/// Returns the file of the keys.
pub(crate) fn path(options: &RuntimeOptions) -> PathBuf {
    options.gossip_key.clone().unwrap_or_else(|| options.state_dir.join("gossip.key"))
}

/// Reads the keys. `None`: there are none yet, and the agent makes them. `secret`: in a cluster the
/// keys may come later, in the file or in this Secret. Cancel-safe.
pub(crate) async fn find(
    options: &RuntimeOptions,
    secret: Option<GossipSecret>,
) -> Result<Option<SealingKeys>, AgentError> {
    let loaded = vipmux_gossip::load(&path(options));
    match (secret, &options.gossip_key) {
        // Each node would make a key of its own, and would hear no peer.
        (Some(_), None) => Err(AgentError::NoKey),
        (Some(secret), Some(_)) if is_missing(&loaded) => wait(options, &secret).await.map(Some),
        (None, None) if is_missing(&loaded) => Ok(None),
        _ => Ok(Some(loaded?)),
    }
}

fn is_missing(loaded: &Result<SealingKeys, KeyFileError>) -> bool {
    matches!(loaded, Err(KeyFileError::Missing { .. }))
}

/// Waits until there is a file or a Secret with keys.
async fn wait(options: &RuntimeOptions, secret: &GossipSecret) -> Result<SealingKeys, AgentError> {
    tracing::info!(path = %path(options).display(), "no gossip key yet, waiting for the allocator to make one");
    let mut logged = None;
    loop {
        let problem = match secret.read().await {
            Ok(Some(text)) => match SealingKeys::parse(&text) {
                Ok(keys) => return Ok(keys),
                Err(error) => Some(error.to_string()),
            },
            Ok(None) => None,
            Err(error) => Some(error.to_string()),
        };
        if problem.is_some() && problem != logged {
            tracing::warn!(error = problem, "cannot read the gossip key from its Secret, waiting for the file");
            logged = problem;
        }
        let loaded = vipmux_gossip::load(&path(options));
        if !is_missing(&loaded) {
            return Ok(loaded?);
        }
        sleep(RETRY).await;
    }
}

/// Makes the keys if there are none, and follows their file. An agent whose start fails before
/// leaves no file that other agents do not have.
pub(crate) fn follow(
    options: &RuntimeOptions,
    found: Option<SealingKeys>,
    supervisor: &Supervisor,
) -> Result<watch::Receiver<SealingKeys>, AgentError> {
    let path = path(options);
    let keys = found.map_or_else(|| vipmux_gossip::load_or_make(&path), Ok)?;
    Ok(vipmux_gossip::follow(path, keys, supervisor))
}
