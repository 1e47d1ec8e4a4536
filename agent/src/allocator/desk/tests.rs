use std::sync::{
    Mutex,
    atomic::{AtomicUsize, Ordering},
};

use imbl::OrdMap;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::*;
use crate::{
    allocator::{answer::Answer, fixture::client},
    events::Author,
    model::{Options, Vip},
    status::fixture::{Server, name, vip},
};

/// A desk, and what it hears.
struct Room {
    desk: Desk,
    tenure: watch::Sender<Tenure>,
    /// What there is, and what is listed; the watch shows its pools and Nodes alone.
    server: Arc<Mutex<Server>>,
    lists: Arc<AtomicUsize>,
}

impl Room {
    /// One whose turn it is, with a Service that waits.
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
        let ours = Tenure { until: Some(boottime() + Duration::from_mins(1)), term: 1, holder: None };
        let (tenure, of_tenure) = watch::channel(ours);
        let leaders = watch::channel(Some(Arc::default())).1;
        let objects = watch::channel(Arc::new(shown)).1;
        let author = Author { controller: "test", action: "Testing", instance: "test".to_owned() };
        let teller = Teller::start(client.clone(), author);
        let writer = Writer { client, options: Options::default(), adopt: false };
        let desk = Desk::new(writer, teller, of_tenure, leaders, objects, Arc::default());
        Self { desk, tenure, server, lists }
    }

    fn lists(&self) -> usize {
        self.lists.load(Ordering::Relaxed)
    }

    fn turn(&mut self) -> &mut Turn {
        self.desk.turn.as_mut().unwrap()
    }

    /// By how much a report lets the numbers of what was written and of what failed grow.
    fn counts(&mut self, report: Report) -> (u64, u64) {
        let numbers = |room: &Self| {
            let pulse = room.desk.pulse.borrow();
            (pulse.written, pulse.failed)
        };
        let before = numbers(self);
        self.desk.hear(report);
        let after = numbers(self);
        (after.0 - before.0, after.1 - before.1)
    }

    /// What is to be shown by Services whose statuses are to be written.
    fn wanted(&mut self) -> Vec<(String, Vec<Vip>)> {
        let one = |(name, (_, statement, _)): (&ServiceName, &(Arc<Service>, Statement, Difference))| {
            (name.name.clone(), statement.ingress.iter().flatten().copied().collect())
        };
        self.turn().services.iter().map(one).collect()
    }
}

#[tokio::test]
async fn a_turn_begins_when_all_that_was_begun_before_has_ended() {
    let mut room = Room::new();
    let (end, ended) = oneshot::channel();
    room.desk.under_way.spawn(async {
        ended.await.unwrap();
        Report::Departed { name: name("b"), answer: Answer::Gone, wrote: false }
    });
    room.desk.look().await;
    assert!(room.desk.turn.is_none() && room.lists() == 0, "what is under way may be written after the list");
    assert!(room.desk.wake() > boottime() + BETWEEN * 2, "the report wakes it");
    end.send(()).unwrap();
    let report = room.desk.under_way.join_next().await.unwrap().unwrap();
    room.desk.hear(report);
    assert!(room.desk.wake() <= boottime() + BETWEEN);
    room.desk.look().await;
    assert_eq!(room.lists(), 1);
    assert_eq!(room.wanted(), [("a".to_owned(), vec![vip("192.0.2.10")])]);
}

#[tokio::test]
async fn what_was_decided_in_another_term_is_not_begun() {
    let mut room = Room::new();
    room.desk.look().await;
    room.tenure.send_modify(|tenure| tenure.term = 2);
    room.desk.begin();
    assert!(room.desk.under_way.is_empty());
    room.tenure.send_modify(|tenure| tenure.term = 1);
    room.desk.begin();
    assert_eq!(room.desk.under_way.len(), 1);
}

