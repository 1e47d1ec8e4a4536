//! Reads and writes the maps of leaders and members, which serve `inspect` and `explain`.
//!
//! No program reads them, no plan starts from them, and the self-check does not compare them.

use std::collections::BTreeMap;

use aya::maps::{MapError, lpm_trie::Key};
use vipmux_common::abi::{Address, Leader, Member};

use super::{Maps, MapsError};

/// Returns the trie key of a single address.
fn key(Address { w0, w1, w2, w3 }: Address) -> Key<[u32; 4]> {
    Key::new(4 * u32::BITS, [w0, w1, w2, w3])
}

impl Maps {
    /// Returns `LEADERS`: the leader of each VIP, as the agent wrote it.
    pub fn read_leaders(&self) -> Result<BTreeMap<Address, Leader>, MapsError> {
        let entries = self.leaders.iter().map(|entry| {
            let (key, leader) = entry?;
            let [w0, w1, w2, w3] = key.data();
            Ok((Address { w0, w1, w2, w3 }, leader))
        });
        entries.collect::<Result<_, MapError>>().map_err(|error| self.leaders.reading(error))
    }

    /// Writes the leader of a VIP. `None` removes the entry: the address is no VIP any more.
    pub fn set_leader(&mut self, vip: Address, leader: Option<Leader>) -> Result<(), MapsError> {
        self.leaders.write(&key(vip), leader.as_ref())
    }

    /// Returns `MEMBERS`: this agent and the agents that it knows, by the index of their node.
    pub fn read_members(&self) -> Result<BTreeMap<u32, Member>, MapsError> {
        self.members.read()
    }

    /// Writes the member on the node with that index. `None` removes it: the agent is unknown, or
    /// the node is gone.
    pub fn set_member(&mut self, index: u32, member: Option<Member>) -> Result<(), MapsError> {
        self.members.write(&index, member.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use vipmux_common::abi::{MEMBER_READY, Role, Standing, Why};

    use super::*;
    use crate::fixture::Fixture;

    #[test]
    fn leaders_are_read_as_they_were_written_and_as_many_as_there_is_room_for() {
        let Some(mut fixture) = Fixture::new() else { return };
        let maps = &mut fixture.maps;
        let vip = |host: u8| Address::from(Ipv4Addr::new(192, 0, 2, host));
        let (role, why) = (Role::Leading as u32, Why::Down as u32);
        let leader = Leader { node: 3, role, epoch: 1 << 40, since: 77, why, other: 2 };
        maps.set_leader(vip(1), Some(leader)).unwrap();
        let followed = Leader { role: Role::Following as u32, ..leader };
        maps.set_leader(vip(2), Some(leader)).unwrap();
        maps.set_leader(vip(2), Some(followed)).unwrap();
        assert_eq!(maps.read_leaders().unwrap(), [(vip(1), leader), (vip(2), followed)].into());
        for _ in 0..2 {
            maps.set_leader(vip(1), None).unwrap();
        }
        assert_eq!(maps.read_leaders().unwrap(), [(vip(2), followed)].into());
        let refused = (3..=255).find_map(|host| maps.set_leader(vip(host), Some(leader)).err());
        assert!(matches!(refused, Some(MapsError::Write { map: "LEADERS", .. })), "{refused:?}");
    }

    #[test]
    fn members_are_read_as_they_were_written_and_as_many_as_there_is_room_for() {
        let Some(mut fixture) = Fixture::new() else { return };
        let maps = &mut fixture.maps;
        let standing = Standing::Alive as u32;
        let member =
            Member { generation: 2, heard: 5, since: 4, standing, flags: MEMBER_READY, claims: 9, reserved: 0 };
        maps.set_member(0, Some(member)).unwrap();
        maps.set_member(63, Some(Member { claims: 1, ..member })).unwrap();
        maps.set_member(63, Some(member)).unwrap();
        maps.set_member(0, None).unwrap();
        assert_eq!(maps.read_members().unwrap(), [(63, member)].into());
        let refused = (0..=64).find_map(|index| maps.set_member(index, Some(member)).err());
        assert!(matches!(refused, Some(MapsError::Write { map: "MEMBERS", .. })), "{refused:?}");
    }
}
