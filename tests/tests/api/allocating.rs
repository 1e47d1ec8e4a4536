//! Tests the allocator with a real API server: what it writes, what it leaves alone, and that only
//! one works.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use vipmux_model::permissions::{ALLOCATOR, Right, RightScope};
use vipmux_tests::{
    allocator::{self, Allocator, USER},
    api_proxy::{ApiProxy, Fault, Rule},
    api_server::{ADMIN, ApiServer, Mark, Request, SYSTEM},
    cluster::PATIENCE,
    failover::await_stopped,
    rights, wait,
};

const POOL: &str = "
apiVersion: vipmux.io/v1alpha1
kind: VipPool
metadata: { name: lan }
spec: { addresses: [192.0.2.200-192.0.2.203] }
";
const KEY: (&str, &str) = ("vipmux.io/sharing-key", "web");
/// Twice the duration of the Lease.
const OUTAGE: Duration = Duration::from_secs(30);
/// Longer than anything that changes late: leaders, pools, Events.
const QUIET: Duration = Duration::from_secs(12);

/// An API server with a pool and the allocator's account.
fn cluster() -> Result<Option<(ApiServer, PathBuf)>> {
    let Some(api) = ApiServer::alone()? else { return Ok(None) };
    let kubeconfig = allocator::prepare(&api)?;
    api.add_namespace("shop")?;
    api.apply(POOL)?;
    Ok(Some((api, kubeconfig)))
}

fn service(name: &str, port: u16, annotations: &[(&str, &str)]) -> Value {
    let annotations: std::collections::BTreeMap<_, _> = annotations.iter().copied().collect();
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "namespace": "shop", "name": name, "annotations": annotations },
        "spec": { "type": "LoadBalancer", "allocateLoadBalancerNodePorts": false, "ports": [{ "port": port }] },
    })
}

fn get(api: &ApiServer, name: &str) -> Result<Value> {
    api.get(&service(name, 1, &[]))?.with_context(|| format!("there is no Service {name}"))
}

fn addresses(service: &Value) -> Vec<&str> {
    let ingress = service["status"]["loadBalancer"]["ingress"].as_array();
    ingress.into_iter().flatten().filter_map(|entry| entry["ip"].as_str()).collect()
}

/// Returns a condition as `status reason`.
fn condition(service: &Value, kind: &str) -> String {
    let conditions = service["status"]["conditions"].as_array();
    let found = conditions.into_iter().flatten().find(|condition| condition["type"] == format!("vipmux.io/{kind}"));
    found
        .map(|it| format!("{} {}", it["status"].as_str().unwrap_or("?"), it["reason"].as_str().unwrap_or("?")))
        .unwrap_or_default()
}

fn await_condition(api: &ApiServer, name: &str, kind: &str, expected: &str) -> Result<Value> {
    wait::until(&format!("{name}: {kind} is {expected}"), PATIENCE, || {
        let service = get(api, name)?;
        let found = condition(&service, kind);
        ensure!(found == expected, "it is {found:?}: {}", service["status"]);
        Ok(service)
    })
}

/// Waits until a Service has an address and its condition says so. Returns its addresses.
fn await_addresses(api: &ApiServer, name: &str) -> Result<Vec<String>> {
    wait::until(&format!("an address of {name}"), PATIENCE, || {
        let service = get(api, name)?;
        ensure!(condition(&service, "Allocated").starts_with("True"), "{}", service["status"]);
        Ok(addresses(&service).into_iter().map(str::to_owned).collect())
    })
}

/// Returns the Events about a Service as `type reason`.
fn events(api: &ApiServer, name: &str) -> Result<Vec<String>> {
    let listed = api.kubectl(&["get", "events.v1.events.k8s.io", "-n", "shop", "-o", "json"])?;
    let listed: Value = serde_json::from_str(&listed)?;
    // The API server creates Events too.
    let about = |event: &&Value| event["regarding"]["name"] == name && event["reportingController"] == allocator::NAME;
    let line = |event: &Value| {
        format!("{} {}", event["type"].as_str().unwrap_or("?"), event["reason"].as_str().unwrap_or("?"))
    };
    Ok(listed["items"].as_array().into_iter().flatten().filter(about).map(line).collect())
}

