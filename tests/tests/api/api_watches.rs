//! Tests watches through a connection that falls silent, is refused or is cut off, and through
//! failures of the API server itself.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use kube::CustomResourceExt as _;
use serde_json::{Value, json};
use tokio::{sync::watch, time::timeout};
use vipmux_cluster::{
    access::{ClusterAccess, ClusterClient},
    rollback::LOOK,
    source::kubernetes::{self, Consumer, KubernetesGuard},
};
use vipmux_model::{ServiceName, api::VipPool, objects::Objects};
use vipmux_supervisor::Supervisor;
use vipmux_tests::{
    api_proxy::{ApiProxy, Fault, Rule},
    api_server::ApiServer,
    cluster::{LONG, PATIENCE},
    wait,
};

/// The agents' own limit for a silent connection is 100 s.
const SILENCE: Duration = Duration::from_secs(3);
/// Longer than that, and less than twice as long.
const QUIET: Duration = Duration::from_mins(2);
/// The number of watched kinds.
const KINDS: usize = 8;
/// The maximum of requests for one kind in [`TROUBLE`]: the delays are 0.2 s, 0.4 s etc., up to
/// twice as long, and an attempt may need two requests.
const ATTEMPTS: usize = 16;
/// Writes after a backup: more than an API server makes at its start and in the minutes after.
const REVISIONS: usize = 500;
/// The duration of a failure.
const TROUBLE: Duration = Duration::from_secs(6);

/// A follower of an API server through a bad connection.
struct Follower {
    objects: watch::Receiver<Arc<Objects>>,
    _guard: KubernetesGuard,
    proxy: ApiProxy,
    api: ApiServer,
}

fn service(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "namespace": "default", "name": name },
        "spec": { "type": "LoadBalancer", "ports": [{ "port": 80 }] },
    })
}

fn pool(name: &str, addresses: &str) -> Value {
    json!({
        "apiVersion": "vipmux.io/v1alpha1",
        "kind": "VipPool",
        "metadata": { "name": name },
        "spec": { "addresses": [addresses] },
    })
}

impl Follower {
    /// Starts it and waits until it has the Services `a` and `b`.
    fn new(silence: Option<Duration>) -> Result<Option<Self>> {
        let Some(api) = ApiServer::alone()? else { return Ok(None) };
        api.apply_all(&[service("a"), service("b")])?;
        Self::of(api, silence, LOOK).map(Some)
    }

    /// Starts it. It looks at the version at these intervals.
    fn of(api: ApiServer, silence: Option<Duration>, look: Duration) -> Result<Self> {
        let proxy = ApiProxy::start(&api, 1)?;
        let access = ClusterAccess { kubeconfig: Some(proxy.kubeconfig()), ..ClusterAccess::default() };
        let (objects, guard) = api.block_on(async {
            let cluster = match silence {
                Some(silence) => ClusterClient::connect_within(&access, silence).await?,
                None => ClusterClient::connect(&access).await?,
            };
            let (listing, guard) =
                kubernetes::follow_within(&cluster.client, Consumer::Agent, look, &Supervisor::default());
            let objects = timeout(LONG, listing.listed()).await.context("not all kinds are listed")?;
            Ok((objects.context("nobody follows")?, guard))
        })?;
        Ok(Self { objects, _guard: guard, proxy, api })
    }

    /// Waits until the objects fulfill a condition.
    fn await_objects(&mut self, what: &str, is_so: impl Fn(&Objects) -> bool + Send + Sync) -> Result<()> {
        let objects = &mut self.objects;
        let waited = self.api.block_on(async {
            timeout(LONG, objects.wait_for(|objects| is_so(objects))).await.context("in vain")?.map(drop)?;
            Ok(())
        });
        waited.with_context(|| format!("waited until {what}; {:?}", self.proxy.fault_counts()))
    }

    /// Waits until it has exactly these Services.
    fn await_services(&mut self, names: &[&str]) -> Result<()> {
        self.await_objects(&format!("the Services are {names:?}"), |objects| names_of(objects) == names)
    }

    fn watches(&self, resource: &str) -> usize {
        self.proxy.count_requests(&["watch", "list"], resource)
    }

    /// Waits until another watch is requested.
    fn await_watches(&self, resource: &str, count: usize) -> Result<()> {
        let before = self.watches(resource);
        wait::until(&format!("{count} watches of {resource}"), LONG, || {
            ensure!(self.watches(resource) >= before + count);
            Ok(())
        })
    }

    /// Returns the number of requests within a while.
    fn count_while_in_trouble(&self) -> usize {
        let (before, begin) = (self.proxy.requests().len(), Instant::now());
        while begin.elapsed() < TROUBLE {
            thread::sleep(TROUBLE.saturating_sub(begin.elapsed()));
        }
        self.proxy.requests().len() - before
    }
}

/// Without the API server's own Services.
fn names_of(objects: &Objects) -> Vec<&str> {
    objects.services.keys().map(ServiceName::name).collect()
}

