//! Loads an API server as 200 nodes do of which half are gone: each node has a connection and a watch of its
//! own. The times are printed, and no assertion depends on them.

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use futures_util::future::try_join_all;
use tokio::time::sleep;
use vipmux_cluster::{
    access::{ClusterAccess, ClusterClient},
    rollback,
    store::{self, ConfiguredStore, KubernetesStore, LeaseSnapshots, RecordContent, RecordState, Swapped, Version},
};
use vipmux_model::{NodeName, Vip};
use vipmux_supervisor::Supervisor;
use vipmux_tests::{
    api_server::{ADMIN, ApiServer, Request, SYSTEM},
    cluster::PATIENCE,
};

/// The nodes that are left, and as many others.
const LEFT: u8 = 100;
/// The interval at which each of them reads its record.
const INTERVAL: Duration = Duration::from_secs(1);
const ROUNDS: u32 = 10;

/// A node that is left, one that is gone, and a VIP that it led.
struct Node {
    store: KubernetesStore,
    watched: LeaseSnapshots,
    own: NodeName,
    gone: NodeName,
    vip: Vip,
}

impl Node {
    async fn new(access: &ClusterAccess, number: u8) -> Result<Self> {
        let store = KubernetesStore::new(&ClusterClient::connect(access).await?).with_timeout(PATIENCE);
        let kept = ConfiguredStore::Kubernetes(store.clone());
        let watched = store::follow(&kept, rollback::never(), &Supervisor::default());
        let name = |number: u8| NodeName::new(format!("node-{number}"));
        let vip = Vip::new(Ipv4Addr::new(198, 18, 0, number).into());
        Ok(Self { store, watched, own: name(number)?, gone: name(number + LEFT)?, vip })
    }

    async fn write(&self, node: &NodeName, before: Option<&Version>, state: RecordState) -> Result<Version> {
        let content = RecordContent { state, promise: Duration::from_secs(2) };
        match self.store.swap_record(node, before, &content).await? {
            Swapped::Done(version) => Ok(version),
            Swapped::Conflict => bail!("somebody else wrote the record of {node}"),
        }
    }

    /// Writes what was there before.
    async fn prepare(&self) -> Result<()> {
        self.write(&self.own, None, RecordState::Confirmed).await?;
        self.write(&self.gone, None, RecordState::Confirmed).await?;
        let swapped = self.store.swap(self.vip, None, &self.gone, 1).await?;
        ensure!(swapped != Swapped::Conflict, "{} was there", self.vip);
        Ok(())
    }

    /// Writes the own promise, fences the other node, and takes its VIP. Does not wait for an answer.
    async fn take_over(&self) -> Result<()> {
        let own = self.store.read_record(&self.own).await?.context("no record")?;
        self.write(&self.own, Some(&own.version), RecordState::Confirmed).await?;
        let found = self.store.read_record(&self.gone).await?.context("no record")?;
        let challenged = RecordState::Challenged(self.own.clone());
        let challenged = self.write(&self.gone, Some(&found.version), challenged).await?;
        self.write(&self.gone, Some(&challenged), RecordState::Fenced(self.own.clone())).await?;
        let lease = self.store.read(self.vip).await?.context("no Lease")?;
        let swapped = self.store.swap(self.vip, Some(&lease.version), &self.own, 2).await?;
        ensure!(swapped != Swapped::Conflict, "{} was taken", self.vip);
        Ok(())
    }

    /// Waits until its watch shows all that was written.
    async fn await_watch(&mut self) -> Result<()> {
        let is_there = |seen: &Option<store::LeaseSnapshot>| {
            seen.as_ref().is_some_and(|seen| {
                let taken = seen.leases.values().filter(|lease| lease.epoch == 2).count();
                let state = |record: &store::NodeRecord| record.content.state.clone();
                let fenced = seen.records.values().filter(|it| matches!(state(it), RecordState::Fenced(_)));
                taken == usize::from(LEFT) && fenced.count() == usize::from(LEFT)
            })
        };
        tokio::time::timeout(PATIENCE, self.watched.wait_for(is_there)).await.context("its watch is late")??;
        Ok(())
    }

    /// Reads its record once a second. Returns how long each read took.
    async fn go_on(&self, number: u8) -> Result<Vec<Duration>> {
        sleep(INTERVAL * u32::from(number) / u32::from(LEFT)).await;
        let mut took = Vec::new();
        for _ in 0..ROUNDS {
            let began = Instant::now();
            let record = self.store.read_record(&self.own).await?.context("no record")?;
            ensure!(record.content.state == RecordState::Confirmed, "{record:?}");
            took.push(began.elapsed());
            sleep(INTERVAL.saturating_sub(began.elapsed())).await;
        }
        Ok(took)
    }
}

/// Counts the requests for Leases by verb.
fn counted(requests: &[Request]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for request in requests.iter().filter(|request| request.resource == "leases" && request.verb != "watch") {
        *counts.entry(request.verb.as_str()).or_default() += 1;
    }
    counts
}

/// What the API server has to bear. Tests of the election show that no node asks for more.
#[test]
fn half_of_two_hundred_nodes_take_over_and_read_their_records_at_one_api_server() -> Result<()> {
    let Some(api) = ApiServer::alone()? else { return Ok(()) };
    api.add_namespace(SYSTEM)?;
    let access = ClusterAccess {
        kubeconfig: Some(api.kubeconfig(ADMIN)?),
        namespace: Some(SYSTEM.to_owned()),
        ..ClusterAccess::default()
    };
    let (takeover, mut reads, requests) = api.block_on(async {
        let mut nodes = try_join_all((1..=LEFT).map(|number| Node::new(&access, number))).await?;
        try_join_all(nodes.iter().map(Node::prepare)).await?;
        let began = Instant::now();
        try_join_all(nodes.iter().map(Node::take_over)).await?;
        let takeover = began.elapsed();
        try_join_all(nodes.iter_mut().map(Node::await_watch)).await?;
        let mark = api.mark()?;
        let reads = try_join_all((1..=LEFT).zip(&nodes).map(|(number, node)| node.go_on(number))).await?;
        Ok((takeover, reads.concat(), api.requests(mark)?))
    })?;
    reads.sort_unstable();
    let (median, late) = (reads[reads.len() / 2], reads[reads.len() * 99 / 100]);
    println!("{LEFT} of {} nodes: all takeovers at once {takeover:.1?}", 2 * u16::from(LEFT));
    println!("reads of the own record: {}, median {median:.1?}, 99th percentile {late:.1?}", reads.len());
    assert_eq!(counted(&requests), BTreeMap::from([("get", usize::from(LEFT) * ROUNDS as usize)]));
    Ok(())
}
