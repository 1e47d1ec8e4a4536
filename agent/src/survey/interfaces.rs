//! The interfaces that the agent would announce on, and the routes.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::IpAddr,
};

use futures_util::TryStreamExt;
use netlink_packet_route::{
    link::{LinkAttribute, LinkFlags, LinkMessage, LinkXdp},
    route::{RouteAttribute, RouteProtocol},
    rule::RuleAttribute,
};
use netlink_sys::protocols::NETLINK_GENERIC;
use rtnetlink::{Handle, IpVersion, RouteMessageBuilder};

use super::{
    Options,
    netlink::{ask, attribute, find, half},
    sysctls,
};
use crate::{
    datapath::{
        clsact,
        others::{self, OnTheWayOut},
        pinned::Pinned,
        pins::Pins,
    },
    link::{Ethtool, Interface, LinkError, Links, Port, Segments},
    preflight::{
        Seen, Unseen,
        interface::{self as seen, Attached, Egress, Segment, Tags, Unusable},
        routes::{Exit, Routes, Way},
    },
};

/// The tables that every machine has: unspecified, default, main, local.
const USUAL_TABLES: [u32; 4] = [0, 253, 254, 255];

/// What [`Links`] does not tell of interfaces, by index.
pub(super) struct Details {
    links: BTreeMap<u32, LinkMessage>,
    /// Those with IPv6 routes from router advertisements.
    advertised: BTreeSet<u32>,
    /// The ids of vipmux's programs that are pinned.
    pinned: BTreeSet<u32>,
    /// The names of programs, by id.
    names: BTreeMap<u32, String>,
    ethtool: Option<Ethtool>,
}

/// Those to announce on, as the agent chooses: the segments, and what cannot be used.
pub(super) fn chosen(
    options: &Options,
    links: &Links,
    addresses: Option<&[IpAddr]>,
) -> Seen<(Segments, Vec<Unusable>)> {
    let mut unusable = Vec::new();
    let found: Vec<_> = match addresses {
        _ if !options.interfaces.is_empty() => {
            options.interfaces.iter().map(|name| (Some(name.clone()), links.named(name))).collect()
        }
        Some(addresses) if !addresses.is_empty() => match links.holding(addresses) {
            Ok(found) => found.into_iter().map(|one| (Some(one.name.clone()), Ok(one))).collect(),
            Err(error) => vec![(None, Err(error))],
        },
        _ => {
            return Err(Unseen {
                why: "no interface is named, and no InternalIP of this Node is known".to_owned(),
                remedy: "name one by --interface, or the Node by --node-name, with --kubeconfig or --manifests"
                    .to_owned(),
            });
        }
    };
    let mut segments = Segments::default();
    for (name, interface) in found {
        let added =
            interface.and_then(|interface| links.segment(interface)).and_then(|segment| segments.add(links, segment));
        if let Err(error) = added {
            unusable.push(Unusable { name, why: error.to_string() });
        }
    }
    Ok((segments, unusable))
}

/// The routes, and by which of the interfaces replies are translated.
pub(super) async fn routes(
    options: &Options,
    links: &Links,
    addresses: Option<&[IpAddr]>,
) -> Result<Routes, LinkError> {
    let segments = chosen(options, links, addresses).map(|(segments, _)| segments).unwrap_or_default();
    let outlets = segments.outlets();
    let taken: BTreeSet<_> = links.exits().map(|exit| exit.ifindex).collect();
    let way = |interface: &Interface| {
        if outlets.contains(&interface.ifindex) {
            Way::Announced
        } else if taken.contains(&interface.ifindex) {
            Way::Outlet
        } else if interface.suitable().is_ok() && interface.may_lead_to_a_pod() {
            Way::ToPod
        } else {
            Way::NoEthernet
        }
    };
    let exits: Vec<_> = links.routed().map(|exit| Exit { name: exit.name.clone(), way: way(exit) }).collect();
    let is_other = |interface: &&Interface| {
        let is_way = outlets.contains(&interface.ifindex) || taken.contains(&interface.ifindex);
        !is_way && interface.suitable().is_ok() && !interface.is_dummy() && interface.controller.is_none()
    };
    let others = links.iter().filter(is_other).flat_map(subnets).collect();
    Ok(Routes { exits, others, tables: tables().await? })
}

