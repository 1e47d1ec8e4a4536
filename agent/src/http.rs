//! What is served by HTTP: `/metrics` for Prometheus, `/healthz` and `/readyz` for the kubelet. Of the agent and of the
//! allocator alike, which each say what is there ([`Site`]).
//!
//! Anybody on the network can ask, so everything is bounded: connections (the oldest gives way, so that whoever holds many
//! open keeps no probe out), the head of a request, the time for all of it, and scrapes, of which one is made at a time and
//! beside the caller's event loop. A connection carries one request; bodies are not read.

mod socket;

use std::{
    collections::VecDeque, convert::Infallible, error::Error, fmt, net::SocketAddr, str::FromStr, sync::Arc,
    time::Duration,
};

use hyper::{
    Method, Request, Response, StatusCode,
    body::Incoming,
    header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, oneshot},
    task::{AbortHandle, spawn_blocking},
    time::{Instant, sleep, timeout},
};

pub use self::socket::{ListenError, bind};

/// Where it listens unless the configuration says otherwise.
pub const DEFAULT_LISTEN: &str = "[::]:7945";

/// Connections at the same time.
const MOST_CONNECTIONS: usize = 64;
/// How long the head of a request may take.
const HEAD: Duration = Duration::from_secs(5);
/// How long a connection may: a large answer to a slow reader.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest head of a request, bytes.
const LONGEST_HEAD: usize = 16 << 10;
/// How long after a failure the next connection is taken.
const RETRY: Duration = Duration::from_millis(100);

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
/// <https://github.com/prometheus/OpenMetrics/blob/v1.0.0/specification/OpenMetrics.md#text-format>
const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// Where to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listen {
    /// Nowhere.
    Off,
    /// There.
    On(SocketAddr),
}

impl Listen {
    /// Takes the port, if there is to be one. Within a tokio runtime.
    pub fn open(self) -> Result<Option<TcpListener>, ListenError> {
        match self {
            Self::Off => Ok(None),
            Self::On(address) => bind(address).map(Some),
        }
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self::Off);
        }
        let parsed = text.parse().map(Self::On);
        parsed.map_err(|_| "it is no address with a port, such as [::]:7945 or 192.0.2.1:7945, nor off".to_owned())
    }
}

/// One thing that is asked of a program, with what is wrong if anything is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// In a word.
    pub name: &'static str,
    /// What is wrong; `None`: nothing.
    pub failure: Option<String>,
}

impl Check {
    /// One that fails with `failure()` unless it is `passed`.
    pub fn new(name: &'static str, passed: bool, failure: impl FnOnce() -> String) -> Self {
        Self { name, failure: (!passed).then(failure) }
    }
}

/// What could not be told.
pub type SiteError = Box<dyn Error + Send + Sync>;

type Ask<T> = Box<dyn Fn() -> T + Send + Sync>;

/// What a program says of itself.
pub struct Site {
    /// All metrics, as OpenMetrics text. Called where blocking is allowed, never twice at a time.
    pub metrics: Ask<Result<String, SiteError>>,
    /// Whether it works at all: restarted if not. Must be quick.
    pub live: Ask<Vec<Check>>,
    /// Whether it does what it is there for. Must be quick.
    pub ready: Ask<Vec<Check>>,
}

impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Site").finish_non_exhaustive()
    }
}

/// Serves on a task of its own, until the runtime ends: it holds nothing that needs care.
pub fn start(listener: TcpListener, site: Site) {
    tokio::spawn(serve(listener, Arc::new(Server { site, scrapes: Arc::new(Semaphore::new(1)) })));
}

#[derive(Debug)]
struct Server {
    site: Site,
    /// One at a time.
    scrapes: Arc<Semaphore>,
}

async fn serve(listener: TcpListener, server: Arc<Server>) {
    let mut connections: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            // A client that went away, or no descriptor to be had.
            Err(error) => {
                tracing::debug!(%error, "a connection could not be taken");
                sleep(RETRY).await;
                continue;
            }
        };
        connections.retain(|connection| !connection.is_finished());
        while connections.len() >= MOST_CONNECTIONS
            && let Some(oldest) = connections.pop_front()
        {
            oldest.abort();
        }
        connections.push_back(tokio::spawn(connection(stream, Arc::clone(&server))).abort_handle());
    }
}

async fn connection(stream: TcpStream, server: Arc<Server>) {
    let service = service_fn(move |request| {
        let server = Arc::clone(&server);
        async move { Ok::<_, Infallible>(answer(&server, request).await) }
    });
    let mut http = http1::Builder::new();
    http.keep_alive(false).max_buf_size(LONGEST_HEAD).timer(TokioTimer::new()).header_read_timeout(HEAD);
    if let Ok(Err(error)) = timeout(PATIENCE, http.serve_connection(TokioIo::new(stream), service)).await {
        tracing::debug!(%error, "a request was not answered");
    }
}

async fn answer(server: &Arc<Server>, request: Request<Incoming>) -> Response<String> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut refusal = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n".to_owned());
        refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refusal;
    }
    match request.uri().path() {
        "/healthz" | "/livez" => checked(&(server.site.live)()),
        "/readyz" => checked(&(server.site.ready)()),
        "/metrics" => metrics(server).await,
        _ => text(StatusCode::NOT_FOUND, "there are /metrics, /healthz and /readyz\n".to_owned()),
    }
}

async fn metrics(server: &Arc<Server>) -> Response<String> {
    let Ok(permit) = Arc::clone(&server.scrapes).acquire_owned().await else {
        return text(StatusCode::SERVICE_UNAVAILABLE, String::new());
    };
    let (asked, (tell, told)) = (Arc::clone(server), oneshot::channel());
    // Goes on if nobody waits for it any more: the next scrape begins after it, and a rest as long as it took.
    tokio::spawn(async move {
        let begun = Instant::now();
        let metrics = spawn_blocking(move || (asked.site.metrics)()).await;
        let took = begun.elapsed();
        // Whoever asked may be gone.
        let _ = tell.send(metrics.unwrap_or_else(|error| Err(error.into())));
        sleep(took).await;
        drop(permit);
    });
    match told.await {
        Ok(Ok(metrics)) => response(StatusCode::OK, OPEN_METRICS, metrics),
        Ok(Err(error)) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{:#}\n", anyhow::Error::from_boxed(error))),
        Err(_) => text(StatusCode::INTERNAL_SERVER_ERROR, "the scrape broke off\n".to_owned()),
    }
}

/// As the API server answers `?verbose`.
fn checked(checks: &[Check]) -> Response<String> {
    let line = |Check { name, failure }: &Check| match failure {
        None => format!("[+]{name} ok\n"),
        Some(failure) => format!("[-]{name} failed: {failure}\n"),
    };
    let passed = checks.iter().all(|check| check.failure.is_none());
    let (status, end) = if passed { (StatusCode::OK, "passed") } else { (StatusCode::SERVICE_UNAVAILABLE, "failed") };
    text(status, checks.iter().map(line).collect::<String>() + end + "\n")
}

fn text(status: StatusCode, body: String) -> Response<String> {
    response(status, TEXT, body)
}

fn response(status: StatusCode, kind: HeaderValue, body: String) -> Response<String> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().extend([(CONTENT_TYPE, kind), (CACHE_CONTROL, HeaderValue::from_static("no-store"))]);
    response
}

#[cfg(test)]
mod tests;
