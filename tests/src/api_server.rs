//! Runs a real API server with its etcd, for one test, in a network namespace of its own.
//!
//! ```text
//!  etcd <-- 127.0.0.1:2379 -- kube-apiserver      192.0.2.5, 2001:db8::5, port 6443
//!                                   |
//!  ================+=================+=====       the LAN's switch, if there is a LAN
//!                  |
//!               node-1 ...                        agents and kube-proxy reach it as in a cluster
//! ```
//!
//! There is no controller manager and no kubelet: tests write Nodes, EndpointSlices and other
//! objects that those would write. Authorization is by RBAC, also for the ServiceAccounts whose
//! tokens [`ApiServer::service_account`] requests. All requests are in the audit log
//! ([`ApiServer::requests`]).

mod access;
mod audit;
mod host;
mod launch;
mod namespace;
mod objects;

use std::{
    collections::HashMap,
    fmt,
    net::Ipv4Addr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use kube::{Client, core::GroupVersionKind};
use tokio::runtime::Runtime;

pub use self::{
    access::{ADMIN, CONTROLLER_MANAGER, KUBE_PROXY, SCHEDULER, ServiceAccount, connect},
    audit::{Mark, Request},
    namespace::SYSTEM,
    objects::documents,
};
use self::{host::Launch, objects::Kind};
use crate::{
    lan::{Lan, Machine},
    process::Process,
    requirement, wait,
};

/// The time limit for a start on a busy machine.
const START: Duration = Duration::from_mins(2);

/// The API server. On drop it ends, and its data is removed.
pub struct ApiServer {
    kinds: Mutex<HashMap<GroupVersionKind, Kind>>,
    client: Option<Client>,
    runtime: Runtime,
    server: Process,
    etcd: Process,
    launch: Launch,
}

impl fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiServer").field("server", &self.server).field("etcd", &self.etcd).finish_non_exhaustive()
    }
}

impl ApiServer {
    /// Starts an API server that only the test uses; `None` if the test is skipped
    /// ([`requirement::api_server`]).
    pub fn alone() -> Result<Option<Self>> {
        if !requirement::api_server()? {
            return Ok(None);
        }
        Self::start_on(Machine::alone()?).map(Some)
    }

    /// Starts an API server on a LAN; `None` if the test is skipped.
    pub fn on(lan: &Lan) -> Result<Option<Self>> {
        if !requirement::api_server()? {
            return Ok(None);
        }
        Self::start_on(lan.add_machine("control-plane")?).map(Some)
    }

    fn start_on(machine: Machine) -> Result<Self> {
        let launch = Launch::prepare(machine)?;
        let etcd = launch.etcd()?;
        let server = launch.api_server()?;
        // A thread in the namespace starts the runtime's threads, so they are in the namespace too.
        let runtime = launch.machine.namespace.run(|| {
            let builder = &mut tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(1).enable_all().build().context("cannot start a tokio runtime")
        })?;
        let mut api = Self { kinds: Mutex::default(), client: None, runtime, server, etcd, launch };
        api.await_ready()?;
        Ok(api)
    }

    /// Starts the controller manager on its machine.
    pub fn start_controller_manager(&self) -> Result<Process> {
        self.launch.controller_manager()
    }

    /// Starts the scheduler on its machine.
    pub fn start_scheduler(&self) -> Result<Process> {
        self.launch.scheduler()
    }

    /// Kills it, as a failing machine does. etcd continues. Its clients see closed connections.
    pub fn stop(&mut self) -> Result<()> {
        self.server.kill()
    }

    /// Starts it again after [`ApiServer::stop`], with the same address, certificate, keys and
    /// objects.
    pub fn start(&mut self) -> Result<()> {
        ensure!(self.server.poll()?.is_some(), "the API server is running");
        self.server = self.launch.api_server()?;
        self.await_ready()
    }

    /// Copies etcd's data, as a backup. Both processes are started anew for it.
    pub fn back_up(&mut self) -> Result<()> {
        self.while_away(Launch::back_up)
    }

    /// Puts the backup in the place of etcd's data. Revisions go back.
    pub fn restore(&mut self) -> Result<()> {
        self.while_away(Launch::restore)
    }

    fn while_away(&mut self, work: impl FnOnce(&Launch) -> Result<()>) -> Result<()> {
        self.stop()?;
        self.etcd.kill()?;
        work(&self.launch)?;
        self.etcd = self.launch.etcd()?;
        self.start()
    }

    /// Returns its process, for example to suspend it.
    pub fn process(&self) -> &Process {
        &self.server
    }

    /// Returns etcd's process.
    pub fn etcd(&self) -> &Process {
        &self.etcd
    }

    /// Returns its address on the LAN.
    pub fn address(&self) -> Ipv4Addr {
        self.launch.machine.address
    }

    /// Returns its machine.
    pub fn machine(&self) -> &Machine {
        &self.launch.machine
    }

    /// Returns a client with all rights. Run its requests with [`ApiServer::block_on`].
    pub fn client(&self) -> Result<Client> {
        self.client.clone().context("the API server has never been ready")
    }

    /// Runs a future in the API server's network namespace. Tasks that it spawns continue
    /// afterwards.
    pub fn block_on<T: Send>(&self, work: impl Future<Output = Result<T>> + Send) -> Result<T> {
        self.launch.machine.namespace.run(|| self.runtime.block_on(work))
    }

    /// Returns the current position in the audit log.
    pub fn mark(&self) -> Result<Mark> {
        self.launch.mark()
    }

    /// Returns all requests that were answered after a position in the audit log;
    /// `Mark::default()` is the beginning.
    pub fn requests(&self, after: Mark) -> Result<Vec<Request>> {
        self.launch.requests(after)
    }

    fn await_ready(&mut self) -> Result<()> {
        let ready = wait::until("the API server's readiness", START, || {
            ensure!(self.server.poll()?.is_none(), "it has ended");
            self.ask_ready()
        });
        ready.with_context(|| format!("the API server's last output:\n{}", self.server.last_output()))?;
        self.kinds.lock().unwrap_or_else(PoisonError::into_inner).clear();
        Ok(())
    }

    fn ask_ready(&mut self) -> Result<()> {
        // The server writes its certificate while it starts. If only half of it was read, try
        // again.
        let client = match self.client.take() {
            Some(client) => client,
            None => self.block_on(connect(self.launch.kubeconfig(ADMIN)?))?,
        };
        let request = http::Request::get("/readyz").body(Vec::new())?;
        let answer = self.block_on(async { Ok(client.request_text(request).await?) })?;
        ensure!(answer == "ok", "{answer}");
        // The default namespace is made a little later, and tests put objects there.
        let request = http::Request::get("/api/v1/namespaces/default").body(Vec::new())?;
        self.block_on(async { Ok(client.request_text(request).await?) }).context("no namespace yet")?;
        self.client = Some(client);
        Ok(())
    }
}
