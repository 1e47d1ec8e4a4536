//! Executes [`Step`]s and the agent's other writes to maps.

use aya::maps::{MapError, lpm_trie::Key};
use nix::time::{ClockId, clock_getres};
use vipmux_common::abi::{
    self, ABI_VERSION, Activity, Config, Fence, FlowSecret, Interface, NodeLabel, ServiceOwner, VipValue,
};

use super::maps::{Maps, MapsError, put, put_prefix};
use vipmux_plan::Step;

/// The lifetime of an idle TCP flow: 2 hours and 4 minutes (RFC 5382, REQ-5).
const TCP_IDLE_SECONDS: u32 = 7_440;
/// The lifetime of an idle UDP flow: 5 minutes (RFC 4787, REQ-5).
pub(crate) const UDP_IDLE_SECONDS: u32 = 300;
/// The time for which a closed connection is still translated after its last segment. Two
/// retransmissions are at most 120 s apart (`TCP_RTO_MAX` of include/net/tcp.h). Conntrack
/// remembers a closed connection for at most 120 s (`nf_conntrack_tcp_timeout_time_wait`). A
/// record's time is up to a second old.
const CLOSED_LINGER_SECONDS: u32 = 125;

/// The time from the fence deadline until the programs leave VIPs to the node's own stack.
const ABANDON_SECONDS: u32 = 600;

/// The time for which later fragments follow their first one: the time for which Linux waits for a
/// datagram's fragments (net.ipv4.ipfrag_time).
const FRAGMENT_LIFE_SECONDS: u32 = 30;
/// The limit of answers in the name of VIPs, per CPU and second.
const ANSWERS_PER_SECOND: u32 = 4_096;

/// The treatment of packets to a VIP that no Service or no backend takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Unclaimed {
    /// TCP RST, ICMP port unreachable; rate-limited.
    #[default]
    Reject,
    /// No answer.
    Drop,
    /// Pass to the node's own stack: kube-proxy, or a local listener. Packets that another node
    /// hands over are rejected, so that none goes from node to node.
    Pass,
}

impl From<Unclaimed> for u32 {
    fn from(unclaimed: Unclaimed) -> Self {
        match unclaimed {
            Unclaimed::Reject => abi::UNCLAIMED_REJECT,
            Unclaimed::Drop => abi::UNCLAIMED_DROP,
            Unclaimed::Pass => abi::UNCLAIMED_PASS,
        }
    }
}

/// Returns the configuration of new maps, without their flow table's. The resolution of the coarse
/// clock is one tick, which gives jiffies per second.
pub fn new_config() -> Config {
    let resolution = clock_getres(ClockId::CLOCK_MONOTONIC_COARSE).map_or(0, |tick| tick.tv_nsec());
    let hz = u32::try_from(1_000_000_000_i64.checked_div(resolution).unwrap_or_default()).unwrap_or(0).max(1);
    Config {
        abi: ABI_VERSION,
        next_vip: 1,
        next_generation: 1,
        hz,
        tcp_idle: TCP_IDLE_SECONDS * hz,
        udp_idle: UDP_IDLE_SECONDS * hz,
        closed_linger: CLOSED_LINGER_SECONDS * hz,
        abandon_after: ABANDON_SECONDS,
        fragment_life: FRAGMENT_LIFE_SECONDS * hz,
        unclaimed: abi::UNCLAIMED_REJECT,
        answers_per_second: ANSWERS_PER_SECOND,
        ..Config::default()
    }
}

/// Returns a new secret for a flow table.
pub(super) fn new_secret() -> Result<FlowSecret, getrandom::Error> {
    let random = getrandom::u64;
    Ok(FlowSecret { sum: random()?, client: [random()?, random()?, random()?, random()?], port: random()? })
}

impl Maps {
    /// Executes one step.
    pub fn apply(&mut self, step: &Step) -> Result<(), MapsError> {
        let (map, result) = match step {
            Step::Table(first, slots) => return self.write_table(*first, slots),
            Step::Config(value) => ("CONFIG", self.config.set(0, value, 0)),
            Step::NodeName(index, name) => {
                let label = NodeLabel::new(name.as_deref().unwrap_or_default());
                ("NODE_NAMES", self.node_names.set(*index, label, 0))
            }
            Step::Node(index, value) => ("NODES", self.nodes.set(*index, value, 0)),
            Step::Peer(mac, node) => ("PEERS", put(&mut self.peers, mac, node.as_ref())),
            Step::Backend(index, value) => return self.write_backend(*index, *value),
            Step::ServiceName(slot, name) => {
                if name.is_some() {
                    self.clear_service_stats(*slot)?;
                }
                let owner = name
                    .as_ref()
                    .map_or(ServiceOwner::new("", ""), |name| ServiceOwner::new(name.namespace(), name.name()));
                ("SERVICE_NAMES", self.service_names.set(*slot, owner, 0))
            }
            Step::ServiceState(slot, value) => return self.write_service_state(*slot, *value),
            Step::Service(key, value) => ("SERVICES", put(&mut self.services, key, value.as_ref())),
            Step::SourceRange((bits, range), present) => {
                let key = Key::new(*bits, *range);
                ("SOURCE_RANGES", put_prefix(&mut self.source_ranges, &key, present.then_some(&1)))
            }
            Step::Vip(address, value) => ("VIPS", put(&mut self.vips, address, value.as_ref())),
        };
        result.map_err(|source| MapsError::Write { map, source })
    }

    /// Extends the fence deadline: nanoseconds of `CLOCK_BOOTTIME`. The programs check again at once
    /// whether the agent is away.
    pub fn write_deadline(&mut self, deadline: u64) -> Result<(), MapsError> {
        let fence = Fence { deadline, ..Fence::default() };
        self.fence.set(0, fence, 0).map_err(|source| MapsError::Write { map: "FENCE", source })
    }

    /// Returns the bits of the ports where the XDP program ran since the last call
    /// ([`Interface::bit`]). A bit that is set meanwhile may be lost, until the next frame.
    pub fn take_activity(&mut self) -> Result<u32, MapsError> {
        const MAP: &str = "ACTIVITY";
        let Activity { ports } = self.activity.get(&0, 0).map_err(|source| MapsError::Read { map: MAP, source })?;
        if ports != 0 {
            let none = Activity::default();
            self.activity.set(0, none, 0).map_err(|source| MapsError::Write { map: MAP, source })?;
        }
        Ok(ports)
    }

    /// Writes an interface's entry. All zero: the programs ignore the interface.
    pub fn set_interface(&mut self, ifindex: u32, value: Interface) -> Result<(), MapsError> {
        self.interfaces.set(ifindex, value, 0).map_err(|source| MapsError::Write { map: "INTERFACES", source })
    }

    /// Returns the current entry of a VIP in `VIPS`.
    pub fn read_vip(&self, address: &abi::Address) -> Result<Option<VipValue>, MapsError> {
        match self.vips.get(address, 0) {
            Ok(value) => Ok(Some(value)),
            Err(MapError::KeyNotFound) => Ok(None),
            Err(source) => Err(MapsError::Read { map: "VIPS", source }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_makes_the_programs_ask_again_whether_the_agent_is_away() {
        let Some(mut fixture) = crate::fixture::Fixture::new() else { return };
        let maps = &mut fixture.maps;
        maps.fence.set(0, Fence { deadline: 100, kept_until: 7, abandoned_until: 1 }, 0).unwrap();
        maps.write_deadline(300).unwrap();
        assert_eq!(maps.read_fence().unwrap(), Fence { deadline: 300, kept_until: 0, abandoned_until: 0 });
    }
}
