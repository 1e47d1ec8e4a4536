//! Who leads each VIP: the VIPs' Leases, followed.

use std::{mem, sync::Arc};

use futures_util::StreamExt as _;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, Client,
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event, watcher},
    },
};
use tokio::sync::watch;

use crate::{status::Leaders, store::leader};

/// Who leads each VIP; `None` until the Leases were listed once.
pub(super) type Followed = Option<Arc<Leaders>>;

/// Follows the Leases of this namespace until nobody listens.
pub(super) fn follow(client: Client, namespace: &str) -> watch::Receiver<Followed> {
    let (sender, receiver) = watch::channel(None);
    let all = watcher(Api::<Lease>::namespaced(client, namespace), watcher::Config::default());
    let mut events = all.default_backoff().boxed();
    // Ends with the last receiver, at the next event; a watch that is cut off holds nothing that needs care.
    tokio::spawn(async move {
        let mut book = Book::default();
        while !sender.is_closed()
            && let Some(event) = events.next().await
        {
            match event {
                Ok(event) => book.take(event),
                Err(error) => book.complain(error.to_string()),
            }
            sender.send_if_modified(|told| {
                let news = book.told.is_none() && book.listed && told.as_deref() != Some(&book.leaders);
                if news {
                    *told = Some(Arc::new(book.leaders.clone()));
                }
                news
            });
        }
    });
    receiver
}

#[derive(Default)]
struct Book {
    leaders: Leaders,
    /// Those of a list that is being read.
    listing: Leaders,
    /// The Leases were listed once.
    listed: bool,
    /// Why they cannot be followed now, as it was told.
    told: Option<String>,
}

impl Book {
    fn take(&mut self, event: Event<Lease>) {
        self.told = None;
        match event {
            Event::Init => self.listing = Leaders::new(),
            Event::InitApply(lease) => put(&mut self.listing, &lease),
            Event::InitDone => (self.leaders, self.listed) = (mem::take(&mut self.listing), true),
            Event::Apply(lease) => put(&mut self.leaders, &lease),
            Event::Delete(lease) => drop(leader(&lease).and_then(|(vip, _)| self.leaders.remove(&vip))),
        }
    }

    fn complain(&mut self, error: String) {
        if self.told.as_ref() != Some(&error) {
            tracing::warn!(error, "the Leases of VIPs cannot be followed");
            self.told = Some(error);
        }
    }
}

fn put(leaders: &mut Leaders, lease: &Lease) {
    match leader(lease) {
        Some((vip, Some(node))) => drop(leaders.insert(vip, node)),
        Some((vip, None)) => drop(leaders.remove(&vip)),
        None => {}
    }
}
