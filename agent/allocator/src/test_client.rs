//! Makes a kube client for tests: a function answers its requests.

use std::convert::Infallible;

use http::{Request, Response};
use kube::{Client, client::Body};
use serde_json::Value;
use tower::service_fn;

/// Returns a client whose requests this function answers, with a status code and an object.
pub(super) fn client(answer: impl Fn(&Request<Body>) -> (u16, Value) + Clone + Send + 'static) -> Client {
    let respond = move |request: Request<Body>| {
        let (code, object) = answer(&request);
        let mut response = Response::new(Body::from(object.to_string().into_bytes()));
        *response.status_mut() = code.try_into().unwrap();
        async { Ok::<_, Infallible>(response) }
    };
    Client::new(service_fn(respond), "default")
}
