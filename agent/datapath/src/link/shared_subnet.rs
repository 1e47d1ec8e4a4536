//! Chooses the card that announces VIPs where several cards of this node are in one subnet.
//!
//! Such cards are on one layer-2 segment. If both answered, each client would learn one of two MACs, by
//! chance. With a strict reverse path filter, the kernel drops what comes in by the card that replies do
//! not leave by.

use std::{cmp::Reverse, collections::BTreeSet, fmt, net::IpAddr};

use super::{Interface, Links, NetworkSegment, Segments, Subnet, network};

/// A subnet with several cards of this node in one VLAN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedSubnet {
    /// The subnet.
    pub subnet: Subnet,
    /// The interface that announces VIPs.
    pub chosen: u32,
    /// The other ones.
    pub others: BTreeSet<u32>,
    /// Why it is chosen.
    pub reason: CardReason,
}

/// Why a card is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CardReason {
    /// All others have no carrier, or no path to other nodes.
    OnlyUsable,
    /// The node's replies leave by it.
    Replies,
    /// Nothing else differs.
    LowestIndex,
}

impl fmt::Display for CardReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OnlyUsable => "no other one has a carrier and a path to others",
            Self::Replies => "the node's replies leave by it",
            Self::LowestIndex => "its index is the lowest",
        })
    }
}

impl Links {
    /// Returns whether two interfaces have addresses in one subnet.
    pub fn share_a_subnet(&self, first: u32, second: u32) -> bool {
        let subnets = |ifindex| self.get(ifindex).into_iter().flat_map(Interface::subnets);
        subnets(first).any(|subnet| subnets(second).any(|other| other == subnet))
    }

    /// Returns whether the kernel sends to the subnet of `address` by this interface. If the interface has no
    /// such subnet, any of its subnets with the family of `address` counts.
    fn replies_leave_by(&self, ifindex: u32, address: IpAddr) -> bool {
        let Some(interface) = self.get(ifindex) else { return false };
        let is_routed = |subnet: Subnet| self.subnet_routes.get(&subnet) == Some(&ifindex);
        match interface.subnet(address) {
            Some(prefix) => is_routed((network(address, prefix), prefix)),
            None => interface.subnets().any(|subnet| subnet.0.is_ipv4() == address.is_ipv4() && is_routed(subnet)),
        }
    }
}

/// Leaves one of the segments that share a subnet, for this address.
fn one_of_each<'a>(
    links: &Links,
    mut segments: Vec<&'a NetworkSegment>,
    address: IpAddr,
    usable: impl Fn(&NetworkSegment) -> bool,
) -> Vec<&'a NetworkSegment> {
    segments
        .sort_by_key(|segment| (!usable(segment), !links.replies_leave_by(segment.ifindex, address), segment.ifindex));
    let mut chosen: Vec<&NetworkSegment> = Vec::new();
    for segment in segments {
        if !chosen.iter().any(|other| links.share_a_subnet(other.ifindex, segment.ifindex)) {
            chosen.push(segment);
        }
    }
    chosen
}

impl Segments {
    /// Returns the ports and the VLAN by which a VIP is announced on `allowed` segments. It takes
    /// the segment with the longest subnet prefix that contains the VIP (the lowest index decides the
    /// VLAN). A VIP in no subnet is announced on all untagged segments. If there are none, it is
    /// announced on all segments of the first one's VLAN.
    ///
    /// Of segments that share a subnet, only one is taken: one that is `usable`, if there is one, then
    /// the one that replies leave by, then the one with the lowest index.
    pub fn announcing_ports(
        &self,
        links: &Links,
        address: IpAddr,
        allowed: impl Fn(&NetworkSegment) -> bool,
        usable: impl Fn(&NetworkSegment) -> bool,
    ) -> (BTreeSet<u32>, u16) {
        let prefix =
            |segment: &NetworkSegment| links.get(segment.ifindex).and_then(|interface| interface.subnet(address));
        let rank = |segment: &&NetworkSegment| {
            let prefix = prefix(segment);
            (prefix, Reverse((prefix.is_none() && segment.vlan != 0, segment.ifindex)))
        };
        let all = || self.iter().filter(|segment| allowed(segment));
        let Some(first) = all().max_by_key(rank) else { return (BTreeSet::new(), 0) };
        let same = |segment: &&NetworkSegment| segment.vlan == first.vlan && prefix(segment) == prefix(first);
        let chosen = one_of_each(links, all().filter(same).collect(), address, usable);
        (chosen.into_iter().flat_map(|segment| segment.ports.iter().copied()).collect(), first.vlan)
    }