#[tokio::test]
async fn what_the_watch_does_not_show_in_time_is_listed_anew_and_not_given_away() {
    let mut room = Room::new();
    room.desk.look().await;
    assert!(room.turn().fresh.until() > Some(boottime()));
    room.server.lock().unwrap().put("b", 80, &[]);
    room.turn().fresh.put_off(Duration::ZERO);
    room.turn().decides = Duration::ZERO;
    room.desk.look().await;
    assert_eq!(room.lists(), 2);
    assert!(room.turn().fresh.until() > Some(boottime()), "and so again, should it not show it then");
    let wanted = [("a".to_owned(), vec![vip("192.0.2.10")]), ("b".to_owned(), vec![])];
    assert_eq!(room.wanted(), wanted, "the address is the one's that was there before");
    room.server.lock().unwrap().remove("a");
    room.turn().fresh.put_off(Duration::ZERO);
    room.turn().decides = Duration::ZERO;
    room.desk.look().await;
    assert_eq!(room.wanted(), [("b".to_owned(), vec![vip("192.0.2.10")])], "it is gone");
}

#[tokio::test]
async fn what_is_gone_is_not_written_again_while_the_watch_shows_it() {
    let mut room = Room::new();
    room.desk.look().await;
    let (base, statement, _) = room.turn().services.get(&name("a")).cloned().unwrap();
    room.desk.objects = watch::channel(Arc::new(room.server.lock().unwrap().objects.clone())).1;
    room.desk.hear(Report::Service { name: name("a"), base, statement, answer: Answer::Gone });
    assert!(room.turn().dirty);
    room.turn().decides = Duration::ZERO;
    room.desk.look().await;
    assert_eq!(room.wanted(), []);
}

#[tokio::test]
async fn a_service_that_is_as_it_should_be_for_a_while_is_not_forgiven() {
    let mut room = Room::new();
    room.desk.look().await;
    let (key, now) = (Key::Service(name("a")), boottime());
    assert_eq!(room.turn().queue.next(now), Next::Begin(key.clone()));
    room.turn().queue.done(&key, false, now);
    let turn = room.desk.turn.take().unwrap();
    let services = turn.services.clone();
    let turn = turn.ordered(Decision::default(), now);
    let turn = turn.ordered(Decision { services, ..Decision::default() }, now);
    assert!(matches!(turn.queue.peek(now), Next::At(_)));
}

#[tokio::test]
async fn what_could_not_be_taken_back_is_not_asked_for_again() {
    let mut room = Room::new();
    room.desk.look().await;
    let mut server = Server::new(&[]);
    server.put("b", 80, &[]);
    let made = server.objects.services.get(&name("b")).cloned().unwrap();
    room.turn().departed.insert(name("b"));
    let answer = Answer::Made(Box::new((*made).clone()));
    room.desk.hear(Report::Departed { name: name("b"), answer, wrote: true });
    let turn = room.turn();
    assert!(turn.ledger.has_withdrawn(&name("b"), &made) && turn.work(&Key::Departed(name("b"))).is_none());
}

#[tokio::test]
async fn what_was_written_is_counted_and_what_was_refused() {
    let mut room = Room::new();
    room.desk.look().await;
    let (base, statement, _) = room.turn().services.get(&name("a")).cloned().unwrap();
    let denied = || Answer::Denied("no".to_owned());
    for (answer, counted) in [
        (Answer::Made(Box::new((*base).clone())), (1, 0)),
        (Answer::Taken("metallb".to_owned()), (0, 1)),
        (denied(), (0, 1)),
        (Answer::Unavailable("late".to_owned()), (0, 1)),
        (Answer::Contested, (0, 1)),
        (Answer::Stale, (0, 0)),
        (Answer::Gone, (0, 0)),
    ] {
        let (base, statement) = (Arc::clone(&base), statement.clone());
        assert_eq!(room.counts(Report::Service { name: name("a"), base, statement, answer }), counted);
    }
    for (answer, wrote, counted) in [
        (Answer::Made(Box::new((*base).clone())), true, (1, 0)),
        (Answer::Made(Box::new((*base).clone())), false, (0, 0)),
        (denied(), true, (0, 1)),
    ] {
        assert_eq!(room.counts(Report::Departed { name: name("a"), answer, wrote }), counted);
    }
}
