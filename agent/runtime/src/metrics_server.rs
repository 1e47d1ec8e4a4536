//! Serves metrics, `/healthz` and `/readyz` over HTTP.

use std::{path::Path, sync::Arc};

use tokio::{net::TcpListener, sync::watch};

use crate::{
    AgentError,
    metrics::{GossipMetrics, MapMetrics, Meters, ProbeMetrics},
    problems::liveness::Liveness,
};
use vipmux_datapath::bpf::maps::Maps;
use vipmux_election::membership::sealing::SealingKeys;
use vipmux_gossip::Counters;
use vipmux_model::health::Findings;
use vipmux_supervisor::Supervisor;
use vipmux_telemetry::{
    http::{self, HttpEndpoints},
    metrics,
};

/// The sources of the metrics.
pub(crate) struct MetricSources<'a> {
    pub(crate) meters: &'a Meters,
    pub(crate) liveness: &'a Arc<Liveness>,
    pub(crate) gossip: Arc<Counters>,
    pub(crate) keys: watch::Receiver<SealingKeys>,
    pub(crate) findings: watch::Receiver<Findings>,
}

/// Starts the server. It opens the maps once more, for scrapes alone, so that they stay readable if
/// the pins go.
pub(crate) fn serve(
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
