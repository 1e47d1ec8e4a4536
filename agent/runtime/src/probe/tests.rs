//! Attempts at real servers on loopback, and the task that makes them.

use std::{future::Future, io, net::SocketAddr, time::Instant};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpSocket, TcpStream},
    time::timeout,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        pki_types::{CertificateDer, PrivatePkcs8KeyDer},
    },
};

use super::*;
use vipmux_model::{
    health::{Checkup, HealthKey},
    probe::Check,
};
use vipmux_testing::PATIENCE;

const BRIEF: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_mins(1);

/// A server that does this with each connection.
async fn server<F: Future<Output = io::Result<()>> + Send>(
    serve: impl Fn(TcpStream) -> F + Clone + Send + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let serve = serve.clone();
            tokio::spawn(async move { serve(stream).await });
        }
    });
    address
}

/// Reads a request's head, and answers with this.
async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin, text: &str) -> io::Result<()> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        head.push(stream.read_u8().await?.into());
    }
    stream.write_all(text.as_bytes()).await?;
    stream.flush().await?;
    // Waits until the client hangs up.
    stream.read_to_end(&mut Vec::new()).await.map(drop)
}

async fn ask(to: SocketAddr, check: Check, interval: Duration) -> Result<(), AttemptError> {
    ProbeClient::new().unwrap().attempt(&Checkup { to, check, interval, failures: 2 }).await
}

fn http() -> Check {
    Check::Http { path: "/up?deep=1".to_owned() }
}

/// Returns the result of an HTTP probe of a server that answers with this.
async fn probed(text: String) -> Result<(), AttemptError> {
    let to = server(move |stream| {
        let text = text.clone();
        async move { answer(stream, &text).await }
    });
    ask(to.await, http(), LONG).await
}

/// Returns a port that nobody listens on. While the socket lives, the kernel gives it only to a
/// socket that names it.
fn closed() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    // A listener sets it too, and has the port beside this one.
    socket.set_reuseaddr(true).unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

#[tokio::test]
async fn a_tcp_connection_is_enough_for_tcp_and_none_is_down() {
    let open = server(|stream| async {
        drop(stream);
        Ok(())
    })
    .await;
    assert!(ask(open, Check::Tcp, LONG).await.is_ok());
    let (_held, closed) = closed();
    for check in [Check::Tcp, http(), Check::Https { path: "/".to_owned() }] {
        let refused = ask(closed, check, LONG).await;
        assert!(matches!(refused, Err(AttemptError::Connect(_))), "{refused:?}");
    }
}

#[tokio::test]
async fn a_connection_that_does_not_come_about_is_down_after_the_interval() {
    // Nobody accepts, and the kernel's queue is full: further SYNs are dropped.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let listener = socket.listen(1).unwrap();
    let to = listener.local_addr().unwrap();
    let mut waiting = Vec::new();
    while let Ok(Ok(stream)) = timeout(BRIEF, TcpStream::connect(to)).await {
        waiting.push(stream);
    }
    let result = ask(to, Check::Tcp, BRIEF).await;
    assert!(matches!(result, Err(AttemptError::TimedOut(BRIEF))), "{result:?}");
}

#[tokio::test]
async fn only_status_200_counts() {
    for (status, up) in [
        ("200 OK", true),
        ("200 Fine", true),
        ("204 No Content", false),
        ("301 Moved", false),
        ("404 Not Found", false),
        ("500 Internal Server Error", false),
    ] {
        let result = probed(format!("HTTP/1.1 {status}\r\nLocation: /elsewhere\r\n\r\n")).await;
        match (up, &result) {
            (true, Ok(())) => {}
            (false, Err(AttemptError::Status(code))) => assert!(status.starts_with(code.as_str())),
            _ => panic!("{status}: {result:?}"),
        }
    }
    assert!(probed("HTTP/1.0 200 OK\r\n\r\n".to_owned()).await.is_ok());
    assert!(probed("HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\n\r\n".to_owned()).await.is_ok());
    let announced = "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n".to_owned();
    assert!(probed(announced).await.is_ok(), "the body is not waited for");
}

#[tokio::test]
async fn the_request_names_the_backend_and_vipmux() {
    let (sender, mut heads) = tokio::sync::mpsc::channel(1);
    let to = server(move |mut stream| {
        let sender = sender.clone();
        async move {
            let mut head = vec![0; 4096];
            let length = stream.read(&mut head).await?;
            head.truncate(length);
            sender.send(String::from_utf8(head).unwrap()).await.unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await
        }
    });
    let to = to.await;
    ask(to, http(), LONG).await.unwrap();
    let expected = format!("GET /up?deep=1 HTTP/1.1\r\nhost: {to}\r\nuser-agent: vipmux\r\nconnection: close\r\n\r\n");
    assert_eq!(heads.recv().await.unwrap(), expected);
}

