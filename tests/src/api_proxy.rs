//! Simulates a bad connection to the API server: an HTTP proxy that delays, loses and repeats
//! requests, by rules.
//!
//! ```text
//! agent -- http --> proxy: each rule that fits, with its chance
//!       -- https, with the user's token --> API server
//! ```
//!
//! It runs on the API server's machine, with the rights of the user that it was started for. It
//! executes every request that it has accepted, even if nobody waits for the response any more. As
//! in a network, a write may arrive long after its sender gave up.

mod api_request;
mod forward;
mod random;
mod responses;
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
    api_request::ApiRequest,
    rule::{Fault, Rule},
};
use self::{random::Random, responses::Responses};
use crate::{
    api_server::{ADMIN, ApiServer, SYSTEM},
    cleanup::Folder,
};

/// The proxy. On drop it ends and closes its connections.
#[derive(Debug)]
pub struct ApiProxy {
    state: Arc<Mutex<State>>,
    responses: watch::Sender<Responses>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<()>>>,
    folder: Folder,
}

#[derive(Debug)]
struct State {
    rules: Vec<Rule>,
    random: Random,
    requests: Vec<ApiRequest>,
    faults: BTreeMap<&'static str, usize>,
}

impl State {
    /// Records a request, and returns the faults that apply to it.
    fn record(&mut self, request: &ApiRequest) -> Vec<Fault> {
        self.requests.push(request.clone());
        let random = &mut self.random;
        self.rules.iter_mut().filter_map(|rule| rule.fault(request, random)).collect()
    }

    fn count(&mut self, fault: &'static str) {
        *self.faults.entry(fault).or_default() += 1;
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ApiProxy {
    /// Starts a proxy without faults. `seed` determines the random part of the rules, as far as the
    /// order of requests is the same.
    pub fn start(api: &ApiServer, seed: u64) -> Result<Self> {
        Self::start_as(api, api.kubeconfig(ADMIN)?, seed)
    }

    /// Like [`Self::start`], with the rights of another user than the administrator.
    pub fn start_as(api: &ApiServer, kubeconfig: PathBuf, seed: u64) -> Result<Self> {
        let folder = Folder::temporary("api-proxy")?;
        let listener = api.machine().namespace.run(|| {
            let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).context("cannot listen")?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        })?;
        let address = SocketAddrV4::new(api.address(), listener.local_addr()?.port());
        write_kubeconfig(&folder, address)?;
        let state =
            State { rules: Vec::new(), random: Random::new(seed), requests: Vec::new(), faults: BTreeMap::new() };
        let state = Arc::new(Mutex::new(state));
        let responses = watch::Sender::new(Responses::default());
        let (stop, stopped) = oneshot::channel();
        let theirs = (Arc::clone(&state), responses.clone());
        let thread = api.machine().namespace.spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(forward::serve(listener, kubeconfig, theirs.0, theirs.1, stopped))
        })?;
        Ok(Self { state, responses, stop: Some(stop), thread: Some(thread), folder })
    }

    /// Returns a file for `--kubeconfig`.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// Applies these rules to all requests from now on, in their order.
    pub fn set_rules(&self, rules: impl IntoIterator<Item = Rule>) {
        lock(&self.state).rules = rules.into_iter().collect();
    }

    /// Removes all rules.
    pub fn clear(&self) {
        self.set_rules([]);
    }

    /// Freezes responses that have begun, such as watches: not one more byte comes, and the
    /// connections stay open.
    pub fn freeze(&self) {
        self.responses.send_modify(Responses::freeze);
    }

    /// Aborts responses that have begun, such as watches.
    pub fn cut(&self) {
        self.responses.send_modify(Responses::cut);
    }

    /// Returns how many requests of these verbs came for a resource; empty: for any resource.
    pub fn count_requests(&self, verbs: &[&str], resource: &str) -> usize {
        let is_meant = |request: &&ApiRequest| {
            verbs.contains(&request.verb) && (resource.is_empty() || request.resource == resource)
        };
        lock(&self.state).requests.iter().filter(is_meant).count()
    }

    /// Returns all requests that came.
    pub fn requests(&self) -> Vec<ApiRequest> {
        lock(&self.state).requests.clone()
    }

    /// Returns how often each fault was injected, by [`Fault::name`].
    pub fn fault_counts(&self) -> BTreeMap<&'static str, usize> {
        lock(&self.state).faults.clone()
    }

    /// Returns how often one fault was injected.
    pub fn fault_count(&self, fault: &str) -> usize {
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
