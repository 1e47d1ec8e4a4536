//! The server as its clients meet it, on loopback.

use std::{
    net::Ipv4Addr,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

const ANYWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const LONG: Duration = Duration::from_secs(20);

fn site(
    metrics: impl Fn() -> Result<String, MetricsError> + Send + Sync + 'static,
    ready: Arc<AtomicBool>,
) -> HttpEndpoints {
    HttpEndpoints {
        metrics: Box::new(metrics),
        live: Box::new(|| vec![HealthzCheck::new("loop", true, String::new)]),
        ready: Box::new(move || {
            let synced = ready.load(Ordering::Relaxed);
            vec![
                HealthzCheck::new("attached", true, String::new),
                HealthzCheck::new("synced", synced, || "nothing was read yet".to_owned()),
            ]
        }),
    }
}

fn started(site: HttpEndpoints) -> SocketAddr {
    let listener = bind(ANYWHERE).unwrap();
    let address = listener.local_addr().unwrap();
    start(listener, site, &Supervisor::default());
    address
}

fn plain() -> SocketAddr {
    started(site(|| Ok("# EOF\n".to_owned()), Arc::default()))
}

/// Sends all of this, and returns all that comes back.
async fn exchange(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(LONG, stream.read_to_string(&mut answer)).await.expect("no end of the answer").unwrap();
    answer
}

/// The status, and the body.
async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let answer = exchange(address, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")).await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[tokio::test]
async fn readiness_names_the_failed_checks_until_all_pass() {
    let ready = Arc::new(AtomicBool::new(false));
    let address = started(site(|| Ok(String::new()), Arc::clone(&ready)));
    let missing = "[+]attached ok\n[-]synced failed: nothing was read yet\nfailed\n";
    assert_eq!(get(address, "/readyz").await, (503, missing.to_owned()));
    assert_eq!(get(address, "/healthz").await, (200, "[+]loop ok\npassed\n".to_owned()));
    ready.store(true, Ordering::Relaxed);
    assert_eq!(get(address, "/readyz?verbose").await, (200, "[+]attached ok\n[+]synced ok\npassed\n".to_owned()));
}

#[tokio::test]
async fn metrics_are_open_metrics_text_and_a_failure_has_status_500() {
    let fails = Arc::new(AtomicBool::new(false));
    let failing = Arc::clone(&fails);
    let metrics = move || {
        if failing.load(Ordering::Relaxed) { Err("the maps are gone".into()) } else { Ok("# EOF\n".to_owned()) }
    };
    let address = started(site(metrics, Arc::default()));
    let answer = exchange(address, "GET /metrics HTTP/1.0\r\n\r\n").await.to_lowercase();
    assert!(answer.contains("content-type: application/openmetrics-text; version=1.0.0"), "{answer}");
    assert!(answer.ends_with("\r\n\r\n# eof\n"), "{answer}");
    fails.store(true, Ordering::Relaxed);
    assert_eq!(get(address, "/metrics").await, (500, "the maps are gone\n".to_owned()));
}

#[tokio::test]
async fn only_get_and_head_are_allowed_and_other_paths_are_not_found() {
    let address = plain();
    assert_eq!(get(address, "/").await.0, 404);
    for method in ["POST", "PUT", "DELETE"] {
        let request = format!("{method} /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
        let answer = exchange(address, &request).await.to_lowercase();
        assert!(answer.starts_with("http/1.1 405") && answer.contains("allow: get, head"), "{answer}");
    }
    let head = exchange(address, "HEAD /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"), "{head}");
}

#[tokio::test]
async fn a_head_that_is_too_long_or_malformed_is_refused() {
    let address = plain();
    let long = format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(2 * MAX_HEAD));
    let mut stream = TcpStream::connect(address).await.unwrap();
    let _ = stream.write_all(long.as_bytes()).await;
    let mut answer = Vec::new();
    // It may be reset, since not all was read.
    let _ = timeout(LONG, stream.read_to_end(&mut answer)).await.expect("no end");
    let answer = String::from_utf8_lossy(&answer).into_owned();
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    assert!(exchange(address, "nonsense\r\n\r\n").await.starts_with("HTTP/1.1 400"));
}

/// A client with many open connections keeps no other client out, and keeps none for long.
#[tokio::test]
async fn the_oldest_connection_gives_way() {
    let address = plain();
    let start = Instant::now();
    let mut idle = Vec::new();
    for _ in 0..2 * MAX_CONNECTIONS {
        idle.push(TcpStream::connect(address).await.unwrap());
    }
    assert_eq!(get(address, "/healthz").await.0, 200);
    let mut rest = Vec::new();
    assert!(timeout(LONG, idle[0].read_to_end(&mut rest)).await.is_ok(), "the oldest is still open");
    let mut last = idle.pop().unwrap();
    assert!(timeout(LONG, last.read_to_end(&mut rest)).await.is_ok(), "an idle one is still open");
    assert!(start.elapsed() >= HEAD_TIMEOUT, "the last one was closed at once");
}

#[tokio::test]
async fn one_scrape_runs_at_a_time_and_health_checks_do_not_wait_for_it() {
    let (go, wait) = mpsc::channel::<()>();
    let (wait, running, most) = (Mutex::new(wait), AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
    let seen = Arc::clone(&most);
    let metrics = move || {
        seen.fetch_max(running.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        wait.lock().unwrap().recv().unwrap();
        running.fetch_sub(1, Ordering::Relaxed);
        Ok(String::new())
    };
    let address = started(site(metrics, Arc::default()));
    let scrapes: Vec<_> = (0..3).map(|_| tokio::spawn(get(address, "/metrics"))).collect();
    assert_eq!(get(address, "/healthz").await.0, 200);
    for _ in 0..3 {
        go.send(()).unwrap();
    }
    for scrape in scrapes {
        assert_eq!(scrape.await.unwrap().0, 200);
    }
    assert_eq!(most.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn the_error_about_a_port_that_is_taken_says_what_to_do() {
    let first = bind(ANYWHERE).unwrap();
    let address = first.local_addr().unwrap();
    let error = bind(address).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("something else listens on {address}: stop it, or choose another --http-listen")
    );
}

#[tokio::test]
async fn all_addresses_are_those_of_both_families() {
    let everywhere = bind("[::]:0".parse().unwrap()).unwrap();
    let port = everywhere.local_addr().unwrap().port();
    start(everywhere, site(|| Ok(String::new()), Arc::default()), &Supervisor::default());
    assert_eq!(get(SocketAddr::new(ANYWHERE.ip(), port), "/healthz").await.0, 200);
}

#[test]
fn it_listens_at_an_address_or_not_at_all() {
    assert_eq!("off".parse(), Ok(Listen::Off));
    assert_eq!("192.0.2.1:80".parse(), Ok(Listen::On(SocketAddr::from(([192, 0, 2, 1], 80)))));
    assert!(matches!(DEFAULT_LISTEN.parse(), Ok(Listen::On(address)) if address.port() == 7945));
    for text in ["", "7945", ":7945", "localhost:80", "[::]", "on"] {
        assert!(text.parse::<Listen>().is_err(), "{text}");
    }
}
