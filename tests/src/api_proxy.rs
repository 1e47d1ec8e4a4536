//! A bad connection to the API server: an HTTP proxy that delays, loses and repeats what goes through it, by rules.
//!
//! ```text
//! agent -- http --> proxy: each rule that fits, with its chance -- https, with the user's token --> API server
//! ```
//!
//! It runs on the API server's machine, with the rights of the user that it was started for. What it has taken it carries
//! out, also when nobody waits for the answer any more: as in a network, a write may arrive long after its sender gave up.

mod asked;
mod carry;
mod chance;
mod fate;
mod rule;

use std::{
    collections::BTreeMap,
    fs,
    net::{Ipv4Addr, SocketAddrV4, TcpListener},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
};

use anyhow::{Context as _, Result, anyhow};
use serde_json::json;
use tokio::sync::{oneshot, watch};

pub use self::{
    asked::Asked,
    rule::{Fault, Rule},
};
use self::{chance::Chance, fate::Fates};
use crate::{
    api_server::{ADMIN, ApiServer, SYSTEM},
    cleanup::Folder,
};

/// The proxy; it ends when dropped, and closes what goes through it.
#[derive(Debug)]
pub struct ApiProxy {
    state: Arc<Mutex<State>>,
    fates: watch::Sender<Fates>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<()>>>,
    folder: Folder,
}

#[derive(Debug)]
struct State {
    rules: Vec<Rule>,
    chance: Chance,
    asked: Vec<Asked>,
    faults: BTreeMap<&'static str, usize>,
}

impl State {
    /// Takes note of what is asked for, and says what becomes of it.
    fn judge(&mut self, asked: &Asked) -> Vec<Fault> {
        self.asked.push(asked.clone());
        let chance = &mut self.chance;
        self.rules.iter_mut().filter_map(|rule| rule.fault(asked, chance)).collect()
    }

    fn count(&mut self, fault: &'static str) {
        *self.faults.entry(fault).or_default() += 1;
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ApiProxy {
    /// A proxy that does no harm yet. What the rules leave to chance follows from `seed`, as far as the order of requests does.
    pub fn start(api: &ApiServer, seed: u64) -> Result<Self> {
        Self::start_as(api, api.kubeconfig(ADMIN)?, seed)
    }

    /// The same, with the rights of another user than the administrator.
    pub fn start_as(api: &ApiServer, kubeconfig: PathBuf, seed: u64) -> Result<Self> {
        let folder = Folder::temporary("api-proxy")?;
        let listener = api.machine().namespace.run(|| {
            let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).context("cannot listen")?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        })?;
        let address = SocketAddrV4::new(api.address(), listener.local_addr()?.port());
        write_kubeconfig(&folder, address)?;
        let state = State { rules: Vec::new(), chance: Chance::new(seed), asked: Vec::new(), faults: BTreeMap::new() };
        let state = Arc::new(Mutex::new(state));
        let fates = watch::Sender::new(Fates::default());
        let (stop, stopped) = oneshot::channel();
        let theirs = (Arc::clone(&state), fates.clone());
        let thread = api.machine().namespace.spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(carry::serve(listener, kubeconfig, theirs.0, theirs.1, stopped))
        })?;
        Ok(Self { state, fates, stop: Some(stop), thread: Some(thread), folder })
    }

    /// A file for `--kubeconfig`.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// Requests that come from now on are subject to these rules, each to all that fit, in their order.
    pub fn set_rules(&self, rules: impl IntoIterator<Item = Rule>) {
        lock(&self.state).rules = rules.into_iter().collect();
    }

    /// As a wire.
    pub fn clear(&self) {
        self.set_rules([]);
    }

    /// Answers that have begun, such as watches, stop here, and nobody is told: not one more byte comes, and the connections stay.
    pub fn freeze(&self) {
        self.fates.send_modify(Fates::freeze);
    }

    /// Answers that have begun, such as watches, are cut off.
    pub fn cut(&self) {
        self.fates.send_modify(Fates::cut);
    }

    /// How many requests of these verbs came for a resource, of whatever kind if it is empty.
    pub fn asked(&self, verbs: &[&str], resource: &str) -> usize {
        let is_meant =
            |asked: &&Asked| verbs.contains(&asked.verb) && (resource.is_empty() || asked.resource == resource);
        lock(&self.state).asked.iter().filter(is_meant).count()
    }

    /// All requests that came.
    pub fn all_asked(&self) -> Vec<Asked> {
        lock(&self.state).asked.clone()
    }

    /// What it did to requests, by [`Fault::name`].
    pub fn faults(&self) -> BTreeMap<&'static str, usize> {
        lock(&self.state).faults.clone()
    }

    /// How often it did one thing.
    pub fn did(&self, fault: &str) -> usize {
        lock(&self.state).faults.get(fault).copied().unwrap_or_default()
    }
}

impl Drop for ApiProxy {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        let ended = self.thread.take().map(JoinHandle::join);
        if let Some(Err(error)) = ended.map(|ended| ended.unwrap_or_else(|_| Err(anyhow!("it panicked")))) {
            eprintln!("the proxy of the API server failed: {error:#}");
        }
    }
}

fn write_kubeconfig(folder: &Folder, address: SocketAddrV4) -> Result<()> {
    let text = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "proxy",
        "contexts": [{ "name": "proxy", "context": { "cluster": "proxy", "user": "proxy", "namespace": SYSTEM } }],
        "clusters": [{ "name": "proxy", "cluster": { "server": format!("http://{address}") } }],
        "users": [{ "name": "proxy", "user": {} }],
    });
    let path = folder.path().join("kubeconfig");
    fs::write(&path, text.to_string()).with_context(|| format!("cannot write {}", path.display()))
}
