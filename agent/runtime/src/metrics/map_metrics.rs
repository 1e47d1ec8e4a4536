//! Metrics from the maps: the programs' counters, and the leaders and peers that the agent
//! publishes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
    time::Duration,
};

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, registry::Registry};
use vipmux_common::abi::{Address, Count, DropReason, Leader, Member, Role, Standing, Stat, VIP_LEADING, VipValue};

use vipmux_datapath::bpf::{
    flow_table::FlowState,
    maps::{Maps, MapsError},
};
use vipmux_inspect::{
    names::{Claim, Names},
    stats::{RefusedFrames, refused_frames},
};
use vipmux_telemetry::metrics::{amount, counters, gauge, gauges};

/// The values of the maps at one time.
#[derive(Clone, Debug, Default)]
pub struct MapMetrics {
    stats: Vec<(Stat, Count)>,
    drops: Vec<(DropReason, Count)>,
    refused: Vec<RefusedFrames>,
    services: Vec<(Claim, Count)>,
    leaders: BTreeMap<Address, Leader>,
    members: BTreeMap<u32, Member>,
    flows: BTreeMap<FlowState, usize>,
    flow_capacity: usize,
    /// The time until the fence deadline, in seconds; negative: since it passed.
    fence: Option<f64>,
}

impl MapMetrics {
    /// Returns a registry with these metrics alone.
    pub fn registry(self) -> Registry {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        registry
    }

    /// Reads the maps. Takes a few milliseconds, and some tens of them with thousands of Services or
    /// a large flow table.
    pub fn take(maps: &Maps) -> Result<Self, MapsError> {
        let now = vipmux_cluster::clock::boottime();
        let deadline = maps.read_fence()?.deadline;
        let table = maps.flow_table()?;
        Ok(Self {
            flows: table.occupancy(),
            flow_capacity: table.capacity(),
            stats: maps.read_stats()?,
            drops: maps.read_drops()?,
            refused: refused_frames(maps)?,
            services: services(maps)?,
            leaders: maps.read_leaders()?,
            members: maps.read_members()?,
            fence: (deadline != 0).then(|| Duration::from_nanos(deadline).as_secs_f64() - now.as_secs_f64()),
        })
    }
}

/// Returns the port claims with packets, and those of VIPs that are led here. On each of many nodes
/// most are neither.
fn services(maps: &Maps) -> Result<Vec<(Claim, Count)>, MapsError> {
    let claims = maps.read_services()?;
    let vips = maps.read_vips()?;
    let is_led = |value: &&VipValue| value.flags & VIP_LEADING != 0;
    let led: BTreeSet<u32> = vips.values().filter(is_led).map(|value| value.id).collect();
    let slots = claims.values().map(|value| value.slot.saturating_add(1)).max().unwrap_or(0);
    let counts = maps.read_service_stats(slots)?;
    let names = Names::read(maps)?;
    let counted = claims.iter().filter_map(|(key, value)| {
        let count = counts.get(value.slot as usize).copied().unwrap_or_default();
        (count.packets != 0 || led.contains(&key.vip)).then(|| (names.claim(key, value), count))
    });
    // A claim that goes meanwhile may have lost its name already.
    Ok(counted.filter(|(claim, _)| claim.vip.is_some() && !claim.name.is_empty()).collect())
}

/// Returns the labels of a port claim.
fn labels(claim: &Claim) -> [(&'static str, String); 5] {
    [
        ("namespace", claim.namespace.clone()),
        ("service", claim.name.clone()),
        ("vip", claim.vip.map(|vip| vip.to_string()).unwrap_or_default()),
        ("port", claim.port.to_string()),
        ("protocol", claim.protocol.clone()),
    ]
}

impl Collector for MapMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        self.encode_packets(&mut encoder)?;
        self.encode_services(&mut encoder)?;
        self.encode_vips(&mut encoder)?;
        let mut standings: BTreeMap<&str, usize> = Standing::ALL.iter().map(|standing| (standing.name(), 0)).collect();
        for member in self.members.values() {
            if let Ok(standing) = Standing::of(member.standing) {
                *standings.entry(standing.name()).or_default() += 1;
            }
        }
        let standings = standings.into_iter().map(|(standing, count)| ([("standing", standing)], amount(count)));
        gauges(&mut encoder, "vipmux_members", "Nodes with an agent, by state", standings)?;
        let help = "Records of the flow table, by the state of their flow";
        let flows = self.flows.iter().map(|(state, count)| ([("state", state.name())], amount(*count)));
        gauges(&mut encoder, "vipmux_flow_records", help, flows)?;
        let help = "Records that the flow table has room for";
        gauge(&mut encoder, "vipmux_flow_capacity_records", help, amount(self.flow_capacity))?;
        let help = "Time until the fence deadline, in seconds; negative: time since it passed, and nothing is answered";
        self.fence.map_or(Ok(()), |left| gauge(&mut encoder, "vipmux_fence_remaining_seconds", help, left))
    }
}

