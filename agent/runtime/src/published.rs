//! Publishes what this node knows of leaders and peers, in maps for `vipmux inspect`.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use vipmux_common::abi::{self, Address, MEMBER_DRAINING, MEMBER_READY, Standing};

use crate::{
    election::elector::Elector,
    serving::{
        kernel::{Kernel, nanoseconds},
        kernel_error::KernelError,
    },
};
use vipmux_datapath::bpf::maps::MapsError;
use vipmux_election::{
    Leadership, Role,
    membership::{MemberStatus, Peer, Why},
};
use vipmux_model::{NodeName, Vip};

/// The interval at which everything is published. VIPs that this node gains or loses are published
/// at once.
const EVERY: Duration = Duration::from_secs(1);

/// The leaders and members, as the maps have them.
#[derive(Debug, Default)]
pub(crate) struct Published {
    leaders: BTreeMap<Address, abi::Leader>,
    members: BTreeMap<u32, abi::Member>,
    /// The time when everything was published last.
    at: Option<Duration>,
}

impl Published {
    /// Reads what an earlier agent left.
    pub(crate) fn read(kernel: &Kernel) -> Result<Self, KernelError> {
        Ok(Self { leaders: kernel.maps.read_leaders()?, members: kernel.maps.read_members()?, at: None })
    }

    /// Returns whether everything is to be published now, and notes that it is.
    pub(crate) fn take_due(&mut self, now: Duration) -> bool {
        let due = self.at.is_none_or(|at| now >= at + EVERY);
        if due {
            self.at = Some(now);
        }
        due
    }

    /// Publishes the leaders of all VIPs, and removes those of VIPs that are gone.
    pub(crate) fn publish_leaders(&mut self, kernel: &mut Kernel, elector: &Elector) -> Result<(), MapsError> {
        let vips: BTreeSet<Vip> = elector.vips().collect();
        let gone = self.leaders.keys().filter(|address| !vips.contains(&Vip::new((**address).into())));
        for address in gone.copied().collect::<Vec<_>>() {
            kernel.maps.set_leader(address, None)?;
            self.leaders.remove(&address);
        }
        vips.into_iter().try_for_each(|vip| self.publish_leader(kernel, elector, vip))
    }

    /// Publishes the leader of a VIP.
    pub(crate) fn publish_leader(&mut self, kernel: &mut Kernel, elector: &Elector, vip: Vip) -> Result<(), MapsError> {
        let Some(leadership) = elector.leadership(vip) else { return Ok(()) };
        let leader = leader(&leadership, |name| kernel.observed().node_index(name));
        let address = Address::from(vip.address());
        if self.leaders.get(&address) != Some(&leader) {
            kernel.maps.set_leader(address, Some(leader))?;
            self.leaders.insert(address, leader);
        }
        Ok(())
    }

    /// Publishes the members: the peers and this node.
    pub(crate) fn publish_members(
        &mut self,
        kernel: &mut Kernel,
        elector: &Elector,
        node: &NodeName,
        now: Duration,
    ) -> Result<(), MapsError> {
        let index = |name: &NodeName| kernel.observed().node_index(name);
        let mut members: BTreeMap<u32, abi::Member> = elector.peers(|peers| {
            let peers = peers.members.iter();
            peers.filter_map(|(name, peer)| Some((index(name)?, member(peer)))).collect()
        });
        let since = |index: u32, standing: Standing| {
            let before = self.members.get(&index).filter(|member| member.standing == standing as u32);
            before.map_or(nanoseconds(now), |member| member.since)
        };
        for (name, heard) in elector.keys().strangers() {
            if let Some(index) = index(name) {
                let (standing, heard) = (Standing::OtherKey, nanoseconds(*heard));
                let since = since(index, standing);
                members
                    .insert(index, abi::Member { heard, since, standing: standing as u32, ..abi::Member::default() });
            }
        }
        if let Some(index) = index(node) {
            members.insert(index, own_member(elector, since(index, Standing::Own)));
        }
        for index in self.members.keys().filter(|index| !members.contains_key(index)) {
            kernel.maps.set_member(*index, None)?;
        }
        for (index, member) in &members {
            if self.members.get(index) != Some(member) {
                kernel.maps.set_member(*index, Some(*member))?;
            }
        }
        self.members = members;
        Ok(())
    }
}

