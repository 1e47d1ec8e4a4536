//! Following an API server through a connection that falls silent, is refused or cut off, and through what happens to the
//! API server itself.

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
use vipmux::{
    api::VipPool,
    cluster::{Access, Cluster},
    source::{
        Objects,
        kubernetes::{self, Audience, Guard},
    },
};
use vipmux_tests::{
    api_proxy::{ApiProxy, Fault, Rule},
    api_server::ApiServer,
    cluster::PATIENCE,
    wait,
};

/// Longer than anything here takes that goes well: kinds that were not there are looked for twice a minute.
const LONG: Duration = Duration::from_mins(2);
/// The agents' own patience with a silent connection is 90 s.
const SILENCE: Duration = Duration::from_secs(3);
/// Longer than that, and less than twice as long.
const QUIET: Duration = Duration::from_mins(2);
/// Kinds that are followed.
const KINDS: usize = 8;
/// What is asked for one kind in [`TROUBLE`]: 0.2 s, 0.4 s, and so on lie between, up to twice as long; and there may be two
/// requests for an attempt.
const ATTEMPTS: usize = 16;
/// How long something fails.
const TROUBLE: Duration = Duration::from_secs(6);

/// Somebody who follows an API server through a bad connection.
struct Scene {
    objects: watch::Receiver<Arc<Objects>>,
    _guard: Guard,
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

impl Scene {
    /// Services `a` and `b` are there, and seen.
    fn new(silence: Option<Duration>) -> Result<Option<Self>> {
        let Some(api) = ApiServer::alone()? else { return Ok(None) };
        api.apply_all(&[service("a"), service("b")])?;
        Self::of(api, silence).map(Some)
    }

    fn of(api: ApiServer, silence: Option<Duration>) -> Result<Self> {
        let proxy = ApiProxy::start(&api, 1)?;
        let access = Access { kubeconfig: Some(proxy.kubeconfig()), namespace: None };
        let (objects, guard) = api.block_on(async {
            let cluster = match silence {
                Some(silence) => Cluster::connect_within(&access, silence).await?,
                None => Cluster::connect(&access).await?,
            };
            let (listing, guard) = kubernetes::follow(&cluster.client, Audience::Agent);
            let objects = timeout(LONG, listing.listed()).await.context("not all kinds are listed")?;
            Ok((objects.context("nobody follows")?, guard))
        })?;
        Ok(Self { objects, _guard: guard, proxy, api })
    }

    /// Waits until the objects are so.
    fn await_objects(&mut self, what: &str, is_so: impl Fn(&Objects) -> bool + Send + Sync) -> Result<()> {
        let objects = &mut self.objects;
        let waited = self.api.block_on(async {
            timeout(LONG, objects.wait_for(|objects| is_so(objects))).await.context("in vain")?.map(drop)?;
            Ok(())
        });
        waited.with_context(|| format!("waited until {what}; {:?}", self.proxy.faults()))
    }

    /// Waits until these Services are there, and no others.
    fn await_services(&mut self, names: &[&str]) -> Result<()> {
        self.await_objects(&format!("the Services are {names:?}"), |objects| names_of(objects) == names)
    }

    fn watches(&self, resource: &str) -> usize {
        self.proxy.asked(&["watch", "list"], resource)
    }

    /// Waits until a watch is asked for once more.
    fn await_watches(&self, resource: &str, count: usize) -> Result<()> {
        let before = self.watches(resource);
        wait::until(&format!("{count} watches of {resource}"), LONG, || {
            ensure!(self.watches(resource) >= before + count);
            Ok(())
        })
    }