/// The IPv4 and global IPv6 subnets that an interface is on. Bridges of pods are no place for clients.
fn subnets(interface: &Interface) -> Vec<(String, String)> {
    let is_bridge = interface.kind.to_string() == "bridge";
    let subnet = |&(address, prefix): &(IpAddr, u8)| match address {
        IpAddr::V4(_) if prefix < 31 && !is_bridge => Some((interface.name.clone(), format!("{address}/{prefix}"))),
        _ => None,
    };
    interface.addresses.iter().filter_map(subnet).collect()
}

/// The tables that rules look up beside the usual ones.
async fn tables() -> Result<Vec<u32>, LinkError> {
    let handle = connect()?;
    let mut found = BTreeSet::new();
    for version in [IpVersion::V4, IpVersion::V6] {
        let mut rules = handle.rule().get(version).execute();
        while let Some(rule) = rules.try_next().await.map_err(request("list the routing rules"))? {
            let numbered = rule.attributes.iter().find_map(|attribute| match attribute {
                RuleAttribute::Table(table) => Some(*table),
                _ => None,
            });
            found.insert(numbered.unwrap_or(rule.header.table.into()));
        }
    }
    Ok(found.into_iter().filter(|table| !USUAL_TABLES.contains(table)).collect())
}

fn connect() -> Result<Handle, LinkError> {
    let (connection, handle, _) = rtnetlink::new_connection().map_err(LinkError::Open)?;
    // Ends with the last handle.
    tokio::spawn(connection);
    Ok(handle)
}

fn request(operation: &'static str) -> impl FnOnce(rtnetlink::Error) -> LinkError {
    move |source| LinkError::Request { operation, source: Box::new(source) }
}

impl Details {
    pub(super) async fn read(pins: &Pins) -> Result<Self, LinkError> {
        let handle = connect()?;
        let mut links = BTreeMap::new();
        let mut all = handle.link().get().execute();
        while let Some(link) = all.try_next().await.map_err(request("list interfaces"))? {
            links.insert(link.header.index, link);
        }
        let mut advertised = BTreeSet::new();
        let mut routes = handle.route().get(RouteMessageBuilder::<std::net::Ipv6Addr>::new().build()).execute();
        while let Some(route) = routes.try_next().await.map_err(request("list routes"))? {
            let by = route.attributes.iter().find_map(|attribute| match attribute {
                RouteAttribute::Oif(ifindex) => Some(*ifindex),
                _ => None,
            });
            advertised.extend(by.filter(|_| route.header.protocol == RouteProtocol::Ra));
        }
        // Where that may not be read there is nothing of ours that could be known.
        let pinned = Pinned::read(pins).unwrap_or_default();
        let programs = pinned.programs.into_values().chain(pinned.links.into_values().map(|link| link.program));
        Ok(Self {
            links,
            advertised,
            pinned: programs.collect(),
            names: others::names(),
            ethtool: Ethtool::open().ok(),
        })
    }

    /// The segments with all that can be told of them, and what cannot be used.
    pub(super) fn segments(
        &self,
        links: &Links,
        (segments, unusable): (Segments, Vec<Unusable>),
    ) -> Vec<Result<Segment, Unusable>> {
        let found = segments.iter().filter_map(|segment| {
            let whole = links.get(segment.ifindex)?;
            let port = |ifindex: &u32| Some(self.port(links, links.get(*ifindex)?, segments.ports().get(ifindex)?));
            Some(Ok(Segment {
                name: whole.name.clone(),
                kind: whole.kind.to_string(),
                up: self.is_up(whole),
                carrier: segment.carrier,
                vlan: segment.vlan,
                ports: segment.ports.iter().filter_map(port).collect(),
                stack: sysctls::of(whole, self.advertised.contains(&whole.ifindex)),
            }))
        });
        found.chain(unusable.into_iter().map(Err)).collect()
    }

    fn is_up(&self, interface: &Interface) -> bool {
        self.links.get(&interface.ifindex).is_some_and(|link| link.header.flags.contains(LinkFlags::Up))
    }

    fn port(&self, links: &Links, interface: &Interface, port: &Port) -> seen::Port {
        let receivers = || port.receivers.iter().filter_map(|receiver| links.get(*receiver));
        seen::Port {
            name: interface.name.clone(),
            up: self.is_up(interface),
            carrier: interface.carrier,
            driver: self.ethtool.as_ref().and_then(|ethtool| ethtool.driver(&interface.name).ok().flatten()),
            mtu: interface.mtu,
            features: xdp_features(interface.ifindex),
            attached: receivers().flat_map(|receiver| self.attached(receiver)).collect(),
            tags: port.tagged.then(|| self.tags(receivers())),
            egress: self.egress(interface.ifindex).map_err(Unseen::without_rights),
        }
    }

