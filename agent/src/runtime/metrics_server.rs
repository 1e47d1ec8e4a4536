//! Serves metrics, `/healthz` and `/readyz` over HTTP.

use std::{path::Path, sync::Arc};

use tokio::{net::TcpListener, sync::watch};

use super::{AgentError, liveness::Liveness};
use crate::{
    gossip::Counters,
    http::{self, HttpEndpoints},
    metrics::{self, GossipMetrics, MapMetrics, Meters, ProbeMetrics},
};
use vipmux_datapath::bpf::maps::Maps;
use vipmux_election::membership::sealing::SealingKeys;
use vipmux_model::health::Findings;
use vipmux_supervisor::Supervisor;

/// The sources of the metrics.
pub(super) struct MetricSources<'a> {
    pub(super) meters: &'a Meters,
    pub(super) liveness: &'a Arc<Liveness>,
    pub(super) gossip: Arc<Counters>,
    pub(super) keys: watch::Receiver<SealingKeys>,
    pub(super) findings: watch::Receiver<Findings>,
}

/// Starts the server. It opens the maps once more, for scrapes alone, so that they stay readable if
/// the pins go.
pub(super) fn serve(
    listener: Option<TcpListener>,
    pins: &Path,
    sources: MetricSources<'_>,
    supervisor: &Supervisor,
) -> Result<(), AgentError> {
    let Some(listener) = listener else { return Ok(()) };
    let MetricSources { meters, liveness, gossip, keys, findings } = sources;
    let mut registry = metrics::registry();
    meters.register(&mut registry);
    registry.register_collector(Box::new(Arc::clone(liveness)));
    registry.register_collector(Box::new(GossipMetrics { counters: gossip, keys }));
    registry.register_collector(Box::new(ProbeMetrics(findings)));
    let maps = Maps::open(pins)?;
    let (live, ready) = (Arc::clone(liveness), Arc::clone(liveness));
    http::start(
        listener,
        HttpEndpoints {
            metrics: Box::new(move || Ok(metrics::encode([&registry, &MapMetrics::take(&maps)?.registry()])?)),
            live: Box::new(move || live.live()),
            ready: Box::new(move || ready.ready()),
        },
        supervisor,
    );
    Ok(())
}