impl MapMetrics {
    fn encode_packets(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let stats = |value: fn(&Count) -> u64| {
            self.stats.iter().map(move |(stat, count)| ([("event", stat.name())], value(count)))
        };
        let help = "Packets that the programs saw, by what happened to them (docs/packets.md)";
        counters(encoder, "vipmux_packets", help, stats(|count| count.packets))?;
        let help = "Bytes of these packets, from the Ethernet header on";
        counters(encoder, "vipmux_packet_bytes", help, stats(|count| count.bytes))?;
        let drops = |value: fn(&Count) -> u64| {
            self.drops.iter().map(move |(reason, count)| ([("reason", reason.name())], value(count)))
        };
        let help = "Packets that the programs dropped, by reason (docs/packets.md)";
        counters(encoder, "vipmux_dropped_packets", help, drops(|count| count.packets))?;
        let help = "Bytes of these packets, from the Ethernet header on";
        counters(encoder, "vipmux_dropped_bytes", help, drops(|count| count.bytes))?;
        let refused = self.refused.iter().map(|it| {
            let labels =
                [("interface", it.interface.clone()), ("action", it.action.to_owned()), ("error", it.error.clone())];
            (labels, it.frames)
        });
        let help = "Frames that the kernel refused after the programs' verdict (docs/packets.md)";
        counters(encoder, "vipmux_refused_frames", help, refused)
    }

    fn encode_services(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let services =
            |value: fn(&Count) -> u64| self.services.iter().map(move |(claim, count)| (labels(claim), value(count)));
        let help = "Packets to a Service port on a VIP through this node; port 0: those that no other port claim names";
        counters(encoder, "vipmux_service_packets", help, services(|count| count.packets))?;
        let help = "Bytes of these packets, from the Ethernet header on";
        counters(encoder, "vipmux_service_bytes", help, services(|count| count.bytes))?;
        let help = "Flows to a Service port on a VIP that began on this node";
        counters(encoder, "vipmux_service_flows", help, services(|count| count.flows))
    }

    fn encode_vips(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut roles: BTreeMap<&str, usize> = Role::ALL.iter().map(|role| (role.name(), 0)).collect();
        let mut own = Vec::new();
        for (address, leader) in &self.leaders {
            let Ok(role) = Role::of(leader.role) else { continue };
            *roles.entry(role.name()).or_default() += 1;
            if role != Role::Following {
                own.push((IpAddr::from(*address), role, leader.epoch));
            }
        }
        let roles = roles.into_iter().map(|(role, count)| ([("role", role)], amount(count)));
        gauges(encoder, "vipmux_vips", "VIPs, by the role of this node", roles)?;
        let orphans = self.leaders.values().filter(|leader| leader.node == 0).count();
        let help = "VIPs that no node leads, as far as this node knows";
        gauge(encoder, "vipmux_vips_without_leader", help, amount(orphans))?;
        let label = |vip: &IpAddr| [("vip", vip.to_string())];
        let leading = own.iter().map(|(vip, role, _)| (label(vip), f64::from(u8::from(*role == Role::Leading))));
        let help =
            "VIPs that this node holds: 1 if it answers for them, 0 if it does not at present; others are not here";
        gauges(encoder, "vipmux_vip_leading", help, leading)?;
        let epochs =
            own.iter().map(|(vip, _, epoch)| (label(vip), amount(usize::try_from(*epoch).unwrap_or(usize::MAX))));
        let help = "The epoch of VIPs that this node holds; grows with each change of leader";
        gauges(encoder, "vipmux_vip_epoch", help, epochs)
    }
}

#[cfg(test)]
impl MapMetrics {
    /// Returns one value of each kind.
    pub(super) fn sample() -> Self {
        let vip = |host| IpAddr::from([192, 0, 2, host]);
        let claim = |name: &str, port| Claim {
            vip: Some(vip(10)),
            port,
            protocol: "TCP".to_owned(),
            namespace: "shop".to_owned(),
            name: name.to_owned(),
        };
        let count = Count { packets: 3, bytes: 180, flows: 2 };
        let leader = |node, role: Role| Leader { node, role: role as u32, epoch: 7, ..Leader::default() };
        let leaders =
            [(10, leader(1, Role::Leading)), (11, leader(2, Role::Following)), (12, leader(0, Role::Detecting))];
        let member = |standing: Standing| Member { standing: standing as u32, ..Member::default() };
        let (interface, error) = ("eth0".to_owned(), "EMSGSIZE".to_owned());
        Self {
            refused: vec![RefusedFrames { interface, action: "redirect", error, frames: 7 }],
            stats: Stat::ALL.iter().map(|stat| (*stat, count)).collect(),
            drops: DropReason::ALL.iter().map(|reason| (*reason, count)).collect(),
            services: vec![(claim("web", 80), count), (claim("a\"b", 0), count)],
            leaders: leaders.map(|(host, leader)| (vip(host).into(), leader)).into(),
            members: BTreeMap::from([(0, member(Standing::Own)), (1, member(Standing::Alive))]),
            flows: FlowState::ALL.into_iter().zip(1..).collect(),
            flow_capacity: 16_384,
            fence: Some(-1.5),
        }
    }
}
