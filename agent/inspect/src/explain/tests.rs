//! Tests explanations of Services and VIPs.

use std::{collections::BTreeMap, time::Duration};

use imbl::OrdMap;
use serde_json::{Value, json};
use vipmux_common::abi::{Role, Why};

use super::*;
use crate::{
    leadership::{Code, VipLeadership},
    names::Claim,
    output::{Report as _, table::Color},
    vips::FenceState as Fence,
};
use vipmux_allocate::{allocate, previous::PreviousAssignments};
use vipmux_election::placement::{self, candidates_of};
use vipmux_model::{
    IngestOptions, Model,
    endpoints::SERVICE_LABEL,
    health::{self, CheckupResult, Findings, Health, HealthKey},
    objects::Objects,
    serving::desired_services,
};
use vipmux_testing::{
    names::{node_name, service_name},
    object,
};

const VIP: &str = "192.0.2.10";

fn service(name: &str, annotations: &Value, spec: &Value) -> (ServiceName, Value) {
    let name = service_name(name);
    let mut spec = spec.clone();
    spec["type"] = "LoadBalancer".into();
    (name, json!({"metadata": {"annotations": annotations}, "spec": spec}))
}

/// A pool of one address, a node, a Service `shop/web` with a key, and one endpoint.
fn objects() -> Objects {
    let mut objects = Objects::default();
    let pool = json!({"metadata": {"name": "lan"}, "spec": {"addresses": [VIP]}});
    objects.address_pools.insert("lan".to_owned(), object(pool));
    put(&mut objects, service("web", &json!({"vipmux.io/sharing-key": "edge"}), &json!({"ports": [{"port": 80}]})));
    node(&mut objects, "n1");
    endpoint(&mut objects, "web", &json!({"addresses": ["10.0.0.1"], "nodeName": "n1"}));
    objects
}

fn put(objects: &mut Objects, (name, value): (ServiceName, Value)) {
    objects.services.insert(name, object(value));
}

fn node(objects: &mut Objects, name: &str) {
    objects.nodes.insert(node_name(name), object(json!({})));
}

fn endpoint(objects: &mut Objects, service: &str, endpoint: &Value) {
    let slice = json!({
        "metadata": {"labels": {(SERVICE_LABEL): service}}, "addressType": "IPv4", "endpoints": [endpoint],
        "ports": [{"port": 8080}],
    });
    objects.endpoint_slices.insert(("shop".to_owned(), service.to_owned()), object(slice));
}

fn details(objects: &Objects, target: &ExplainTarget) -> Result<TargetDetails, UnknownTarget> {
    details_with(objects, target, &Findings::new())
}

/// The same a minute after boot, of an agent on `n1` that found this.
fn details_with(
    objects: &Objects,
    target: &ExplainTarget,
    findings: &Findings,
) -> Result<TargetDetails, UnknownTarget> {
    let model = Model::ingest(objects, &IngestOptions::default());
    let allocation = allocate(&model, &PreviousAssignments::new());
    let mut health = Health::default();
    health.hear(node_name("n1"), health::down(findings));
    let services = desired_services(&model, &allocation.claims(), &health, &OrdMap::new());
    let leaders: BTreeMap<_, _> = placement::leaders(&candidates_of(&model, allocation.vips().into_keys()));
    let (model, allocation, services, leaders) = (&model, &allocation, &services, &leaders);
    let now = Duration::from_mins(1);
    TargetDetails::of(PipelineResults { objects, model, allocation, services, leaders, findings, now }, target)
}

/// The same from the agent on `n1`.
fn of_agent(objects: &Objects, target: &str) -> TargetDetails {
    TargetDetails { node: Some(node_name("n1")), ..details(objects, &target.parse().unwrap()).unwrap() }
}

/// For 192 seconds.
fn led(leader: Option<&str>, role: Role, why: Option<(Why, Option<&str>)>) -> VipLeadership {
    VipLeadership {
        leader: leader.map(Into::into),
        role: Some(Code(Ok(role))),
        since_s: Some(192),
        why: why.map(|(why, _)| Code(Ok(why))),
        other: why.and_then(|(_, other)| other.map(Into::into)),
    }
}

/// This node does not answer.
fn silent(held: &mut KernelState, leadership: VipLeadership) {
    held.vips[0] = VipView { leading: false, answering: false, leadership, ..held.vips[0].clone() };
}