#[test]
fn a_watch_that_falls_silent_is_taken_up_again() -> Result<()> {
    let Some(mut follower) = Follower::new(Some(SILENCE))? else { return Ok(()) };
    follower.await_services(&["a", "b"])?;
    follower.proxy.freeze();
    follower.api.apply_all(&[service("c")])?;
    follower.api.delete_all(&[service("a")])?;
    follower.await_services(&["b", "c"])
}

/// An API server to which nothing was written since its start is silent for minutes. It has no custom
/// kinds.
#[test]
fn watches_of_what_does_not_change_are_asked_for_seldom() -> Result<()> {
    let Some(mut follower) = Follower::new(None)? else { return Ok(()) };
    follower.await_services(&["a", "b"])?;
    let kinds = ["services", "endpointslices", "nodes", "namespaces", "vippools", "ipaddresspools"];
    let count = |follower: &Follower| kinds.map(|kind| follower.watches(kind));
    let discoveries = |follower: &Follower| -> usize {
        follower.proxy.requests().iter().filter(|request| request.resource.is_empty()).count()
    };
    let (before, discovered) = (count(&follower), discoveries(&follower));
    let known = follower.proxy.requests().len();
    thread::sleep(QUIET);
    let after = count(&follower);
    let requests: Vec<_> = follower.proxy.requests().into_iter().skip(known).collect();
    ensure!(
        before.iter().zip(after).all(|(before, after)| after <= before + 1),
        "{before:?}, and then {after:?}: {requests:#?}"
    );
    // All absent kinds together ask every 30 s.
    let discovered = discoveries(&follower) - discovered;
    ensure!((2..=5).contains(&discovered), "{discovered} requests for discovery");
    assert_eq!(names_of(&follower.objects.borrow()), ["a", "b"]);
    follower.api.apply_all(&[service("c")])?;
    follower.await_services(&["a", "b", "c"])
}

/// It accepts requests and does not respond to them either.
#[test]
fn an_api_server_that_is_silent_for_long_is_asked_again_until_it_answers() -> Result<()> {
    let Some(mut follower) = Follower::new(Some(SILENCE))? else { return Ok(()) };
    follower.proxy.set_rules([Rule::new(Fault::Stall)]);
    follower.proxy.freeze();
    follower.await_watches("services", 2)?;
    follower.api.apply_all(&[service("c")])?;
    follower.proxy.clear();
    follower.await_services(&["a", "b", "c"])
}

/// The resource version of the watch is gone, and deletions in between are lost. So everything is
/// listed again.
#[test]
fn a_watch_that_is_refused_as_too_old_lists_again_and_sees_deletions() -> Result<()> {
    for fault in [Fault::Answer(410), Fault::Expire] {
        let Some(mut follower) = Follower::new(None)? else { return Ok(()) };
        follower.proxy.set_rules([Rule::new(fault).of(&["watch"]).of_resumed_watches().on("services")]);
        follower.api.delete_all(&[service("a")])?;
        follower.await_services(&["b"])?;
        follower.proxy.cut();
        // No watch can resume. A follower that does not list again sees nothing.
        follower.api.apply_all(&[service("c")])?;
        follower.api.delete_all(&[service("b")])?;
        follower.await_services(&["c"]).with_context(|| format!("{fault:?}"))?;
        ensure!(follower.proxy.fault_count(fault.name()) > 0, "nobody was refused");
    }
    Ok(())
}

/// etcd has compacted the watches' revisions, and the API server's own cache is gone with its
/// process.
#[test]
fn deletions_that_etcd_has_compacted_are_seen() -> Result<()> {
    let Some(mut follower) = Follower::new(None)? else { return Ok(()) };
    follower.proxy.set_rules([Rule::new(Fault::Lose)]);
    follower.proxy.cut();
    follower.api.delete_all(&[service("a")])?;
    let written = follower.api.apply_all(&[service("c")])?;
    let version = written[0]["metadata"]["resourceVersion"].as_str().context("no version")?.parse()?;
    compact(&follower.api, version)?;
    follower.api.stop()?;
    follower.api.start()?;
    follower.proxy.clear();
    follower.await_services(&["b", "c"])
}

/// The API server refuses no watch from a version that it does not have yet. It reports nothing until
/// then.
#[test]
fn a_state_that_goes_back_is_noticed() -> Result<()> {
    let Some(mut api) = ApiServer::alone()? else { return Ok(()) };
    api.apply_all(&[service("a"), service("b")])?;
    api.back_up()?;
    let mut follower = Follower::of(api, None, Duration::from_secs(1))?;
    // What the API server writes after the restore must not reach the version before it.
    for round in 0..REVISIONS {
        let mut changed = service("c");
        changed["metadata"]["labels"] = json!({ "round": round.to_string() });
        follower.api.apply_all(&[changed])?;
    }
    follower.await_services(&["a", "b", "c"])?;
    follower.api.restore()?;
    follower.api.delete_all(&[service("a")])?;
    follower.await_services(&["b"])
}

