use std::collections::BTreeMap;

use imbl::OrdMap;
use serde_json::{Value, json};

use super::*;
use crate::{
    allocate::{allocate, holders::Holders},
    cli::table::Colour,
    control::Answer,
    election::rendezvous,
    inspect::{Report as _, names::Claim, vips::Standing as Fence},
    model::{Model, Options, endpoints::SERVICE_LABEL, endpoints::desired_services, ingest::object},
    source::Objects,
};

const VIP: &str = "192.0.2.10";

fn service(name: &str, annotations: &Value, spec: &Value) -> (ServiceName, Value) {
    let name = ServiceName { namespace: "shop".into(), name: name.into() };
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
    objects.nodes.insert(NodeName(name.to_owned()), object(json!({})));
}

fn endpoint(objects: &mut Objects, service: &str, endpoint: &Value) {
    let slice = json!({
        "metadata": {"labels": {(SERVICE_LABEL): service}}, "addressType": "IPv4", "endpoints": [endpoint],
        "ports": [{"port": 8080}],
    });
    objects.endpoint_slices.insert(("shop".to_owned(), service.to_owned()), object(slice));
}

fn account(objects: &Objects, target: &Target) -> Result<Account, Unknown> {
    let model = Model::ingest(objects, &Options::default());
    let allocation = allocate(&model, &Holders::new());
    let services = desired_services(&model, &allocation.claims(), &OrdMap::new());
    let leaders: BTreeMap<_, _> = rendezvous::leaders(&model, allocation.vips().into_keys());
    let (model, allocation, services, leaders) = (&model, &allocation, &services, &leaders);
    Account::of(Decided { objects, model, allocation, services, leaders }, target)
}

/// The same as the agent on `n1` tells it.
fn told(objects: &Objects, target: &str) -> Account {
    Account { node: Some(NodeName("n1".into())), ..account(objects, &target.parse().unwrap()).unwrap() }
}

/// All of [`objects`], led and answered for.
fn held() -> Held {
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
        interfaces: vec!["eth0".into()],
        vlan: 0,
        services: 1,
    };
    let fence = FenceView { standing: Fence::Open, deadline_ns: 1, left_ms: Some(900), lapsed_ms: None };
    Held { fence, vips: vec![vip], services: vec![service], backends: vec![backend], attached: ["eth0".into()].into() }
}

fn kernel(held: Held) -> Kernel {
    Kernel::Held(Box::new(held))
}

fn shown(target: &str, account: Result<Account, String>, kernel: &Kernel) -> String {
    let explanation = Explanation::new(target.parse().unwrap(), account, kernel).unwrap();
    let mut out = Vec::new();
    explanation.print(&mut out, Colour::Never).unwrap();
    String::from_utf8(out).unwrap()
}

/// The step that is broken first.
fn broken(account: Account, held: Held) -> Option<Step> {
    let target = "shop/web".parse().unwrap();
    Explanation::new(target, Ok(account), &kernel(held)).unwrap().broken.map(|link| link.step)
}

#[test]
fn a_chain_that_holds_is_told_from_manifest_to_packet() {
    let mut objects = objects();
    put(&mut objects, service("dns", &json!({"vipmux.io/sharing-key": "edge"}), &json!({"ports": [{"port": 53}]})));
    insta::assert_snapshot!("service", shown("shop/web", Ok(told(&objects, "shop/web")), &kernel(held())));
    insta::assert_snapshot!("vip", shown(VIP, Ok(told(&objects, VIP)), &kernel(held())));
}

#[test]
fn the_first_broken_link_of_the_models_half_is_found() {
    let annotated = |annotations: Value| service("web", &annotations, &json!({"ports": [{"port": 80}]}));
    let mut cases: Vec<(&str, Option<Step>, Objects)> = vec![("nothing", None, objects())];
    let mut case = |name, step, change: &dyn Fn(&mut Objects)| {
        let mut objects = objects();
        change(&mut objects);
        cases.push((name, Some(step), objects));
    };
    case("another-class", Step::Ours, &|objects| {
        let spec = json!({"ports": [{"port": 80}], "loadBalancerClass": "example.org/lb"});
        put(objects, service("web", &json!({}), &spec));
    });
    case("malformed", Step::Request, &|objects| put(objects, annotated(json!({"vipmux.io/addresses": "x"}))));
    case("elsewhere", Step::Allocation, &|objects| {
        put(objects, annotated(json!({"vipmux.io/addresses": "198.51.100.1"})));
    });
    case("no-node", Step::Leader, &|objects| objects.nodes.clear());
    case("no-endpoint", Step::Endpoints, &|objects| objects.endpoint_slices.clear());
    case("not-ready", Step::Endpoints, &|objects| {
        let endpoint_of = json!({"addresses": ["10.0.0.1"], "nodeName": "n1", "conditions": {"ready": false}});
        endpoint(objects, "web", &endpoint_of);
    });
    case("unknown-node", Step::Endpoints, &|objects| {
        endpoint(objects, "web", &json!({"addresses": ["10.0.0.1"], "nodeName": "n9"}));
    });
    for (name, step, objects) in cases {
        let account = told(&objects, "shop/web");
        assert_eq!(broken(account.clone(), held()), step, "{name}");
        if step.is_some() {
            insta::assert_snapshot!(format!("model-{name}"), shown("shop/web", Ok(account), &kernel(held())));
        }
    }
}

