//! Tests the elector with an API server that a function simulates.

use std::sync::{Arc, Mutex};

use futures_util::FutureExt as _;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::*;
use crate::test_client::client;
use vipmux_cluster::rollback;
use vipmux_testing::PATIENCE;

/// An API server whose watch tells that the Lease was deleted, once.
#[derive(Default)]
struct Server {
    lease: Option<Value>,
    version: u32,
    /// The writes: the method and `leaseTransitions`.
    writes: Vec<(String, i64)>,
}

impl Server {
    fn answer(&mut self, method: &str, uri: &str, body: &Value) -> (u16, Value) {
        let failure = |code: u16| (code, json!({"kind": "Status", "status": "Failure", "code": code, "message": "no"}));
        match method {
            "GET" if uri.contains("watch=true") => match self.lease.take().filter(|_| self.writes.len() == 1) {
                Some(mut lease) => {
                    self.version += 1;
                    lease["metadata"]["resourceVersion"] = self.version.to_string().into();
                    (200, json!({"type": "DELETED", "object": lease}))
                }
                None => failure(500),
            },
            "GET" if uri.contains("fieldSelector") => {
                let items: Vec<_> = self.lease.iter().collect();
                let metadata = json!({"resourceVersion": self.version.to_string()});
                (200, json!({"kind": "LeaseList", "metadata": metadata, "items": items}))
            }
            "GET" => self.lease.clone().map_or_else(|| failure(404), |lease| (200, lease)),
            _ => {
                self.version += 1;
                self.writes.push((method.to_owned(), body["spec"]["leaseTransitions"].as_i64().unwrap()));
                let mut lease = body.clone();
                lease["metadata"]["resourceVersion"] = self.version.to_string().into();
                self.lease = Some(lease.clone());
                (201, lease)
            }
        }
    }
}

/// Without the watch the renewal would come first, after seconds in which the leader would write statuses.
#[tokio::test]
async fn a_leader_whose_lease_is_deleted_notices_it_before_it_renews_the_lease() {
    let server = Arc::new(Mutex::new(Server::default()));
    let answering = Arc::clone(&server);
    let client = client(move |request| {
        let body = request.body().try_clone().unwrap().collect_bytes().now_or_never().unwrap().unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        answering.lock().unwrap().answer(request.method().as_str(), &request.uri().to_string(), &body)
    });
    let (elector, mut states) = LeaseElector::new(client, "vipmux-system", "a", rollback::never());
    let (stop, stopped) = oneshot::channel();
    let running = tokio::spawn(elector.run(stopped));
    let leads_again = states.wait_for(|state| state.until.is_some() && state.transitions == 1);
    timeout(PATIENCE, leads_again).await.unwrap().unwrap();
    assert_eq!(server.lock().unwrap().writes, [("POST".to_owned(), 0), ("POST".to_owned(), 1)]);
    stop.send(ElectorStop::KeepLease).unwrap();
    running.await.unwrap();
}
