//! What others count already, read when it is asked for.

use std::{fmt, sync::Arc};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _},
    metrics::{MetricType, info::Info},
};
use tokio::sync::watch;

use super::{amount, counters, gauge, gauges};
use crate::{
    gossip::{Count, Counters},
    membership::sealing::Keys,
    model::health::Findings,
};

/// The gossip's datagrams and keys.
#[derive(Debug)]
pub struct GossipMetrics {
    /// What came of the datagrams.
    pub counters: Arc<Counters>,
    /// The keys, as they are followed.
    pub keys: watch::Receiver<Keys>,
}

impl Collector for GossipMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let counts = Count::ALL.into_iter().map(|count| ([("outcome", count.name())], self.counters.get(count)));
        let help = "Datagrams of the agents' gossip, by what came of them";
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

/// What this node's health probes found.
#[derive(Debug)]
pub struct ProbeMetrics(pub watch::Receiver<Findings>);

impl Collector for ProbeMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let findings = self.0.borrow().clone();
        let up = findings.values().filter(|finding| finding.up).count();
        let states = [("up", up), ("down", findings.len() - up)];
        let states = states.map(|(state, count)| ([("state", state)], amount(count)));
        gauges(&mut encoder, "vipmux_health_probes", "Backends of this node that are probed, by what was found", states)
    }
}