/// Compacts etcd's history before a revision. The API server calls it resourceVersion.
fn compact(api: &ApiServer, revision: u64) -> Result<()> {
    let body = json!({ "revision": revision.to_string(), "physical": true }).to_string();
    let answer = api.machine().namespace.run(|| {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, 2379))?;
        let head = format!("POST /v3/kv/compaction HTTP/1.0\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all((head + &body).as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    })?;
    ensure!(answer.lines().next().is_some_and(|status| status.contains(" 200 ")), "{answer}");
    Ok(())
}

#[test]
fn an_api_server_that_is_away_is_asked_less_and_less_often_and_seen_when_it_is_back() -> Result<()> {
    let Some(mut follower) = Follower::new(None)? else { return Ok(()) };
    follower.api.stop()?;
    let asked = follower.count_while_in_trouble();
    ensure!((KINDS..=KINDS * ATTEMPTS).contains(&asked), "{asked} requests in {TROUBLE:?}");
    assert_eq!(names_of(&follower.objects.borrow()), ["a", "b"], "what is served stays served");
    follower.api.start()?;
    follower.api.delete_all(&[service("a")])?;
    follower.await_services(&["b"])
}

/// Like a proxy in front of API servers that has no backend, or that is about to stop.
#[test]
fn watches_that_are_refused_or_end_at_once_make_no_storm() -> Result<()> {
    let Some(mut follower) = Follower::new(None)? else { return Ok(()) };
    for fault in [Fault::End, Fault::Expire, Fault::Answer(429), Fault::Answer(503), Fault::Answer(410), Fault::Lose] {
        let before = follower.proxy.fault_count(fault.name());
        follower.proxy.set_rules([Rule::new(fault)]);
        follower.proxy.cut();
        // They may still be waiting since the last failure.
        wait::until("the trouble", LONG, || {
            ensure!(follower.proxy.fault_count(fault.name()) > before);
            Ok(())
        })?;
        let asked = follower.count_while_in_trouble();
        ensure!(asked <= KINDS * ATTEMPTS, "{fault:?}: {asked} requests in {TROUBLE:?}");
        assert_eq!(names_of(&follower.objects.borrow()), ["a", "b"], "{fault:?}");
        follower.proxy.clear();
        // Until requests succeed again.
        follower.api.apply_all(&[service("c")])?;
        follower.await_services(&["a", "b", "c"]).with_context(|| format!("{fault:?}"))?;
        follower.api.delete_all(&[service("c")])?;
        follower.await_services(&["a", "b"])?;
    }
    Ok(())
}

/// Another server answers in the API server's place.
#[test]
fn no_kind_goes_because_somebody_answers_404() -> Result<()> {
    let Some(mut follower) = Follower::new(None)? else { return Ok(()) };
    follower.api.add_custom_kinds()?;
    follower.api.apply_all(&[pool("edge", "192.0.2.0/28")])?;
    follower.await_objects("the pool is there", |objects| objects.vip_pools.contains_key("edge"))?;
    follower.proxy.set_rules([Rule::new(Fault::Answer(404))]);
    follower.proxy.cut();
    for resource in ["services", "vippools"] {
        follower.await_watches(resource, 2)?;
    }
    assert_eq!(names_of(&follower.objects.borrow()), ["a", "b"]);
    assert!(follower.objects.borrow().vip_pools.contains_key("edge"));
    follower.proxy.clear();
    follower.api.delete_all(&[service("a")])?;
    follower.await_services(&["b"])
}

#[test]
fn a_kind_that_comes_later_is_seen_and_one_that_goes_takes_its_objects_along() -> Result<()> {
    let Some(mut follower) = Follower::new(None)? else { return Ok(()) };
    follower.api.add_custom_kinds()?;
    follower.api.apply_all(&[pool("edge", "192.0.2.0/28")])?;
    follower.await_objects("the pool is there", |objects| objects.vip_pools.contains_key("edge"))?;

    let kind = serde_json::to_value(VipPool::crd())?;
    follower.api.delete_all(std::slice::from_ref(&kind))?;
    follower.await_objects("the pool is gone", |objects| objects.vip_pools.is_empty())?;

    wait::until("the kind is forgotten", PATIENCE, || {
        ensure!(follower.api.get(&kind)?.is_none(), "it is there still");
        Ok(())
    })?;
    wait::until("the kind is made again", PATIENCE, || follower.api.add_custom_kinds())?;
    wait::until("a pool of it", PATIENCE, || follower.api.apply_all(&[pool("other", "192.0.2.16/28")]).map(drop))?;
    follower.await_objects("the other pool is there", |objects| {
        objects.vip_pools.keys().map(String::as_str).eq(["other"]) && objects.problems.is_empty()
    })?;
    follower.await_services(&["a", "b"])
}
