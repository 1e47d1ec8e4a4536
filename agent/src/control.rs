//! The agent's socket, for what the maps alone do not tell, and for what the agent is to do: `vipmux inspect diff`,
//! `vipmux explain`, `vipmux drain`.
//!
//! A connection carries one request, a line of JSON, and one answer, another. Only root is answered, or who runs the
//! agent.

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

use crate::{
    explain::{Account, Target, Unknown},
    model::{NodeName, Vip},
};

/// Where the agent listens unless the configuration says otherwise.
pub const DEFAULT_SOCKET: &str = "/run/vipmux/agent.sock";

/// The version of requests and answers: changes when a field goes or changes its meaning, not when one is added.
const VERSION: u32 = 1;
/// Bytes of a request.
const LONGEST_REQUEST: u64 = 4096;
/// Bytes of an answer.
const LONGEST_ANSWER: u64 = 64 << 20;
/// How long either side waits for the other.
const PATIENCE: Duration = Duration::from_secs(10);
/// Connections at the same time.
const MOST_CONNECTIONS: usize = 16;

/// The agent cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another one does.
    #[error("another agent listens on {}: stop it, or choose another --socket", path.display())]
    Taken {
        /// The socket.
        path: PathBuf,
    },
    /// The system refuses.
    #[error("cannot listen on {} (--socket)", path.display())]
    Refused {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// The agent cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody listens.
    #[error("no agent listens on {}: start it, or name its socket by --socket", path.display())]
    NoAgent {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The connection failed.
    #[error("the agent on {} did not answer", path.display())]
    Broken {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The answer makes no sense.
    #[error("the agent on {} answered something else: is it another version?", path.display())]
    Malformed {
        /// The socket.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// The answer is to another question.
    #[error("the agent on {} answered another question: is it another version?", path.display())]
    Unasked {
        /// The socket.
        path: PathBuf,
    },
    /// The agent says why.
    #[error("the agent says: {0}")]
    Failed(String),
}

/// What can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Command {
    /// What the kernel holds otherwise than the agent wants it.
    Diff,
    /// What was asked for and decided about a Service or VIP.
    Explain(Target),
    /// Hand over what this node leads, and take no VIP; the answer says how far that is.
    Drain {
        /// No more: take part again.
        cancel: bool,
    },
    /// How far the handing over is.
    Draining,
}

#[derive(Debug, Serialize, Deserialize)]
struct Request {
    version: u32,
    command: Command,
}

/// What the agent says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// To [`Command::Diff`].
    Diff(Diff),
    /// To [`Command::Explain`].
    Account(Box<Account>),
    /// To [`Command::Explain`]: there is no such thing.
    Unknown(Unknown),
    /// To [`Command::Drain`] and [`Command::Draining`].
    Drain(Progress),
    /// Why there is none.
    Error(String),
}

#[derive(Debug, Serialize, Deserialize)]
struct Reply {
    version: u32,
    #[serde(flatten)]
    answer: Answer,
}

/// What the kernel holds otherwise than the agent wants it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diff {
    /// Entry by entry.
    pub differences: Vec<Difference>,
    /// What the agent cannot have as it is wanted.
    pub refused: Vec<String>,
}

/// How far a node is with handing its VIPs over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The node takes no VIP, and hands over those that it leads; also when all are.
    pub draining: bool,
    /// VIPs that it still leads, and that another node is to take.
    pub held: Vec<Vip>,
    /// VIPs that were handed over since the draining began, and to whom.
    pub handed: Vec<(Vip, NodeName)>,
    /// VIPs that it still leads and that no node can take now, and why. None of them is in `held`.
    pub kept: Vec<(Vip, String)>,
}

/// Something that the kernel holds otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// A map's name, `map`, `program`, `link` or `nftables`.
    pub what: String,
    /// Which one.
    pub entry: String,
    /// As it should be; `None`: not there.
    pub wanted: Option<String>,
    /// As it is; `None`: not there.
    pub found: Option<String>,
}

impl Difference {
    pub(crate) fn new(what: &str, entry: &str, wanted: Option<String>, found: Option<String>) -> Self {
        Self { what: what.to_owned(), entry: entry.to_owned(), wanted, found }
    }
}

/// A question to the event loop.
#[derive(Debug)]
pub struct Query {
    /// What is asked.
    pub command: Command,
    reply: oneshot::Sender<Answer>,
}

impl Query {
    /// Answers it, if anybody still waits.
    pub fn answer(self, answer: Answer) {
        let _ = self.reply.send(answer);
    }
}

/// Listens on `path`; what is asked comes out of the channel.
///
/// The task ends with the runtime, or when nobody receives any more; it holds nothing that needs care. The socket's file
/// stays, and the next agent replaces it.
pub fn listen(path: &Path) -> Result<mpsc::Receiver<Query>, ListenError> {
    let refused = |source| ListenError::Refused { path: path.into(), source };
    if let Some(folder) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(folder).map_err(refused)?;
    }
    if StdStream::connect(path).is_ok() {
        return Err(ListenError::Taken { path: path.into() });
    }
    // An agent's that has ended; anything else is left alone, and is in the way.
    if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        fs::remove_file(path).map_err(refused)?;
    }
    let listener = UnixListener::bind(path).map_err(refused)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(refused)?;
    let (sender, receiver) = mpsc::channel(MOST_CONNECTIONS);
    tokio::spawn(accept(listener, sender));
    Ok(receiver)
}

async fn accept(listener: UnixListener, queries: mpsc::Sender<Query>) {
    let room = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    while !queries.is_closed() {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors, for instance.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let queries = queries.clone();
        tokio::spawn(async move {
            if let Ok(Err(error)) = timeout(2 * PATIENCE, serve(stream, queries)).await {
                tracing::debug!(%error, "a connection to the agent's socket failed");
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
    let request: Request = match serde_json::from_slice(line) {
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

/// Asks the agent that listens on `path`.
pub fn ask(path: &Path, command: Command) -> Result<Answer, AskError> {
    let stream = StdStream::connect(path).map_err(|source| AskError::NoAgent { path: path.into(), source })?;
    let text = exchange(&stream, command).map_err(|source| AskError::Broken { path: path.into(), source })?;
    let reply: Reply =
        serde_json::from_slice(&text).map_err(|source| AskError::Malformed { path: path.into(), source })?;
    Ok(reply.answer)
}

fn exchange(mut stream: &StdStream, command: Command) -> io::Result<Vec<u8>> {
    use io::{Read as _, Write as _};
    stream.set_read_timeout(Some(2 * PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut request = serde_json::to_vec(&Request { version: VERSION, command })?;
    request.push(b'\n');
    stream.write_all(&request)?;
    let mut text = Vec::new();
    stream.take(LONGEST_ANSWER).read_to_end(&mut text)?;
    if text.is_empty() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(text) }
}

#[cfg(test)]
mod tests;
