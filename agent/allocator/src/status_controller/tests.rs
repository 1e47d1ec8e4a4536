//! Tests the allocator's loop with an API server that a function simulates.

use std::sync::{
    Mutex,
    atomic::{AtomicUsize, Ordering},
};

use imbl::OrdMap;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{reconciler::ObjectKey, *};
use crate::{decision::StatusDecision, test_client::client, work_queue::WorkResult, write_result::WriteResult};
use k8s_openapi::api::core::v1::Service;
use vipmux_allocate::status::{DesiredStatus, StatusDifference};
use vipmux_cluster::events::EventSource;
use vipmux_model::{IngestOptions, ServiceName, Vip};
use vipmux_supervisor::Supervisor;
use vipmux_testing::{
    api_server::Server,
    names::{service_name, vip},
};

/// A controller and its inputs.
struct Fixture {
    controller: StatusController,
    leader_state: watch::Sender<LeaderState>,
    /// The objects that exist and are listed. The watch shows its pools and Nodes alone.
    server: Arc<Mutex<Server>>,
    lists: Arc<AtomicUsize>,
}

impl Fixture {
    /// Returns a controller that may lead, with a Service that waits.
    fn new() -> Self {
        let mut server = Server::new(&["192.0.2.10"]);
        server.put("a", 80, &[]);
        let shown = Objects { services: OrdMap::new(), ..server.objects.clone() };
        let (server, lists) = (Arc::new(Mutex::new(server)), Arc::new(AtomicUsize::new(0)));
        let client = client({
            let (server, lists) = (Arc::clone(&server), Arc::clone(&lists));
            move |request| {
                if !request.uri().path().ends_with("/services") {
                    return (500, json!({"kind": "Status", "status": "Failure", "code": 500, "message": "no"}));
                }
                lists.fetch_add(1, Ordering::Relaxed);
                let all: Vec<Value> = server.lock().unwrap().objects.services.values().map(|it| json!(&**it)).collect();
                (200, json!({"kind": "ServiceList", "apiVersion": "v1", "metadata": {}, "items": all}))
            }
        });
        let ours = LeaderState { until: Some(boottime() + Duration::from_mins(1)), transitions: 1, holder: None };
        let (leader_state, leader_states) = watch::channel(ours);
        let leaders = watch::channel(Some(Arc::default())).1;
        let objects = watch::channel(Arc::new(shown)).1;
        let source = EventSource { controller: "test", action: "Testing", instance: "test".to_owned() };
        let recorder = EventRecorder::start(client.clone(), source, &Supervisor::default());
        let writer = StatusWriter { client, options: IngestOptions::default(), adopt: false };
        let controller = StatusController::new(writer, recorder, leader_states, leaders, objects, Arc::default());
        Self { controller, leader_state, server, lists }
    }

    fn lists(&self) -> usize {
        self.lists.load(Ordering::Relaxed)
    }

    fn reconciler(&mut self) -> &mut StatusReconciler {
        self.controller.reconciler.as_mut().unwrap()
    }

    /// Returns by how much a report raises the numbers of written and of failed statuses.
    fn counts(&mut self, report: WriteReport) -> (u64, u64) {
        let numbers = |fixture: &Self| {
            let health = fixture.controller.health.borrow();
            (health.written, health.failed)
        };
        let before = numbers(self);
        self.controller.handle(report);
        let after = numbers(self);
        (after.0 - before.0, after.1 - before.1)
    }

    /// Returns the desired addresses of the Services whose statuses are to be written.
    fn wanted(&mut self) -> Vec<(String, Vec<Vip>)> {
        let one = |(name, (_, statement, _)): (&ServiceName, &(Arc<Service>, DesiredStatus, StatusDifference))| {
            (name.name().to_owned(), statement.ingress.iter().flatten().copied().collect())
        };
        self.reconciler().pending.services.iter().map(one).collect()
    }
}

#[tokio::test]
async fn leading_starts_when_all_earlier_writes_have_ended() {
    let mut fixture = Fixture::new();
    let (end, ended) = oneshot::channel();
    fixture.controller.in_flight.spawn(async {
        ended.await.unwrap();
        WriteReport::Withdrawal { name: service_name("b"), result: WriteResult::Gone, wrote: false }
    });
    fixture.controller.reconcile().await;
    assert!(
        fixture.controller.reconciler.is_none() && fixture.lists() == 0,
        "what is under way may be written after the list"
    );
    assert!(fixture.controller.wake_time() > boottime() + MIN_DECISION_INTERVAL * 2, "the report wakes it");
    end.send(()).unwrap();
    let report = fixture.controller.in_flight.join_next().await.unwrap().unwrap();
    fixture.controller.handle(report);
    assert!(fixture.controller.wake_time() <= boottime() + MIN_DECISION_INTERVAL);
    fixture.controller.reconcile().await;
    assert_eq!(fixture.lists(), 1);
    assert_eq!(fixture.wanted(), [("a".to_owned(), vec![vip("192.0.2.10")])]);
}