/// Returns what allocators wrote after a mark, except their Lease.
fn writes(api: &ApiServer, after: Mark) -> Result<Vec<String>> {
    let all = api.requests(after)?;
    let theirs = all.into_iter().filter(|request| request.user == USER && request.is_write());
    let line = theirs.filter(|request| request.resource != "leases");
    Ok(line.map(|it| format!("{} {} {} {}", it.verb, it.resource, it.name, it.code)).collect())
}

/// Returns how often an allocator gave up waiting for a response. If that write was executed, the
/// repeated one is refused: its resource version is old.
fn unanswered(allocator: &Allocator) -> usize {
    allocator.process().output().matches("no answer within").count()
}

/// Writes a Service's addresses as another controller does, for example MetalLB's: an update of the
/// status.
fn intrude(api: &ApiServer, name: &str, address: &str) -> Result<()> {
    use k8s_openapi::api::core::v1::Service;
    use kube::{
        Api,
        api::{Patch, PatchParams},
    };
    let client = api.client()?;
    api.block_on(async {
        let services: Api<Service> = Api::namespaced(client, "shop");
        let patch = json!({"status": {"loadBalancer": {"ingress": [{"ip": address, "ipMode": "VIP"}]}}});
        let params = PatchParams { field_manager: Some("controller".to_owned()), ..PatchParams::default() };
        Ok(services.patch_status(name, &params, &Patch::Merge(&patch)).await.map(drop)?)
    })
}

#[test]
fn services_get_addresses_and_conditions_say_why_or_why_not() -> Result<()> {
    let Some((api, kubeconfig)) = cluster()? else { return Ok(()) };
    let _allocator = Allocator::start(&api, &kubeconfig, "a", &[])?;
    api.apply_all(&[service("alone", 80, &[])])?;
    assert_eq!(await_addresses(&api, "alone")?, ["192.0.2.200"]);
    api.apply_all(&[service("web", 80, &[KEY])])?;
    assert_eq!(await_addresses(&api, "web")?, ["192.0.2.201"]);
    api.apply_all(&[
        service("tls", 443, &[KEY]),
        service("clash", 80, &[("vipmux.io/addresses", "192.0.2.200")]),
        service("typo", 80, &[("vipmux.io/addresses", "192.0.2.20O")]),
    ])?;
    assert_eq!(await_addresses(&api, "tls")?, ["192.0.2.201"]);
    for (name, allocated) in [
        ("web", "True Shared"),
        ("tls", "True Shared"),
        ("clash", "False PortConflict"),
        ("typo", "False InvalidAnnotation"),
    ] {
        let service = await_condition(&api, name, "Allocated", allocated)?;
        let conditions = service["status"]["conditions"].as_array().context("no conditions")?;
        assert!(conditions.iter().all(|it| it["observedGeneration"] == service["metadata"]["generation"]), "{service}");
    }
    let web = get(&api, "web")?;
    assert_eq!(web["status"]["loadBalancer"]["ingress"], json!([{"ip": "192.0.2.201", "ipMode": "VIP"}]));
    assert_eq!(condition(&web, "Announced"), "False NoLeader");
    wait::until("the Events", PATIENCE, || {
        ensure!(events(&api, "alone")? == ["Normal Allocated"], "{:?}", events(&api, "alone"));
        ensure!(events(&api, "clash")? == ["Warning PortConflict"], "{:?}", events(&api, "clash"));
        ensure!(events(&api, "typo")? == ["Warning InvalidAnnotation"], "{:?}", events(&api, "typo"));
        ensure!(events(&api, "web")? == ["Normal Allocated", "Normal Shared"], "{:?}", events(&api, "web"));
        Ok(())
    })?;
    // The VIPs' Leases name their leaders.
    api.apply_all(&[
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}}),
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"namespace": SYSTEM, "name": "vip-c00002c9"},
            "spec": {"holderIdentity": "n1", "leaseTransitions": 1}}),
    ])?;
    await_condition(&api, "tls", "Announced", "True Led")?;
    let pool = wait::until("the pool's status", PATIENCE, || {
        let pool = json!({"apiVersion": "vipmux.io/v1alpha1", "kind": "VipPool", "metadata": {"name": "lan"}});
        let pool = api.get(&pool)?.context("no pool")?;
        let status = &pool["status"];
        ensure!(status["ipv4"] == json!({"capacity": 4, "used": 2}), "{status}");
        ensure!(status["leading"][1] == json!({"node": "n1", "addresses": ["192.0.2.201"]}), "{status}");
        Ok(pool)
    })?;
    assert_eq!(pool["status"]["observedGeneration"], pool["metadata"]["generation"]);
    // Wrong statuses are repaired.
    api.apply_all(&[service("typo", 80, &[("vipmux.io/addresses", "192.0.2.203")])])?;
    assert_eq!(await_addresses(&api, "typo")?, ["192.0.2.203"]);
    Ok(())
}

