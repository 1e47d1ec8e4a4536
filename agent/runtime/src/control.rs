//! Serves the agent's socket, for `vipmux inspect diff`, `vipmux explain` and `vipmux drain`.
//!
//! A connection carries one request and one answer, each a line of JSON. Only root and the user
//! that runs the agent get an answer.

mod diff;

use std::{
    fs, io,
    os::unix::{
        fs::{DirBuilderExt as _, FileTypeExt as _, PermissionsExt as _},
        net::UnixStream as StdStream,
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use nix::unistd::Uid;
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{UnixListener, UnixStream},
    sync::{Semaphore, mpsc, oneshot},
    time::timeout,
};

use vipmux_inspect::explain::{ExplainTarget, TargetDetails, UnknownTarget};
use vipmux_model::{NodeName, Vip};
use vipmux_supervisor::Supervisor;

/// The default path of the socket.
pub const DEFAULT_SOCKET: &str = "/run/vipmux/agent.sock";

/// The version of requests and answers: changes when a field goes or changes its meaning, not when
/// one is added.
const VERSION: u32 = 1;
/// Most bytes of a request.
const LONGEST_REQUEST: u64 = 4096;
/// Most bytes of an answer.
const LONGEST_ANSWER: u64 = 64 << 20;
/// The time limit for either side.
const PATIENCE: Duration = Duration::from_secs(10);
/// Most connections at the same time.
const MOST_CONNECTIONS: usize = 16;

/// The agent cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another agent listens.
    #[error("another agent listens on {}: stop it, or choose another --socket", path.display())]
    Taken {
        /// The socket.
        path: PathBuf,
    },
    /// The system refuses it.
    #[error("cannot listen on {} (--socket)", path.display())]
    Refused {
        /// The socket.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
}

/// The agent gives no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No agent listens.
    #[error("no agent listens on {}: start it, or name its socket by --socket", path.display())]
    NoAgent {
        /// The socket.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// The connection failed.
    #[error("the agent on {} did not answer", path.display())]
    Broken {
        /// The socket.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// The answer cannot be parsed.
    #[error("the agent on {} answered something else: is it another version?", path.display())]
    Malformed {
        /// The socket.
        path: PathBuf,
        /// The error of the parser.
        #[source]
        source: serde_json::Error,
    },
    /// The answer is to another request.
    #[error("the agent on {} answered another request: is it another version?", path.display())]
    Unasked {
        /// The socket.
        path: PathBuf,
    },
    /// The agent refuses, with this reason.
    #[error("the agent says: {0}")]
    Failed(String),
}

/// A request's command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ControlCommand {
    /// Compare the kernel with the desired state.
    Diff,
    /// Explain what was decided about a Service or VIP.
    Explain(ExplainTarget),
    /// Drain this node; the answer is the progress.
    Drain {
        /// Cancel the drain instead.
        cancel: bool,
    },
    /// Get the progress of the drain.
    Draining,
}

#[derive(Debug, Serialize, Deserialize)]
struct ControlRequest {
    version: u32,
    command: ControlCommand,
}

/// An answer of the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// To [`ControlCommand::Diff`].
    Diff(Diff),
    /// To [`ControlCommand::Explain`].
    #[serde(rename = "account")]
    Details(Box<TargetDetails>),
    /// To [`ControlCommand::Explain`]: there is no such Service or VIP.
    Unknown(UnknownTarget),
    /// To [`ControlCommand::Drain`] and [`ControlCommand::Draining`].
    Drain(DrainProgress),
    /// The reason why there is no answer.
    Error(String),
}

#[derive(Debug, Serialize, Deserialize)]
struct Reply {
    version: u32,
    #[serde(flatten)]
    answer: Answer,
}

/// The differences between the kernel and the desired state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diff {
    /// One for each entry.
    pub differences: Vec<ReportedDifference>,
    /// The agent's warnings: what cannot be as desired.
    pub refused: Vec<String>,
}

/// The progress of a drain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainProgress {
    /// The node drains: it takes no VIP, and gives up those that it leads; also when all are gone.
    pub draining: bool,
    /// VIPs that it still leads, and that another node can take.
    pub held: Vec<Vip>,
    /// VIPs that it gave up since the drain began, with their new leaders.
    pub handed: Vec<(Vip, NodeName)>,
    /// VIPs that it still leads and that no node can take now, with the reason. None of them is in
    /// `held`.
    pub kept: Vec<(Vip, String)>,
}

/// A difference between the kernel and the desired state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportedDifference {
    /// A map's name, `map`, `program`, `link`, `place`, `setting` or `nftables`.
    pub what: String,
    /// The entry's key or name.
    pub entry: String,
    /// The desired value; `None`: the entry should not exist.
    pub wanted: Option<String>,
    /// The value in the kernel; `None`: the entry does not exist.
    pub found: Option<String>,
}

