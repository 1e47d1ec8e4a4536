//! Tests the desired statuses and the Events of changes.

use std::sync::Arc;

use k8s_openapi::{api::core::v1::Service, jiff::Timestamp};
use serde_json::json;

use super::{service::condition, *};
use crate::{Allocator, previous::with_statuses};
use vipmux_model::{
    IngestOptions,
    api::{ALLOCATED, ANNOUNCED, FOREIGN_STATUS, Leading, REQUEST, Usage},
    reason::Reason,
};
use vipmux_testing::{
    api_server::{Applied, Server},
    names::{node_name, service_name, vip},
};

const KEY: (&str, &str) = ("vipmux.io/sharing-key", "web");

/// The input of the statuses, computed from scratch.
struct Whole {
    objects: Objects,
    model: Model,
    allocation: Allocation,
    leaders: Leaders,
}

impl Whole {
    fn of(server: &Server) -> Self {
        let model = Model::ingest(&server.objects, &IngestOptions::default());
        let allocation = Allocator::new(&model, &with_statuses([].into(), &model)).into_allocation();
        Self { objects: server.objects.clone(), model, allocation, leaders: server.leaders.clone() }
    }

    fn inputs(&self) -> StatusInputs<'_> {
        StatusInputs {
            objects: &self.objects,
            model: &self.model,
            allocation: &self.allocation,
            leaders: &self.leaders,
        }
    }

    fn desired(&self, service: &str) -> DesiredStatus {
        DesiredStatus::of(&service_name(service), self.inputs(), None).unwrap()
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn object(server: &Server, service: &str) -> Arc<Service> {
    Arc::clone(server.objects.services.get(&service_name(service)).unwrap())
}

/// Writes the desired status at that second.
fn write(server: &mut Server, service: &str, second: i64) -> Arc<Service> {
    let desired = Whole::of(server).desired(service);
    let body = body(&service_name(service), &object(server, service), &desired, at(second));
    match server.apply(&service_name(service), &body) {
        Applied::Made(made) => made,
        other => panic!("{other:?}"),
    }
}

/// Returns one line for each condition of a desired status.
fn lines(desired: &DesiredStatus) -> Vec<String> {
    let line = |condition: &DesiredCondition| {
        format!("{} {}: {}", condition.status.text(), condition.reason, condition.message)
    };
    let ingress = desired
        .ingress
        .as_ref()
        .map_or("left alone".to_owned(), |all| all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "));
    vec![ingress, line(&desired.allocated), line(&desired.announced)]
}

#[test]
fn each_outcome_is_reported() {
    let mut server = Server::new(&["192.0.2.10-192.0.2.11"]);
    server.put("alone", 80, &[("vipmux.io/addresses", "192.0.2.10")]);
    server.put("web-a", 80, &[KEY, ("vipmux.io/addresses", "192.0.2.11")]);
    server.put("web-b", 443, &[KEY]);
    server.put("full", 80, &[]);
    server.put("x", 80, &[KEY, ("vipmux.io/addresses", "192.0.2.11")]);
    server.put("y", 80, &[("vipmux.io/addresses", "192.0.2.1O")]);
    server.lead("192.0.2.11", "n1");
    let whole = Whole::of(&server);
    let shared = "True Shared: 192.0.2.11 from pool lan, shared (see vipmux explain shop/web-b)";
    let conflict = "False PortConflict: port 80/TCP on 192.0.2.11 is held by shop/web-a; give one of the two another \
                    port, or request another address or none for this one";
    for (service, warning, expected) in [
        (
            "alone",
            false,
            ["192.0.2.10", "True Allocated: 192.0.2.10 from pool lan", "False NoLeader: 192.0.2.10 by nobody yet"],
        ),
        ("web-b", false, ["192.0.2.11", shared, "True Led: 192.0.2.11 by n1"]),
        ("x", true, ["", conflict, "False NotAllocated: it has no address"]),
    ] {
        let desired = whole.desired(service);
        assert_eq!(lines(&desired), expected);
        assert_eq!(desired.warning, warning, "{service}");
    }
    for (service, reason, text) in
        [("full", "PoolExhausted", "pool lan is full"), ("y", "InvalidAnnotation", "192.0.2.1O")]
    {
        let condition = whole.desired(service).allocated;
        assert!(
            condition.status == ConditionStatus::False
                && condition.reason == reason
                && condition.message.contains(text),
            "{condition:?}"
        );
    }
    assert_eq!(DesiredStatus::of(&service_name("absent"), whole.inputs(), None), None);
}

#[test]
fn a_new_sharer_changes_no_other_status() {
    let mut server = Server::new(&["192.0.2.10-192.0.2.11"]);
    server.put("a", 80, &[KEY]);
    server.put("b", 81, &[KEY]);
    let before = Whole::of(&server).desired("a");
    for port in 82..90 {
        server.put(&format!("c{port}"), port, &[KEY]);
    }
    assert_eq!(Whole::of(&server).desired("a"), before);
}

#[test]
fn announcers_are_reported_per_address_and_the_worst_decides_the_condition() {
    let mut server = Server::new(&["192.0.2.10", "2001:db8::10"]);
    server.put("a", 80, &[]);
    server.write("a", |object| {
        object["spec"]["ipFamilyPolicy"] = json!("RequireDualStack");
        object["spec"]["ipFamilies"] = json!(["IPv4", "IPv6"]);
    });
    let announced = |server: &Server| {
        let condition = Whole::of(server).desired("a").announced;
        format!("{} {}: {}", condition.status.text(), condition.reason, condition.message)
    };
    server.lead("192.0.2.10", "n1");
    assert_eq!(announced(&server), "False NoLeader: 192.0.2.10 by n1, 2001:db8::10 by nobody yet");
    server.lead("2001:db8::10", "n2");
    assert_eq!(announced(&server), "True Led: 192.0.2.10 by n1, 2001:db8::10 by n2");
    let mut node = (*server.objects.nodes[&node_name("n2")]).clone();
    for (ready, expected) in
        [("True", "True Led"), ("False", "Unknown LeaderNotReady"), ("Unknown", "Unknown LeaderNotReady")]
    {
        let condition = serde_json::from_value(json!({"type": "Ready", "status": ready})).unwrap();
        node.status.as_mut().unwrap().conditions = Some(vec![condition]);
        server.objects.nodes.insert(node_name("n2"), Arc::new(node.clone()));
        assert!(announced(&server).starts_with(expected), "{ready}: {}", announced(&server));
    }
    server.objects.nodes.remove(&node_name("n2"));
    assert!(announced(&server).starts_with("Unknown LeaderNotReady"), "{}", announced(&server));
    server.leaders = Leaders::new();
    server.policy("none", &json!({"pools": ["lan"], "nodeSelectors": [{"matchLabels": {"rack": "x"}}]}));
    let network = json!({"type": "NetworkUnavailable", "status": "True"});
    node.status.as_mut().unwrap().conditions = Some(vec![serde_json::from_value(network).unwrap()]);
    assert!(
        announced(&server).starts_with("False NotCovered: 192.0.2.10 by nobody: VipPolicy none"),
        "{}",
        announced(&server)
    );
}

#[test]
fn nothing_is_to_be_written_that_was_written() {
    let mut server = Server::new(&["192.0.2.10", "2001:db8::10"]);
    server.put("a", 80, &[]);
    let desired = Whole::of(&server).desired("a");
    assert_eq!(desired.differs(&object(&server, "a")), Some(StatusDifference::Outcome));
    let made = write(&mut server, "a", 7);
    assert_eq!(desired.differs(&made), None);
    assert_eq!(serde_json::to_value(ingress(&made)).unwrap(), json!([{"ip": "192.0.2.10", "ipMode": "VIP"}]));
    server.lead("192.0.2.10", "n1");
    let desired = Whole::of(&server).desired("a");
    assert_eq!(desired.differs(&made), Some(StatusDifference::Announcement));
    let led = write(&mut server, "a", 8);
    assert_eq!(desired.differs(&led), None);
    // The next allocator has to know what the Service asked for.
    server.write("a", |object| object["spec"]["ports"] = json!([{"port": 81}]));
    let edited = object(&server, "a");
    assert_eq!(Whole::of(&server).desired("a").differs(&edited), Some(StatusDifference::Outcome));
}

#[test]
fn the_time_of_a_transition_moves_with_the_status_alone() {
    let mut server = Server::new(&["192.0.2.10"]);
    server.put("a", 80, &[]);
    let times = |service: &Service| {
        [ALLOCATED, ANNOUNCED].map(|kind| condition(service, kind).unwrap().last_transition_time.0.as_second())
    };
    let request = |service: &Service| condition(service, REQUEST).unwrap().message.clone();
    assert_eq!(times(&write(&mut server, "a", 100)), [100, 100]);
    server.lead("192.0.2.10", "n1");
    assert_eq!(times(&write(&mut server, "a", 200)), [100, 200]);
    server.lead("192.0.2.10", "n2");
    let moved = write(&mut server, "a", 300);
    assert_eq!(times(&moved), [100, 200], "another node, and still announced");
    server.write("a", |object| object["spec"]["ports"] = json!([{"port": 81}]));
    let edited = write(&mut server, "a", 400);
    assert_eq!(times(&edited), [100, 200]);
    assert_eq!([request(&moved), request(&edited)], ["1 ports=80/TCP", "1 ports=81/TCP"]);
}

#[test]
fn addresses_that_others_wrote_and_that_are_right_are_written_as_they_stand() {
    let mut server = Server::new(&["192.0.2.10", "2001:db8::10"]);
    server.put("a", 80, &[]);
    server.intrude("a", "metallb", &["192.0.2.10"]);
    let before = Whole::of(&server).desired("a");
    assert!(before.has_ingress(&object(&server, "a")));
    let made = write(&mut server, "a", 1);
    assert_eq!((before.differs(&made), server.intruder(&service_name("a"))), (None, None), "both own them");
    let entry = |json| vec![serde_json::from_value(json).unwrap()];
    let one = [vip("2001:db8::10")].into();
    for (json, same) in [
        (json!({"ip": "2001:DB8:0::10", "ipMode": "VIP"}), true),
        (json!({"ip": "2001:db8::10", "ipMode": "VIP", "ports": []}), true),
        (json!({"ip": "2001:db8::10", "ipMode": "Proxy"}), false),
        (json!({"ip": "2001:db8::10"}), false),
        (json!({"ip": "2001:db8::11", "ipMode": "VIP"}), false),
        (json!({"ip": "2001:db8::10", "ipMode": "VIP", "hostname": "a"}), false),
        (json!({"ip": "2001:db8::10", "ipMode": "VIP", "ports": [{"port": 80, "protocol": "TCP"}]}), false),
    ] {
        assert_eq!(shows(&entry(json.clone()), &one), same, "{json}");
    }
}

#[test]
fn another_controller_is_named_and_left_alone() {
    let mut server = Server::new(&["192.0.2.10-192.0.2.11"]);
    server.put("a", 80, &[]);
    server.intrude("a", "metallb-controller", &["198.51.100.1"]);
    server.lead("198.51.100.1", "n2");
    let service = object(&server, "a");
    let foreign = ForeignStatus::of(&service, "metallb-controller");
    let whole = Whole::of(&server);
    let desired = DesiredStatus::of(&service_name("a"), whole.inputs(), Some(&foreign)).unwrap();
    assert_eq!(
        lines(&desired),
        [
            "left alone",
            "False ForeignStatus: metallb-controller wrote 198.51.100.1 into status.loadBalancer.ingress, and vipmux \
             does not change it: configure metallb-controller to ignore this Service, or let vipmux take over the \
             status (vipmux allocator --adopt)",
            "True Led: 198.51.100.1 by n2",
        ]
    );
    let body = body(&service_name("a"), &service, &desired, at(1));
    assert!(body["status"].get("loadBalancer").is_none() && desired.warning);
    let Applied::Made(made) = server.apply(&service_name("a"), &body) else { panic!() };
    assert_eq!((desired.differs(&made), server.shown("a")), (None, [vip("198.51.100.1")].into()));
}

#[test]
fn the_page_tells_of_each_reason() {
    const PAGE: &str = include_str!("../../../../docs/status.md");
    let listed = |reason: &str| PAGE.contains(&format!("\n| `{reason}` | "));
    for reason in [Reason::Allocated, Reason::Shared].into_iter().chain(Reason::REFUSALS) {
        // Such a Service has no condition: it is not vipmux's, or there is no allocator.
        let untold = matches!(reason, Reason::OtherClass | Reason::NotLoadBalancer | Reason::Unallocated);
        assert_ne!(listed(&reason.to_string()), untold, "{reason}");
    }
    for reason in [FOREIGN_STATUS, "Led", "NoLeader", "NotCovered", "LeaderNotReady", "NotAllocated", "NotServed"] {
        assert!(listed(reason), "{reason}");
    }
}

#[test]
fn messages_that_are_too_long_are_cut() {
    let condition = DesiredCondition::new(ConditionStatus::False, "X", "ä".repeat(5_000));
    assert!(condition.message.len() <= 4_096 && condition.message.ends_with("ä ..."));
    assert!(EventContent::new(EventType::Normal, "X", "ä".repeat(5_000)).note.len() <= 1_024);
}

#[test]
fn a_service_that_cannot_be_read_keeps_its_address_in_its_status() {
    let mut server = Server::new(&["192.0.2.10"]);
    server.put("a", 80, &[]);
    write(&mut server, "a", 1);
    server.write("a", |object| object["metadata"]["annotations"] = json!({"vipmux.io/direct-server-return": "maybe"}));
    let desired = Whole::of(&server).desired("a");
    assert_eq!(desired.ingress, Some([vip("192.0.2.10")].into()));
    assert_eq!(desired.allocated.status, ConditionStatus::True);
    assert!(desired.allocated.message.ends_with("; 192.0.2.10 is kept for it, and nothing is served there"));
    assert_eq!((desired.announced.status, desired.announced.reason.as_str()), (ConditionStatus::False, "NotServed"));
}

#[test]
fn an_event_reports_only_changes_and_each_once() {
    let mut server = Server::new(&["192.0.2.10"]);
    let news = |server: &Server, service: &str| {
        let desired = Whole::of(server).desired(service);
        EventContent::of(&object(server, service), &desired).map(|news| (news.event_type, news.reason))
    };
    let some = |event_type, reason: &str| Some((event_type, reason.to_owned()));
    server.put("a", 80, &[KEY]);
    assert_eq!(news(&server, "a"), some(EventType::Normal, "Allocated"));
    write(&mut server, "a", 1);
    assert_eq!(news(&server, "a"), None);
    server.lead("192.0.2.10", "n1");
    assert_eq!(news(&server, "a"), None, "the condition shows who leads");
    server.put("b", 443, &[KEY]);
    assert_eq!(news(&server, "a"), some(EventType::Normal, "Shared"));
    server.put("c", 443, &[KEY]);
    assert_eq!(news(&server, "c"), some(EventType::Warning, "PoolExhausted"));
    for service in ["a", "b", "c"] {
        write(&mut server, service, 2);
        assert_eq!(news(&server, service), None);
    }
    // Its owner tries another port, which is refused.
    server.put("c", 80, &[KEY]);
    assert_eq!(news(&server, "c"), some(EventType::Warning, "PoolExhausted"));
    // A new note for its owner.
    server.put("a", 80, &[KEY, ("vipmux.io/sharing-kez", "x")]);
    assert_eq!(news(&server, "a").map(|(weight, _)| weight), Some(EventType::Normal));
    write(&mut server, "a", 3);
    assert_eq!(news(&server, "a"), None);
}

/// As after an installation, when the Services have addresses of an earlier one.
#[test]
fn an_address_without_a_pool_is_worth_a_warning_only_if_there_are_pools() {
    let mut server = Server::new(&["192.0.2.10"]);
    server.put("a", 80, &[KEY]);
    write(&mut server, "a", 1);
    server.objects.vip_pools.clear();
    let news = |server: &Server| {
        let desired = Whole::of(server).desired("a");
        EventContent::of(&object(server, "a"), &desired).map(|news| (news.event_type, news.note))
    };
    let (event_type, note) = news(&server).unwrap();
    assert!(event_type == EventType::Normal && note.contains("is in no pool, since there is none"), "{note}");
    server.pool("spare", &["198.51.100.1"]);
    let (event_type, note) = news(&server).unwrap();
    assert!(event_type == EventType::Warning && note.contains("is in no pool any more"), "{note}");
}

#[test]
fn pools_and_policies_tell_what_is_used_and_led() {
    let mut server = Server::new(&["192.0.2.10-192.0.2.19", "2001:db8::/64"]);
    server.pool("spare", &["198.51.100.1"]);
    server.policy("all", &json!({}));
    server.policy("some", &json!({"pools": ["spare"]}));
    server.put("a", 80, &[("vipmux.io/addresses", "192.0.2.10")]);
    server.put("b", 80, &[("vipmux.io/addresses", "192.0.2.12")]);
    server.put("c", 80, &[("vipmux.io/addresses", "192.0.2.11")]);
    server.lead("192.0.2.12", "n1");
    server.lead("192.0.2.10", "n1");
    let whole = Whole::of(&server);
    let pools = pools(whole.inputs());
    let usage = |capacity, used| Some(Usage { capacity, used });
    let leading = |node: &str, addresses: &[&str]| Leading {
        node: node.to_owned(),
        addresses: addresses.iter().map(|&text| text.to_owned()).collect(),
    };
    let led = vec![leading("", &["192.0.2.11"]), leading("n1", &["192.0.2.10", "192.0.2.12"])];
    let lan = &pools["lan"];
    assert_eq!((lan.observed_generation, lan.ipv4, lan.ipv6), (Some(1), usage(10, 3), usage(i64::MAX, 0)));
    assert_eq!(lan.leading, led);
    assert_eq!((pools["spare"].ipv4, pools["spare"].ipv6), (usage(1, 0), None));
    let policies = policies(whole.inputs());
    assert_eq!(
        (policies["all"].pools.as_slice(), &policies["all"].leading),
        (&["lan".to_owned(), "spare".to_owned()][..], &led)
    );
    assert_eq!(policies["all"].usage, usage(i64::MAX, 3));
    assert_eq!((policies["some"].usage, policies["some"].observed_generation), (usage(1, 0), Some(3)));
}