#[test]
fn in_steady_state_nothing_is_written_and_a_new_allocator_writes_nothing_either() -> Result<()> {
    let Some((api, kubeconfig)) = cluster()? else { return Ok(()) };
    let mut first = Allocator::start(&api, &kubeconfig, "a", &[])?;
    let names: Vec<String> = (0..9).map(|index| format!("s{index}")).collect();
    for (index, name) in names.iter().enumerate() {
        let key = if index < 6 { vec![KEY] } else { vec![] };
        api.apply_all(&[service(name, 80 + u16::try_from(index % 4)?, &key)])?;
        await_decision(&api, name)?;
    }
    let statuses =
        || -> Result<Vec<Value>> { names.iter().map(|name| Ok(get(&api, name)?["status"].clone())).collect() };
    wait::until("nothing left to write", PATIENCE, || {
        let since = api.mark()?;
        thread::sleep(QUIET);
        let written = writes(&api, since)?;
        ensure!(written.is_empty(), "{written:?}");
        Ok(())
    })?;
    let (after, before) = (api.mark()?, statuses()?);
    thread::sleep(QUIET);
    assert_eq!(writes(&api, after)?, Vec::<String>::new());
    first.stop()?;
    let (holder, output) = (Allocator::holder(&api)?, first.process().output());
    // Unless the API server did not respond in time.
    ensure!(holder.is_empty() || output.contains("no answer within"), "{holder} has the Lease still: {output}");
    let _second = Allocator::start(&api, &kubeconfig, "b", &[])?;
    await_turn(&api, "b")?;
    thread::sleep(QUIET);
    assert_eq!(writes(&api, after)?, Vec::<String>::new(), "no status, no Event, no Secret");
    assert_eq!(statuses()?, before);
    Ok(())
}

/// Waits until the allocator of this name has the Lease.
fn await_turn(api: &ApiServer, name: &str) -> Result<()> {
    wait::until(&format!("the turn of {name}"), PATIENCE, || {
        ensure!(Allocator::holder(api)? == name);
        Ok(())
    })
}

/// Starts an allocator `a`, which has the Lease when this returns.
fn leading(api: &ApiServer, kubeconfig: &Path) -> Result<Allocator> {
    let allocator = Allocator::start(api, kubeconfig, "a", &[])?;
    await_turn(api, "a")?;
    Ok(allocator)
}

/// Waits until a Service has a decision in its status.
fn await_decision(api: &ApiServer, name: &str) -> Result<()> {
    wait::until(&format!("a word on {name}"), PATIENCE, || {
        ensure!(!condition(&get(api, name)?, "Allocated").is_empty());
        Ok(())
    })
}

#[test]
fn a_gossip_key_is_made_once() -> Result<()> {
    let Some((api, kubeconfig)) = cluster()? else { return Ok(()) };
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "namespace": SYSTEM, "name": "vipmux-gossip" },
    });
    let await_key = || {
        wait::until("the gossip key", PATIENCE, || {
            let secret = api.get(&secret)?.context("there is none")?;
            Ok(secret["data"]["gossip.key"].as_str().context("it has no key")?.to_owned())
        })
    };
    let mut first = Allocator::start(&api, &kubeconfig, "a", &[])?;
    let key = await_key()?;
    first.stop()?;
    let second = Allocator::start(&api, &kubeconfig, "b", &[])?;
    second.process().wait_for_line("its turn", PATIENCE, |line| line.contains("started leading"))?;
    assert_eq!(await_key()?, key);
    Ok(())
}

