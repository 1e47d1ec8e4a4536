//! Creates the Secret with the key that seals the agents' gossip. It is created once and never
//! overwritten: people replace the key by hand.

use std::time::Duration;

use k8s_openapi::{ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{Api, Client, Error, api::PostParams};
use tokio::time::sleep;

use super::write_result::FIELD_MANAGER;
use vipmux_cluster::gossip_secret::ENTRY;
use vipmux_election::membership::sealing::SealingKeys;
use vipmux_model::permissions::GOSSIP_SECRET as SECRET;

/// The time from one attempt to the next.
const RETRY: Duration = Duration::from_secs(5);

/// Creates the Secret if it is missing. It tries until there is one that agents can use, so a bad
/// one need only be deleted. If several allocators try at once, one of them creates it.
///
/// Cancel-safe.
pub(super) async fn ensure(client: Client, namespace: &str) {
    retry_until_usable(&Api::namespaced(client, namespace), RETRY).await;
}

async fn retry_until_usable(api: &Api<Secret>, retry: Duration) {
    let mut logged = None;
    loop {
        let message = match check_or_create(api).await {
            Ok(None) => return,
            Ok(Some(problem)) => problem,
            Err(error) => format!("cannot read or create the Secret, and agents wait for it: {error}"),
        };
        if logged.as_ref() != Some(&message) {
            tracing::error!(secret = SECRET, problem = message, "no usable gossip key");
            logged = Some(message);
        }
        sleep(retry).await;
    }
}

/// Returns the problem of the Secret that is there, if any. Creates one if there is none.
async fn check_or_create(api: &Api<Secret>) -> Result<Option<String>, Error> {
    if let Some(secret) = api.get_opt(SECRET).await? {
        return Ok(problem(&secret));
    }
    let mut random = [0; 32];
    if let Err(error) = getrandom::fill(&mut random) {
        return Ok(Some(format!("cannot generate a key: no randomness: {error}")));
    }
    let secret = Secret {
        metadata: ObjectMeta { name: Some(SECRET.to_owned()), ..ObjectMeta::default() },
        type_: Some("Opaque".to_owned()),
        data: Some([(ENTRY.to_owned(), ByteString(SealingKeys::generate(random).file().into_bytes()))].into()),
        ..Secret::default()
    };
    let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
    match api.create(&params, &secret).await {
        Ok(_) => {
            tracing::info!(secret = SECRET, "created a gossip key");
            Ok(None)
        }
        // Another allocator was faster. A quota that changed meanwhile is a 409, too (`Conflict`).
        Err(Error::Api(status)) if status.reason == "AlreadyExists" => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the problem of the Secret. The text never contains the key.
fn problem(secret: &Secret) -> Option<String> {
    let key = secret.data.as_ref().and_then(|data| data.get(ENTRY));
    let Some(ByteString(bytes)) = key else {
        return Some(format!(
            "it has no {ENTRY}: delete the Secret, and the allocator creates another; or put 32 bytes in base64 there"
        ));
    };
    let text = std::str::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned());
    let keys = text.and_then(|text| SealingKeys::parse(text).map_err(|error| error.to_string()));
    keys.err().map(|why| format!("its {ENTRY} is not a key: {why}"))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use serde_json::json;

    use super::*;
    use crate::test_client::client;

    #[tokio::test]
    async fn a_new_secret_is_created_after_a_bad_one_was_deleted() {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let server = client({
            let asked = Arc::clone(&asked);
            move |request| {
                let mut asked = asked.lock().unwrap();
                asked.push(request.method().to_string());
                match asked.len() {
                    1 | 2 => (200, json!({"metadata": {"name": SECRET}})),
                    3 => (404, json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound"})),
                    _ => (201, json!({"metadata": {"name": SECRET}})),
                }
            }
        });
        retry_until_usable(&Api::namespaced(server, "vipmux-system"), Duration::ZERO).await;
        assert_eq!(*asked.lock().unwrap(), ["GET", "GET", "GET", "POST"]);
    }

    /// As an API server answers while something else changes the namespace's ResourceQuota.
    #[tokio::test]
    async fn a_conflict_with_another_object_is_retried() {
        let conflict = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "Operation cannot be fulfilled on resourcequotas \"all\": the object has been modified; \
                        please apply your changes to the latest version and try again",
            "reason": "Conflict", "details": {"name": "all", "kind": "resourcequotas"}, "code": 409,
        });
        let asked = Arc::new(Mutex::new(Vec::new()));
        let server = client({
            let asked = Arc::clone(&asked);
            move |request| {
                let mut asked = asked.lock().unwrap();
                asked.push(request.method().to_string());
                match asked.len() {
                    1 | 3 => (404, json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound"})),
                    2 => (409, conflict.clone()),
                    _ => (201, json!({"metadata": {"name": SECRET}})),
                }
            }
        });
        retry_until_usable(&Api::namespaced(server, "vipmux-system"), Duration::ZERO).await;
        assert_eq!(*asked.lock().unwrap(), ["GET", "POST", "GET", "POST"]);
    }

    #[test]
    fn a_secret_without_a_key_is_reported_without_its_content() {
        let secret = |entry: &str, bytes: &[u8]| Secret {
            data: Some([(entry.to_owned(), ByteString(bytes.to_vec()))].into()),
            ..Secret::default()
        };
        let good = SealingKeys::generate([7; 32]).file();
        assert_eq!(problem(&secret(ENTRY, good.as_bytes())), None);
        for (secret, expected) in [
            (Secret::default(), "it has no gossip.key"),
            (secret("key", good.as_bytes()), "it has no gossip.key"),
            (secret(ENTRY, b"c2VjcmV0"), "its gossip.key is not a key: line 1"),
            (secret(ENTRY, &[0xff]), "its gossip.key is not a key: it is not UTF-8"),
        ] {
            let problem = problem(&secret).unwrap();
            assert!(problem.starts_with(expected) && !problem.contains("c2VjcmV0"), "{problem}");
        }
    }
}
