//! Obeys `Retry-After` (RFC 9110, section 10.2.3): an API server that has too much to do asks its
//! clients to wait. A node whose evidence rests on its record does not wait with it.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use http::{HeaderMap, Request, StatusCode, header::RETRY_AFTER};
use kube::{Client, client::Body};
use tower::service_fn;

/// The longest wait. A larger value is a mistake of a proxy, and VIPs depend on the store.
const LONGEST: Duration = Duration::from_secs(10);

type NotBefore = Arc<Mutex<Option<Instant>>>;

/// The clients of one store.
pub(super) struct PacedClients {
    /// Sends nothing for as long as the last refusal asks for. Meanwhile its requests fail at once.
    pub(super) obeying: Client,
    /// Sends at any time, for a node whose evidence lapses before the wait is over. Others would then take its
    /// VIPs, which costs the API server far more than the one request. The election bounds these requests: a
    /// node sends one at a time, less often after each failure, and none once it has stopped to answer.
    ///
    /// The refusals that this client gets count for the other one.
    pub(super) urgent: Client,
}

impl PacedClients {
    /// Returns clients that send by this one.
    pub(super) fn new(client: &Client) -> Self {
        let not_before = NotBefore::default();
        Self {
            obeying: paced(client.clone(), Arc::clone(&not_before), true),
            urgent: paced(client.clone(), not_before, false),
        }
    }
}

fn paced(client: Client, not_before: NotBefore, obeys: bool) -> Client {
    let namespace = client.default_namespace().to_owned();
    let send = move |request: Request<Body>| {
        let (client, not_before) = (client.clone(), Arc::clone(&not_before));
        async move {
            let lock = || not_before.lock().unwrap_or_else(PoisonError::into_inner);
            if obeys && lock().is_some_and(|end| Instant::now() < end) {
                let source = io::Error::other("the API server has asked to wait (Retry-After)");
                return Err(kube::Error::Service(source.into()));
            }
            let response = client.send(request).await?;
            if let Some(wait) = wait(response.status(), response.headers()) {
                *lock() = Some(Instant::now() + wait);
            }
            Ok(response)
        }
    };
    Client::new(service_fn(send), namespace)
}

/// Returns how long a refusal asks to wait. The API server sends seconds, never a date.
fn wait(status: StatusCode, headers: &HeaderMap) -> Option<Duration> {
    let refuses = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
    let seconds = headers.get(RETRY_AFTER).filter(|_| refuses)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds).min(LONGEST))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::Response;

    use super::*;

    /// Clients whose server always answers so, and the number of requests that it has got.
    fn clients(status: u16, retry_after: &'static str) -> (PacedClients, Arc<AtomicUsize>) {
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&requests);
        let answer = move |_: Request<Body>| {
            counted.fetch_add(1, Ordering::Relaxed);
            let response = Response::builder().status(status).header(RETRY_AFTER, retry_after).body(Body::empty());
            async move { response }
        };
        (PacedClients::new(&Client::new(service_fn(answer), "default")), requests)
    }

    fn client(status: u16, retry_after: &'static str) -> (Client, Arc<AtomicUsize>) {
        let (clients, requests) = clients(status, retry_after);
        (clients.obeying, requests)
    }

    async fn send(client: &Client) -> bool {
        client.send(Request::get("/").body(Body::empty()).unwrap()).await.is_ok()
    }

    #[tokio::test]
    async fn nothing_is_sent_before_the_time_that_a_refusal_names() {
        for status in [429, 503] {
            let (client, requests) = client(status, "10");
            assert!(send(&client).await);
            assert!(!send(&client).await && !send(&client).await);
            assert_eq!(requests.load(Ordering::Relaxed), 1, "{status}");
        }
    }

    #[tokio::test]
    async fn urgent_requests_do_not_wait_and_their_refusals_count_for_others() {
        let (PacedClients { obeying, urgent }, requests) = clients(429, "10");
        assert!(send(&urgent).await && !send(&obeying).await);
        assert!(send(&urgent).await && send(&urgent).await);
        assert_eq!(requests.load(Ordering::Relaxed), 3);
        let (PacedClients { obeying, urgent }, requests) = clients(429, "10");
        assert!(send(&obeying).await && !send(&obeying).await && send(&urgent).await);
        assert_eq!(requests.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn requests_are_sent_again_after_that_time() {
        let (client, requests) = client(429, "1");
        assert!(send(&client).await && !send(&client).await);
        while !send(&client).await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(requests.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn other_responses_delay_nothing() {
        for (status, retry_after) in [(200, "3"), (409, "3"), (429, ""), (429, "-1"), (429, "soon"), (503, "0")] {
            let (client, requests) = client(status, retry_after);
            assert!(send(&client).await && send(&client).await, "{status} {retry_after}");
            assert_eq!(requests.load(Ordering::Relaxed), 2);
        }
    }

    #[test]
    fn a_wait_is_bounded() {
        let headers = |seconds: &str| HeaderMap::from_iter([(RETRY_AFTER, seconds.parse().unwrap())]);
        assert_eq!(wait(StatusCode::TOO_MANY_REQUESTS, &headers("4000000000")), Some(LONGEST));
    }
}