#[test]
fn another_controller_is_reported_and_not_overwritten_unless_configured() -> Result<()> {
    let Some((api, kubeconfig)) = cluster()? else { return Ok(()) };
    api.apply_all(&["theirs", "pooled", "emptied"].map(|name| service(name, 80, &[])))?;
    intrude(&api, "theirs", "198.51.100.1")?;
    // Here the other controller assigned addresses that vipmux would assign too.
    intrude(&api, "pooled", "192.0.2.202")?;
    intrude(&api, "emptied", "192.0.2.201")?;
    let mut allocator = Allocator::start(&api, &kubeconfig, "a", &[])?;
    assert_eq!(await_addresses(&api, "pooled")?, ["192.0.2.202"]);
    wait::until("the second one", PATIENCE, || {
        let found = condition(&get(&api, "emptied")?, "Allocated");
        ensure!(found.starts_with("True"), "{found}");
        Ok(())
    })?;
    let theirs = await_condition(&api, "theirs", "Allocated", "False ForeignStatus")?;
    assert_eq!(addresses(&theirs), ["198.51.100.1"]);
    let text = theirs["status"].to_string();
    assert!(text.contains("controller wrote 198.51.100.1 into status.loadBalancer.ingress"), "{text}");
    wait::until("the Event", PATIENCE, || {
        ensure!(events(&api, "theirs")? == ["Warning ForeignStatus"], "{:?}", events(&api, "theirs"));
        Ok(())
    })?;
    let after = api.mark()?;
    thread::sleep(QUIET);
    let tried: Vec<_> = writes(&api, after)?.into_iter().filter(|line| line.contains("services/status")).collect();
    assert!(tried.is_empty(), "it is not tried again and again: {tried:?}");
    // Both wrote these addresses. What vipmux gives later is not contested, also if it gives nothing.
    for (name, request, expected) in [("pooled", "192.0.2.203", &["192.0.2.203"][..]), ("emptied", "198.51.100.3", &[])]
    {
        api.apply_all(&[service(name, 80, &[("vipmux.io/addresses", request)])])?;
        wait::until(name, PATIENCE, || {
            let found = get(&api, name)?;
            ensure!(addresses(&found) == expected, "{}", found["status"]);
            Ok(())
        })?;
    }
    // A later Service is reported too, and vipmux does not fight for what it wrote.
    intrude(&api, "pooled", "198.51.100.2")?;
    let pooled = await_condition(&api, "pooled", "Allocated", "False ForeignStatus")?;
    assert_eq!(addresses(&pooled), ["198.51.100.2"]);
    allocator.stop()?;
    let _adopting = Allocator::start(&api, &kubeconfig, "b", &["--adopt"])?;
    for name in ["theirs", "pooled"] {
        let found = await_addresses(&api, name)?;
        assert!(found.iter().all(|address| address.starts_with("192.0.2.20")), "{name}: {found:?}");
    }
    Ok(())
}

#[test]
fn written_statuses_are_removed_when_a_service_leaves() -> Result<()> {
    let Some((api, kubeconfig)) = cluster()? else { return Ok(()) };
    let mut allocator = Allocator::start(&api, &kubeconfig, "a", &[])?;
    for name in ["one", "two"] {
        api.apply_all(&[service(name, 80, &[])])?;
        await_addresses(&api, name)?;
    }
    let cluster_ip = |name: &str| {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": name},
            "spec": {"type": "ClusterIP", "ports": [{"port": 80}]}})
    };
    let await_clean = |name: &str| {
        wait::until(&format!("a clean status of {name}"), PATIENCE, || {
            let service = get(&api, name)?;
            let status = &service["status"];
            ensure!(
                addresses(&service).is_empty() && status["conditions"].as_array().is_none_or(Vec::is_empty),
                "{status}"
            );
            Ok(())
        })
    };
    api.apply_all(&[cluster_ip("one")])?;
    await_clean("one")?;
    // While no allocator runs.
    allocator.stop()?;
    api.apply_all(&[cluster_ip("two")])?;
    let _next = Allocator::start(&api, &kubeconfig, "b", &[])?;
    await_clean("two")?;
    api.apply_all(&[service("three", 80, &[])])?;
    assert_eq!(await_addresses(&api, "three")?, ["192.0.2.200"], "its address is free again");
    Ok(())
}

