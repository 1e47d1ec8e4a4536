//! Reads and shows the VIPs and the fence: `inspect vips`.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    net::IpAddr,
    time::Duration,
};

use serde::Serialize;
use vipmux_common::abi::{
    Address, Config, Fence, Role, VIP_LEADING, VIP_SEGMENT, VIP_SEGMENT_SHIFT, VIP_YIELDED, VipValue,
};

use super::{
    clock::Clock,
    freshness,
    leadership::{Code, VipLeadership},
};
use crate::output::{
    Report,
    table::{Cell, Color, Table, Tone},
};
use vipmux_datapath::{
    bpf::maps::{Maps, MapsError},
    link::interface_name,
};

/// The state of the fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FenceState {
    /// Before the deadline: ARP and NDP are answered.
    Open,
    /// After the deadline: nothing is answered.
    Lapsed,
    /// The deadline passed ten minutes ago: nothing is answered, and new flows go to the stack.
    Abandoned,
    /// No agent has set a deadline yet.
    NeverSet,
}

/// The fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FenceView {
    /// The fence's state: it decides if ARP and NDP are answered.
    #[serde(rename = "standing")]
    pub state: FenceState,
    /// The deadline, nanoseconds of `CLOCK_BOOTTIME`.
    pub deadline_ns: u64,
    /// Milliseconds until the deadline.
    pub left_ms: Option<u64>,
    /// Milliseconds since the deadline.
    pub lapsed_ms: Option<u64>,
}

/// A VIP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VipView {
    /// The address.
    pub address: IpAddr,
    /// Its id in this node's maps.
    pub id: u32,
    /// This node leads it.
    pub leading: bool,
    /// This node yielded it, because a peer announced it.
    pub yielded: bool,
    /// This node answers ARP and NDP for it: it leads it, before the fence deadline.
    pub answering: bool,
    /// The epoch of its leadership.
    pub epoch: u64,
    /// Its leader, as the agent last wrote it.
    #[serde(flatten)]
    pub leadership: VipLeadership,
    /// The interfaces where it is announced, by name.
    pub interfaces: Vec<String>,
    /// The 802.1Q VLAN where it is announced; 0: untagged.
    pub vlan: u32,
    /// The number of its segment, which decides how nodes are reached (`neighbors`); 0: by their
    /// InternalIPs.
    pub segment: u32,
    /// The number of port claims on it.
    pub services: usize,
}

/// All VIPs, in address order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Vips {
    /// The fence of this node.
    pub fence: FenceView,
    /// The VIPs.
    pub vips: Vec<VipView>,
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl FenceView {
    fn new(fence: Fence, config: &Config, clock: &Clock) -> Self {
        let (state, left_ms, lapsed_ms) = match clock.until(fence.deadline) {
            _ if fence.deadline == 0 => (FenceState::NeverSet, None, None),
            Ok(left) => (FenceState::Open, Some(millis(left)), None),
            Err(since) if freshness::is_abandoned(&fence, config, clock) => {
                (FenceState::Abandoned, None, Some(millis(since)))
            }
            Err(since) => (FenceState::Lapsed, None, Some(millis(since))),
        };
        Self { state, deadline_ns: fence.deadline, left_ms, lapsed_ms }
    }

    /// Returns the state for people.
    pub fn text(&self) -> String {
        match (self.state, self.left_ms, self.lapsed_ms) {
            (_, Some(left), _) => format!("{left} ms left"),
            (_, _, Some(since)) if since < 10_000 => format!("lapsed {since} ms ago"),
            (_, _, Some(since)) => format!("lapsed {} s ago", since / 1000),
            (_, None, None) => "never set".to_owned(),
        }
    }
}

