//! Freezes or aborts responses that are in progress.

use std::io;

use futures_util::{Stream, stream};
use http_body_util::BodyExt as _;
use hyper::body::{Bytes, Frame};
use kube::client::Body;
use tokio::sync::watch;

/// Responses have numbers, in the order in which they began.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Responses {
    begun: u64,
    /// Responses up to this number get not one more byte.
    frozen: u64,
    /// Responses up to this number are aborted.
    cut: u64,
}

impl Responses {
    pub(super) fn freeze(&mut self) {
        self.frozen = self.begun;
    }

    pub(super) fn cut(&mut self) {
        self.cut = self.begun;
    }
}

/// A response in progress.
pub(super) struct ResponseBody {
    body: Body,
    number: u64,
    responses: watch::Receiver<Responses>,
}

impl ResponseBody {
    /// Begins a response.
    pub(super) fn begin(body: Body, responses: &watch::Sender<Responses>) -> Self {
        let mut number = 0;
        responses.send_modify(|responses| {
            responses.begun += 1;
            number = responses.begun;
        });
        Self { body, number, responses: responses.subscribe() }
    }

    /// Returns its frames, as long as it is neither frozen nor aborted.
    pub(super) fn frames(self) -> impl Stream<Item = io::Result<Frame<Bytes>>> {
        stream::unfold(self, |mut body| async move {
            let frame = body.next().await?;
            Some((frame, body))
        })
    }

    async fn next(&mut self) -> Option<io::Result<Frame<Bytes>>> {
        loop {
            let Responses { frozen, cut, .. } = *self.responses.borrow_and_update();
            if self.number <= cut {
                return Some(Err(io::ErrorKind::ConnectionAborted.into()));
            }
            if self.number <= frozen {
                // A frozen response ends with the proxy, or is aborted later.
                if self.responses.changed().await.is_err() {
                    return None;
                }
                continue;
            }
            tokio::select! {
                changed = self.responses.changed() => changed.ok()?,
                frame = self.body.frame() => return frame.map(|frame| frame.map_err(io::Error::other)),
            }
        }
    }
}
