//! Forwards requests to the API server, and responses back.

use std::{
    convert::Infallible,
    io,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use anyhow::{Context as _, Result};
use futures_util::future;
use http::{HeaderMap, Request, Response, StatusCode, header, request::Parts};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use kube::{
    Client, Config,
    client::Body,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::json;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{oneshot, watch},
    time::sleep,
};

use super::{
    State,
    api_request::ApiRequest,
    lock,
    responses::{ResponseBody, Responses},
    rule::Fault,
};

/// A response. An error closes the connection.
type Answer = io::Result<Response<UnsyncBoxBody<Bytes, io::Error>>>;

/// Serves until it is stopped.
pub(super) async fn serve(
    listener: std::net::TcpListener,
    kubeconfig: PathBuf,
    state: Arc<Mutex<State>>,
    responses: watch::Sender<Responses>,
    stopped: oneshot::Receiver<()>,
) -> Result<()> {
    let listener = TcpListener::from_std(listener).context("cannot listen")?;
    let forwarder = Arc::new(Forwarder { client: connect(kubeconfig).await?, state, responses });
    let accepting = async {
        loop {
            let (stream, _) = listener.accept().await?;
            // The task ends with the connection or with the runtime.
            tokio::spawn(serve_requests(stream, Arc::clone(&forwarder)));
        }
    };
    tokio::select! {
        ended = accepting => ended,
        _ = stopped => Ok(()),
    }
}

/// Connects to the API server, without the client's own retries: a lost request stays lost.
async fn connect(kubeconfig: PathBuf) -> Result<Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

/// Serves a connection's requests, one after the other.
async fn serve_requests(stream: TcpStream, forwarder: Arc<Forwarder>) {
    let service = service_fn(move |request| {
        let forwarder = Arc::clone(&forwarder);
        async move {
            // A task of its own, so that it continues if the client leaves.
            let work = tokio::spawn(async move { forwarder.handle(request).await });
            work.await.unwrap_or_else(|error| Err(io::Error::other(error)))
        }
    });
    // An error only means that one side closed the connection, which tests do on purpose.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

struct Forwarder {
    client: Client,
    state: Arc<Mutex<State>>,
    responses: watch::Sender<Responses>,
}

impl Forwarder {
    async fn handle(self: Arc<Self>, request: Request<Incoming>) -> Answer {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
        let request = ApiRequest::of(&parts.method, &parts.uri);
        let faults = lock(&self.state).record(&request);
        for fault in &faults {
            if let Some(answer) = self.before(*fault).await {
                return answer;
            }
        }
        let mut answer = self.forward(&parts, &body).await;
        // A request is executed once its response is complete. A watch's response never is.
        let whole = async |answer| if request.verb == "watch" { Ok(()) } else { whole(answer).await };
        for fault in faults {
            answer = match fault {
                Fault::Twice => {
                    self.count(fault);
                    drop(whole(answer).await);
                    self.forward(&parts, &body).await
                }
                Fault::Again(delay) => {
                    self.repeat(parts.clone(), body.clone(), delay);
                    answer
                }
                Fault::Late(delay) => {
                    self.count(fault);
                    sleep(delay).await;
                    answer
                }
                Fault::LoseAnswer => {
                    drop(whole(answer).await);
                    self.count(fault);
                    Err(io::ErrorKind::ConnectionAborted.into())
                }
                _ => answer,
            }
        }
        answer
    }

    /// Applies a fault before the request is executed. Returns a response if the request is not
    /// executed.
    async fn before(&self, fault: Fault) -> Option<Answer> {
        match fault {
            Fault::Delay(delay) => {
                self.count(fault);
                sleep(delay).await;
                return None;
            }
            Fault::Twice | Fault::Again(_) | Fault::Late(_) | Fault::LoseAnswer => return None,
            _ => self.count(fault),
        }
        Some(match fault {
            Fault::Stall => future::pending().await,
            Fault::Answer(code) => refusal(code),
            Fault::Expire => {
                let event = json!({ "type": "ERROR", "object": status(410, "Expired") });
                Ok(Response::new(text(format!("{event}\n"))))
            }
            Fault::End => Ok(Response::new(text(String::new()))),
            _ => Err(io::ErrorKind::ConnectionAborted.into()),
        })
    }

    /// Sends a copy of the request later.
    fn repeat(self: &Arc<Self>, parts: Parts, body: Bytes, delay: std::time::Duration) {
        let forwarder = Arc::clone(self);
        // The task ends by itself or with the runtime.
        tokio::spawn(async move {
            sleep(delay).await;
            drop(whole(forwarder.forward(&parts, &body).await).await);
            forwarder.count(Fault::Again(delay));
        });
    }

    async fn forward(&self, parts: &Parts, body: &Bytes) -> Answer {
        let mut request = Request::new(Body::from(body.clone()));
        (*request.method_mut(), *request.uri_mut()) = (parts.method.clone(), parts.uri.clone());
        *request.headers_mut() = headers(&parts.headers, &[header::HOST, header::CONTENT_LENGTH]);
        let (parts, body) = self.client.send(request).await.map_err(io::Error::other)?.into_parts();
        let frames = ResponseBody::begin(body, &self.responses).frames();
        let mut answer = Response::new(StreamBody::new(frames).boxed_unsync());
        *answer.status_mut() = parts.status;
        *answer.headers_mut() = headers(&parts.headers, &[]);
        Ok(answer)
    }

    fn count(&self, fault: Fault) {
        lock(&self.state).count(fault.name());
    }
}

/// Waits until the response is complete.
async fn whole(answer: Answer) -> io::Result<()> {
    answer?.into_body().collect().await.map(drop)
}

/// Returns the end-to-end headers, without `but`.
fn headers(all: &HeaderMap, but: &[header::HeaderName]) -> HeaderMap {
    let mut kept = all.clone();
    for name in [header::CONNECTION, header::TRANSFER_ENCODING, header::AUTHORIZATION].iter().chain(but) {
        kept.remove(name);
    }
    kept
}

fn status(code: u16, reason: &str) -> serde_json::Value {
    let message = format!("the proxy says {code}");
    json!({ "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message })
}

fn refusal(code: u16) -> Answer {
    let reason = match code {
        404 => "NotFound",
        410 => "Expired",
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        _ => "",
    };
    let mut answer = Response::new(text(status(code, reason).to_string()));
    *answer.status_mut() = StatusCode::from_u16(code).map_err(io::Error::other)?;
    Ok(answer)
}

fn text(text: String) -> UnsyncBoxBody<Bytes, io::Error> {
    Full::new(Bytes::from(text)).map_err(|never: Infallible| match never {}).boxed_unsync()
}
