//! Executes [`Step`]s and the agent's other writes to maps.

use aya::maps::lpm_trie::Key;
use nix::time::{ClockId, clock_getres};
use vipmux_common::abi::{
    self, ABI_VERSION, Activity, Config, Fence, FlowSecret, Interface, NodeLabel, ServiceOwner, VipValue,
};

use super::maps::{Maps, MapsError};
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
        match step {
            Step::Table(first, slots) => self.write_table(*first, slots),
            Step::Config(value) => self.config.write(0, *value),
            Step::NodeName(index, name) => {
                self.node_names.write(*index, NodeLabel::new(name.as_deref().unwrap_or_default()))
            }
            Step::Node(index, value) => self.nodes.write(*index, *value),
            Step::Peer(mac, node) => self.peers.write(mac, node.as_ref()),
            Step::Backend(index, value) => self.write_backend(*index, *value),
            Step::ServiceName(slot, name) => {
                if name.is_some() {
                    self.service_stats.clear(*slot)?;
                }
                let owner = name
                    .as_ref()
                    .map_or(ServiceOwner::new("", ""), |name| ServiceOwner::new(name.namespace(), name.name()));
                self.service_names.write(*slot, owner)
            }
            Step::ServiceState(slot, value) => self.write_service_state(*slot, *value),
            Step::Service(key, value) => {
                self.services.write(key, value.as_ref())?;
                self.index_service(*key, value.as_ref())
            }
            Step::SourceRange((bits, range), present) => {
                self.source_ranges.write(&Key::new(*bits, *range), present.then_some(&1))
            }
            Step::Vip(address, value) => {
                self.vips.write(address, value.as_ref())?;
                self.index_vip(*address, value.as_ref())
            }
        }
    }

    /// Extends the fence deadline: nanoseconds of `CLOCK_BOOTTIME`. The programs check again at once
    /// whether the agent is away.
    pub fn write_deadline(&mut self, deadline: u64) -> Result<(), MapsError> {
        self.fence.write(0, Fence { deadline, ..Fence::default() })
    }

    /// Returns the bits of the ports where the XDP program ran since the last call
    /// ([`Interface::bit`]). A bit that is set meanwhile may be lost, until the next frame.
    pub fn take_activity(&mut self) -> Result<u32, MapsError> {
        let Activity { ports } = self.activity.first()?;
        if ports != 0 {
            self.activity.write(0, Activity::default())?;
        }
        Ok(ports)
    }

    /// Writes an interface's entry. All zero: the programs ignore the interface.
    pub fn set_interface(&mut self, ifindex: u32, value: Interface) -> Result<(), MapsError> {
        self.interfaces.write(ifindex, value)
    }

    /// Returns the current entry of a VIP in `VIPS`.
    pub fn read_vip(&self, address: &abi::Address) -> Result<Option<VipValue>, MapsError> {
        self.vips.look_up(address)
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
