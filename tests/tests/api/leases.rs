//! Tests the store of Leases through a connection that delays, loses and repeats requests.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use futures_util::{StreamExt as _, future};
use k8s_openapi::api::coordination::v1::Lease as Object;
use kube::{
    Api,
    api::{ListParams, WatchEvent, WatchParams},
};
use serde_json::json;
use tokio::time::timeout;
use vipmux_cluster::{
    access::{ClusterAccess, ClusterClient},
    store::{
        Deleted, KubernetesStore, Lease, StoreError, StoreOperation, StoreOperations, StoreOutcome, Swapped, Version,
    },
};
use vipmux_model::{NodeName, Vip};
use vipmux_tests::{
    api_proxy::{ApiProxy, Fault, Rule},
    api_server::{ApiServer, SYSTEM},
    cluster::{LONG, PATIENCE},
    wait,
};

const VIP: Vip = Vip::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 10)));
const NAME: &str = "vip-c000020a";

/// An API server and a bad connection to it.
struct Fixture {
    proxy: ApiProxy,
    api: ApiServer,
}

fn fixture(seed: u64) -> Result<Option<Fixture>> {
    let Some(api) = ApiServer::alone()? else { return Ok(None) };
    api.add_namespace(SYSTEM)?;
    Ok(Some(Fixture { proxy: ApiProxy::start(&api, seed)?, api }))
}

impl Fixture {
    fn store_of(&self, namespace: &str) -> Result<KubernetesStore> {
        let access = ClusterAccess {
            kubeconfig: Some(self.proxy.kubeconfig()),
            namespace: Some(namespace.to_owned()),
            ..ClusterAccess::default()
        };
        self.api.block_on(async { Ok(KubernetesStore::new(&ClusterClient::connect(&access).await?)) })
    }

    /// A client that waits for responses as long as a busy machine needs.
    fn store(&self) -> Result<KubernetesStore> {
        Ok(self.store_of(SYSTEM)?.with_timeout(PATIENCE))
    }

    /// Returns the Leases without the proxy. Use it in [`ApiServer::block_on`].
    fn leases(&self) -> Result<Api<Object>> {
        Ok(Api::namespaced(self.api.client()?, SYSTEM))
    }

    fn swap(
        &self,
        store: &KubernetesStore,
        expected: Option<&Version>,
        epoch: u64,
    ) -> Result<Result<Swapped, StoreError>> {
        self.api.block_on(async { Ok(store.swap(VIP, expected, &node("node-1"), epoch).await) })
    }

    fn read(&self, store: &KubernetesStore) -> Result<Option<Lease>> {
        self.api.block_on(async { Ok(store.read(VIP).await?) })
    }

    /// Makes the Lease, and returns its version.
    fn first(&self, store: &KubernetesStore) -> Result<Version> {
        done(self.swap(store, None, 1)?)
    }
}

#[allow(clippy::unwrap_used, reason = "all names here are valid")]
fn node(name: &str) -> NodeName {
    NodeName::new(name).unwrap()
}

fn done(swapped: Result<Swapped, StoreError>) -> Result<Version> {
    match swapped? {
        Swapped::Done(version) => Ok(version),
        Swapped::Conflict => anyhow::bail!("somebody else wrote it"),
    }
}

fn is_unavailable<T>(result: &Result<T, StoreError>) -> bool {
    matches!(result, Err(StoreError::Unavailable { .. }))
}

/// Epochs with who wrote them and the Lease's version, according to the API server.
type History = Vec<(u64, String, String)>;

/// Returns the Lease's contents from the first version after this one to the last epoch.
async fn history(leases: Api<Object>, begun: String, last: u64) -> Result<History> {
    let mut seen = History::new();
    let mut events = leases.watch(&WatchParams::default().timeout(290), &begun).await?.boxed();
    while let Some(event) = events.next().await {
        let object = match event? {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => object,
            WatchEvent::Bookmark(_) => continue,
            other => anyhow::bail!("{other:?}"),
        };
        let spec = object.spec.context("no spec")?;
        let epoch = u64::try_from(spec.lease_transitions.context("no epoch")?)?;
        seen.push((
            epoch,
            spec.holder_identity.context("no holder")?,
            object.metadata.resource_version.context("no version")?,
        ));
        if epoch == last {
            return Ok(seen);
        }
    }
    anyhow::bail!("the watch ended after {seen:?}")
}