#[test]
fn the_first_broken_link_of_the_kernels_half_is_found() {
    type Change = fn(&mut Held);
    let objects = objects();
    let cases: [(&str, Step, Change); 9] = [
        ("no-vip", Step::Vip, |held| held.vips.clear()),
        ("no-service", Step::Service, |held| held.services.clear()),
        ("of-another", Step::Service, |held| held.services[0].claim.name = "other".into()),
        ("no-backend", Step::Service, |held| held.services[0].ready = 0),
        ("nowhere", Step::Announced, |held| held.vips[0].interfaces.clear()),
        ("detached", Step::Announced, |held| held.attached.clear()),
        ("lapsed", Step::Announced, |held| {
            held.fence = FenceView { standing: Fence::Lapsed, deadline_ns: 1, left_ms: None, lapsed_ms: Some(12_000) };
            held.vips[0].answering = false;
        }),
        ("yielded", Step::Announced, |held| {
            held.vips[0] = VipView { leading: false, answering: false, yielded: true, ..held.vips[0].clone() };
        }),
        ("not-led", Step::Announced, |held| {
            held.vips[0] = VipView { leading: false, answering: false, ..held.vips[0].clone() };
        }),
    ];
    for (name, step, change) in cases {
        let (account, mut held) = (told(&objects, "shop/web"), held());
        change(&mut held);
        assert_eq!(broken(account.clone(), held.clone()), Some(step), "{name}");
        insta::assert_snapshot!(format!("kernel-{name}"), shown("shop/web", Ok(account), &kernel(held)));
    }
}

#[test]
fn what_the_agent_cannot_have_is_a_broken_link_of_those_it_is_about() {
    let refused = |text: &str| {
        let account = Account { refused: vec![text.to_owned()], ..told(&objects(), "shop/web") };
        broken(account, held())
    };
    assert_eq!(refused("VIP 192.0.2.10 is refused: it is an address of this node's eth0"), Some(Step::Agent));
    assert_eq!(refused("port 80/TCP on 192.0.2.10: none of its endpoints is on a node"), Some(Step::Agent));
    assert_eq!(refused("VIP 192.0.2.101 is refused: it is an address of this node's eth0"), None);
}

#[test]
fn another_nodes_vip_is_no_broken_link() {
    let mut objects = objects();
    objects.nodes.clear();
    node(&mut objects, "n2");
    endpoint(&mut objects, "web", &json!({"addresses": ["10.0.0.1"], "nodeName": "n2"}));
    let mut held = held();
    held.vips[0] = VipView { leading: false, answering: false, ..held.vips[0].clone() };
    let text = shown("shop/web", Ok(told(&objects, "shop/web")), &kernel(held));
    assert!(
        text.contains("n2, not this node, is to answer for 192.0.2.10") && text.ends_with("nothing is broken\n"),
        "{text}"
    );
}

#[test]
fn without_an_agent_the_kernels_half_or_the_models_half_is_told_alone() {
    insta::assert_snapshot!(
        "kernel-alone",
        shown("shop/web", Err("no agent listens on /run/x".into()), &kernel(held()))
    );
    let account = account(&objects(), &"shop/web".parse().unwrap()).unwrap();
    let absent = Kernel::Absent("vipmux is not loaded on this node (no maps under /p)".into());
    insta::assert_snapshot!("manifests-alone", shown("shop/web", Ok(account.clone()), &absent));
    let told = Account { node: Some(NodeName("n1".into())), ..account };
    let explanation = Explanation::new("shop/web".parse().unwrap(), Ok(told), &absent).unwrap();
    assert_eq!(explanation.broken.map(|link| link.step), Some(Step::Vip), "an agent without maps");
}

#[test]
fn an_unknown_name_is_told_with_those_near_it() {
    let unknown = |target: &str| account(&objects(), &target.parse().unwrap()).unwrap_err().to_string();
    assert_eq!(unknown("shop/wbe"), "there is no Service shop/wbe; near it: shop/web");
    assert_eq!(unknown("default/web"), "there is no Service default/web; near it: shop/web");
    assert_eq!(unknown("192.0.2.11"), "192.0.2.11 is no VIP: no Service has it; near it: 192.0.2.10");
    assert_eq!(unknown("blog/something-else"), "there is no Service blog/something-else");
    let held = Explanation::new("shop/wbe".parse().unwrap(), Err("no agent".into()), &kernel(held())).unwrap_err();
    assert_eq!(held.to_string(), "there is no Service shop/wbe; near it: shop/web");
}

#[test]
fn a_target_is_a_service_or_an_address() {
    for text in ["shop/web", "192.0.2.10", "2001:db8::10"] {
        assert_eq!(text.parse::<Target>().unwrap().to_string(), text);
    }
    for text in ["", "web", "/", "shop/", "shop/web/80", "192.0.2.10:80", "Shop/web", "192.0.2.10/32"] {
        assert!(text.parse::<Target>().is_err(), "{text}");
    }
}

#[test]
fn an_account_survives_the_way_to_whoever_asks() {
    let account = told(&objects(), "shop/web");
    let text = serde_json::to_string(&Answer::Account(Box::new(account.clone()))).unwrap();
    assert_eq!(serde_json::from_str::<Answer>(&text).unwrap(), Answer::Account(Box::new(account)));
}
