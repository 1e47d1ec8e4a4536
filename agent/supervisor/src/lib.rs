//! Starts the tasks and threads that live as long as the process, and reports the first one that ends.
//!
//! A process that lost one of its tasks looks alive, and does only a part of its work. So it ends with an
//! error, and is started again. [`Supervisor::failure`] is the one place where that is noticed: a task need
//! not look at the end of another one.
//!
//! A task is not supervised if its panic harms nothing but its own short work: one connection, one probe, one
//! operation on a store. Where such a task is started, a comment says so.

#![forbid(unsafe_code)]

pub mod signals;

use std::{
    any::Any,
    borrow::Cow,
    future::pending,
    io,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Arc,
    thread,
    time::Duration,
};

use futures_util::FutureExt as _;
use tokio::{
    sync::watch,
    task::{JoinHandle, spawn_blocking},
    time::timeout,
};

/// The wait for a panic after a task has ended. A task ends, too, when the task that feeds it panics, and may be
/// noticed first.
const CAUSE: Duration = Duration::from_millis(100);

/// A task ended that should live as long as the process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TaskFailure {
    /// It panicked.
    #[error("the task \"{task}\" panicked: {message}")]
    Panicked {
        /// Its name.
        task: Cow<'static, str>,
        /// The message of the panic.
        message: String,
    },
    /// It returned.
    #[error("the task \"{task}\" ended")]
    Ended {
        /// Its name.
        task: Cow<'static, str>,
    },
}

impl TaskFailure {
    fn is_panic(&self) -> bool {
        matches!(self, Self::Panicked { .. })
    }

    fn log(&self) {
        match self {
            Self::Panicked { task, message } => tracing::error!(%task, panic = message, "task panicked, stopping"),
            Self::Ended { task } => tracing::error!(%task, "task ended, stopping"),
        }
    }
}

/// Supervises tasks and threads. A clone supervises the same ones.
#[derive(Clone, Debug, Default)]
pub struct Supervisor {
    failure: Arc<watch::Sender<Option<TaskFailure>>>,
}

impl Supervisor {
    /// Spawns a task that lives as long as the process. Its end is a failure, unless it is aborted. Must be
    /// called within a tokio runtime.
    pub fn spawn(
        &self,
        task: impl Into<Cow<'static, str>>,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> JoinHandle<()> {
        tokio::spawn(self.supervise(task, work))
    }

    /// Returns the future of [`spawn`](Self::spawn), for a set of tasks. Dropping it is no failure.
    pub fn supervise(
        &self,
        task: impl Into<Cow<'static, str>>,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (supervisor, task) = (self.clone(), task.into());
        async move {
            // The process ends after a panic, so nobody uses what the task left half done.
            match AssertUnwindSafe(work).catch_unwind().await {
                Ok(()) => supervisor.report(TaskFailure::Ended { task }),
                Err(panic) => supervisor.report_panic(task, &*panic),
            }
        }
    }

    /// Spawns a thread that lives as long as the process. Its end is a failure.
    pub fn spawn_thread(&self, task: &'static str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let supervisor = self.clone();
        let run = move || {
            if supervisor.catch_panic(task, work).is_some() {
                supervisor.report(TaskFailure::Ended { task: task.into() });
            }
        };
        thread::Builder::new().name(task.to_owned()).spawn(run).map(drop)
    }

    /// Runs a part of a thread that belongs to a library. A panic is a failure, and the result is `None`.
    pub fn catch_panic<T>(&self, task: &'static str, work: impl FnOnce() -> T) -> Option<T> {
        catch_unwind(AssertUnwindSafe(work)).map_err(|panic| self.report_panic(task.into(), &*panic)).ok()
    }

    /// Waits for the first failure, and logs it. A panic comes before the end of tasks that depended on the
    /// one that panicked. Cancel-safe.
    pub async fn failure(&self) -> TaskFailure {
        let mut failure = self.failure.subscribe();
        // The sender is here, so it is never an error.
        let _ = failure.wait_for(Option::is_some).await;
        let _ = timeout(CAUSE, failure.wait_for(|first| first.as_ref().is_some_and(TaskFailure::is_panic))).await;
        let first = failure.borrow().clone();
        match first {
            Some(first) => {
                first.log();
                first
            }
            None => pending().await,
        }
    }

    fn report_panic(&self, task: Cow<'static, str>, panic: &(dyn Any + Send)) {
        self.report(TaskFailure::Panicked { task, message: message(panic) });
    }

    fn report(&self, failure: TaskFailure) {
        self.failure.send_if_modified(|first| {
            let is_cause = first.as_ref().is_none_or(|first| failure.is_panic() && !first.is_panic());
            if is_cause {
                *first = Some(failure);
            }
            is_cause
        });
    }
}

/// Runs work that blocks. Its panic goes on in the task that waits for it, whose supervisor reports it.
///
/// If this is dropped, work that has begun is done nevertheless. Work that never begins, since the runtime ends,
/// is waited for as long as the task lives.
pub async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match spawn_blocking(work).await.map_err(tokio::task::JoinError::try_into_panic) {
        Ok(result) => result,
        Err(Ok(panic)) => resume_unwind(panic),
        Err(Err(_)) => pending().await,
    }
}

/// Returns the message of a panic. A panic with formatted text has a `String`, any other one a `&str`.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}

#[cfg(test)]
mod tests;
