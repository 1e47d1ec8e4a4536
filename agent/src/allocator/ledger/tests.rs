use std::sync::Arc;

use crate::{
    allocate::Allocator,
    model::{Model, Options},
    status::{
        View,
        fixture::{Server, name},
    },
};

use super::*;

fn statement(server: &Server, service: &str) -> Statement {
    let model = Model::ingest(&server.objects, &Options::default());
    let allocation = Allocator::new(&model, &[].into()).into_allocation();
    let view = View { objects: &server.objects, model: &model, allocation: &allocation, leaders: &server.leaders };
    Statement::of(&name(service), view, None).unwrap()
}

fn object(server: &Server) -> Arc<Service> {
    Arc::clone(server.objects.services.get(&name("a")).unwrap())
}

/// A server with one Service, as it was and with a status.
fn written() -> (Server, Arc<Service>, Statement) {
    let mut server = Server::new(&["192.0.2.10"]);
    server.put("a", 80, &[]);
    let wanted = statement(&server, "a");
    (server.clone(), object(&server), wanted)
}

#[test]
fn what_was_written_is_not_written_again_before_the_watch_shows_it() {
    let (mut server, base, wanted) = written();
    let mut ledger = Ledger::default();
    assert_eq!(ledger.verdict(&name("a"), &base, &wanted), Verdict::Write);
    server.write("a", |object| {
        object["status"]["loadBalancer"]["ingress"] = serde_json::json!([{"ip": "192.0.2.10", "ipMode": "VIP"}]);
    });
    let made = object(&server);
    ledger.wrote(&name("a"), &base, wanted.clone(), &made, None);
    assert_eq!(ledger.verdict(&name("a"), &base, &wanted), Verdict::Wait);
    // Whatever the API server made of it, it is all that can be had.
    assert_eq!(ledger.verdict(&name("a"), &made, &wanted), Verdict::Settled);
    let other = Statement { warning: true, ..wanted.clone() };
    assert_eq!(ledger.verdict(&name("a"), &made, &other), Verdict::Write);
    server.write("a", |object| object["metadata"]["labels"] = serde_json::json!({"a": "b"}));
    ledger.retain(&server.objects);
    assert_eq!(ledger.verdict(&name("a"), &object(&server), &wanted), Verdict::Write, "somebody else was there");
}

#[test]
fn a_write_that_changed_nothing_is_not_made_again() {
    let (server, base, wanted) = written();
    let mut ledger = Ledger::default();
    ledger.wrote(&name("a"), &base, wanted.clone(), &base, None);
    ledger.retain(&server.objects);
    assert_eq!(ledger.verdict(&name("a"), &base, &wanted), Verdict::Settled);
}

#[test]
fn a_conflict_waits_for_the_newer_object() {
    let (mut server, base, wanted) = written();
    let mut ledger = Ledger::default();
    ledger.conflicted(&name("a"), &base);
    ledger.retain(&server.objects);
    assert_eq!(ledger.verdict(&name("a"), &base, &wanted), Verdict::Wait);
    server.write("a", |object| object["metadata"]["labels"] = serde_json::json!({"a": "b"}));
    ledger.retain(&server.objects);
    assert_eq!(ledger.verdict(&name("a"), &object(&server), &wanted), Verdict::Write);
}

#[test]
fn another_controllers_addresses_are_remembered_as_long_as_they_are_there() {
    let (mut server, _, _) = written();
    let mut ledger = Ledger::default();
    server.intrude("a", "metallb", &["198.51.100.1"]);
    ledger.taken(&name("a"), &object(&server), "metallb");
    server.write("a", |object| object["metadata"]["labels"] = serde_json::json!({"a": "b"}));
    ledger.retain(&server.objects);
    let foreign = ledger.foreign(&name("a"), &object(&server)).unwrap();
    assert_eq!((foreign.manager.as_str(), foreign.shown.as_str()), ("metallb", "198.51.100.1"));
    server.intrude("a", "metallb", &["198.51.100.2"]);
    assert_eq!(ledger.foreign(&name("a"), &object(&server)), None);
    ledger.retain(&server.objects);
    assert!(ledger.foreign.is_empty());
}

#[test]
fn what_a_write_left_of_others_is_remembered_until_the_watch_shows_it() {
    let (mut server, base, wanted) = written();
    let mut ledger = Ledger::default();
    let none = Statement { ingress: Some([].into()), ..wanted };
    let before = server.clone();
    server.intrude("a", "metallb", &["198.51.100.1"]);
    ledger.wrote(&name("a"), &base, none, &object(&server), Some("metallb"));
    ledger.retain(&before.objects);
    assert_eq!(ledger.foreign(&name("a"), &base), None, "the watch shows nothing of the kind");
    ledger.retain(&server.objects);
    assert_eq!(ledger.foreign(&name("a"), &object(&server)).unwrap().manager, "metallb");
}

#[test]
fn who_is_gone_is_forgotten() {
    let (mut server, base, wanted) = written();
    let mut ledger = Ledger::default();
    ledger.wrote(&name("a"), &base, wanted, &base, None);
    ledger.taken(&name("a"), &base, "metallb");
    let pool = server.objects.vip_pools.get("lan").unwrap().metadata.clone();
    let (object, status) = (Custom::Pool("lan".to_owned()), CustomStatus::Pool(VipPoolStatus::default()));
    ledger.wrote_custom(object.clone(), &pool, status.clone(), &pool);
    assert_eq!(ledger.verdict_of(&object, &pool, &status), Verdict::Settled);
    server.objects.services.remove(&name("a"));
    server.objects.vip_pools.remove("lan");
    ledger.retain(&server.objects);
    assert!(ledger.services.is_empty() && ledger.foreign.is_empty() && ledger.customs.is_empty());
}
