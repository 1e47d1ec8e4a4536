//! An API server for tests: a function from requests to answers.

use std::convert::Infallible;

use http::{Request, Response};
use kube::{Client, client::Body};
use serde_json::Value;
use tower::service_fn;

/// A client whose requests are answered by this: with a status code and an object.
pub(super) fn client(answer: impl Fn(&Request<Body>) -> (u16, Value) + Clone + Send + 'static) -> Client {
    let respond = move |request: Request<Body>| {
        let (code, object) = answer(&request);
        let mut response = Response::new(Body::from(object.to_string().into_bytes()));
        *response.status_mut() = code.try_into().unwrap();
        async { Ok::<_, Infallible>(response) }
    };
    Client::new(service_fn(respond), "default")
}