fn own_member(elector: &Elector, since: u64) -> abi::Member {
    let (ready, draining) = elector.published_ability();
    let flags = flags(ready, draining);
    let claims = u32::try_from(elector.own_vips().count()).unwrap_or(u32::MAX);
    let (generation, standing) = (elector.generation(), Standing::Own as u32);
    abi::Member { generation, heard: 0, since, standing, flags, claims, reserved: 0 }
}

/// Converts this node's knowledge of a VIP. `index`: a node's index in the maps.
fn leader(leadership: &Leadership, index: impl Fn(&NodeName) -> Option<u32>) -> abi::Leader {
    let Leadership { role, leader, epoch, since, why, answered } = leadership;
    let node = |name: &NodeName| index(name).map_or(0, |index| index + 1);
    let role = match role {
        Role::Following => abi::Role::Following,
        Role::Detecting => abi::Role::Detecting,
        Role::Conflicted => abi::Role::Conflicted,
        Role::Leading => abi::Role::Leading,
        Role::Yielded => abi::Role::Yielded,
        Role::Suspended => abi::Role::Suspended,
        Role::Handing => abi::Role::Handing,
    };
    let (why, other) = match why {
        _ if *answered => (abi::Why::Answered as u32, leader.as_ref()),
        None | Some(Why::Other) => (0, None),
        Some(Why::First) => (abi::Why::First as u32, None),
        Some(Why::Resumed) => (abi::Why::Resumed as u32, None),
        Some(Why::Down(node)) => (abi::Why::Down as u32, Some(node)),
        Some(Why::Handed(node)) => (abi::Why::Handed as u32, Some(node)),
        Some(Why::Silent(node)) => (abi::Why::Silent as u32, Some(node)),
        Some(Why::Unwritten) => (abi::Why::Unwritten as u32, None),
        Some(Why::Lapsed(node)) => (abi::Why::Lapsed as u32, Some(node)),
    };
    abi::Leader {
        node: leader.as_ref().map_or(0, node),
        role: role as u32,
        epoch: *epoch,
        since: nanoseconds(*since),
        why,
        other: other.map_or(0, node),
    }
}

fn member(peer: &Peer) -> abi::Member {
    let standing = match peer.status {
        MemberStatus::Alive => Standing::Alive,
        MemberStatus::Suspected => Standing::Suspected,
        MemberStatus::Down => Standing::Down,
        MemberStatus::Left => Standing::Left,
    };
    // A member that is not there leads nothing, whatever it published last.
    let claims = if peer.status.is_alive() { peer.state.claims.len() } else { 0 };
    abi::Member {
        generation: peer.generation,
        heard: peer.heard.map_or(0, nanoseconds),
        since: nanoseconds(peer.since),
        standing: standing as u32,
        flags: flags(peer.state.ready, peer.state.draining),
        claims: u32::try_from(claims).unwrap_or(u32::MAX),
        reserved: 0,
    }
}

fn flags(ready: bool, draining: bool) -> u32 {
    let flag = |set, flag| if set { flag } else { 0 };
    flag(ready, MEMBER_READY) | flag(draining, MEMBER_DRAINING)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vipmux_testing::names::node_name;

    #[test]
    fn a_leader_names_nodes_by_their_index_plus_one_and_0_is_nobody() {
        let index = |node: &NodeName| (node.as_str() == "n2").then_some(4);
        let leadership = Leadership {
            role: Role::Following,
            leader: Some(node_name("n2")),
            epoch: 7,
            since: Duration::from_secs(1),
            why: Some(Why::Down(node_name("unknown"))),
            answered: false,
        };
        let published = leader(&leadership, index);
        assert_eq!((published.node, published.other, published.epoch), (5, 0, 7));
        assert_eq!((published.role, published.why), (abi::Role::Following as u32, abi::Why::Down as u32));
        assert_eq!(published.since, 1_000_000_000);
        let answered = leader(&Leadership { answered: true, ..leadership.clone() }, index);
        assert_eq!((answered.why, answered.node, answered.other), (abi::Why::Answered as u32, 5, 5));
        assert_eq!(leader(&Leadership { leader: None, ..leadership }, index).node, 0);
    }

    #[test]
    fn everything_is_published_once_a_second() {
        let mut published = Published::default();
        let start = Duration::from_secs(100);
        assert!(published.take_due(start));
        assert!(!published.take_due(start + EVERY / 2));
        assert!(published.take_due(start + EVERY));
    }
}
