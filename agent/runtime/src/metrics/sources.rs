//! Metrics from counters of other parts, read at each scrape.

use std::{fmt, sync::Arc};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _},
    metrics::{MetricType, info::Info},
};
use tokio::sync::watch;

use vipmux_election::membership::sealing::SealingKeys;
use vipmux_gossip::{Counters, GossipCount};
use vipmux_model::health::Findings;
use vipmux_telemetry::metrics::{amount, counters, gauge, gauges};

/// The metrics of the gossip's datagrams and keys.
#[derive(Debug)]
pub struct GossipMetrics {
    /// The datagrams by outcome.
    pub counters: Arc<Counters>,
    /// The current keys.
    pub keys: watch::Receiver<SealingKeys>,
}

impl Collector for GossipMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let counts = GossipCount::ALL.into_iter().map(|count| ([("outcome", count.name())], self.counters.get(count)));
        let help = "Gossip datagrams, by outcome";
        counters(&mut encoder, "vipmux_gossip_datagrams", help, counts)?;
        let ids: Vec<String> = self.keys.borrow().ids().collect();
        let help = "Keys that open gossip; two while a key is replaced";
        gauge(&mut encoder, "vipmux_gossip_keys", help, amount(ids.len()))?;
        let sealing = ids.first().cloned().unwrap_or_default();
        let help = "The key that seals gossip, by the beginning of its hash";
        let family = encoder.encode_descriptor("vipmux_gossip_sealing_key", help, None, MetricType::Info)?;
        Info::new([("id", sealing)]).encode(family)
    }
}

/// The metrics of this node's health probes.
#[derive(Debug)]
pub struct ProbeMetrics(pub watch::Receiver<Findings>);

impl Collector for ProbeMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let findings = self.0.borrow().clone();
        let up = findings.values().filter(|finding| finding.up).count();
        let states = [("up", up), ("down", findings.len() - up)];
        let states = states.map(|(state, count)| ([("state", state)], amount(count)));
        gauges(&mut encoder, "vipmux_health_probes", "Backends of this node that are probed, by result", states)
    }
}