    /// For a while; how many requests come in it.
    fn count_while_in_trouble(&self) -> usize {
        let (before, begin) = (self.proxy.all_asked().len(), Instant::now());
        while begin.elapsed() < TROUBLE {
            thread::sleep(TROUBLE.saturating_sub(begin.elapsed()));
        }
        self.proxy.all_asked().len() - before
    }
}

/// Without the API server's own.
fn names_of(objects: &Objects) -> Vec<&str> {
    objects.services.keys().map(|name| name.name.as_str()).collect()
}

#[test]
fn a_watch_that_falls_silent_is_taken_up_again() -> Result<()> {
    let Some(mut scene) = Scene::new(Some(SILENCE))? else { return Ok(()) };
    scene.await_services(&["a", "b"])?;
    scene.proxy.freeze();
    scene.api.apply_all(&[service("c")])?;
    scene.api.delete_all(&[service("a")])?;
    scene.await_services(&["b", "c"])
}

/// Where nothing was written since the API server started, it says nothing for minutes.
#[test]
fn watches_of_what_does_not_change_are_asked_for_seldom() -> Result<()> {
    let Some(mut scene) = Scene::new(None)? else { return Ok(()) };
    scene.await_services(&["a", "b"])?;
    let count = |scene: &Scene| ["services", "endpointslices", "nodes", "namespaces"].map(|kind| scene.watches(kind));
    let before = count(&scene);
    thread::sleep(QUIET);
    let after = count(&scene);
    ensure!(before.iter().zip(after).all(|(before, after)| after <= before + 1), "{before:?}, and then {after:?}");
    assert_eq!(names_of(&scene.objects.borrow()), ["a", "b"]);
    scene.api.apply_all(&[service("c")])?;
    scene.await_services(&["a", "b", "c"])
}

/// It accepts requests, and does not answer them either.
#[test]
fn an_api_server_that_is_silent_for_long_is_asked_again_until_it_answers() -> Result<()> {
    let Some(mut scene) = Scene::new(Some(SILENCE))? else { return Ok(()) };
    scene.proxy.set_rules([Rule::new(Fault::Stall)]);
    scene.proxy.freeze();
    scene.await_watches("services", 2)?;
    scene.api.apply_all(&[service("c")])?;
    scene.proxy.clear();
    scene.await_services(&["a", "b", "c"])
}

/// What a watch would go on from is gone, and what was deleted meanwhile would never be told: all is listed anew.
#[test]
fn a_watch_that_is_refused_as_too_old_lists_anew_and_what_went_meanwhile_goes() -> Result<()> {
    for fault in [Fault::Answer(410), Fault::Expire] {
        let Some(mut scene) = Scene::new(None)? else { return Ok(()) };
        scene.proxy.set_rules([Rule::new(fault).of(&["watch"]).of_resumed_watches().on("services")]);
        scene.api.delete_all(&[service("a")])?;
        scene.await_services(&["b"])?;
        scene.proxy.cut();
        // Not one more watch goes on: whoever does not list anew sees nothing of it.
        scene.api.apply_all(&[service("c")])?;
        scene.api.delete_all(&[service("b")])?;
        scene.await_services(&["c"]).with_context(|| format!("{fault:?}"))?;
        ensure!(scene.proxy.did(fault.name()) > 0, "nobody was refused");
    }
    Ok(())
}

/// etcd has forgotten what the watches would go on from, and the API server's own memory went with its process.
#[test]
fn what_went_while_nobody_heard_and_etcd_forgot_goes() -> Result<()> {
    let Some(mut scene) = Scene::new(None)? else { return Ok(()) };
    scene.proxy.set_rules([Rule::new(Fault::Lose)]);
    scene.proxy.cut();
    scene.api.delete_all(&[service("a")])?;
    let written = scene.api.apply_all(&[service("c")])?;
    let version = written[0]["metadata"]["resourceVersion"].as_str().context("no version")?.parse()?;
    compact(&scene.api, version)?;
    scene.api.stop()?;
    scene.api.start()?;
    scene.proxy.clear();
    scene.await_services(&["b", "c"])
}

/// Lets etcd forget what was before a revision, which is what the API server calls a resourceVersion.
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
    let Some(mut scene) = Scene::new(None)? else { return Ok(()) };
    scene.api.stop()?;
    let asked = scene.count_while_in_trouble();
    ensure!((KINDS..=KINDS * ATTEMPTS).contains(&asked), "{asked} requests in {TROUBLE:?}");
    assert_eq!(names_of(&scene.objects.borrow()), ["a", "b"], "what is served stays served");
    scene.api.start()?;
    scene.api.delete_all(&[service("a")])?;
    scene.await_services(&["b"])
}

