//! The Secret with the key that seals what the agents say to each other. Made once, and never overwritten: who replaces the
//! key does so by hand.

use std::time::Duration;

use k8s_openapi::{ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{Api, Client, Error, api::PostParams};
use tokio::time::sleep;

use super::answer::MANAGER;
use crate::membership::sealing::Keys;

/// The Secret's name.
pub const SECRET: &str = "vipmux-gossip";
/// Its entry.
pub const ENTRY: &str = "gossip.key";
/// From one attempt to the next.
const RETRY: Duration = Duration::from_secs(5);

/// Makes the Secret if it is missing; tries until one is there that agents can use, so that a bad one need only be deleted. Of
/// several allocators that do so at once, one makes it.
///
/// Cancel-safe.
pub(super) async fn ensure(client: Client, namespace: &str) {
    look_again(&Api::namespaced(client, namespace), RETRY).await;
}

async fn look_again(api: &Api<Secret>, retry: Duration) {
    let mut told = None;
    loop {
        let news = match look_or_make(api).await {
            Ok(None) => return,
            Ok(Some(complaint)) => complaint,
            Err(error) => format!("the gossip key cannot be made, and agents wait for it: {error}"),
        };
        if told.as_ref() != Some(&news) {
            tracing::error!(secret = SECRET, "{news}");
            told = Some(news);
        }
        sleep(retry).await;
    }
}

/// `Some`: what is wrong with the one that is there.
async fn look_or_make(api: &Api<Secret>) -> Result<Option<String>, Error> {
    if let Some(secret) = api.get_opt(SECRET).await? {
        return Ok(flaw(&secret));
    }
    let mut random = [0; 32];
    if let Err(error) = getrandom::fill(&mut random) {
        return Ok(Some(format!("there is no randomness to make it of: {error}")));
    }
    let secret = Secret {
        metadata: ObjectMeta { name: Some(SECRET.to_owned()), ..ObjectMeta::default() },
        type_: Some("Opaque".to_owned()),
        data: Some([(ENTRY.to_owned(), ByteString(Keys::generate(random).file().into_bytes()))].into()),
        ..Secret::default()
    };
    let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    match api.create(&params, &secret).await {
        Ok(_) => {
            tracing::info!(secret = SECRET, "made a gossip key");
            Ok(None)
        }
        // Another was faster.
        Err(Error::Api(status)) if status.code == 409 => Ok(None),
        Err(error) => Err(error),
    }
}

/// What is wrong with the Secret. The key is not told.
fn flaw(secret: &Secret) -> Option<String> {
    let key = secret.data.as_ref().and_then(|data| data.get(ENTRY));
    let Some(ByteString(bytes)) = key else {
        return Some(format!("it has no {ENTRY}: delete it, and another is made; or put 32 bytes in base64 there"));
    };
    let text = std::str::from_utf8(bytes).map_err(|_| "it is no text".to_owned());
    let keys = text.and_then(|text| Keys::parse(text).map_err(|error| error.to_string()));
    keys.err().map(|why| format!("its {ENTRY} is no key: {why}"))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use serde_json::json;

    use super::*;
    use crate::allocator::fixture::client;

    #[tokio::test]
    async fn another_is_made_when_a_bad_one_was_deleted() {
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
        look_again(&Api::namespaced(server, "vipmux-system"), Duration::ZERO).await;
        assert_eq!(*asked.lock().unwrap(), ["GET", "GET", "GET", "POST"]);
    }

    #[test]
    fn a_secret_without_a_key_is_told_and_the_key_is_not() {
        let secret = |entry: &str, bytes: &[u8]| Secret {
            data: Some([(entry.to_owned(), ByteString(bytes.to_vec()))].into()),
            ..Secret::default()
        };
        let good = Keys::generate([7; 32]).file();
        assert_eq!(flaw(&secret(ENTRY, good.as_bytes())), None);
        for (secret, told) in [
            (Secret::default(), "it has no gossip.key"),
            (secret("key", good.as_bytes()), "it has no gossip.key"),
            (secret(ENTRY, b"c2VjcmV0"), "its gossip.key is no key: line 1"),
            (secret(ENTRY, &[0xff]), "its gossip.key is no key: it is no text"),
        ] {
            let flaw = flaw(&secret).unwrap();
            assert!(flaw.starts_with(told) && !flaw.contains("c2VjcmV0"), "{flaw}");
        }
    }
}
