//! Keeping the table in step, beside the event loop.

use imbl::OrdSet;
use std::time::Duration;

use tokio::{
    select,
    sync::watch,
    task::{JoinHandle, spawn_blocking},
    time::sleep,
};

use super::{Element, IdentitySnat, SnatError};

/// How long after a failure it is tried again.
const RETRY: Duration = Duration::from_secs(10);

/// Brings the table to what was last wanted, on a task of its own: a commit waits for other nftables transactions, and
/// kube-proxy's can take longer than the fence's deadline.
#[derive(Debug)]
pub struct Keeper {
    wanted: watch::Sender<OrdSet<Element>>,
    task: JoinHandle<()>,
}

impl Keeper {
    /// Opens the socket, in the network namespace of the calling thread, and starts the task.
    ///
    /// The task ends when the keeper is dropped, or with the runtime; both leave the table in place, as the last
    /// transaction made it.
    pub fn start() -> Result<Self, SnatError> {
        let snat = IdentitySnat::open()?;
        let (wanted, receiver) = watch::channel(OrdSet::new());
        Ok(Self { wanted, task: tokio::spawn(keep(snat, receiver)) })
    }

    /// Has the table hold exactly these elements from some time soon on. Also where nothing changed: what somebody
    /// flushed comes back.
    pub fn want(&self, elements: OrdSet<Element>) {
        self.wanted.send_replace(elements);
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn keep(mut snat: IdentitySnat, mut wanted: watch::Receiver<OrdSet<Element>>) {
    let mut trouble: Option<String> = None;
    loop {
        select! {
            changed = wanted.changed() => if changed.is_err() { return },
            () = sleep(RETRY), if trouble.is_some() => {}
        }
        let elements = wanted.borrow_and_update().clone();
        let attempt = spawn_blocking(move || {
            let result = snat.sync(&elements);
            (snat, result)
        });
        let Ok((again, result)) = attempt.await else { return };
        snat = again;
        let now = result.err().map(|error| format!("{:#}", anyhow::Error::from(error)));
        if now != trouble {
            if let Some(error) = &now {
                tracing::warn!("the identity-SNAT chain is not in place: {error}");
            } else {
                tracing::info!("mended: the identity-SNAT chain is in place");
            }
            trouble = now;
        }
    }
}