#[tokio::test]
async fn a_response_that_is_not_http_or_has_an_endless_head_is_down() {
    let endless = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(100_000));
    let fields = format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: y\r\n".repeat(10_000));
    for text in ["SSH-2.0-OpenSSH\r\n\r\n", "HTTP/1.1 twenty OK\r\n\r\n", &endless, &fields] {
        let result = probed(text.to_owned()).await;
        assert!(matches!(result, Err(AttemptError::Http(_))), "{text:.40}: {result:?}");
    }
    let hung_up = server(|stream| async {
        drop(stream);
        Ok(())
    })
    .await;
    let result = ask(hung_up, http(), LONG).await;
    assert!(matches!(result, Err(AttemptError::Http(_))), "{result:?}");
}

#[tokio::test]
async fn a_slow_head_is_down_after_the_interval_and_no_sooner() {
    let drip = server(|mut stream| async move {
        for byte in b"HTTP/1.1 200 OK\r\n".iter().cycle() {
            stream.write_all(&[*byte]).await?;
            sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    });
    let (to, begin) = (drip.await, Instant::now());
    let result = ask(to, http(), BRIEF).await;
    assert!(matches!(result, Err(AttemptError::TimedOut(BRIEF))), "{result:?}");
    assert!(begin.elapsed() >= BRIEF);
}

fn acceptor() -> TlsAcceptor {
    let certificate = CertificateDer::from(include_bytes!("tests/self-signed.der").as_slice());
    let key = PrivatePkcs8KeyDer::from(include_bytes!("tests/self-signed.key.der").as_slice());
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_no_client_auth().with_single_cert(vec![certificate], key.into()).unwrap();
    Arc::new(config).into()
}

#[tokio::test]
async fn an_untrusted_and_expired_certificate_is_accepted() {
    let acceptor = acceptor();
    let status = |status: &'static str| {
        let acceptor = acceptor.clone();
        server(move |stream| {
            let acceptor = acceptor.clone();
            async move { answer(acceptor.accept(stream).await?, &format!("HTTP/1.1 {status}\r\n\r\n")).await }
        })
    };
    let https = || Check::Https { path: "/".to_owned() };
    ask(status("200 OK").await, https(), LONG).await.unwrap();
    let result = ask(status("503 Busy").await, https(), LONG).await;
    assert!(matches!(&result, Err(AttemptError::Status(code)) if code.as_u16() == 503), "{result:?}");
    let plain = server(|stream| answer(stream, "HTTP/1.1 200 OK\r\n\r\n")).await;
    let result = ask(plain, https(), BRIEF).await;
    assert!(matches!(result, Err(AttemptError::Tls(_) | AttemptError::TimedOut(_))), "{result:?}");
}

#[tokio::test]
async fn changes_are_sent_and_results_of_unwanted_checkups_are_forgotten() {
    let (_held, to) = closed();
    let listener = TcpListener::bind(to).await.unwrap();
    let key = HealthKey { address: to.ip(), port: to.port(), check: 1 };
    let checkup = Checkup { to, check: Check::Tcp, interval: Duration::from_millis(50), failures: 2 };
    let (want, wanted) = watch::channel(Arc::default());
    let (sender, mut findings) = watch::channel(Findings::new());
    let start = Instant::now();
    let task = tokio::spawn(run(wanted, sender, ProbeClient::new().unwrap(), move || start.elapsed(), 1));
    let all = [(key, (checkup, Arc::from("shop")))].into();
    want.send_replace(Arc::new(Checkups { all, ..Checkups::default() }));
    let up = |up: bool| move |findings: &Findings| findings.get(&key).is_some_and(|finding| finding.up == up);
    timeout(PATIENCE, findings.wait_for(up(true))).await.unwrap().unwrap();
    drop(listener);
    // Not the first error: on a busy machine an attempt may take longer than its interval.
    let refused = |findings: &Findings| {
        let error = findings.get(&key).filter(|finding| !finding.up).and_then(|finding| finding.error.as_deref());
        error == Some("no connection: Connection refused (os error 111)")
    };
    timeout(PATIENCE, findings.wait_for(refused)).await.unwrap().unwrap();
    let _listener = TcpListener::bind(to).await.unwrap();
    timeout(PATIENCE, findings.wait_for(up(true))).await.unwrap().unwrap();
    want.send_replace(Arc::default());
    timeout(PATIENCE, findings.wait_for(Findings::is_empty)).await.unwrap().unwrap();
    drop(want);
    timeout(PATIENCE, task).await.unwrap().unwrap();
}