impl Vips {
    /// Reads the fence and the VIPs.
    pub fn read(maps: &Maps, clock: &Clock) -> Result<Self, MapsError> {
        let fence = FenceView::new(maps.read_fence()?, &maps.read_config()?, clock);
        let interfaces = maps.read_interfaces()?;
        let (leaders, nodes) = (maps.read_leaders()?, maps.read_node_names()?);
        let mut services: BTreeMap<u32, usize> = BTreeMap::new();
        for claim in maps.read_services()?.into_keys() {
            *services.entry(claim.vip).or_default() += 1;
        }
        let view = |(address, vip): (Address, VipValue)| {
            let leading = vip.flags & VIP_LEADING != 0;
            let leader = leaders.get(&address);
            let announced = interfaces.iter().filter(|(_, interface)| interface.bit & vip.interfaces != 0);
            VipView {
                address: IpAddr::from(address),
                id: vip.id,
                leading,
                yielded: vip.flags & VIP_YIELDED != 0,
                answering: leading && fence.state == FenceState::Open,
                epoch: leader.map_or(vip.epoch, |leader| leader.epoch),
                leadership: leader.map(|leader| VipLeadership::new(leader, &nodes, clock)).unwrap_or_default(),
                interfaces: announced.map(|(ifindex, _)| interface_name(*ifindex)).collect(),
                vlan: vip.vlan,
                segment: (vip.flags & VIP_SEGMENT) >> VIP_SEGMENT_SHIFT,
                services: services.get(&vip.id).copied().unwrap_or_default(),
            }
        };
        let mut vips: Vec<_> = maps.read_vips()?.into_iter().map(view).collect();
        vips.sort_by_key(|vip| vip.address);
        Ok(Self { fence, vips })
    }
}

fn leader(vip: &VipView) -> Cell<'_> {
    let VipLeadership { leader, role, .. } = &vip.leadership;
    match (role, leader) {
        _ if vip.leading => Cell::toned("this node", if vip.answering { Tone::Good } else { Tone::Bad }),
        (Some(_), Some(leader)) if !vip.leadership.is_own() => Cell::from(leader),
        _ if vip.yielded => Cell::toned("yielded", Tone::Warn),
        (Some(role), Some(_)) => {
            let tone = if *role == Code(Ok(Role::Conflicted)) { Tone::Bad } else { Tone::Warn };
            Cell::toned(format!("this node, {role}"), tone)
        }
        (Some(_), None) => Cell::toned("nobody", Tone::Bad),
        (None, _) => Cell::from("elsewhere"),
    }
}

impl Report for Vips {
    const KIND: &'static str = "vips";

    fn print(&self, out: &mut impl Write, color: Color) -> io::Result<()> {
        let header = ["VIP", "LEADER", "EPOCH", "SINCE", "WHY", "FENCE", "INTERFACES", "VLAN", "SERVICES"];
        let mut table = Table::new(&header).right_aligned(&["EPOCH", "SINCE", "SERVICES"]);
        for vip in &self.vips {
            let vlan = if vip.vlan == 0 { String::new() } else { vip.vlan.to_string() };
            let fence = match (vip.leading, vip.answering) {
                (true, true) => Cell::from(self.fence.text()),
                (true, false) => Cell::toned(self.fence.text(), Tone::Bad),
                (false, _) => Cell::from(""),
            };
            table.row([
                vip.address.to_string().into(),
                leader(vip),
                vip.epoch.to_string().into(),
                vip.leadership.since().unwrap_or_default().into(),
                vip.leadership.reason().unwrap_or_default().into(),
                fence,
                vip.interfaces.join(",").into(),
                vlan.into(),
                vip.services.to_string().into(),
            ]);
        }
        table.print(out, color)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fence_is_open_until_its_deadline_and_abandoned_ten_minutes_later() {
        let clock = Clock::at(Duration::from_secs(1000), Duration::ZERO, 250);
        let config = Config { abandon_after: 600, ..Config::default() };
        for (deadline, state, text) in [
            (0, FenceState::NeverSet, "never set"),
            (1_000_200_000_000, FenceState::Open, "200 ms left"),
            (1_000_000_000_000, FenceState::Lapsed, "lapsed 0 ms ago"),
            (988_000_000_000, FenceState::Lapsed, "lapsed 12 s ago"),
            (400_000_000_000, FenceState::Abandoned, "lapsed 600 s ago"),
        ] {
            let fence = FenceView::new(Fence { deadline, ..Fence::default() }, &config, &clock);
            assert_eq!((fence.state, fence.text().as_str()), (state, text));
        }
    }
}