#[test]
fn of_two_allocators_one_writes_and_the_other_follows_it_without_moving_anybody() -> Result<()> {
    let Some((api, kubeconfig)) = cluster()? else { return Ok(()) };
    let mut first = leading(&api, &kubeconfig)?;
    let second = Allocator::start(&api, &kubeconfig, "b", &[])?;
    second.process().wait_for_line("it sees the first one", PATIENCE, |line| line.contains("leader changed"))?;
    wait::until("one of them leads", PATIENCE, || {
        for (allocator, leads) in [(&first, true), (&second, false)] {
            let metrics = allocator.metrics(&api)?;
            ensure!((metrics.sum("vipmux_allocator_leading", &[]) > 0.0) == leads, "{metrics:?}");
        }
        Ok(())
    })?;
    // Assignments in an order that no new allocation would produce.
    for (name, address) in [("one", "192.0.2.203"), ("two", "192.0.2.201")] {
        api.apply_all(&[service(name, 80, &[("vipmux.io/addresses", address)])])?;
        await_addresses(&api, name)?;
        api.apply_all(&[service(name, 80, &[])])?;
    }
    wait::until("their new generations are seen", PATIENCE, || {
        for name in ["one", "two"] {
            ensure!(get(&api, name)?["metadata"]["annotations"].as_object().is_none_or(serde_json::Map::is_empty));
        }
        Ok(())
    })?;
    first.kill()?;
    api.apply_all(&[service("three", 80, &[])])?;
    assert_eq!(await_addresses(&api, "three")?, ["192.0.2.200"]);
    assert_eq!(Allocator::holder(&api)?, "b");
    for (name, address) in [("one", "192.0.2.203"), ("two", "192.0.2.201")] {
        assert_eq!(await_addresses(&api, name)?, [address]);
    }
    Ok(())
}

/// Without a watch it would read the Lease, or write by an old version.
#[test]
fn a_waiting_allocator_knows_the_lease_without_asking_for_it() -> Result<()> {
    let Some((api, kubeconfig)) = cluster()? else { return Ok(()) };
    let mut first = leading(&api, &kubeconfig)?;
    let second = Allocator::start(&api, &kubeconfig, "b", &[])?;
    second.process().wait_for_line("it sees the first one", PATIENCE, |line| line.contains("leader changed"))?;
    wait::until("its watch", PATIENCE, || {
        let watches = api.requests(Mark::default())?;
        let of_leases = watches.iter().filter(|request| request.verb == "watch" && request.name == allocator::NAME);
        ensure!(of_leases.count() == 2, "two allocators have not two watches");
        Ok(())
    })?;
    let after = api.mark()?;
    // The first one renews its Lease.
    thread::sleep(QUIET);
    first.stop()?;
    await_turn(&api, "b")?;
    let requests = api.requests(after)?;
    let of_lease = |request: &&Request| request.resource == "leases" && request.name == allocator::NAME;
    let theirs: Vec<_> = requests.iter().filter(of_lease).filter(|request| request.user != ADMIN).collect();
    let renewals = theirs.iter().all(|request| (request.verb.as_str(), request.code) == ("update", 200));
    assert!(renewals && theirs.len() >= 3, "{theirs:?}");
    Ok(())
}

#[test]
fn an_allocator_that_may_not_watch_the_lease_says_so_once_and_follows_later() -> Result<()> {
    let Some((api, kubeconfig)) = cluster()? else { return Ok(()) };
    let is_it = |right: &&Right| right.verb == "watch" && right.scope == RightScope::AllocatorNamespace;
    let right = ALLOCATOR.iter().find(is_it).context("no such right")?;
    let accounts = rights::lacking(&api, &ALLOCATOR, "allocator", &[*right])?;
    let account = accounts.first().context("no account")?;
    let mut first = leading(&api, &kubeconfig)?;
    let second = Allocator::start(&api, &account.kubeconfig, "b", &[])?;
    let line = "cannot watch the allocator's lease";
    second.process().wait_for_line("that it may not watch", PATIENCE, |text| text.contains(line))?;
    // The first one renews its Lease, so the second one knows an old version.
    thread::sleep(QUIET);
    first.stop()?;
    await_turn(&api, "b")?;
    let output = second.process().output();
    assert_eq!(output.matches(line).count(), 1, "{output}");
    Ok(())
}