/// Tries to become the next holder until the last epoch. Returns the epochs that it won by its own
/// account.
async fn contend(store: KubernetesStore, name: String, last: u64) -> Result<Vec<(u64, String, String)>> {
    let mut won = Vec::new();
    loop {
        let lease = match store.read(VIP).await {
            Ok(lease) => lease,
            Err(StoreError::Unavailable { .. }) => continue,
            Err(error) => return Err(error.into()),
        };
        let epoch = lease.as_ref().map_or(0, |lease| lease.epoch);
        if epoch >= last {
            return Ok(won);
        }
        let expected = lease.as_ref().map(|lease| &lease.version);
        match store.swap(VIP, expected, &node(&name), epoch + 1).await {
            Ok(Swapped::Done(version)) => won.push((epoch + 1, name.clone(), version.to_string())),
            Ok(Swapped::Conflict) | Err(StoreError::Unavailable { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[test]
fn of_many_who_swap_at_once_one_wins_each_epoch_whatever_the_connection_does() -> Result<()> {
    const CONTENDERS: usize = 8;
    const EPOCHS: u64 = 30;
    let Some(fixture) = fixture(6)? else { return Ok(()) };
    fixture.proxy.set_rules([
        Rule::new(Fault::Delay(Duration::from_millis(40))).in_percent(30),
        Rule::new(Fault::Late(Duration::from_millis(40))).in_percent(20),
        Rule::new(Fault::Lose).in_percent(10),
        Rule::new(Fault::Again(Duration::from_millis(60))).of_writes().in_percent(25),
        Rule::new(Fault::Twice).of_writes().in_percent(25),
        Rule::new(Fault::LoseAnswer).in_percent(15),
    ]);
    let stores = (0..CONTENDERS).map(|_| fixture.store()).collect::<Result<Vec<_>>>()?;
    let leases = fixture.leases()?;
    let (history, won) = fixture.api.block_on(async {
        let begun = leases.list(&ListParams::default()).await?.metadata.resource_version.context("no version")?;
        let history = tokio::spawn(history(leases, begun, EPOCHS));
        let contending = stores.into_iter().enumerate().map(|(number, store)| {
            let contending = contend(store, format!("node-{number}"), EPOCHS);
            async { tokio::spawn(contending).await? }
        });
        let won = timeout(LONG, future::try_join_all(contending)).await.context("they get nowhere")??;
        let history = timeout(PATIENCE, history).await.context("the last epoch is not seen")???;
        Ok((history, won.concat()))
    })?;
    let epochs: Vec<_> = history.iter().map(|(epoch, ..)| *epoch).collect();
    ensure!(epochs == (1..=EPOCHS).collect::<Vec<_>>(), "each epoch once, one after the other: {history:?}");
    for winner in &won {
        ensure!(history.contains(winner), "{winner:?} was reported to have won: {history:?}");
    }
    let mut winners = BTreeMap::new();
    for (epoch, name, _) in &won {
        let other = winners.insert(epoch, name);
        ensure!(other.is_none(), "{name} and {other:?} were reported to have won epoch {epoch}");
    }
    // Otherwise nothing was tested.
    for fault in ["delay", "late", "lose", "again", "twice", "lose answer"] {
        ensure!(fixture.proxy.fault_count(fault) > 0, "nothing happened to a request: {fault}");
    }
    Ok(())
}

#[test]
fn a_write_whose_answer_is_lost_is_unavailable_and_a_read_shows_the_truth() -> Result<()> {
    let Some(fixture) = fixture(1)? else { return Ok(()) };
    let store = fixture.store()?;
    let lose_one = |fault| fixture.proxy.set_rules([Rule::new(fault).of_writes().on("leases").times(1)]);

    lose_one(Fault::LoseAnswer);
    ensure!(is_unavailable(&fixture.swap(&store, None, 1)?), "it got the response that was lost");
    let made = fixture.read(&store)?.context("it was written")?;
    assert_eq!((made.holder, made.epoch), (node("node-1"), 1));

    lose_one(Fault::LoseAnswer);
    ensure!(is_unavailable(&fixture.swap(&store, Some(&made.version), 2)?), "it got the response that was lost");
    let second = fixture.read(&store)?.context("it is there")?;
    assert_eq!(second.epoch, 2);
    assert_ne!(second.version, made.version);

    lose_one(Fault::Lose);
    ensure!(is_unavailable(&fixture.swap(&store, Some(&second.version), 3)?), "the request was lost");
    assert_eq!(fixture.read(&store)?, Some(second.clone()));

    lose_one(Fault::LoseAnswer);
    let deleted = fixture.api.block_on(async { Ok(store.delete(VIP, &second.version).await) })?;
    ensure!(is_unavailable(&deleted), "{deleted:?}");
    assert_eq!(fixture.read(&store)?, None);
    let again = fixture.api.block_on(async { Ok(store.delete(VIP, &second.version).await?) })?;
    assert_eq!(again, Deleted::Done, "what is gone is gone");
    Ok(())
}

#[test]
fn a_write_that_arrives_twice_is_done_or_a_conflict_and_never_two_epochs() -> Result<()> {
    let Some(fixture) = fixture(2)? else { return Ok(()) };
    let store = fixture.store()?;
    let twice = || fixture.proxy.set_rules([Rule::new(Fault::Twice).of_writes().on("leases")]);
    let again = || fixture.proxy.set_rules([Rule::new(Fault::Again(Duration::ZERO)).of_writes().on("leases")]);

    twice();
    assert_eq!(fixture.swap(&store, None, 1)??, Swapped::Conflict, "the second one came too late");
    let made = fixture.read(&store)?.context("the first one made it")?;
    assert_eq!((made.holder, made.epoch), (node("node-1"), 1));
    assert_eq!(fixture.swap(&store, Some(&made.version), 2)??, Swapped::Conflict);
    let second = fixture.read(&store)?.context("it is there")?;
    assert_eq!(second.epoch, 2);

    again();
    let third = done(fixture.swap(&store, Some(&second.version), 3)?)?;
    wait::until("the copy", PATIENCE, || {
        ensure!(fixture.proxy.fault_count("again") == 1);
        Ok(())
    })?;
    let lease = fixture.read(&store)?.context("it is there")?;
    assert_eq!((lease.epoch, &lease.version), (3, &third), "the copy changed nothing");

    // Others write in the meantime, and the copy comes after that.
    fixture.proxy.set_rules([Rule::new(Fault::Again(Duration::from_secs(1))).of_writes().on("leases").times(1)]);
    let fourth = done(fixture.swap(&store, Some(&third), 4)?)?;
    let other = fixture.api.block_on(async { Ok(store.swap(VIP, Some(&fourth), &node("node-2"), 5).await) })?;
    let fifth = done(other)?;
    wait::until("the copy", PATIENCE, || {
        ensure!(fixture.proxy.fault_count("again") == 2);
        Ok(())
    })?;
    let lease = fixture.read(&store)?.context("it is there")?;
    assert_eq!((lease.holder, lease.epoch, lease.version), (node("node-2"), 5, fifth));
    Ok(())
}

#[test]
fn a_namespace_that_is_not_there_is_no_conflict() -> Result<()> {
    let Some(fixture) = fixture(3)? else { return Ok(()) };
    let store = fixture.store_of("nowhere")?.with_timeout(PATIENCE);
    let swapped = fixture.swap(&store, None, 1)?;
    let error = swapped.err().context("it was written into no namespace")?;
    let reported = format!("{:#}", anyhow::Error::from(error));
    ensure!(reported.contains("unavailable") && reported.contains("namespaces \"nowhere\" not found"), "{reported}");
    assert_eq!(fixture.read(&store)?, None);
    let survey = fixture.api.block_on(async { Ok(store.survey().await?) })?;
    ensure!(survey.leases.is_empty() && survey.faults.is_empty(), "{survey:?}");
    Ok(())
}

#[test]
fn a_malformed_lease_is_reported_and_disturbs_no_other() -> Result<()> {
    const OTHER: Vip = Vip::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 11)));
    let Some(fixture) = fixture(4)? else { return Ok(()) };
    let store = fixture.store()?;
    let object = |name: &str, spec| {
        json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": { "namespace": SYSTEM, "name": name },
            "spec": spec,
        })
    };
    fixture.api.apply_all(&[
        object(NAME, json!({ "leaseTransitions": 3 })),
        object("vipmux-allocator", json!({ "holderIdentity": "vipmux-allocator-0" })),
        object("vip-of-somebody", json!({ "holderIdentity": "x" })),
    ])?;
    let good = fixture.api.block_on(async { Ok(store.swap(OTHER, None, &node("node-1"), 1).await) })?;
    done(good)?;

    let survey = fixture.api.block_on(async { Ok(store.survey().await?) })?;
    assert_eq!(survey.leases.keys().collect::<Vec<_>>(), [&OTHER]);
    let fault = survey.faults.get(&VIP).context("the malformed one is not reported")?.to_string();
    ensure!(fault.contains(NAME) && fault.contains("spec.holderIdentity"), "{fault}");
    assert_eq!(survey.faults.len(), 1, "others' Leases are no business of ours: {survey:?}");

    let read = fixture.api.block_on(async { Ok(store.read(VIP).await) })?;
    ensure!(matches!(&read, Err(StoreError::Malformed { .. })), "{read:?}");
    assert_eq!(fixture.swap(&store, None, 1)??, Swapped::Conflict, "it is left as it is");
    let left = fixture.leases()?;
    let left = fixture.api.block_on(async { Ok(left.get(NAME).await?) })?;
    assert_eq!(left.spec.and_then(|spec| spec.lease_transitions), Some(3));
    Ok(())
}

