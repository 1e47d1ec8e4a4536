//! What is served by HTTP, from what there is to tell.

use std::{path::Path, sync::Arc};

use tokio::{net::TcpListener, sync::watch};

use super::{AgentError, vitals::Vitals};
use crate::{
    datapath::maps::Maps,
    gossip::Counters,
    http::{self, Site},
    membership::sealing::Keys,
    metrics::{self, GossipMetrics, Meters, ProbeMetrics, Reading},
    model::health::Findings,
};

/// Who counts.
pub(super) struct Sources<'a> {
    pub(super) meters: &'a Meters,
    pub(super) vitals: &'a Arc<Vitals>,
    pub(super) gossip: Arc<Counters>,
    pub(super) keys: watch::Receiver<Keys>,
    pub(super) findings: watch::Receiver<Findings>,
}

/// Serves it all. The maps are opened once more, for the scrapes alone: they stay readable whatever becomes of the pins.
pub(super) fn serve(listener: Option<TcpListener>, pins: &Path, sources: Sources<'_>) -> Result<(), AgentError> {
    let Some(listener) = listener else { return Ok(()) };
    let Sources { meters, vitals, gossip, keys, findings } = sources;
    let mut registry = metrics::registry();
    meters.register(&mut registry);
    registry.register_collector(Box::new(Arc::clone(vitals)));
    registry.register_collector(Box::new(GossipMetrics { counters: gossip, keys }));
    registry.register_collector(Box::new(ProbeMetrics(findings)));
    let maps = Maps::open(pins)?;
    let (live, ready) = (Arc::clone(vitals), Arc::clone(vitals));
    http::start(
        listener,
        Site {
            metrics: Box::new(move || Ok(metrics::encode([&registry, &Reading::take(&maps)?.registry()])?)),
            live: Box::new(move || live.live()),
            ready: Box::new(move || ready.ready()),
        },
    );
    Ok(())
}