#[test]
fn an_allocator_that_was_stopped_for_long_does_no_harm_when_it_goes_on() -> Result<()> {
    let Some((api, kubeconfig)) = cluster()? else { return Ok(()) };
    let first = Allocator::start(&api, &kubeconfig, "a", &[])?;
    api.apply_all(&[service("one", 80, &[])])?;
    await_addresses(&api, "one")?;
    let second = Allocator::start(&api, &kubeconfig, "b", &[])?;
    first.process().signal(Signal::SIGSTOP)?;
    await_stopped(first.process().id())?;
    for name in ["two", "three"] {
        api.apply_all(&[service(name, 80, &[])])?;
        await_addresses(&api, name)?;
    }
    assert_eq!(Allocator::holder(&api)?, "b");
    let after = api.mark()?;
    first.process().signal(Signal::SIGCONT)?;
    first
        .process()
        .wait_for_line("it sees that its time is over", PATIENCE, |line| line.contains("leadership lost"))?;
    api.apply_all(&[service("four", 80, &[])])?;
    await_addresses(&api, "four")?;
    let all: BTreeSet<_> =
        ["one", "two", "three", "four"].iter().map(|name| await_addresses(&api, name)).collect::<Result<_>>()?;
    assert_eq!(all.len(), 4, "{all:?}");
    let lines = writes(&api, after)?;
    let statuses: Vec<_> = lines.iter().filter(|line| line.starts_with("patch services/status four")).collect();
    let done = statuses.iter().filter(|line| line.ends_with(" 200")).count();
    let late: usize = [&first, &second].into_iter().map(unanswered).sum();
    assert!(done == 1 && statuses.len() <= 1 + late, "one of them wrote it, once: {lines:?}");
    Ok(())
}

/// The time without an API server is longer than the Lease, so either may take it.
#[test]
fn after_an_outage_of_the_api_server_an_allocator_goes_on() -> Result<()> {
    let Some((mut api, kubeconfig)) = cluster()? else { return Ok(()) };
    let first = Allocator::start(&api, &kubeconfig, "a", &[])?;
    api.apply_all(&[service("one", 80, &[])])?;
    await_addresses(&api, "one")?;
    let second = Allocator::start(&api, &kubeconfig, "b", &[])?;
    second.process().wait_for_line("it sees the first one", PATIENCE, |line| line.contains("leader changed"))?;
    api.stop()?;
    thread::sleep(OUTAGE);
    api.start()?;
    api.apply_all(&[service("two", 80, &[])])?;
    let begin = Instant::now();
    await_addresses(&api, "two")?;
    println!("an address after {:.1?}", begin.elapsed());
    let holder = Allocator::holder(&api)?;
    ensure!(["a", "b"].contains(&holder.as_str()), "{holder}");
    for allocator in [&first, &second] {
        let is_over = |line: &str| line.contains("the allocator's lease can be read and written again");
        allocator.process().wait_for_line("over the outage", PATIENCE, is_over)?;
        let failures = allocator.process().output().matches("cannot read or write the allocator's lease").count();
        ensure!((1..10).contains(&failures), "a failure that lasts is logged once: {}", allocator.process().output());
    }
    Ok(())
}

