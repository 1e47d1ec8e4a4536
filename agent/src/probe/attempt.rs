//! One attempt: whether a backend is up now.

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

use crate::model::{health::Checkup, probe::Check};

/// How long an attempt may take, if the interval is no shorter.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest head of an answer, bytes.
const LONGEST_HEAD: usize = 16 << 10;

/// Why a backend does not count as up.
#[derive(Debug, thiserror::Error)]
pub enum AttemptError {
    /// It takes too long.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// There is no connection.
    #[error("no connection")]
    Connect(#[source] io::Error),
    /// There is one, and no TLS.
    #[error("no TLS session")]
    Tls(#[source] io::Error),
    /// No request can be made of the path.
    #[error("no request can be made of this path")]
    Path(#[source] http::Error),
    /// There is an answer of another kind, or none.
    #[error("no answer by HTTP")]
    Http(#[source] hyper::Error),
    /// There is one with another status.
    #[error("status {0}, and 200 is wanted")]
    Status(StatusCode),
    /// The attempt did not come to its end.
    #[error("the attempt broke off")]
    Broken(#[source] JoinError),
}

/// There can be no probes by HTTPS.
#[derive(Debug, thiserror::Error)]
#[error("cannot set up TLS for health probes")]
pub struct TlsError(#[from] rustls::Error);

/// Makes attempts.
#[derive(Clone)]
pub struct Asker {
    tls: TlsConnector,
}

impl Asker {
    /// One that takes every certificate: a probe asks whether a backend answers, and its answer is trusted no further. So do
    /// the kubelet and Azure.
    pub fn new() -> Result<Self, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let verifier = Arc::new(AnyCertificate(Arc::clone(&provider)));
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let mut config = config.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
        config.resumption = Resumption::disabled();
        Ok(Self { tls: Arc::new(config).into() })
    }

    /// Asks once.
    pub async fn ask(&self, checkup: &Checkup) -> Result<(), AttemptError> {
        let patience = checkup.interval.min(PATIENCE);
        timeout(patience, self.attempt(checkup)).await.unwrap_or(Err(AttemptError::TimedOut(patience)))
    }

    async fn attempt(&self, checkup: &Checkup) -> Result<(), AttemptError> {
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

/// Whether a GET of the path is answered by status 200. Redirections are not followed, and the answer's body is not read.
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
        // It is over, and the answer says how.
        _ = connection => answer.await,
    };
    match answer.map_err(AttemptError::Http)?.status() {
        StatusCode::OK => Ok(()),
        other => Err(AttemptError::Status(other)),
    }
}

/// Takes any certificate, and any signature: of a certificate that nobody vouches for it proves nothing.
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