/// All of [`objects`], led and answered for.
fn held() -> KernelState {
    let claim = Claim {
        vip: Some(VIP.parse().unwrap()),
        port: 80,
        protocol: "TCP".into(),
        namespace: "shop".into(),
        name: "web".into(),
    };
    let backend = BackendView {
        index: 1,
        address: "10.0.0.1".parse().unwrap(),
        port: 8080,
        node: Some("n1".into()),
        local: true,
        ready: true,
        failing: false,
        generation: 1,
        used_by: vec![claim.clone()],
    };
    let service = ServiceView {
        claim,
        slot: 0,
        table_length: 251,
        ready: 1,
        local: 1,
        packets: 7,
        bytes: 700,
        flows: 2,
        kernel: false,
        direct: false,
        affinity_s: None,
        idle_s: None,
        source_ranges: None,
    };
    let vip = VipView {
        address: VIP.parse().unwrap(),
        id: 1,
        leading: true,
        yielded: false,
        answering: true,
        epoch: 1,
        leadership: led(Some("n1"), Role::Leading, Some((Why::First, None))),
        interfaces: vec!["eth0".into()],
        vlan: 0,
        segment: 0,
        services: 1,
    };
    let fence = FenceView { state: Fence::Open, deadline_ns: 1, left_ms: Some(900), lapsed_ms: None };
    KernelState {
        fence,
        vips: vec![vip],
        services: vec![service],
        backends: vec![backend],
        neighbors: vec![neighbor("n1")],
        attached: ["eth0".into()].into(),
    }
}

/// A node that is this node if it is `n1`, and that frames can be handed over to.
fn neighbor(name: &str) -> NeighborView {
    NeighborView {
        index: 0,
        node: name.to_owned(),
        mac: Some("02:00:00:00:00:0a".to_owned()),
        handover_mac: None,
        peer_macs: Vec::new(),
        interface: Some("eth0".to_owned()),
        vlan: Some(0),
        mtu: 1500,
        paths: Vec::new(),
        attached: true,
        silent: false,
        is_self: name == "n1",
    }
}

/// Adds a backend on `n2`, which does not answer.
fn add_silent_node(held: &mut KernelState) {
    let address = "10.0.0.2".parse().unwrap();
    let node = Some("n2".to_owned());
    held.backends.push(BackendView { index: 2, address, node, local: false, ..held.backends[0].clone() });
    held.services[0].ready += 1;
    held.neighbors.push(NeighborView { attached: false, silent: true, ..neighbor("n2") });
}

fn shown(
    target: &str,
    details: Result<TargetDetails, DetailsError>,
    kernel: &Result<KernelState, MapsError>,
) -> String {
    let explanation = Explanation::new(target.parse().unwrap(), details, kernel).unwrap();
    let mut out = Vec::new();
    explanation.print(&mut out, Color::Never).unwrap();
    String::from_utf8(out).unwrap()
}

/// The step that is broken first.
fn broken(details: TargetDetails, held: KernelState) -> Option<StepKind> {
    let target = "shop/web".parse().unwrap();
    Explanation::new(target, Ok(details), &Ok(held)).unwrap().broken.map(|step| step.step)
}

#[test]
fn every_step_is_shown_from_manifest_to_packet() {
    let mut objects = objects();
    put(&mut objects, service("dns", &json!({"vipmux.io/sharing-key": "edge"}), &json!({"ports": [{"port": 53}]})));
    insta::assert_snapshot!("service", shown("shop/web", Ok(of_agent(&objects, "shop/web")), &Ok(held())));
    insta::assert_snapshot!("vip", shown(VIP, Ok(of_agent(&objects, VIP)), &Ok(held())));
}

#[test]
fn the_first_broken_step_of_the_models_half_is_found() {
    let annotated = |annotations: Value| service("web", &annotations, &json!({"ports": [{"port": 80}]}));
    let mut cases: Vec<(&str, Option<StepKind>, Objects)> = vec![("nothing", None, objects())];
    let mut case = |name, step, change: &dyn Fn(&mut Objects)| {
        let mut objects = objects();
        change(&mut objects);
        cases.push((name, Some(step), objects));
    };
    case("another-class", StepKind::Ours, &|objects| {
        let spec = json!({"ports": [{"port": 80}], "loadBalancerClass": "example.org/lb"});
        put(objects, service("web", &json!({}), &spec));
    });
    case("malformed", StepKind::Request, &|objects| put(objects, annotated(json!({"vipmux.io/addresses": "x"}))));
    case("elsewhere", StepKind::Allocation, &|objects| {
        put(objects, annotated(json!({"vipmux.io/addresses": "198.51.100.1"})));
    });
    case("no-node", StepKind::Leader, &|objects| objects.nodes.clear());
    case("no-endpoint", StepKind::Endpoints, &|objects| objects.endpoint_slices.clear());
    case("not-ready", StepKind::Endpoints, &|objects| {
        let endpoint_of = json!({"addresses": ["10.0.0.1"], "nodeName": "n1", "conditions": {"ready": false}});
        endpoint(objects, "web", &endpoint_of);
    });
    case("unknown-node", StepKind::Endpoints, &|objects| {
        endpoint(objects, "web", &json!({"addresses": ["10.0.0.1"], "nodeName": "n9"}));
    });
    for (name, step, objects) in cases {
        let details = of_agent(&objects, "shop/web");
        assert_eq!(broken(details.clone(), held()), step, "{name}");
        if step.is_some() {
            insta::assert_snapshot!(format!("model-{name}"), shown("shop/web", Ok(details), &Ok(held())));
        }
    }
}

