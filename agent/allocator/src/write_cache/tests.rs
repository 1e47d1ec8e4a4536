//! Tests the memory of writes that the watch does not show yet.

use std::sync::Arc;

use vipmux_allocate::{Allocator, status::StatusInputs};
use vipmux_model::{IngestOptions, Model};

use super::*;
use vipmux_testing::{api_server::Server, names::service_name};

fn statement(server: &Server, service: &str) -> DesiredStatus {
    let model = Model::ingest(&server.objects, &IngestOptions::default());
    let allocation = Allocator::new(&model, &[].into()).into_allocation();
    let view =
        StatusInputs { objects: &server.objects, model: &model, allocation: &allocation, leaders: &server.leaders };
    DesiredStatus::of(&service_name(service), view, None).unwrap()
}

fn object(server: &Server) -> Arc<Service> {
    Arc::clone(server.objects.services.get(&service_name("a")).unwrap())
}

/// A server with one Service, as it was and with a status.
fn written() -> (Server, Arc<Service>, DesiredStatus) {
    let mut server = Server::new(&["192.0.2.10"]);
    server.put("a", 80, &[]);
    let wanted = statement(&server, "a");
    (server.clone(), object(&server), wanted)
}

#[test]
fn a_status_is_not_written_again_before_the_watch_shows_it() {
    let (mut server, base, wanted) = written();
    let mut write_cache = WriteCache::default();
    assert_eq!(write_cache.verdict(&service_name("a"), &base, &wanted), WriteVerdict::Write);
    server.write("a", |object| {
        object["status"]["loadBalancer"]["ingress"] = serde_json::json!([{"ip": "192.0.2.10", "ipMode": "VIP"}]);
    });
    let made = object(&server);
    write_cache.record_write(&service_name("a"), &base, wanted.clone(), &made, None);
    assert_eq!(write_cache.verdict(&service_name("a"), &base, &wanted), WriteVerdict::Wait);
    // Also if the API server made something else of it: another write would change nothing.
    assert_eq!(write_cache.verdict(&service_name("a"), &made, &wanted), WriteVerdict::Done);
    let other = DesiredStatus { warning: true, ..wanted.clone() };
    assert_eq!(write_cache.verdict(&service_name("a"), &made, &other), WriteVerdict::Write);
    server.write("a", |object| object["metadata"]["labels"] = serde_json::json!({"a": "b"}));
    write_cache.retain(&server.objects);
    assert_eq!(
        write_cache.verdict(&service_name("a"), &object(&server), &wanted),
        WriteVerdict::Write,
        "somebody else was there"
    );
}

#[test]
fn a_write_that_changed_nothing_is_not_made_again() {
    let (server, base, wanted) = written();
    let mut write_cache = WriteCache::default();
    write_cache.record_write(&service_name("a"), &base, wanted.clone(), &base, None);
    write_cache.retain(&server.objects);
    assert_eq!(write_cache.verdict(&service_name("a"), &base, &wanted), WriteVerdict::Done);
}

#[test]
fn a_conflict_is_retried_at_once_with_the_newer_object_and_else_after_a_pause() {
    let (mut server, base, wanted) = written();
    let mut write_cache = WriteCache::default();
    write_cache.record_conflict(&service_name("a"), &base);
    write_cache.retain(&server.objects);
    assert_eq!(write_cache.verdict(&service_name("a"), &base, &wanted), WriteVerdict::Retry);
    server.write("a", |object| object["metadata"]["labels"] = serde_json::json!({"a": "b"}));
    write_cache.retain(&server.objects);
    assert_eq!(write_cache.verdict(&service_name("a"), &object(&server), &wanted), WriteVerdict::Write);
}

#[test]
fn another_controllers_addresses_are_remembered_as_long_as_they_are_there() {
    let (mut server, _, _) = written();
    let mut write_cache = WriteCache::default();
    server.intrude("a", "metallb", &["198.51.100.1"]);
    write_cache.record_foreign(&service_name("a"), &object(&server), "metallb");
    server.write("a", |object| object["metadata"]["labels"] = serde_json::json!({"a": "b"}));
    write_cache.retain(&server.objects);
    let foreign = write_cache.foreign(&service_name("a"), &object(&server)).unwrap();
    assert_eq!((foreign.manager.as_str(), foreign.shown.as_str()), ("metallb", "198.51.100.1"));
    server.intrude("a", "metallb", &["198.51.100.2"]);
    assert_eq!(write_cache.foreign(&service_name("a"), &object(&server)), None);
    write_cache.retain(&server.objects);
    assert!(write_cache.foreign.is_empty());
}

#[test]
fn addresses_of_others_that_a_write_left_are_remembered_until_the_watch_shows_them() {
    let (mut server, base, wanted) = written();
    let mut write_cache = WriteCache::default();
    let none = DesiredStatus { ingress: Some([].into()), ..wanted };
    let before = server.clone();
    server.intrude("a", "metallb", &["198.51.100.1"]);
    write_cache.record_write(&service_name("a"), &base, none, &object(&server), Some("metallb"));
    write_cache.retain(&before.objects);
    assert_eq!(write_cache.foreign(&service_name("a"), &base), None, "the watch shows nothing of the kind");
    write_cache.retain(&server.objects);
    assert_eq!(write_cache.foreign(&service_name("a"), &object(&server)).unwrap().manager, "metallb");
}

#[test]
fn an_object_that_is_gone_is_forgotten() {
    let (mut server, base, wanted) = written();
    let mut write_cache = WriteCache::default();
    write_cache.record_write(&service_name("a"), &base, wanted, &base, None);
    write_cache.record_foreign(&service_name("a"), &base, "metallb");
    let pool = server.objects.vip_pools.get("lan").unwrap().metadata.clone();
    let (object, status) =
        (CustomResource::Pool("lan".to_owned()), CustomResourceStatus::Pool(VipPoolStatus::default()));
    write_cache.record_custom_write(object.clone(), &pool, status.clone(), &pool);
    assert_eq!(write_cache.custom_verdict(&object, &pool, &status), WriteVerdict::Done);
    server.objects.services.remove(&service_name("a"));
    server.objects.vip_pools.remove("lan");
    write_cache.retain(&server.objects);
    assert!(
        write_cache.services.is_empty() && write_cache.foreign.is_empty() && write_cache.custom_resources.is_empty()
    );
}
