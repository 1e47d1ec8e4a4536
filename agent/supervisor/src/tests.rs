//! Tests that the end of a task is reported, and by the name of its cause.

use std::{future, sync::mpsc};

use tokio::sync::oneshot;

use super::*;

/// More than a slow machine takes.
const PATIENCE: Duration = Duration::from_mins(1);

fn panicked(task: &'static str, message: &str) -> TaskFailure {
    TaskFailure::Panicked { task: task.into(), message: message.to_owned() }
}

async fn failure(supervisor: &Supervisor) -> TaskFailure {
    timeout(PATIENCE, supervisor.failure()).await.unwrap()
}

#[tokio::test]
async fn a_panic_is_reported_with_the_name_of_the_task_and_the_message() {
    let supervisor = Supervisor::default();
    supervisor.spawn("first", async { panic!("no entry") });
    assert_eq!(failure(&supervisor).await, panicked("first", "no entry"));
    let (supervisor, number) = (Supervisor::default(), 7);
    supervisor.spawn("second", async move { panic!("no entry {number}") });
    assert_eq!(failure(&supervisor).await, panicked("second", "no entry 7"));
    assert_eq!(failure(&supervisor).await.to_string(), "the task \"second\" panicked: no entry 7");
}

#[tokio::test]
async fn a_task_that_returns_is_reported() {
    let supervisor = Supervisor::default();
    supervisor.spawn(format!("watch of {}", "Node"), async {});
    let ended = failure(&supervisor).await;
    assert_eq!(ended, TaskFailure::Ended { task: "watch of Node".into() });
    assert_eq!(ended.to_string(), "the task \"watch of Node\" ended");
}

#[tokio::test]
async fn tasks_that_run_or_were_aborted_are_no_failure() {
    let supervisor = Supervisor::default();
    supervisor.spawn("runs", pending());
    let aborted = supervisor.spawn("aborted", pending());
    aborted.abort();
    assert!(aborted.await.unwrap_err().is_cancelled());
    drop(supervisor.supervise("never polled", future::ready(())));
    assert_eq!(supervisor.failure().now_or_never(), None);
}

#[tokio::test]
async fn the_first_failure_stays() {
    let supervisor = Supervisor::default();
    supervisor.spawn("first", async { panic!("a") }).await.unwrap();
    supervisor.spawn("second", async { panic!("b") }).await.unwrap();
    supervisor.spawn("third", async {}).await.unwrap();
    for _ in 0..2 {
        assert_eq!(failure(&supervisor).await, panicked("first", "a"));
    }
}

/// The consumer ends as soon as the sender is dropped, which is before the panic is caught.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_is_reported_rather_than_the_end_of_a_task_that_it_led_to() {
    for _ in 0..100 {
        let supervisor = Supervisor::default();
        let (sender, receiver) = oneshot::channel::<()>();
        supervisor.spawn("consumer", async { drop(receiver.await) });
        supervisor.spawn("producer", async move {
            let _sender = sender;
            panic!("no entry")
        });
        assert_eq!(failure(&supervisor).await, panicked("producer", "no entry"));
    }
}

#[tokio::test]
async fn the_end_of_a_thread_is_reported() {
    for (panics, expected) in
        [(true, panicked("manifests", "no entry")), (false, TaskFailure::Ended { task: "manifests".into() })]
    {
        let supervisor = Supervisor::default();
        let (sender, receiver) = mpsc::channel::<()>();
        let work = move || {
            let _ = receiver.recv();
            assert!(!panics, "no entry");
        };
        supervisor.spawn_thread("manifests", work).unwrap();
        assert_eq!(supervisor.failure().now_or_never(), None);
        drop(sender);
        assert_eq!(failure(&supervisor).await, expected);
    }
}

#[tokio::test]
async fn a_panic_on_the_thread_of_a_library_is_reported_and_a_result_is_none() {
    let supervisor = Supervisor::default();
    assert_eq!(supervisor.catch_panic("events", || 7), Some(7));
    assert_eq!(supervisor.failure().now_or_never(), None);
    assert_eq!(supervisor.catch_panic::<()>("events", || panic!("no entry")), None);
    assert_eq!(failure(&supervisor).await, panicked("events", "no entry"));
}

#[tokio::test]
async fn a_panic_of_blocking_work_is_one_of_the_task_that_waits_for_it() {
    assert_eq!(run_blocking(|| 7).await, 7);
    let supervisor = Supervisor::default();
    supervisor.spawn("reader", async { run_blocking(|| panic!("no entry")).await });
    assert_eq!(failure(&supervisor).await, panicked("reader", "no entry"));
}