#[tokio::test]
async fn a_decision_from_before_a_change_of_leader_is_not_written() {
    let mut fixture = Fixture::new();
    fixture.controller.reconcile().await;
    fixture.leader_state.send_modify(|leader_state| leader_state.transitions = 2);
    fixture.controller.start_writes();
    assert!(fixture.controller.in_flight.is_empty());
    fixture.leader_state.send_modify(|leader_state| leader_state.transitions = 1);
    fixture.controller.start_writes();
    assert_eq!(fixture.controller.in_flight.len(), 1);
}

#[tokio::test]
async fn a_service_that_the_watch_does_not_show_in_time_is_listed_again_and_keeps_its_address() {
    let mut fixture = Fixture::new();
    fixture.controller.reconcile().await;
    assert!(fixture.reconciler().initial_list.relist_at() > Some(boottime()));
    fixture.server.lock().unwrap().put("b", 80, &[]);
    fixture.reconciler().initial_list.postpone(Duration::ZERO);
    fixture.reconciler().next_decision = Duration::ZERO;
    fixture.controller.reconcile().await;
    assert_eq!(fixture.lists(), 2);
    assert!(
        fixture.reconciler().initial_list.relist_at() > Some(boottime()),
        "and so again, should it not show it then"
    );
    let wanted = [("a".to_owned(), vec![vip("192.0.2.10")]), ("b".to_owned(), vec![])];
    assert_eq!(fixture.wanted(), wanted, "the address is the one's that was there before");
    fixture.server.lock().unwrap().remove("a");
    fixture.reconciler().initial_list.postpone(Duration::ZERO);
    fixture.reconciler().next_decision = Duration::ZERO;
    fixture.controller.reconcile().await;
    assert_eq!(fixture.wanted(), [("b".to_owned(), vec![vip("192.0.2.10")])], "it is gone");
}

#[tokio::test]
async fn a_service_that_is_gone_is_not_written_again_at_once_while_the_watch_shows_it() {
    let mut fixture = Fixture::new();
    fixture.controller.reconcile().await;
    let (base, statement, _) = fixture.reconciler().pending.services.get(&service_name("a")).cloned().unwrap();
    fixture.controller.objects = watch::channel(Arc::new(fixture.server.lock().unwrap().objects.clone())).1;
    fixture.controller.handle(WriteReport::Service {
        name: service_name("a"),
        base,
        statement,
        result: WriteResult::Gone,
    });
    assert!(fixture.reconciler().needs_decision);
    fixture.reconciler().next_decision = Duration::ZERO;
    fixture.controller.reconcile().await;
    assert!(matches!(fixture.reconciler().queue.peek(boottime()), NextWork::WaitUntil(_)));
    // The watch shows it no more.
    fixture.server.lock().unwrap().remove("a");
    fixture.controller.objects = watch::channel(Arc::new(fixture.server.lock().unwrap().objects.clone())).1;
    (fixture.reconciler().needs_decision, fixture.reconciler().next_decision) = (true, Duration::ZERO);
    fixture.controller.reconcile().await;
    let key = ObjectKey::Service(service_name("a"));
    assert!(fixture.wanted().is_empty() && fixture.reconciler().queue.waiting().all(|waiting| *waiting != key));
}

/// Returns a conflict without causes, as an API server answers a write on an older version.
fn conflict() -> WriteResult<Service> {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "Operation cannot be fulfilled on services \"a\": the object has been modified; please apply your \
                    changes to the latest version and try again",
        "reason": "Conflict", "details": {"name": "a", "kind": "services"}, "code": 409,
    });
    WriteResult::from_response(Err(kube::Error::Api(Box::new(serde_json::from_value(status).unwrap()))))
}

/// The watch may show the newest version already, and nothing else would start another attempt.
#[tokio::test]
async fn a_write_that_is_a_conflict_is_retried_after_a_pause_or_at_once_with_a_newer_object() {
    let mut fixture = Fixture::new();
    fixture.controller.reconcile().await;
    let key = ObjectKey::Service(service_name("a"));
    assert_eq!(fixture.reconciler().queue.next(boottime()), NextWork::Start(key.clone()));
    let (base, statement, _) = fixture.reconciler().pending.services.get(&service_name("a")).cloned().unwrap();
    let report = || WriteReport::Service {
        name: service_name("a"),
        base: Arc::clone(&base),
        statement: statement.clone(),
        result: conflict(),
    };
    fixture.controller.handle(report());
    // Another decision does not shorten the pause.
    (fixture.reconciler().needs_decision, fixture.reconciler().next_decision) = (true, Duration::ZERO);
    fixture.controller.reconcile().await;
    let NextWork::WaitUntil(retry) = fixture.reconciler().queue.next(boottime()) else { panic!("it does not wait") };
    assert_eq!(fixture.reconciler().queue.next(retry), NextWork::Start(key.clone()));
    assert!(fixture.reconciler().task(&key).is_some());

    fixture.controller.handle(report());
    assert!(matches!(fixture.reconciler().queue.peek(boottime()), NextWork::WaitUntil(_)));
    fixture.server.lock().unwrap().write("a", |object| object["metadata"]["labels"] = json!({"a": "b"}));
    fixture.controller.objects = watch::channel(Arc::new(fixture.server.lock().unwrap().objects.clone())).1;
    (fixture.reconciler().needs_decision, fixture.reconciler().next_decision) = (true, Duration::ZERO);
    fixture.controller.reconcile().await;
    assert_eq!(fixture.reconciler().queue.next(retry), NextWork::Start(key));
}