#[test]
fn the_first_broken_step_of_the_kernels_half_is_found() {
    type Change = fn(&mut KernelState);
    let objects = objects();
    let cases: [(&str, StepKind, Change); 13] = [
        ("no-vip", StepKind::Vip, |held| held.vips.clear()),
        ("no-service", StepKind::Service, |held| held.services.clear()),
        ("of-another", StepKind::Service, |held| held.services[0].claim.name = "other".into()),
        ("no-backend", StepKind::Service, |held| held.services[0].ready = 0),
        ("unreached", StepKind::Service, |held| {
            add_silent_node(held);
            held.backends.remove(0);
        }),
        ("nowhere", StepKind::Announced, |held| held.vips[0].interfaces.clear()),
        ("detached", StepKind::Announced, |held| held.attached.clear()),
        ("lapsed", StepKind::Announced, |held| {
            held.fence = FenceView { state: Fence::Lapsed, deadline_ns: 1, left_ms: None, lapsed_ms: Some(12_000) };
            held.vips[0].answering = false;
        }),
        ("yielded", StepKind::Announced, |held| {
            silent(held, led(Some("n1"), Role::Yielded, Some((Why::First, None))));
            held.vips[0].yielded = true;
        }),
        ("not-led", StepKind::Announced, |held| silent(held, VipLeadership::default())),
        ("vacant", StepKind::Led, |held| silent(held, led(None, Role::Following, None))),
        ("conflicted", StepKind::Announced, |held| silent(held, led(Some("n1"), Role::Conflicted, None))),
        ("suspended", StepKind::Announced, |held| silent(held, led(Some("n1"), Role::Suspended, None))),
    ];
    for (name, step, change) in cases {
        let (details, mut held) = (of_agent(&objects, "shop/web"), held());
        change(&mut held);
        assert_eq!(broken(details.clone(), held.clone()), Some(step), "{name}");
        insta::assert_snapshot!(format!("kernel-{name}"), shown("shop/web", Ok(details), &Ok(held)));
    }
}

#[test]
fn a_leader_in_whose_name_the_network_answers_is_found() {
    let (details, mut held) = (of_agent(&objects(), "shop/web"), held());
    silent(&mut held, led(Some("n2"), Role::Following, Some((Why::Answered, Some("n2")))));
    assert_eq!(broken(details.clone(), held.clone()), Some(StepKind::Led));
    let shown = shown("shop/web", Ok(details), &Ok(held));
    assert!(shown.contains("n2 is not heard, and something on the LAN answers for the address"), "{shown}");
    assert!(shown.contains("proxy ARP"), "{shown}");
}

#[test]
fn backends_on_a_node_that_does_not_answer_are_counted() {
    let (objects, mut held) = (objects(), held());
    add_silent_node(&mut held);
    assert_eq!(broken(of_agent(&objects, "shop/web"), held.clone()), None);
    let shown = shown("shop/web", Ok(of_agent(&objects, "shop/web")), &Ok(held));
    let finding = "80/TCP on 192.0.2.10: 1 of 2 backends get no packets from this node: n2 (does not answer)";
    assert!(shown.contains(&format!("service     note   {finding}\n")), "{shown}");
}