impl ReportedDifference {
    pub(crate) fn new(what: &str, entry: &str, wanted: Option<String>, found: Option<String>) -> Self {
        Self { what: what.to_owned(), entry: entry.to_owned(), wanted, found }
    }
}

/// A request to the event loop.
#[derive(Debug)]
pub struct Query {
    /// The command.
    pub command: ControlCommand,
    reply: oneshot::Sender<Answer>,
}

impl Query {
    /// Answers it, if anybody still waits.
    pub fn answer(self, answer: Answer) {
        let _ = self.reply.send(answer);
    }
}

/// Listens on `path`. The queries come out of the channel. The socket's file stays, and the next
/// agent replaces it.
pub fn listen(path: &Path, supervisor: &Supervisor) -> Result<mpsc::Receiver<Query>, ListenError> {
    let refused = |source| ListenError::Refused { path: path.into(), source };
    if let Some(folder) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(folder).map_err(refused)?;
    }
    if StdStream::connect(path).is_ok() {
        return Err(ListenError::Taken { path: path.into() });
    }
    // The socket of an agent that has ended. Any other file stays, and the bind fails.
    if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        fs::remove_file(path).map_err(refused)?;
    }
    let listener = UnixListener::bind(path).map_err(refused)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(refused)?;
    let (sender, receiver) = mpsc::channel(MOST_CONNECTIONS);
    // Accepts connections. It ends at the first connection after the receiver is dropped, or with
    // the runtime; it may be canceled at any point.
    supervisor.spawn("agent socket", accept(listener, sender));
    Ok(receiver)
}

async fn accept(listener: UnixListener, queries: mpsc::Sender<Query>) {
    let room = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    while !queries.is_closed() {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            // For instance, the process has no file descriptors left.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let queries = queries.clone();
        // Serves one connection, within the time limit. Canceling it closes the connection. A panic harms no
        // other connection, so it is not supervised.
        tokio::spawn(async move {
            if let Ok(Err(error)) = timeout(2 * PATIENCE, serve(stream, queries)).await {
                tracing::debug!(%error, "connection to the agent's socket failed");
            }
            drop(permit);
        });
    }
}

async fn serve(mut stream: UnixStream, queries: mpsc::Sender<Query>) -> io::Result<()> {
    let asking = Uid::from_raw(stream.peer_cred()?.uid());
    let answer = if asking.is_root() || asking == Uid::effective() {
        let mut line = Vec::new();
        let (reader, _) = stream.split();
        let mut reader = BufReader::new(reader.take(LONGEST_REQUEST));
        timeout(PATIENCE, reader.read_until(b'\n', &mut line)).await.map_err(|_| io::ErrorKind::TimedOut)??;
        answer(&line, &queries).await
    } else {
        Answer::Error("only root may ask".to_owned())
    };
    let mut text = serde_json::to_vec(&Reply { version: VERSION, answer })?;
    text.push(b'\n');
    stream.write_all(&text).await?;
    stream.shutdown().await
}

async fn answer(line: &[u8], queries: &mpsc::Sender<Query>) -> Answer {
    let request: ControlRequest = match serde_json::from_slice(line) {
        Ok(request) => request,
        Err(error) => return Answer::Error(format!("the request makes no sense: {error}")),
    };
    if request.version != VERSION {
        return Answer::Error(format!("requests of version {} are not understood, only {VERSION}", request.version));
    }
    let (reply, answer) = oneshot::channel();
    let stopping = || Answer::Error("the agent is stopping".to_owned());
    match queries.try_send(Query { command: request.command, reply }) {
        Ok(()) => answer.await.unwrap_or_else(|_| stopping()),
        Err(mpsc::error::TrySendError::Full(_)) => Answer::Error("the agent is busy: ask again".to_owned()),
        Err(mpsc::error::TrySendError::Closed(_)) => stopping(),
    }
}

/// Sends a command to the agent that listens on `path`, and returns its answer.
pub fn ask(path: &Path, command: ControlCommand) -> Result<Answer, AskError> {
    let stream = StdStream::connect(path).map_err(|source| AskError::NoAgent { path: path.into(), source })?;
    let text = exchange(&stream, command).map_err(|source| AskError::Broken { path: path.into(), source })?;
    let reply: Reply =
        serde_json::from_slice(&text).map_err(|source| AskError::Malformed { path: path.into(), source })?;
    Ok(reply.answer)
}

fn exchange(mut stream: &StdStream, command: ControlCommand) -> io::Result<Vec<u8>> {
    use io::{Read as _, Write as _};
    stream.set_read_timeout(Some(2 * PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut request = serde_json::to_vec(&ControlRequest { version: VERSION, command })?;
    request.push(b'\n');
    stream.write_all(&request)?;
    let mut text = Vec::new();
    stream.take(LONGEST_ANSWER).read_to_end(&mut text)?;
    if text.is_empty() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(text) }
}

#[cfg(test)]
mod tests;