    /// Returns the subnets with several segments in one VLAN, and the choice for each.
    pub fn shared_subnets(&self, links: &Links, usable: impl Fn(&NetworkSegment) -> bool) -> Vec<SharedSubnet> {
        let subnets = |segment: &NetworkSegment| links.get(segment.ifindex).into_iter().flat_map(Interface::subnets);
        let all: BTreeSet<(u16, Subnet)> =
            self.iter().flat_map(|segment| subnets(segment).map(|subnet| (segment.vlan, subnet))).collect();
        let shared = |(vlan, subnet): (u16, Subnet)| {
            let here =
                |segment: &&NetworkSegment| segment.vlan == vlan && subnets(segment).any(|other| other == subnet);
            let here: Vec<_> = self.iter().filter(here).collect();
            let usable_cards = here.iter().filter(|segment| usable(segment)).count();
            let chosen = one_of_each(links, here.clone(), subnet.0, &usable).first()?.ifindex;
            let others: BTreeSet<_> = here.iter().map(|other| other.ifindex).filter(|other| *other != chosen).collect();
            let reason = if usable_cards == 1 {
                CardReason::OnlyUsable
            } else if links.replies_leave_by(chosen, subnet.0) {
                CardReason::Replies
            } else {
                CardReason::LowestIndex
            };
            (!others.is_empty()).then_some(SharedSubnet { subnet, chosen, others, reason })
        };
        all.into_iter().filter_map(shared).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::link::{InterfaceKind, tests::interface};

    const SUBNET: Subnet = (IpAddr::V4(Ipv4Addr::new(192, 0, 2, 0)), 24);

    /// Two cards in one subnet, and one in another.
    fn node() -> Links {
        let card = |ifindex, name, address| interface(ifindex, name, InterfaceKind::Device, &[address, "fe80::1/64"]);
        let cards =
            [card(2, "eth0", "192.0.2.1/24"), card(3, "eth1", "192.0.2.2/24"), card(4, "eth2", "198.51.100.1/24")];
        Links { interfaces: cards.into_iter().map(|card| (card.ifindex, card)).collect(), ..Links::default() }
    }

    fn segments(links: &Links) -> Segments {
        let mut segments = Segments::default();
        for interface in links.iter() {
            segments.add(links, links.segment(interface).unwrap()).unwrap();
        }
        segments
    }

    /// The ports where a VIP is announced.
    fn ports(links: &Links, vip: &str, allowed: &[u32]) -> Vec<u32> {
        let is_allowed = |segment: &NetworkSegment| allowed.contains(&segment.ifindex);
        let all = segments(links);
        let (ports, vlan) = all.announcing_ports(links, vip.parse().unwrap(), is_allowed, |segment| segment.carrier);
        assert_eq!(vlan, 0);
        ports.into_iter().collect()
    }

    fn choice(links: &Links) -> (u32, CardReason) {
        let shared = segments(links).shared_subnets(links, |segment| segment.carrier);
        let [SharedSubnet { subnet, chosen, others, reason }] = &shared[..] else { panic!("{shared:?}") };
        assert_eq!(*subnet, SUBNET);
        assert_eq!(others.iter().copied().chain([*chosen]).collect::<BTreeSet<_>>(), BTreeSet::from([2, 3]));
        (*chosen, *reason)
    }

    #[test]
    fn one_card_of_a_subnet_announces() {
        let mut links = node();
        for (route, down, expected, reason) in [
            (None, None, 2, CardReason::LowestIndex),
            (Some(3), None, 3, CardReason::Replies),
            (Some(2), Some(2), 3, CardReason::OnlyUsable),
            (Some(3), Some(2), 3, CardReason::OnlyUsable),
            (Some(3), Some(3), 2, CardReason::OnlyUsable),
        ] {
            links.subnet_routes = route.map(|ifindex| (SUBNET, ifindex)).into_iter().collect();
            for card in [2, 3] {
                links.interfaces.get_mut(&card).unwrap().carrier = down != Some(card);
            }
            assert_eq!(choice(&links), (expected, reason), "{route:?} {down:?}");
            assert_eq!(ports(&links, "192.0.2.200", &[2, 3, 4]), [expected], "{route:?} {down:?}");
            assert_eq!(ports(&links, "172.16.0.1", &[2, 3, 4]), [expected, 4], "a VIP in no subnet");
        }
    }

    #[test]
    fn the_subnet_of_the_vip_decides_which_card_its_replies_leave_by() {
        let mut links = node();
        let other = (IpAddr::V4(Ipv4Addr::new(203, 0, 113, 0)), 24);
        for (card, own) in [(2, "203.0.113.1"), (3, "203.0.113.2")] {
            links.interfaces.get_mut(&card).unwrap().addresses.insert((own.parse().unwrap(), 24));
        }
        links.subnet_routes = [(SUBNET, 2), (other, 3)].into();
        assert_eq!(ports(&links, "192.0.2.200", &[2, 3]), [2]);
        assert_eq!(ports(&links, "203.0.113.200", &[2, 3]), [3]);
    }

    #[test]
    fn if_no_card_of_a_subnet_is_usable_one_announces_all_the_same() {
        let mut links = node();
        links.interfaces.values_mut().for_each(|card| card.carrier = false);
        assert_eq!(ports(&links, "192.0.2.200", &[2, 3]), [2]);
    }

    #[test]
    fn a_policy_chooses_among_the_cards_of_a_subnet() {
        let mut links = node();
        links.subnet_routes.insert(SUBNET, 2);
        assert_eq!(ports(&links, "192.0.2.200", &[3]), [3]);
        assert_eq!(ports(&links, "192.0.2.200", &[3, 2]), [2]);
    }

    #[test]
    fn a_card_with_a_carrier_leads_to_a_neighbor_and_then_the_one_that_the_kernel_sends_by() {
        for (route, down, expected) in
            [(None, None, 2), (Some(3), None, 3), (Some(3), Some(3), 2), (Some(2), Some(2), 3), (None, Some(2), 3)]
        {
            let mut links = node();
            links.subnet_routes = route.map(|ifindex| (SUBNET, ifindex)).into_iter().collect();
            if let Some(card) = down {
                links.interfaces.get_mut(&card).unwrap().carrier = false;
            }
            let found = links.on_link("192.0.2.9".parse().unwrap(), &BTreeSet::from([2, 3, 4]));
            assert_eq!(found, Some(expected), "{route:?} {down:?}");
        }
    }

    #[test]
    fn link_local_subnets_are_on_every_card_and_host_addresses_are_no_subnet() {
        let mut links = node();
        for (ifindex, address) in [(2, "169.254.1.1/16"), (4, "169.254.1.2/16"), (2, "10.0.0.1/32"), (4, "10.0.0.1/32")]
        {
            let (address, prefix) = address.split_once('/').unwrap();
            let address = (address.parse().unwrap(), prefix.parse().unwrap());
            links.interfaces.get_mut(&ifindex).unwrap().addresses.insert(address);
        }
        assert_eq!(choice(&links).0, 2, "nothing else is shared");
    }
}
