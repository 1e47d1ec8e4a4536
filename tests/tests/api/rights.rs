//! Tests that each right of the deployed accounts is needed: without it, the API server refuses
//! exactly these requests.

use std::{collections::BTreeSet, path::Path, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Service};
use kube::{Api, api::WatchParams};
use serde_json::{Value, json};
use vipmux_allocate::status::{EventContent, EventType};
use vipmux_cluster::{
    access::{ClusterAccess, ClusterClient},
    events::{EventRecorder, EventSource},
    gossip_secret::GossipSecret,
    source::kubernetes::{self, Consumer},
    store::{Deleted, KubernetesStore, RecordContent, RecordState, Swapped},
};
use vipmux_model::{
    NodeName, Vip,
    permissions::{AGENT, ALLOCATOR, Right, RightScope, allocator_namespace},
};
use vipmux_supervisor::Supervisor;
use vipmux_tests::{
    allocator::{self, Allocator},
    api_proxy::{ApiProxy, Fault, Rule},
    api_server::{ApiServer, Mark, Request, SYSTEM},
    cluster::PATIENCE,
    rights::{self, Lacking},
    wait,
};

/// An account under test.
struct Tried<'a> {
    api: &'a ApiServer,
    account: &'a Lacking,
    since: Mark,
}

impl<'a> Tried<'a> {
    /// Its requests from now on.
    fn new(api: &'a ApiServer, account: &'a Lacking) -> Result<Self> {
        Ok(Self { api, account, since: api.mark()? })
    }

    /// Returns its requests.
    fn requests(&self) -> Result<impl Iterator<Item = Request>> {
        let all = self.api.requests(self.since)?;
        Ok(all.into_iter().filter(|request| request.user == self.account.user))
    }

    /// Returns its refused requests: verbs and resources.
    fn refused(&self) -> Result<BTreeSet<(String, String)>> {
        let refused = self.requests()?.filter(|request| request.code == 403);
        Ok(refused.map(|request| (request.verb, request.resource)).collect())
    }

    /// Waits until it has requested all kinds of objects that these rights are for.
    fn await_requests(&self, rights: &[Right]) -> Result<()> {
        wait::until("requests for all kinds", PATIENCE, || {
            let asked: BTreeSet<_> = self.requests()?.map(|request| request.resource).collect();
            ensure!(rights.iter().all(|right| asked.contains(right.resource)), "{asked:?}");
            Ok(())
        })
    }

    /// Waits until something was refused. `ask` sends the requests.
    fn await_refusal(&self, mut ask: impl FnMut() -> Result<()>) -> Result<()> {
        wait::until(&format!("a refusal for want of {:?}", self.account.right), PATIENCE * 2, || {
            ask()?;
            ensure!(!self.refused()?.is_empty());
            Ok(())
        })
    }

    /// Checks that exactly the requests for its missing right were refused.
    fn check(&self) -> Result<()> {
        let right = &self.account.right;
        assert_eq!(self.refused()?, [(right.verb.to_owned(), right.resource.to_owned())].into(), "without {right:?}");
        Ok(())
    }
}

fn is_to_follow(right: &Right) -> bool {
    right.scope == RightScope::Cluster && matches!(right.verb, "list" | "watch")
}

/// Returns the account's access to the API server. Objects come with the beginning of their watch,
/// or by a list if the API server does not support that. If the right to list is missing, the proxy
/// makes it such an API server.
fn reach(api: &ApiServer, account: &Lacking) -> Result<ApiProxy> {
    let proxy = ApiProxy::start_as(api, account.kubeconfig.clone(), 1)?;
    if account.right.verb == "list" {
        proxy.set_rules([Rule::new(Fault::Answer(400)).of(&["watch"]).on(account.right.resource)]);
    }
    Ok(proxy)
}