/// As a proxy in front of API servers does that has none, or one that is about to stop.
#[test]
fn watches_that_are_refused_or_end_at_once_make_no_storm() -> Result<()> {
    let Some(mut scene) = Scene::new(None)? else { return Ok(()) };
    for fault in [Fault::End, Fault::Expire, Fault::Answer(429), Fault::Answer(503), Fault::Answer(410), Fault::Lose] {
        let before = scene.proxy.did(fault.name());
        scene.proxy.set_rules([Rule::new(fault)]);
        scene.proxy.cut();
        // They may still be waiting since the last trouble.
        wait::until("the trouble", LONG, || {
            ensure!(scene.proxy.did(fault.name()) > before);
            Ok(())
        })?;
        let asked = scene.count_while_in_trouble();
        ensure!(asked <= KINDS * ATTEMPTS, "{fault:?}: {asked} requests in {TROUBLE:?}");
        assert_eq!(names_of(&scene.objects.borrow()), ["a", "b"], "{fault:?}");
        scene.proxy.clear();
        // Until it goes well again.
        scene.api.apply_all(&[service("c")])?;
        scene.await_services(&["a", "b", "c"]).with_context(|| format!("{fault:?}"))?;
        scene.api.delete_all(&[service("c")])?;
        scene.await_services(&["a", "b"])?;
    }
    Ok(())
}

/// Something else answers in the API server's place.
#[test]
fn no_kind_goes_because_somebody_answers_404() -> Result<()> {
    let Some(mut scene) = Scene::new(None)? else { return Ok(()) };
    scene.api.add_custom_kinds()?;
    scene.api.apply_all(&[pool("edge", "192.0.2.0/28")])?;
    scene.await_objects("the pool is there", |objects| objects.vip_pools.contains_key("edge"))?;
    scene.proxy.set_rules([Rule::new(Fault::Answer(404))]);
    scene.proxy.cut();
    for resource in ["services", "vippools"] {
        scene.await_watches(resource, 2)?;
    }
    assert_eq!(names_of(&scene.objects.borrow()), ["a", "b"]);
    assert!(scene.objects.borrow().vip_pools.contains_key("edge"));
    scene.proxy.clear();
    scene.api.delete_all(&[service("a")])?;
    scene.await_services(&["b"])
}

#[test]
fn a_kind_that_comes_later_is_seen_and_one_that_goes_takes_its_objects_along() -> Result<()> {
    let Some(mut scene) = Scene::new(None)? else { return Ok(()) };
    scene.api.add_custom_kinds()?;
    scene.api.apply_all(&[pool("edge", "192.0.2.0/28")])?;
    scene.await_objects("the pool is there", |objects| objects.vip_pools.contains_key("edge"))?;

    let kind = serde_json::to_value(VipPool::crd())?;
    scene.api.delete_all(std::slice::from_ref(&kind))?;
    scene.await_objects("the pool is gone", |objects| objects.vip_pools.is_empty())?;

    wait::until("the kind is forgotten", PATIENCE, || {
        ensure!(scene.api.get(&kind)?.is_none(), "it is there still");
        Ok(())
    })?;
    wait::until("the kind is made again", PATIENCE, || scene.api.add_custom_kinds())?;
    wait::until("a pool of it", PATIENCE, || scene.api.apply_all(&[pool("other", "192.0.2.16/28")]).map(drop))?;
    scene.await_objects("the other pool is there", |objects| {
        objects.vip_pools.keys().map(String::as_str).eq(["other"]) && objects.problems.is_empty()
    })?;
    scene.await_services(&["a", "b"])
}