#[tokio::test]
async fn a_withdrawal_that_is_a_conflict_is_retried_after_a_pause() {
    let mut fixture = Fixture::new();
    fixture.controller.reconcile().await;
    let (name, key) = (service_name("b"), ObjectKey::Withdrawal(service_name("b")));
    fixture.reconciler().pending.withdrawals.insert(name.clone());
    fixture.reconciler().pending.services.clear();
    fixture.reconciler().queue.retain(|_| false, |_| true);
    fixture.reconciler().queue.put(key.clone(), 0, Duration::ZERO);
    assert_eq!(fixture.reconciler().queue.next(boottime()), NextWork::Start(key.clone()));
    fixture.controller.handle(WriteReport::Withdrawal { name, result: conflict(), wrote: true });
    let NextWork::WaitUntil(retry) = fixture.reconciler().queue.next(boottime()) else { panic!("it does not wait") };
    assert_eq!(fixture.reconciler().queue.next(retry), NextWork::Start(key));
}

#[tokio::test]
async fn a_service_that_is_as_desired_for_a_while_keeps_its_back_off() {
    let mut fixture = Fixture::new();
    fixture.controller.reconcile().await;
    let (key, now) = (ObjectKey::Service(service_name("a")), boottime());
    assert_eq!(fixture.reconciler().queue.next(now), NextWork::Start(key.clone()));
    fixture.reconciler().queue.done(&key, WorkResult::Failed, now);
    let reconciler = fixture.controller.reconciler.take().unwrap();
    let services = reconciler.pending.services.clone();
    let reconciler = reconciler.with_decision(StatusDecision::default(), now);
    let reconciler = reconciler.with_decision(StatusDecision { services, ..StatusDecision::default() }, now);
    assert!(matches!(reconciler.queue.peek(now), NextWork::WaitUntil(_)));
}

#[tokio::test]
async fn a_status_that_stays_after_its_withdrawal_is_not_withdrawn_again() {
    let mut fixture = Fixture::new();
    fixture.controller.reconcile().await;
    let mut server = Server::new(&[]);
    server.put("b", 80, &[]);
    let made = server.objects.services.get(&service_name("b")).cloned().unwrap();
    fixture.reconciler().pending.withdrawals.insert(service_name("b"));
    let result = WriteResult::Written(Box::new((*made).clone()));
    fixture.controller.handle(WriteReport::Withdrawal { name: service_name("b"), result, wrote: true });
    let reconciler = fixture.reconciler();
    assert!(
        reconciler.write_cache.has_withdrawn(&service_name("b"), &made)
            && reconciler.task(&ObjectKey::Withdrawal(service_name("b"))).is_none()
    );
}

#[tokio::test]
async fn written_and_refused_statuses_are_counted() {
    let mut fixture = Fixture::new();
    fixture.controller.reconcile().await;
    let (base, statement, _) = fixture.reconciler().pending.services.get(&service_name("a")).cloned().unwrap();
    let denied = || WriteResult::Denied("no".to_owned());
    for (result, counted) in [
        (WriteResult::Written(Box::new((*base).clone())), (1, 0)),
        (WriteResult::Taken("metallb".to_owned()), (0, 1)),
        (denied(), (0, 1)),
        (WriteResult::Unavailable("late".to_owned()), (0, 1)),
        (WriteResult::Contested, (0, 1)),
        (WriteResult::Stale, (0, 0)),
        (WriteResult::Gone, (0, 0)),
    ] {
        let (base, statement) = (Arc::clone(&base), statement.clone());
        assert_eq!(fixture.counts(WriteReport::Service { name: service_name("a"), base, statement, result }), counted);
    }
    for (result, wrote, counted) in [
        (WriteResult::Written(Box::new((*base).clone())), true, (1, 0)),
        (WriteResult::Written(Box::new((*base).clone())), false, (0, 0)),
        (denied(), true, (0, 1)),
    ] {
        assert_eq!(fixture.counts(WriteReport::Withdrawal { name: service_name("a"), result, wrote }), counted);
    }
}