#[test]
fn every_right_to_follow_is_needed() -> Result<()> {
    let Some(api) = ApiServer::alone()? else { return Ok(()) };
    api.add_namespace(SYSTEM)?;
    for (label, whole, consumer) in
        [("agent", &AGENT[..], Consumer::Agent), ("allocator", &ALLOCATOR[..], Consumer::Allocator)]
    {
        let lacks: Vec<_> = whole.iter().filter(|right| is_to_follow(right)).copied().collect();
        ensure!(lacks.len() == 16, "{lacks:?}");
        let (mut guards, mut proxies, mut tried) = (Vec::new(), Vec::new(), Vec::new());
        let accounts = rights::lacking(&api, whole, label, &lacks)?;
        for account in &accounts {
            tried.push(Tried::new(&api, account)?);
            let proxy = reach(&api, account)?;
            let access = ClusterAccess { kubeconfig: Some(proxy.kubeconfig()), ..ClusterAccess::default() };
            let guard = api.block_on(async {
                let cluster = ClusterClient::connect(&access).await?;
                Ok(kubernetes::follow(&cluster.client, consumer, &Supervisor::default()))
            })?;
            guards.push(guard);
            proxies.push(proxy);
        }
        tried.iter().try_for_each(|tried| tried.await_refusal(|| Ok(())))?;
        tried.iter().try_for_each(|tried| tried.await_requests(&lacks))?;
        tried.iter().try_for_each(Tried::check)?;
    }
    Ok(())
}

/// Does everything that agents do with Leases. With all rights it works.
async fn use_leases(client: &ClusterClient, vip: Vip) -> Result<()> {
    let store = KubernetesStore::new(client).with_timeout(PATIENCE);
    let node = NodeName::new("node-1")?;
    store.survey().await?;
    store.read(vip).await?;
    let Swapped::Done(first) = store.swap(vip, None, &node, 1).await? else { bail!("it was there") };
    let Swapped::Done(second) = store.swap(vip, Some(&first), &node, 2).await? else { bail!("it was swapped") };
    ensure!(store.delete(vip, &second).await? == Deleted::Done, "it was swapped");
    let content = RecordContent { state: RecordState::Confirmed, promise: Duration::ZERO };
    let name = NodeName::new(format!("of-{vip}"))?;
    let Swapped::Done(first) = store.swap_record(&name, None, &content).await? else { bail!("it was there") };
    let second = store.swap_record(&name, Some(&first), &content).await?;
    ensure!(second != Swapped::Conflict, "it was swapped");
    let leases: Api<Lease> = Api::namespaced(client.client.clone(), SYSTEM);
    drop(leases.watch(&WatchParams::default(), "0").await?);
    Ok(())
}

#[test]
fn every_right_to_leases_is_needed_by_agents() -> Result<()> {
    let Some(api) = ApiServer::alone()? else { return Ok(()) };
    api.add_namespace(SYSTEM)?;
    let lacks: Vec<_> = AGENT.iter().filter(|right| right.resource == "leases").copied().collect();
    let use_leases = |kubeconfig, last| {
        let access = ClusterAccess {
            kubeconfig: Some(kubeconfig),
            namespace: Some(SYSTEM.to_owned()),
            ..ClusterAccess::default()
        };
        let vip = Vip::new([192, 0, 2, last].into());
        api.block_on(async { Ok(use_leases(&ClusterClient::connect(&access).await?, vip).await) })
    };
    let accounts = rights::lacking(&api, &AGENT, "agent", &lacks)?;
    let tried = accounts.iter().map(|account| Tried::new(&api, account)).collect::<Result<Vec<_>>>()?;
    for (last, (account, tried)) in (1..).zip(accounts.iter().zip(&tried)) {
        let result = use_leases(account.kubeconfig.clone(), last)?;
        let error = result.err().with_context(|| format!("all works without {:?}", account.right))?;
        let text = format!("{error:#}");
        assert!(text.contains("forbidden") && text.contains(account.right.verb), "{text}");
        tried.await_refusal(|| Ok(()))?;
    }
    tried.iter().try_for_each(Tried::check)?;
    let whole = api.service_account(SYSTEM, "agent-witness")?;
    use_leases(whole.kubeconfig, 0)?
}

#[test]
fn every_right_to_events_is_needed_by_agents() -> Result<()> {
    let Some(api) = ApiServer::alone()? else { return Ok(()) };
    api.add_namespace(SYSTEM)?;
    let lacks: Vec<_> = AGENT.iter().filter(|right| right.resource == "events").copied().collect();
    ensure!(lacks.len() + 1 + 7 + 16 == AGENT.len(), "some of their rights are tried by no test: {AGENT:?}");
    let accounts = rights::lacking(&api, &AGENT, "agent", &lacks)?;
    let tried = accounts.iter().map(|account| Tried::new(&api, account)).collect::<Result<Vec<_>>>()?;
    for (account, tried) in accounts.iter().zip(&tried) {
        let service: Service = serde_json::from_value(service("web", "lan"))?;
        let access = ClusterAccess { kubeconfig: Some(account.kubeconfig.clone()), ..ClusterAccess::default() };
        let source = EventSource { controller: "test", action: "Testing", instance: account.user.clone() };
        let recorder = api.block_on(async {
            let client = ClusterClient::connect(&access).await?.client;
            Ok(EventRecorder::start(client, source, &Supervisor::default()))
        })?;
        // A repeated Event increases the count of the first one.
        for _ in 0..2 {
            recorder.record(
                &service,
                EventContent::new(EventType::Warning, "AddressInUse", "a foreign speaker has the address"),
            );
        }
        tried.await_refusal(|| Ok(()))?;
    }
    tried.iter().try_for_each(Tried::check)
}