#[test]
fn backends_that_fail_their_probes_are_named_with_the_reason_if_it_is_known() {
    let mut objects = objects();
    node(&mut objects, "n2");
    let probed = json!({"service.beta.kubernetes.io/azure-load-balancer-health-probe-protocol": "tcp"});
    put(&mut objects, service("web", &probed, &json!({"ports": [{"port": 80}]})));
    let slice = json!({
        "metadata": {"labels": {(SERVICE_LABEL): "web"}}, "addressType": "IPv4", "ports": [{"port": 8080}],
        "endpoints": [{"addresses": ["10.0.0.1"], "nodeName": "n1"}, {"addresses": ["10.0.0.2"], "nodeName": "n2"}],
    });
    objects.endpoint_slices.insert(("shop".to_owned(), "web".to_owned()), object(slice));
    let name = service_name("web");
    let model = Model::ingest(&objects, &IngestOptions::default());
    let check = model.services[&name].probes.values().next().unwrap().id();
    let found = |address: &str, up: bool, since| {
        let key = HealthKey { address: address.parse().unwrap(), port: 8080, check };
        let error = (!up).then(|| "no connection: Connection refused (os error 111)".to_owned());
        (key, CheckupResult { up, since: Duration::from_secs(since), error })
    };
    let findings = |of: &[(HealthKey, CheckupResult)]| {
        let target = "shop/web".parse().unwrap();
        let details = details_with(&objects, &target, &of.iter().cloned().collect()).unwrap();
        let explanation = Explanation::new(target, Ok(details), &Ok(held())).unwrap();
        let of_endpoints = explanation.steps.into_iter().filter(|step| step.step == StepKind::Endpoints);
        of_endpoints.map(|step| (step.state, step.finding)).collect::<Vec<_>>()
    };
    let holds = |finding: &str| (StepState::Holds, finding.to_owned());
    let both = holds("endpoints of 80/TCP on 192.0.2.10: 2 ready, 0 draining, on n1, n2");
    assert_eq!(findings(&[found("10.0.0.1", true, 0)]), [both]);
    let why = "10.0.0.1:8080 on n1 for 48 s (no connection: Connection refused (os error 111))";
    let expected = [
        holds("endpoints of 80/TCP on 192.0.2.10: 1 ready, 0 draining, on n2"),
        (StepState::Note, format!("endpoints of 80/TCP on 192.0.2.10: 1 fail their health probes: {why}")),
    ];
    assert_eq!(findings(&[found("10.0.0.1", false, 12)]), expected);
}

#[test]
fn probes_are_ignored_if_all_backends_fail() {
    let mut details = of_agent(&objects(), "shop/web");
    for endpoint in &mut details.services[0].ports[0].endpoints {
        endpoint.failing = true;
    }
    let text = shown("shop/web", Ok(details), &Ok(held()));
    let expected = "endpoints of 80/TCP on 192.0.2.10: 1 fail their health probes, so that probes are ignored: 10.0.0.1:8080 on n1";
    assert!(text.contains(expected) && text.ends_with("nothing is broken\n"), "{text}");
}

#[test]
fn a_refusal_of_the_agent_is_a_broken_step_only_of_its_own_vip() {
    let refused = |text: &str| {
        let details = TargetDetails { refused: vec![text.to_owned()], ..of_agent(&objects(), "shop/web") };
        broken(details, held())
    };
    assert_eq!(refused("VIP 192.0.2.10 is refused: it is an address of this node's eth0"), Some(StepKind::Agent));
    assert_eq!(refused("port 80/TCP on 192.0.2.10: none of its endpoints is on a node"), Some(StepKind::Agent));
    assert_eq!(refused("VIP 192.0.2.101 is refused: it is an address of this node's eth0"), None);
}

#[test]
fn an_agent_that_leads_nothing_is_a_broken_step_with_its_remedy() {
    let silence = Some("this node leads nothing: its gossip key is not that of n2, which may lead".to_owned());
    let details = TargetDetails { silence, ..of_agent(&objects(), "shop/web") };
    let text = shown("shop/web", Ok(details.clone()), &Ok(held()));
    assert!(text.contains("its gossip key is not that of n2") && text.contains("--gossip-key"), "{text}");
    assert_eq!(broken(details, held()), Some(StepKind::Agent));
}

#[test]
fn a_vip_of_another_node_is_no_broken_step() {
    let mut objects = objects();
    objects.nodes.clear();
    node(&mut objects, "n2");
    endpoint(&mut objects, "web", &json!({"addresses": ["10.0.0.1"], "nodeName": "n2"}));
    let mut held = held();
    silent(&mut held, led(Some("n2"), Role::Following, Some((Why::Down, Some("n1")))));
    insta::assert_snapshot!("elsewhere", shown("shop/web", Ok(of_agent(&objects, "shop/web")), &Ok(held.clone())));
    silent(&mut held, VipLeadership::default());
    let text = shown("shop/web", Ok(of_agent(&objects, "shop/web")), &Ok(held));
    assert!(text.contains("n2, not this node, should answer for 192.0.2.10"), "by the model alone: {text}");
    assert!(text.contains("nothing is known to be broken; to check the rest, start the agent"), "{text}");
}