    /// XDP programs, of whatever mode.
    fn attached(&self, interface: &Interface) -> Vec<Attached> {
        let link = self.links.get(&interface.ifindex);
        let parts = link.iter().flat_map(|link| &link.attributes).filter_map(|attribute| match attribute {
            LinkAttribute::Xdp(parts) => Some(parts),
            _ => None,
        });
        let program = |part: &LinkXdp| {
            let (id, generic) = match part {
                LinkXdp::DrvProgId(id) | LinkXdp::HwProgId(id) => (*id, false),
                LinkXdp::SkbProgId(id) => (*id, true),
                _ => return None,
            };
            let name = self.names.get(&id).cloned();
            Some(Attached { interface: interface.name.clone(), id, name, generic, ours: self.pinned.contains(&id) })
        };
        parts.flatten().filter_map(program).collect()
    }

    fn tags<'a>(&self, receivers: impl Iterator<Item = &'a Interface>) -> Seen<Tags> {
        let Some(ethtool) = &self.ethtool else {
            return Err(Unseen::without_rights("no socket for ethtool requests"));
        };
        let mut all = Tags::Left;
        for receiver in receivers {
            let name = &receiver.name;
            let strips = ethtool.strips_tags(name).map_err(Unseen::without_rights)?;
            let one = match strips.then(|| ethtool.can_change_tags(name)).transpose().map_err(Unseen::without_rights)? {
                None => Tags::Left,
                Some(true) => Tags::Taken,
                Some(false) => return Ok(Tags::TakenForGood),
            };
            all = if all == Tags::Left { one } else { all };
        }
        Ok(all)
    }

    fn egress(&self, ifindex: u32) -> io::Result<Vec<Egress>> {
        let tcx = |id: u32| Egress::Tcx { id, name: self.names.get(&id).cloned(), ours: self.pinned.contains(&id) };
        let filter = |filter: clsact::Filter| {
            let clsact::Filter { kind, priority, ours } = filter;
            Egress::Filter { kind, priority, ours }
        };
        let links = OnTheWayOut::of(ifindex)?.ids.unwrap_or_default().into_iter().map(tcx);
        Ok(links.chain(clsact::on_the_way_out(ifindex)?.into_iter().map(filter)).collect())
    }
}

/// What a driver's native XDP can do (the generic netlink family `netdev`, Documentation/netlink/specs/netdev.yaml); `None`:
/// the kernel does not tell.
fn xdp_features(ifindex: u32) -> Option<u64> {
    /// `GENL_ID_CTRL`, `CTRL_CMD_GETFAMILY` with its attributes, and `NETDEV_CMD_DEV_GET` with its.
    const CONTROL: u16 = 0x10;
    const GET_FAMILY: u8 = 3;
    const FAMILY_ID: u16 = 1;
    const FAMILY_NAME: u16 = 2;
    const GET_DEVICE: u8 = 1;
    const IFINDEX: u16 = 1;
    const XDP_FEATURES: u16 = 3;
    /// `struct genlmsghdr`: the command, its version, and nothing.
    const GENERIC: usize = 4;
    let exchange = |family: u16, command: u8, attributes: &[u8]| {
        let request = [&[command, 1, 0, 0], attributes].concat();
        let answer = ask(NETLINK_GENERIC, family, 0, &request).ok()?;
        Some(answer.first()?.payload.get(GENERIC..)?.to_vec())
    };
    let family = exchange(CONTROL, GET_FAMILY, &attribute(FAMILY_NAME, b"netdev\0"))?;
    let device = exchange(half(find(&family, FAMILY_ID)?)?, GET_DEVICE, &attribute(IFINDEX, &ifindex.to_ne_bytes()))?;
    Some(u64::from_ne_bytes(find(&device, XDP_FEATURES)?.first_chunk().copied()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::netns::Namespace;

    /// Of kernels before 6.3 there is nothing to see.
    #[test]
    fn a_pair_has_native_xdp_and_a_bridge_has_none() {
        let Some([node, peer]) = Namespace::new() else { return };
        node.veth("eth0", &peer, "lan0");
        node.bridge("br0");
        node.enter(|| {
            let features = |name: &str| xdp_features(nix::net::if_::if_nametoindex(name).unwrap());
            if let Some(veth) = features("eth0") {
                assert_eq!((veth & 3, features("br0")), (3, Some(0)));
            }
            assert_eq!(xdp_features(u32::MAX), None);
        });
    }
}