#[test]
fn the_right_to_the_gossip_key_is_needed_by_agents() -> Result<()> {
    let Some(api) = ApiServer::alone()? else { return Ok(()) };
    api.add_namespace(SYSTEM)?;
    let lacks: Vec<_> = AGENT.iter().filter(|right| right.resource == "secrets").copied().collect();
    let [account] = &rights::lacking(&api, &AGENT, "agent", &lacks)?[..] else { bail!("{lacks:?}") };
    let tried = Tried::new(&api, account)?;
    let read = |kubeconfig: &Path| {
        let access = ClusterAccess {
            kubeconfig: Some(kubeconfig.to_owned()),
            namespace: Some(SYSTEM.to_owned()),
            ..ClusterAccess::default()
        };
        api.block_on(async { Ok(GossipSecret::new(&ClusterClient::connect(&access).await?).read().await) })
    };
    tried.await_refusal(|| read(&account.kubeconfig).map(drop))?;
    tried.check()?;
    let whole = api.service_account(SYSTEM, "agent-witness")?;
    assert_eq!(read(&whole.kubeconfig)??, None, "there is no Secret");
    Ok(())
}

fn service(name: &str, pool: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "namespace": "default", "name": name, "annotations": { "vipmux.io/pool": pool } },
        "spec": { "type": "LoadBalancer", "allocateLoadBalancerNodePorts": false, "ports": [{ "port": 80 }] },
    })
}

/// Makes a pool and a policy without statuses, so that they must be written.
fn pool_and_policy(generation: usize) -> Vec<Value> {
    let kind = |kind: &str, spec: Value| json!({ "apiVersion": "vipmux.io/v1alpha1", "kind": kind, "metadata": { "name": "lan" }, "spec": spec });
    let last = 230 + generation;
    vec![
        kind("VipPool", json!({ "addresses": [format!("192.0.2.200-192.0.2.{last}")] })),
        kind("VipPolicy", json!({ "pools": ["lan"], "interfaces": [format!("eth{generation}")] })),
    ]
}

/// Each allocator starts with everything to do: another Lease and key to make; a pool, a policy and
/// a Service without status; and one Service that gets the same reason to wait twice.
#[test]
fn every_right_to_write_is_needed_by_the_allocator() -> Result<()> {
    let Some(api) = ApiServer::alone()? else { return Ok(()) };
    allocator::prepare(&api)?;
    let lacks: Vec<_> = ALLOCATOR.iter().filter(|right| !is_to_follow(right)).copied().collect();
    let apart = allocator_namespace(SYSTEM);
    let made = [
        ("coordination.k8s.io/v1", "Lease", apart.as_str(), allocator::NAME),
        ("v1", "Secret", SYSTEM, "vipmux-gossip"),
    ]
    .map(|(version, kind, namespace, name)| {
        json!({ "apiVersion": version, "kind": kind, "metadata": { "namespace": namespace, "name": name } })
    });
    let accounts = rights::lacking(&api, &ALLOCATOR, "allocator", &lacks)?;
    let mut all = Vec::new();
    for (index, account) in accounts.iter().enumerate() {
        for object in &made {
            if api.get(object)?.is_some() {
                api.delete_all(std::slice::from_ref(object))?;
            }
        }
        api.apply_all(&pool_and_policy(index))?;
        let name = format!("s{index}");
        let tried = Tried::new(&api, account)?;
        let proxy = reach(&api, account)?;
        let _allocator = Allocator::start(&api, &proxy.kubeconfig(), &format!("a{index}"), &[])?;
        let mut pools = ["nowhere", "lan"].iter().cycle();
        tried.await_refusal(|| api.apply_all(&[service(&name, pools.next().context("no pool")?)]).map(drop))?;
        all.push(tried);
    }
    all.iter().try_for_each(Tried::check)
}