#[test]
fn the_leader_has_to_answer_and_a_change_in_progress_breaks_nothing() {
    let (details, mut held) = (of_agent(&objects(), "shop/web"), held());
    let steps = |held: &KernelState| {
        let explained = Explanation::new("shop/web".parse().unwrap(), Ok(details.clone()), &Ok(held.clone())).unwrap();
        let steps = explained.steps.into_iter().filter(|step| matches!(step.step, StepKind::Led | StepKind::Announced));
        steps.map(|step| (step.state, step.finding)).collect::<Vec<_>>()
    };
    for (leader, role, finding) in [
        ("n2", Role::Following, "n2, not this node, should answer for 192.0.2.10: check there, too"),
        ("n1", Role::Detecting, "this node checks whether another machine has 192.0.2.10 before it uses it"),
        ("n1", Role::Handing, "this node transfers the leadership of 192.0.2.10"),
    ] {
        silent(&mut held, led(Some(leader), role, Some((Why::Unwritten, None))));
        let steps = steps(&held);
        let other = "; it keeps the address while it can, although n1 is preferred";
        let other = if leader == "n1" { "" } else { other };
        let led = format!("{leader} has led 192.0.2.10 for 3m12s, epoch 1: no Lease could be read{other}");
        assert_eq!(steps, [(StepState::Holds, led), (StepState::Note, finding.to_owned())]);
    }
    held.fence = FenceView { state: Fence::Lapsed, deadline_ns: 1, left_ms: None, lapsed_ms: Some(9_000) };
    silent(&mut held, led(None, Role::Following, None));
    let (state, finding) = steps(&held).swap_remove(0);
    assert_eq!(state, StepState::Note, "it may have changed since");
    assert_eq!(finding, "nobody has led 192.0.2.10 for 3m12s (known when the fence lapsed)");
}

#[test]
fn without_an_agent_one_half_is_shown_alone() {
    insta::assert_snapshot!(
        "kernel-alone",
        shown("shop/web", Err(DetailsError::new("no agent listens on /run/x")), &Ok(held()))
    );
    let details = details(&objects(), &"shop/web".parse().unwrap()).unwrap();
    let absent = Err(MapsError::NotLoaded { path: "/p".into() });
    insta::assert_snapshot!("manifests-alone", shown("shop/web", Ok(details.clone()), &absent));
    let of_agent = TargetDetails { node: Some(node_name("n1")), ..details };
    let explanation = Explanation::new("shop/web".parse().unwrap(), Ok(of_agent), &absent).unwrap();
    assert_eq!(explanation.broken.map(|step| step.step), Some(StepKind::Vip), "an agent without maps");
}

#[test]
fn an_unknown_name_is_reported_with_similar_ones() {
    let unknown = |target: &str| details(&objects(), &target.parse().unwrap()).unwrap_err().to_string();
    assert_eq!(unknown("shop/wbe"), "there is no Service shop/wbe; did you mean shop/web?");
    assert_eq!(unknown("default/web"), "there is no Service default/web; did you mean shop/web?");
    assert_eq!(unknown("192.0.2.11"), "192.0.2.11 is not a VIP: no Service has it; did you mean 192.0.2.10?");
    assert_eq!(unknown("blog/something-else"), "there is no Service blog/something-else");
    let held =
        Explanation::new("shop/wbe".parse().unwrap(), Err(DetailsError::new("no agent")), &Ok(held())).unwrap_err();
    assert_eq!(held.to_string(), "there is no Service shop/wbe; did you mean shop/web?");
}

#[test]
fn a_target_is_a_service_or_an_address() {
    for text in ["shop/web", "192.0.2.10", "2001:db8::10"] {
        assert_eq!(text.parse::<ExplainTarget>().unwrap().to_string(), text);
    }
    for text in ["", "web", "/", "shop/", "shop/web/80", "192.0.2.10:80", "Shop/web", "192.0.2.10/32"] {
        assert!(text.parse::<ExplainTarget>().is_err(), "{text}");
    }
}

#[test]
fn details_survive_json() {
    let details = of_agent(&objects(), "shop/web");
    let text = serde_json::to_string(&details).unwrap();
    assert_eq!(serde_json::from_str::<TargetDetails>(&text).unwrap(), details);
}
