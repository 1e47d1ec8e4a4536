//! What becomes of answers that are under way.

use std::io;

use futures_util::{Stream, stream};
use http_body_util::BodyExt as _;
use hyper::body::{Bytes, Frame};
use kube::client::Body;
use tokio::sync::watch;

/// Answers have numbers, in the order in which they began.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fates {
    begun: u64,
    /// Up to this number not one more byte comes.
    frozen: u64,
    /// Up to this number they are broken off.
    cut: u64,
}

impl Fates {
    pub(super) fn freeze(&mut self) {
        self.frozen = self.begun;
    }

    pub(super) fn cut(&mut self) {
        self.cut = self.begun;
    }
}

/// An answer on its way.
pub(super) struct Passage {
    body: Body,
    number: u64,
    fates: watch::Receiver<Fates>,
}

impl Passage {
    /// One that begins now.
    pub(super) fn begin(body: Body, fates: &watch::Sender<Fates>) -> Self {
        let mut number = 0;
        fates.send_modify(|fates| {
            fates.begun += 1;
            number = fates.begun;
        });
        Self { body, number, fates: fates.subscribe() }
    }

    /// Its frames, as long as they come through.
    pub(super) fn frames(self) -> impl Stream<Item = io::Result<Frame<Bytes>>> {
        stream::unfold(self, |mut passage| async move {
            let frame = passage.next().await?;
            Some((frame, passage))
        })
    }

    async fn next(&mut self) -> Option<io::Result<Frame<Bytes>>> {
        loop {
            let Fates { frozen, cut, .. } = *self.fates.borrow_and_update();
            if self.number <= cut {
                return Some(Err(io::ErrorKind::ConnectionAborted.into()));
            }
            if self.number <= frozen {
                // The proxy's end ends it; and a cut may follow.
                if self.fates.changed().await.is_err() {
                    return None;
                }
                continue;
            }
            tokio::select! {
                changed = self.fates.changed() => changed.ok()?,
                frame = self.body.frame() => return frame.map(|frame| frame.map_err(io::Error::other)),
            }
        }
    }
}
