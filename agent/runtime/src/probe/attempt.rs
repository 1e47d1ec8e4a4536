//! Makes one attempt of a health probe.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use hyper::{
    Request, StatusCode,
    client::conn::http1,
    header::{CONNECTION, HOST, USER_AGENT},
};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    pin, select,
    task::JoinError,
    time::timeout,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        self, ClientConfig, DigitallySignedStruct, SignatureScheme,
        client::{
            Resumption,
            danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        },
        crypto::{CryptoProvider, ring},
        pki_types::{CertificateDer, ServerName, UnixTime},
    },
};

use vipmux_model::{health::Checkup, probe::Check};

/// The time limit of an attempt, if the interval is no shorter.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest head of a response, bytes.
const LONGEST_HEAD: usize = 16 << 10;

/// The reason why an attempt failed.
#[derive(Debug, thiserror::Error)]
pub enum AttemptError {
    /// There is no answer in time.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// The connection failed.
    #[error("no connection")]
    Connect(#[source] io::Error),
    /// The TLS handshake failed.
    #[error("no TLS session")]
    Tls(#[source] io::Error),
    /// The path is no valid request target.
    #[error("cannot make a request with this path")]
    Path(#[source] http::Error),
    /// There is no valid HTTP response.
    #[error("no HTTP response")]
    Http(#[source] hyper::Error),
    /// The response has another status.
    #[error("status {0} instead of 200")]
    Status(StatusCode),
    /// The task of the attempt panicked or was canceled.
    #[error("the attempt was aborted")]
    Broken(#[source] JoinError),
}

/// TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
#[error("cannot set up TLS for health probes")]
pub struct TlsError(#[from] rustls::Error);

/// The client of health probes.
#[derive(Clone)]
pub struct ProbeClient {
    tls: TlsConnector,
}

impl ProbeClient {
    /// Makes a client that accepts every certificate. A probe tests whether a backend answers, and
    /// the answer is trusted no further. The kubelet and Azure do the same.
    pub fn new() -> Result<Self, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let verifier = Arc::new(AnyCertificate(Arc::clone(&provider)));
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let mut config = config.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
        config.resumption = Resumption::disabled();
        Ok(Self { tls: Arc::new(config).into() })
    }

    /// Makes one attempt. Cancel-safe: dropping it closes the connection.
    pub async fn attempt(&self, checkup: &Checkup) -> Result<(), AttemptError> {
        let patience = checkup.interval.min(PATIENCE);
        timeout(patience, self.connect(checkup)).await.unwrap_or(Err(AttemptError::TimedOut(patience)))
    }

    async fn connect(&self, checkup: &Checkup) -> Result<(), AttemptError> {
        let stream = TcpStream::connect(checkup.to).await.map_err(AttemptError::Connect)?;
        match &checkup.check {
            Check::Tcp => Ok(()),
            Check::Http { path } => get(stream, checkup.to, path).await,
            Check::Https { path } => {
                let name = ServerName::IpAddress(checkup.to.ip().into());
                let stream = self.tls.connect(name, stream).await.map_err(AttemptError::Tls)?;
                get(stream, checkup.to, path).await
            }
        }
    }
}

/// Sends a GET of the path, and expects status 200. Follows no redirection, and does not read the
/// body.
async fn get(stream: impl AsyncRead + AsyncWrite + Unpin, to: SocketAddr, path: &str) -> Result<(), AttemptError> {
    let request = Request::get(path)
        .header(HOST, to.to_string())
        .header(USER_AGENT, "vipmux")
        .header(CONNECTION, "close")
        .body(String::new())
        .map_err(AttemptError::Path)?;
    let mut http = http1::Builder::new();
    let handshake = http.max_buf_size(LONGEST_HEAD).handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(AttemptError::Http)?;
    let answer = sender.send_request(request);
    pin!(answer, connection);
    let answer = select! {
        biased;
        answer = &mut answer => answer,
        // The connection ended, and the answer says how.
        _ = connection => answer.await,
    };
    match answer.map_err(AttemptError::Http)?.status() {
        StatusCode::OK => Ok(()),
        other => Err(AttemptError::Status(other)),
    }
}

/// Accepts any certificate, and any signature: a signature of an untrusted certificate proves
/// nothing.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
