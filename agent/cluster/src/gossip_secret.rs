//! Reads the Secret with the gossip key. Agents read it only if the file of the key is not there
//! yet: the kubelet writes it about a minute after the allocator has made the Secret.

use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::Api;

use crate::access::ClusterClient;
use vipmux_model::permissions::GOSSIP_SECRET;

/// The entry of the Secret.
pub const ENTRY: &str = "gossip.key";

/// The Secret.
#[derive(Clone, Debug)]
pub struct GossipSecret(Api<Secret>);

impl GossipSecret {
    /// Returns the Secret in vipmux's namespace, which may not exist.
    pub fn new(ClusterClient { client, namespace }: &ClusterClient) -> Self {
        Self(Api::namespaced(client.clone(), namespace))
    }

    /// Returns the text of the keys; `None`: there is no such Secret yet, or it has no such text.
    pub async fn read(&self) -> Result<Option<String>, kube::Error> {
        let secret = self.0.get_opt(GOSSIP_SECRET).await?;
        let entry = secret.and_then(|secret| secret.data?.remove(ENTRY));
        Ok(entry.and_then(|ByteString(bytes)| String::from_utf8(bytes).ok()))
    }
}
