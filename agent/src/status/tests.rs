use std::sync::Arc;

use k8s_openapi::{api::core::v1::Service, jiff::Timestamp};
use serde_json::json;

use super::{
    fixture::{Applied, Server, name, vip},
    service::condition,
    *,
};
use crate::{
    allocate::{Allocator, holders::with_statuses},
    api::{ALLOCATED, ANNOUNCED, Leading, Usage},
    model::{Options, reason::Reason},
};

const KEY: (&str, &str) = ("vipmux.io/sharing-key", "web");

/// What all is about, computed anew.
struct Whole {
    objects: Objects,
    model: Model,
    allocation: Allocation,
    leaders: Leaders,
}

impl Whole {
    fn of(server: &Server) -> Self {
        let model = Model::ingest(&server.objects, &Options::default());
        let allocation = Allocator::new(&model, &with_statuses([].into(), &model)).into_allocation();
        Self { objects: server.objects.clone(), model, allocation, leaders: server.leaders.clone() }
    }

    fn view(&self) -> View<'_> {
        View { objects: &self.objects, model: &self.model, allocation: &self.allocation, leaders: &self.leaders }
    }

    fn statement(&self, service: &str) -> Statement {
        Statement::of(&name(service), self.view(), None).unwrap()
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn object(server: &Server, service: &str) -> Arc<Service> {
    Arc::clone(server.objects.services.get(&name(service)).unwrap())
}

/// Writes what is to be said, at that second.
fn write(server: &mut Server, service: &str, second: i64) -> Arc<Service> {
    let statement = Whole::of(server).statement(service);
    let body = body(&name(service), &object(server, service), &statement, at(second));
    match server.apply(&name(service), &body) {
        Applied::Made(made) => made,
        other => panic!("{other:?}"),
    }
}

/// A statement in a line for each condition.
fn lines(statement: &Statement) -> Vec<String> {
    let line = |told: &Told| format!("{} {}: {}", told.truth.text(), told.reason, told.message);
    let ingress = statement
        .ingress
        .as_ref()
        .map_or("left alone".to_owned(), |all| all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "));
    vec![ingress, line(&statement.allocated), line(&statement.announced)]
}

#[test]
fn each_outcome_is_told() {
    let mut server = Server::new(&["192.0.2.10-192.0.2.11"]);
    server.put("alone", 80, &[("vipmux.io/addresses", "192.0.2.10")]);
    server.put("web-a", 80, &[KEY, ("vipmux.io/addresses", "192.0.2.11")]);
    server.put("web-b", 443, &[KEY]);
    server.put("full", 80, &[]);
    server.put("x", 80, &[KEY, ("vipmux.io/addresses", "192.0.2.11")]);
    server.put("y", 80, &[("vipmux.io/addresses", "192.0.2.1O")]);
    server.lead("192.0.2.11", "n1");
    let whole = Whole::of(&server);
    let shared = "True Shared: 192.0.2.11 from pool lan, shared (vipmux explain shop/web-b tells with whom)";
    let conflict = "False PortConflict: port 80/TCP on 192.0.2.11 is held by shop/web-a; give one of the two another port, or \
                    let this one ask for another address, or for none";
    for (service, warning, expected) in [
        (
            "alone",
            false,
            ["192.0.2.10", "True Allocated: 192.0.2.10 from pool lan", "False NoLeader: 192.0.2.10 by nobody yet"],
        ),
        ("web-b", false, ["192.0.2.11", shared, "True Led: 192.0.2.11 by n1"]),
        ("x", true, ["", conflict, "False NotAllocated: it has no address"]),
    ] {
        let statement = whole.statement(service);
        assert_eq!(lines(&statement), expected);
        assert_eq!(statement.warning, warning, "{service}");
    }
    for (service, reason, text) in
        [("full", "PoolExhausted", "pool lan is full"), ("y", "InvalidAnnotation", "192.0.2.1O")]
    {
        let told = whole.statement(service).allocated;
        assert!(told.truth == Truth::False && told.reason == reason && told.message.contains(text), "{told:?}");
    }
    assert_eq!(Statement::of(&name("absent"), whole.view(), None), None);
}

#[test]
fn who_comes_to_share_changes_no_other_statement() {
    let mut server = Server::new(&["192.0.2.10-192.0.2.11"]);
    server.put("a", 80, &[KEY]);
    server.put("b", 81, &[KEY]);
    let before = Whole::of(&server).statement("a");
    for port in 82..90 {
        server.put(&format!("c{port}"), port, &[KEY]);
    }
    assert_eq!(Whole::of(&server).statement("a"), before);
}

#[test]
fn who_announces_is_told_for_each_address_and_the_worst_tells_the_whole() {
    let mut server = Server::new(&["192.0.2.10", "2001:db8::10"]);
    server.put("a", 80, &[]);
    server.write("a", |object| {
        object["spec"]["ipFamilyPolicy"] = json!("RequireDualStack");
        object["spec"]["ipFamilies"] = json!(["IPv4", "IPv6"]);
    });
    let announced = |server: &Server| {
        let told = Whole::of(server).statement("a").announced;
        format!("{} {}: {}", told.truth.text(), told.reason, told.message)
    };
    server.lead("192.0.2.10", "n1");
    assert_eq!(announced(&server), "False NoLeader: 192.0.2.10 by n1, 2001:db8::10 by nobody yet");
    server.lead("2001:db8::10", "n2");
    assert_eq!(announced(&server), "True Led: 192.0.2.10 by n1, 2001:db8::10 by n2");
    let mut node = (*server.objects.nodes[&NodeName("n2".to_owned())]).clone();
    for (ready, expected) in
        [("True", "True Led"), ("False", "Unknown LeaderNotReady"), ("Unknown", "Unknown LeaderNotReady")]
    {
        let condition = serde_json::from_value(json!({"type": "Ready", "status": ready})).unwrap();
        node.status.as_mut().unwrap().conditions = Some(vec![condition]);
        server.objects.nodes.insert(NodeName("n2".to_owned()), Arc::new(node.clone()));
        assert!(announced(&server).starts_with(expected), "{ready}: {}", announced(&server));
    }
    server.objects.nodes.remove(&NodeName("n2".to_owned()));
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
    let statement = Whole::of(&server).statement("a");
    assert_eq!(statement.differs(&object(&server, "a")), Some(Difference::Outcome));
    let made = write(&mut server, "a", 7);
    assert_eq!(statement.differs(&made), None);
    assert_eq!(serde_json::to_value(ingress(&made)).unwrap(), json!([{"ip": "192.0.2.10", "ipMode": "VIP"}]));
    server.lead("192.0.2.10", "n1");
    let statement = Whole::of(&server).statement("a");
    assert_eq!(statement.differs(&made), Some(Difference::Announcement));
    let led = write(&mut server, "a", 8);
    assert_eq!(statement.differs(&led), None);
    // Whoever changes the Service is answered, if only by the generation.
    server.write("a", |object| object["spec"]["sessionAffinity"] = json!("None"));
    let edited = object(&server, "a");
    assert_eq!(Whole::of(&server).statement("a").differs(&edited), Some(Difference::Outcome));
}

#[test]
fn the_time_of_a_transition_moves_with_the_status_alone() {
    let mut server = Server::new(&["192.0.2.10"]);
    server.put("a", 80, &[]);
    let times = |service: &Service| {
        [ALLOCATED, ANNOUNCED].map(|kind| condition(service, kind).unwrap().last_transition_time.0.as_second())
    };
    let generation = |service: &Service| condition(service, ALLOCATED).unwrap().observed_generation;
    assert_eq!(times(&write(&mut server, "a", 100)), [100, 100]);
    server.lead("192.0.2.10", "n1");
    assert_eq!(times(&write(&mut server, "a", 200)), [100, 200]);
    server.lead("192.0.2.10", "n2");
    let moved = write(&mut server, "a", 300);
    assert_eq!(times(&moved), [100, 200], "another node, and still announced");
    server.write("a", |object| object["spec"]["ports"] = json!([{"port": 81}]));
    let edited = write(&mut server, "a", 400);
    assert_eq!((times(&edited), generation(&moved), generation(&edited)), ([100, 200], Some(1), Some(2)));
}

#[test]
fn addresses_that_others_wrote_and_that_are_right_are_written_as_they_stand() {
    let mut server = Server::new(&["192.0.2.10", "2001:db8::10"]);
    server.put("a", 80, &[]);
    server.intrude("a", "metallb", &["192.0.2.10"]);
    let before = Whole::of(&server).statement("a");
    assert!(before.has_ingress(&object(&server, "a")));
    let made = write(&mut server, "a", 1);
    assert_eq!((before.differs(&made), server.manager(&name("a"))), (None, "metallb"));
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
    let foreign = Foreign::of(&service, "metallb-controller");
    let whole = Whole::of(&server);
    let statement = Statement::of(&name("a"), whole.view(), Some(&foreign)).unwrap();
    assert_eq!(
        lines(&statement),
        [
            "left alone",
            "False ForeignStatus: metallb-controller wrote 198.51.100.1 into status.loadBalancer.ingress, and that is left as \
             it is: let metallb-controller leave this Service alone, or let vipmux take \
             over what others wrote (vipmux allocator --adopt)",
            "True Led: 198.51.100.1 by n2",
        ]
    );
    let body = body(&name("a"), &service, &statement, at(1));
    assert!(body["status"].get("loadBalancer").is_none() && statement.warning);
    let Applied::Made(made) = server.apply(&name("a"), &body) else { panic!() };
    assert_eq!((statement.differs(&made), server.shown("a")), (None, [vip("198.51.100.1")].into()));
}

#[test]
fn the_page_tells_of_each_reason() {
    const PAGE: &str = include_str!("../../../docs/status.md");
    let listed = |reason: &str| PAGE.contains(&format!("\n| `{reason}` | "));
    for reason in [Reason::Allocated, Reason::Shared].into_iter().chain(Reason::REFUSALS) {
        // What says so has no condition: it is not ours, or no allocator is there.
        let untold = matches!(reason, Reason::OtherClass | Reason::NotLoadBalancer | Reason::Unallocated);
        assert_ne!(listed(&reason.to_string()), untold, "{reason}");
    }
    for reason in [FOREIGN_STATUS, "Led", "NoLeader", "NotCovered", "LeaderNotReady", "NotAllocated", "NotServed"] {
        assert!(listed(reason), "{reason}");
    }
}

#[test]
fn what_is_told_too_long_is_cut() {
    let told = Told::new(Truth::False, "X", "ä".repeat(5_000));
    assert!(told.message.len() <= 4_096 && told.message.ends_with("ä ..."));
    assert!(News::new(Weight::Normal, "X", "ä".repeat(5_000)).note.len() <= 1_024);
}

#[test]
fn a_service_that_cannot_be_read_keeps_its_address_in_its_status() {
    let mut server = Server::new(&["192.0.2.10"]);
    server.put("a", 80, &[]);
    write(&mut server, "a", 1);
    server.write("a", |object| object["metadata"]["annotations"] = json!({"vipmux.io/direct-server-return": "maybe"}));
    let statement = Whole::of(&server).statement("a");
    assert_eq!(statement.ingress, Some([vip("192.0.2.10")].into()));
    assert_eq!(statement.allocated.truth, Truth::True);
    assert!(statement.allocated.message.ends_with("; 192.0.2.10 is kept for it, and nothing is served there"));
    assert_eq!((statement.announced.truth, statement.announced.reason.as_str()), (Truth::False, "NotServed"));
}

#[test]
fn an_event_tells_what_is_new_and_nothing_twice() {
    let mut server = Server::new(&["192.0.2.10"]);
    let news = |server: &Server, service: &str| {
        let statement = Whole::of(server).statement(service);
        News::of(&object(server, service), &statement).map(|news| (news.weight, news.reason))
    };
    let some = |weight, reason: &str| Some((weight, reason.to_owned()));
    server.put("a", 80, &[KEY]);
    assert_eq!(news(&server, "a"), some(Weight::Normal, "Allocated"));
    write(&mut server, "a", 1);
    assert_eq!(news(&server, "a"), None);
    server.lead("192.0.2.10", "n1");
    assert_eq!(news(&server, "a"), None, "who leads is told by the condition");
    server.put("b", 443, &[KEY]);
    assert_eq!(news(&server, "a"), some(Weight::Normal, "Shared"));
    server.put("c", 443, &[KEY]);
    assert_eq!(news(&server, "c"), some(Weight::Warning, "PoolExhausted"));
    for service in ["a", "b", "c"] {
        write(&mut server, service, 2);
        assert_eq!(news(&server, service), None);
    }
    // Its owner tries another port, and is refused over that one.
    server.put("c", 80, &[KEY]);
    assert_eq!(news(&server, "c"), some(Weight::Warning, "PoolExhausted"));
    // Something that its owner should know came to it.
    server.put("a", 80, &[KEY, ("vipmux.io/sharing-kez", "x")]);
    assert_eq!(news(&server, "a").map(|(weight, _)| weight), Some(Weight::Normal));
    write(&mut server, "a", 3);
    assert_eq!(news(&server, "a"), None);
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
    let pools = pools(whole.view());
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
    let policies = policies(whole.view());
    assert_eq!(
        (policies["all"].pools.as_slice(), &policies["all"].leading),
        (&["lan".to_owned(), "spare".to_owned()][..], &led)
    );
    assert_eq!(policies["all"].usage, usage(i64::MAX, 3));
    assert_eq!((policies["some"].usage, policies["some"].observed_generation), (usage(1, 0), Some(3)));
}
