//! What the agent knows of leaders and peers, in maps for `vipmux inspect`.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use vipmux_common::abi::{self, Address, MEMBER_DRAINING, MEMBER_READY};

use super::{
    Agent, AgentError,
    kernel::{Kernel, KernelError, boottime, nanoseconds},
};
use crate::{
    election::{Leadership, Role},
    membership::{Peer, Standing, Why},
    model::{NodeName, Vip},
};

/// How often everything is looked at. What this node gains or loses is shown at once.
const EVERY: Duration = Duration::from_secs(1);

/// What the maps show.
#[derive(Debug, Default)]
pub(super) struct Shown {
    leaders: BTreeMap<Address, abi::Leader>,
    members: BTreeMap<u32, abi::Member>,
    at: Option<Duration>,
}

impl Shown {
    /// As an earlier agent left it.
    pub(super) fn read(kernel: &Kernel) -> Result<Self, KernelError> {
        Ok(Self { leaders: kernel.maps.read_leaders()?, members: kernel.maps.read_members()?, at: None })
    }
}

impl Agent {
    /// Shows all that is known, if it is time to.
    pub(super) fn show(&mut self) -> Result<(), AgentError> {
        let now = boottime()?;
        if self.shown.at.is_some_and(|at| now < at + EVERY) {
            return Ok(());
        }
        self.shown.at = Some(now);
        self.meters.fill(self.kernel.observed().fill());
        let vips: BTreeSet<Vip> = self.elector.vips().collect();
        let gone = self.shown.leaders.keys().filter(|address| !vips.contains(&Vip((**address).into())));
        for address in gone.copied().collect::<Vec<_>>() {
            self.kernel.maps.set_leader(address, None)?;
            self.shown.leaders.remove(&address);
        }
        for vip in vips {
            self.show_leader(vip)?;
        }
        self.show_members(now)
    }

    /// Shows who leads a VIP.
    pub(super) fn show_leader(&mut self, vip: Vip) -> Result<(), AgentError> {
        let Some(leadership) = self.elector.leadership(vip) else { return Ok(()) };
        let leader = self.leader(&leadership);
        let address = Address::from(vip.0);
        if self.shown.leaders.get(&address) != Some(&leader) {
            self.kernel.maps.set_leader(address, Some(leader))?;
            self.shown.leaders.insert(address, leader);
        }
        Ok(())
    }

    fn leader(&self, leadership: &Leadership) -> abi::Leader {
        let Leadership { role, leader, epoch, since, why } = leadership;
        let node = |name: &NodeName| self.kernel.observed().node_index(name).map_or(0, |index| index + 1);
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
            None => (0, None),
            Some(Why::First) => (abi::Why::First as u32, None),
            Some(Why::Resumed) => (abi::Why::Resumed as u32, None),
            Some(Why::Down(node)) => (abi::Why::Down as u32, Some(node)),
            Some(Why::Handed(node)) => (abi::Why::Handed as u32, Some(node)),
            Some(Why::Silent(node)) => (abi::Why::Silent as u32, Some(node)),
            Some(Why::Unwritten) => (abi::Why::Unwritten as u32, None),
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

    fn show_members(&mut self, now: Duration) -> Result<(), AgentError> {
        let index = |name: &NodeName| self.kernel.observed().node_index(name);
        let mut members: BTreeMap<u32, abi::Member> = self.elector.peers(|peers| {
            let peers = peers.members.iter();
            peers.filter_map(|(name, peer)| Some((index(name)?, member(peer)))).collect()
        });
        if let Some(index) = index(&self.options.node) {
            let before = self.shown.members.get(&index).map_or(0, |member| member.since);
            let begun = if before == 0 { nanoseconds(now) } else { before };
            members.insert(index, self.own(begun));
        }
        for index in self.shown.members.keys().filter(|index| !members.contains_key(index)) {
            self.kernel.maps.set_member(*index, None)?;
        }
        for (index, member) in &members {
            if self.shown.members.get(index) != Some(member) {
                self.kernel.maps.set_member(*index, Some(*member))?;
            }
        }
        self.shown.members = members;
        Ok(())
    }

    fn own(&self, since: u64) -> abi::Member {
        let flags = flags(self.elector.is_ready(), self.leaving.is_some());
        let claims = u32::try_from(self.elector.held().count()).unwrap_or(u32::MAX);
        let (generation, standing) = (self.elector.generation(), abi::Standing::Own as u32);
        abi::Member { generation, heard: 0, since, standing, flags, claims, reserved: 0 }
    }
}

fn member(peer: &Peer) -> abi::Member {
    let standing = match peer.standing {
        Standing::Alive => abi::Standing::Alive,
        Standing::Suspected => abi::Standing::Suspected,
        Standing::Down => abi::Standing::Down,
        Standing::Left => abi::Standing::Left,
    };
    // One that is not there leads nothing, whatever it said last.
    let claims = if peer.standing.lives() { peer.state.claims.len() } else { 0 };
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
