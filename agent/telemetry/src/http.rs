//! Serves `/metrics` for Prometheus, `/healthz` and `/readyz` for the kubelet. The agent and the
//! allocator each provide their [`HttpEndpoints`].
//!
//! Anybody on the network can connect, so everything is bounded:
//! - connections: the oldest is closed first, so that many open ones keep no health check out
//! - the head of a request, and the time for all of it
//! - scrapes: one at a time, beside the caller's event loop

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

pub use self::socket::{HttpListenError, bind};
use vipmux_supervisor::Supervisor;

/// The default of `--http-listen`.
pub const DEFAULT_LISTEN: &str = "[::]:7945";

/// Connections at the same time.
const MAX_CONNECTIONS: usize = 64;
/// The time limit for the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// The time limit of a connection: enough for a large answer to a slow reader.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest head of a request, bytes.
const MAX_HEAD: usize = 16 << 10;
/// The wait after a failed accept.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
/// <https://github.com/prometheus/OpenMetrics/blob/v1.0.0/specification/OpenMetrics.md#text-format>
const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// The address to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listen {
    /// Nowhere.
    Off,
    /// At this address.
    On(SocketAddr),
}

impl Listen {
    /// Opens the port unless it is off. Must be called within a tokio runtime.
    pub fn open(self) -> Result<Option<TcpListener>, HttpListenError> {
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

/// One health check with its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthzCheck {
    /// A short name.
    pub name: &'static str,
    /// The failure; `None`: the check passed.
    pub failure: Option<String>,
}

impl HealthzCheck {
    /// Returns a check that fails with `failure()` unless it has `passed`.
    pub fn new(name: &'static str, passed: bool, failure: impl FnOnce() -> String) -> Self {
        Self { name, failure: (!passed).then(failure) }
    }
}

/// The metrics could not be collected.
pub type MetricsError = Box<dyn Error + Send + Sync>;

type Handler<T> = Box<dyn Fn() -> T + Send + Sync>;

/// The functions that a program provides.
pub struct HttpEndpoints {
    /// Returns all metrics as OpenMetrics text. It may block, and never runs twice at a time.
    pub metrics: Handler<Result<String, MetricsError>>,
    /// Returns the liveness checks: the kubelet restarts the container if one fails. Must be quick.
    pub live: Handler<Vec<HealthzCheck>>,
    /// Returns the readiness checks. Must be quick.
    pub ready: Handler<Vec<HealthzCheck>>,
}

impl fmt::Debug for HttpEndpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpEndpoints").finish_non_exhaustive()
    }
}

/// Serves on a task of its own until the runtime ends. The task holds nothing that needs care.
pub fn start(listener: TcpListener, endpoints: HttpEndpoints, supervisor: &Supervisor) {
    let state = Arc::new(HttpState { endpoints, scrapes: Arc::new(Semaphore::new(1)) });
    supervisor.spawn("HTTP server", serve(listener, state));
}

#[derive(Debug)]
struct HttpState {
    endpoints: HttpEndpoints,
    /// One scrape at a time.
    scrapes: Arc<Semaphore>,
}

async fn serve(listener: TcpListener, state: Arc<HttpState>) {
    let mut connections: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            // A client that went away, or no file descriptor is left.
            Err(error) => {
                tracing::debug!(%error, "cannot accept a connection");
                sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        connections.retain(|connection| !connection.is_finished());
        while connections.len() >= MAX_CONNECTIONS
            && let Some(oldest) = connections.pop_front()
        {
            oldest.abort();
        }
        // A panic harms no other connection, so it is not supervised.
        connections.push_back(tokio::spawn(connection(stream, Arc::clone(&state))).abort_handle());
    }
}

async fn connection(stream: TcpStream, state: Arc<HttpState>) {
    let service = service_fn(move |request| {
        let state = Arc::clone(&state);
        async move { Ok::<_, Infallible>(respond(&state, request).await) }
    });
    let mut http = http1::Builder::new();
    http.keep_alive(false).max_buf_size(MAX_HEAD).timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    if let Ok(Err(error)) = timeout(CONNECTION_TIMEOUT, http.serve_connection(TokioIo::new(stream), service)).await {
        tracing::debug!(%error, "request not answered");
    }
}

async fn respond(state: &Arc<HttpState>, request: Request<Incoming>) -> Response<String> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut refusal = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n".to_owned());
        refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refusal;
    }
    match request.uri().path() {
        "/healthz" | "/livez" => health_response(&(state.endpoints.live)()),
        "/readyz" => health_response(&(state.endpoints.ready)()),
        "/metrics" => metrics(state).await,
        _ => text(StatusCode::NOT_FOUND, "there are /metrics, /healthz and /readyz\n".to_owned()),
    }
}

async fn metrics(state: &Arc<HttpState>) -> Response<String> {
    let Ok(permit) = Arc::clone(&state.scrapes).acquire_owned().await else {
        return text(StatusCode::SERVICE_UNAVAILABLE, String::new());
    };
    let (scraped, (sender, receiver)) = (Arc::clone(state), oneshot::channel());
    // It goes on if nobody waits for it any more. The next scrape starts after it and a rest of the
    // same length. Whoever waits gets a panic as an error, so it is not supervised.
    tokio::spawn(async move {
        let start = Instant::now();
        let metrics = spawn_blocking(move || (scraped.endpoints.metrics)()).await;
        let took = start.elapsed();
        // An error: the client is gone.
        let _ = sender.send(metrics.unwrap_or_else(|error| Err(error.into())));
        sleep(took).await;
        drop(permit);
    });
    match receiver.await {
        Ok(Ok(metrics)) => response(StatusCode::OK, OPEN_METRICS, metrics),
        Ok(Err(error)) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{:#}\n", anyhow::Error::from_boxed(error))),
        Err(_) => text(StatusCode::INTERNAL_SERVER_ERROR, "the scrape broke off\n".to_owned()),
    }
}

/// Returns the checks as text, in the API server's format of `?verbose`.
fn health_response(checks: &[HealthzCheck]) -> Response<String> {
    let line = |HealthzCheck { name, failure }: &HealthzCheck| match failure {
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