/// The API server refuses clients for a while when it is overloaded.
#[test]
fn temporary_refusals_of_the_api_server_are_reported_at_once() -> Result<()> {
    let Some(fixture) = fixture(5)? else { return Ok(()) };
    let store = fixture.store()?;
    let version = fixture.first(&store)?;
    for code in [410, 429, 503] {
        fixture.proxy.set_rules([Rule::new(Fault::Answer(code))]);
        let before = fixture.proxy.count_requests(&["get", "list", "update"], "leases");
        let (read, swapped, survey) = fixture.api.block_on(async {
            let survey = store.survey().await;
            Ok((store.read(VIP).await, store.swap(VIP, Some(&version), &node("node-1"), 2).await, survey))
        })?;
        ensure!(is_unavailable(&read) && is_unavailable(&swapped) && is_unavailable(&survey), "{code}: {read:?}");
        let after = fixture.proxy.count_requests(&["get", "list", "update"], "leases");
        assert_eq!(after - before, 3, "who asks again is the election, by its own clock");
    }
    fixture.proxy.clear();
    assert_eq!(fixture.read(&store)?.map(|lease| lease.epoch), Some(1));
    Ok(())
}

/// As after a power failure: connections stay open without responses.
#[test]
fn an_api_server_that_falls_silent_holds_up_only_what_was_asked_of_it_then() -> Result<()> {
    // More than can run at a time (`MAX_LEASE_OPERATIONS`).
    const READS: usize = 140;
    let Some(fixture) = fixture(7)? else { return Ok(()) };
    fixture.first(&fixture.store()?)?;
    let store = fixture.store_of(SYSTEM)?;
    fixture.proxy.set_rules([Rule::new(Fault::Stall)]);
    fixture.api.block_on(async {
        let (operations, mut reports) = StoreOperations::new(store);
        let now = Duration::ZERO;
        ensure!(operations.begin(StoreOperation::Survey, now), "the first survey");
        for _ in 0..READS {
            ensure!(operations.begin(StoreOperation::Read(VIP), now), "a read");
        }
        for _ in 0..=READS {
            let report = timeout(PATIENCE, reports.recv()).await.context("no word of what was begun")?;
            let result = report.context("no more reports")?.result;
            ensure!(is_unavailable(&result), "{result:?}");
        }
        fixture.proxy.clear();
        for operation in [StoreOperation::Survey, StoreOperation::Read(VIP)] {
            let begun = async {
                while !operations.begin(operation.clone(), now) {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                reports.recv().await
            };
            let report =
                timeout(PATIENCE, begun).await.with_context(|| format!("{operation:?} waits for the silent ones"))?;
            let lease = match report.context("no more reports")?.result? {
                StoreOutcome::Read(lease) => lease,
                StoreOutcome::Surveyed(survey) => survey.leases.get(&VIP).cloned(),
                other => anyhow::bail!("{other:?}"),
            };
            ensure!(lease.is_some_and(|lease| lease.epoch == 1), "the Lease is not read");
        }
        Ok(())
    })
}

/// A client that left loses only its own turn. Its request may arrive later, and changes nothing
/// then.
#[test]
fn a_write_that_arrives_after_its_sender_gave_up_overwrites_nobody() -> Result<()> {
    let Some(fixture) = fixture(8)? else { return Ok(()) };
    let store = Arc::new(fixture.store()?);
    let version = fixture.first(&store)?;
    fixture.proxy.set_rules([Rule::new(Fault::Delay(Duration::from_secs(20))).of_writes().times(1)]);
    let late = fixture.swap(&fixture.store_of(SYSTEM)?, Some(&version), 2)?;
    ensure!(is_unavailable(&late), "{late:?}");
    let other = fixture.api.block_on(async { Ok(store.swap(VIP, Some(&version), &node("node-2"), 2).await) })?;
    let won = done(other)?;
    wait::until("the late write", PATIENCE, || {
        // A refused request is in the API server's log.
        let requests = fixture.api.requests(vipmux_tests::api_server::Mark::default())?;
        let refused = requests.iter().filter(|request| request.resource == "leases" && request.code == 409).count();
        ensure!(refused == 1, "{refused} writes were refused");
        Ok(())
    })?;
    let lease = fixture.read(&store)?.context("it is there")?;
    assert_eq!((lease.holder, lease.version), (node("node-2"), won));
    Ok(())
}