/// Each allocator has its own proxy, which delays, loses and repeats requests. Then one proxy
/// stalls.
#[test]
fn over_bad_connections_each_service_has_an_address_of_its_own_and_a_silent_allocator_is_followed() -> Result<()> {
    let Some((api, kubeconfig)) = cluster()? else { return Ok(()) };
    let mut pairs = Vec::new();
    for (seed, name) in (1..).zip(["a", "b"]) {
        let proxy = ApiProxy::start_as(&api, kubeconfig.clone(), seed)?;
        proxy.set_rules([
            Rule::new(Fault::Delay(Duration::from_millis(300))).in_percent(30),
            Rule::new(Fault::Lose).in_percent(15),
            Rule::new(Fault::Again(Duration::from_millis(500))).of_writes().in_percent(50),
            Rule::new(Fault::LoseAnswer).in_percent(15),
        ]);
        pairs.push((Allocator::start(&api, &proxy.kubeconfig(), name, &[])?, proxy, name));
    }
    let await_all = |names: &[&str]| {
        wait::until(&format!("addresses of {names:?}"), PATIENCE * 4, || {
            let services = names.iter().map(|name| get(&api, name)).collect::<Result<Vec<_>>>()?;
            let given: BTreeSet<_> = services.iter().flat_map(addresses).map(str::to_owned).collect();
            ensure!(services.iter().all(|service| !addresses(service).is_empty()), "{given:?}");
            assert_eq!(given.len(), names.len(), "{given:?}");
            Ok(given)
        })
    };
    api.apply_all(&[service("one", 80, &[]), service("two", 80, &[])])?;
    let before = await_all(&["one", "two"])?;
    let holder = Allocator::holder(&api)?;
    let (_, silent, _) = pairs.iter().find(|(_, _, name)| *name == holder).context("nobody holds the Lease")?;
    silent.set_rules([Rule::new(Fault::Stall)]);
    silent.freeze();
    api.apply_all(&[service("three", 80, &[]), service("four", 80, &[])])?;
    let all = await_all(&["one", "two", "three", "four"])?;
    assert!(all.is_superset(&before), "{before:?} were given, and {all:?} are");
    assert_ne!(Allocator::holder(&api)?, holder);
    silent.clear();
    // The allocator that was cut off does not overwrite that.
    api.delete_all(&[service("four", 80, &[])])?;
    api.apply_all(&[service("five", 80, &[])])?;
    await_all(&["one", "two", "three", "five"])?;
    let harm = |proxy: &ApiProxy| {
        proxy.fault_count("delay")
            + proxy.fault_count("lose")
            + proxy.fault_count("again")
            + proxy.fault_count("lose answer")
    };
    assert!(pairs.iter().any(|(_, proxy, _)| harm(proxy) > 0), "nothing went wrong");
    Ok(())
}

#[test]
fn a_thousand_services_get_addresses_in_one_write_each() -> Result<()> {
    /// The limit is 50 writes per second, or fewer on a busy machine.
    const LONG: Duration = Duration::from_mins(5);
    let Some((api, kubeconfig)) = cluster()? else { return Ok(()) };
    let count: u16 = 1_000;
    let all: Vec<_> = (0..count).map(|index| service(&format!("s{index}"), 1_000 + index % 500, &[KEY])).collect();
    api.apply_all(&all)?;
    let after = api.mark()?;
    let allocator = Allocator::start(&api, &kubeconfig, "a", &[])?;
    let reported = wait::until("a word on each", LONG, || {
        // Listing all Services takes API server time, which the allocator needs.
        thread::sleep(QUIET);
        let listed = api.kubectl(&["get", "services", "-n", "shop", "-o", "json"])?;
        let listed: Value = serde_json::from_str(&listed)?;
        let items = listed["items"].as_array().context("no items")?.clone();
        let unreported = items.iter().filter(|service| condition(service, "Allocated").is_empty()).count();
        ensure!(unreported == 0, "{unreported} wait");
        Ok(items)
    })?;
    // 500 ports twice: the group has two addresses.
    let shown: BTreeSet<_> = reported.iter().flat_map(|service| addresses(service)).collect();
    assert_eq!(shown, ["192.0.2.200", "192.0.2.201"].into());
    let patches = |line: &String| line.starts_with("patch services/status");
    let (done, refused): (Vec<_>, Vec<_>) =
        writes(&api, after)?.into_iter().filter(patches).partition(|line| line.ends_with(" 200"));
    let services: BTreeSet<_> = done.iter().collect();
    assert_eq!((done.len(), services.len()), (usize::from(count), usize::from(count)));
    assert!(refused.len() <= unanswered(&allocator), "{refused:?}");
    Ok(())
}
