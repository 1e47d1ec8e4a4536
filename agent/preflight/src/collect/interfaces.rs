//! Observes the interfaces where the agent would announce, and the routes.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    path::Path,
};

use futures_util::TryStreamExt;
use netlink_packet_route::{
    link::{LinkAttribute, LinkFlags, LinkMessage, LinkXdp},
    route::{RouteAttribute, RouteProtocol},
    rule::RuleAttribute,
};
use rtnetlink::{Handle, IpVersion, RouteMessageBuilder};
use vipmux_common::abi::INTERFACE_BYPASSED;

use super::{CheckOptions, generic_netlink, sysctls};
use crate::findings::{
    Seen, Unseen,
    classifiers::ClassifierObservation,
    interface::{self as seen, AttachedProgram, SegmentObservation, TagHandling, Unusable},
    routes::{ReplyPath, RouteInterface, Routes},
};
use vipmux_datapath::{
    bpf::{
        direction::Direction,
        maps::Maps,
        pinned::PinnedObjects,
        pins::{DEFAULT_PIN_PATH, Pins},
        place::Chain,
        tcx,
    },
    link::{
        Ethtool, Interface, LinkError, Links, NetworkSegment, OtherEnd, SegmentPort, Segments, SharedSubnet, other_ends,
    },
};
use vipmux_inspect::stats::{RefusedFrames, refused_frames};

/// The tables that every machine has: unspecified, default, main, local.
const USUAL_TABLES: [u32; 4] = [0, 253, 254, 255];

/// Details of interfaces that [`Links`] does not have, by index.
pub(super) struct InterfaceDetails {
    links: BTreeMap<u32, LinkMessage>,
    /// The other ends of the veths where programs would run.
    other_ends: BTreeMap<u32, OtherEnd>,
    /// The interfaces with IPv6 routes from router advertisements.
    advertised: BTreeSet<u32>,
    /// vipmux's pins.
    pub(super) pins: Pins,
    /// The objects there; none if the pins may not be read.
    pinned: PinnedObjects,
    /// The interfaces whose frames bypass vipmux's program.
    bypassed: BTreeSet<u32>,
    /// The frames that the kernel refused or drivers lost.
    refused: Vec<RefusedFrames>,
    /// The names of programs, by id.
    names: BTreeMap<u32, String>,
    ethtool: Option<Ethtool>,
}

/// Returns the segments where the agent would announce, and the interfaces that it cannot use.
pub(super) fn chosen(
    options: &CheckOptions,
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
                why: "no interface is named, and this Node's InternalIP is not known".to_owned(),
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

/// Returns the veths where programs would run: the ports, or the cards of bonds.
pub(super) fn veths(links: &Links, chosen: &Seen<(Segments, Vec<Unusable>)>) -> BTreeSet<u32> {
    let ports = chosen.iter().flat_map(|(segments, _)| segments.ports().values());
    ports.flat_map(|port| links.veths_of(port)).map(|veth| veth.ifindex).collect()
}

/// Returns the routes, and whether replies are translated on their interfaces.
pub(super) async fn routes(
    options: &CheckOptions,
    links: &Links,
    addresses: Option<&[IpAddr]>,
) -> Result<Routes, LinkError> {
    let segments = chosen(options, links, addresses).map(|(segments, _)| segments).unwrap_or_default();
    let outlets = segments.outlets();
    let taken: BTreeSet<_> = links.exits().map(|exit| exit.ifindex).collect();
    let path = |interface: &Interface| {
        if outlets.contains(&interface.ifindex) {
            ReplyPath::Announced
        } else if taken.contains(&interface.ifindex) {
            ReplyPath::Outlet
        } else if interface.suitable().is_ok() && interface.may_lead_to_a_pod() {
            ReplyPath::ToPod
        } else {
            ReplyPath::NoEthernet
        }
    };
    let exits: Vec<_> =
        links.routed().map(|exit| RouteInterface { name: exit.name.clone(), path: path(exit) }).collect();
    let is_other = |interface: &&Interface| {
        let is_translated = outlets.contains(&interface.ifindex) || taken.contains(&interface.ifindex);
        !is_translated && interface.suitable().is_ok() && !interface.is_dummy() && interface.controller.is_none()
    };
    let others = links.iter().filter(is_other).flat_map(subnets).collect();
    Ok(Routes { exits, others, tables: tables().await? })
}

/// Returns the IPv4 subnets of an interface. Bridges do not count: they have pods, not clients.
fn subnets(interface: &Interface) -> Vec<(String, String)> {
    let is_bridge = interface.kind.to_string() == "bridge";
    let subnet = |&(address, prefix): &(IpAddr, u8)| match address {
        IpAddr::V4(_) if prefix < 31 && !is_bridge => Some((interface.name.clone(), format!("{address}/{prefix}"))),
        _ => None,
    };
    interface.addresses.iter().filter_map(subnet).collect()
}

/// Returns the routing tables that rules use, except the usual ones.
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
    // The task ends with the last handle. It is not supervised: the command lives for seconds, and its requests fail.
    tokio::spawn(connection);
    Ok(handle)
}

fn request(operation: &'static str) -> impl FnOnce(rtnetlink::Error) -> LinkError {
    move |source| LinkError::Request { operation, source: Box::new(source) }
}

impl InterfaceDetails {
    /// Reads them. If there is nothing at the default pin path, the pins are those of the programs
    /// that run here.
    pub(super) async fn read(pin_path: &Path, veths: &BTreeSet<u32>) -> Result<Self, LinkError> {
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
        let running = || Pins::loaded().into_iter().find(|pins| runs_here(pins, &links));
        let may_be_elsewhere = pin_path == Path::new(DEFAULT_PIN_PATH) && !pin_path.exists();
        let pins = may_be_elsewhere.then(running).flatten().unwrap_or_else(|| Pins::new(pin_path));
        // Without rights or an agent there is nothing to read.
        let maps = Maps::open(pins.root()).ok();
        Ok(Self {
            links,
            other_ends: other_ends(veths).await?,
            advertised,
            pinned: PinnedObjects::read(&pins).unwrap_or_default(),
            bypassed: maps.as_ref().map(bypassed).unwrap_or_default(),
            refused: maps.and_then(|maps| refused_frames(&maps).ok()).unwrap_or_default(),
            pins,
            names: tcx::program_names(),
            ethtool: Ethtool::open().ok(),
        })
    }

    /// Returns the segments with their details, and the interfaces that cannot be used.
    pub(super) fn segments(
        &self,
        links: &Links,
        (segments, unusable): (Segments, Vec<Unusable>),
    ) -> Vec<Result<SegmentObservation, Unusable>> {
        let shared = segments.shared_subnets(links, |segment| segment.carrier);
        let name = |ifindex: &u32| links.get(*ifindex).map_or_else(String::new, |interface| interface.name.clone());
        let shared_of = |segment: &NetworkSegment| {
            let here = shared.iter().filter(|shared| shared.chosen == segment.ifindex);
            let observed = |shared: &SharedSubnet| seen::SharedSubnetObservation {
                subnet: format!("{}/{}", shared.subnet.0, shared.subnet.1),
                others: shared.others.iter().map(name).collect(),
                reason: shared.reason,
            };
            here.map(observed).collect()
        };
        let found = segments.iter().filter_map(|segment| {
            let whole = links.get(segment.ifindex)?;
            let port = |ifindex: &u32| Some(self.port(links, links.get(*ifindex)?, segments.ports().get(ifindex)?));
            Some(Ok(SegmentObservation {
                name: whole.name.clone(),
                kind: whole.kind.to_string(),
                up: self.is_up(whole),
                carrier: segment.carrier,
                vlan: segment.vlan,
                ports: segment.ports.iter().filter_map(port).collect(),
                shared: shared_of(segment),
                stack: sysctls::of(whole, self.advertised.contains(&whole.ifindex)),
            }))
        });
        found.chain(unusable.into_iter().map(Err)).collect()
    }

    /// Returns the programs on the interfaces by which replies leave.
    pub(super) fn classifiers(&self, links: &Links, segments: &Segments) -> Vec<ClassifierObservation> {
        let mut outlets = segments.outlets();
        outlets.extend(links.exits().map(|exit| exit.ifindex));
        let observed = |interface: &Interface| ClassifierObservation {
            interface: interface.name.clone(),
            egress: self.chain(Direction::Egress, interface.ifindex),
            ingress: self.chain(Direction::Ingress, interface.ifindex),
        };
        outlets.into_iter().filter_map(|outlet| links.get(outlet)).map(observed).collect()
    }

    fn chain(&self, direction: Direction, ifindex: u32) -> Seen<Chain> {
        let link = self.pinned.links.get(&(direction.kind(), ifindex)).map(|link| link.id);
        let chain = Chain::read(direction, ifindex, link).map_err(Unseen::without_rights)?;
        Ok(chain.named(&self.names))
    }

    fn is_up(&self, interface: &Interface) -> bool {
        self.links.get(&interface.ifindex).is_some_and(|link| link.header.flags.contains(LinkFlags::Up))
    }

    fn port(&self, links: &Links, interface: &Interface, port: &SegmentPort) -> seen::InterfaceObservation {
        let receivers = || port.receivers.iter().filter_map(|receiver| links.get(*receiver));
        let bypassed = self.bypassed.contains(&interface.ifindex);
        seen::InterfaceObservation {
            name: interface.name.clone(),
            up: self.is_up(interface),
            carrier: interface.carrier,
            driver: self.ethtool.as_ref().and_then(|ethtool| ethtool.driver(&interface.name).ok().flatten()),
            mtu: interface.mtu,
            features: xdp_features(interface.ifindex),
            veths: links.veths_of(port).filter_map(|veth| self.other_end(veth)).collect(),
            attached: receivers().flat_map(|receiver| self.attached(receiver, bypassed)).collect(),
            fixed_offloads: self.has_fixed_offloads(links, (interface, port)),
            tagged: port.tagged,
            tags: self.tags(port.cards(interface.ifindex).iter().filter_map(|card| links.get(*card))),
            refused: self.refused(links, port),
        }
    }

    /// Returns whether native XDP is refused since a virtual machine's host merges segments.
    fn has_fixed_offloads(&self, links: &Links, (interface, port): (&Interface, &SegmentPort)) -> bool {
        let cards = port.cards(interface.ifindex);
        let mut names = cards.iter().filter_map(|card| links.get(*card)).map(|card| &card.name);
        let is_fixed = |name: &String| self.ethtool.as_ref()?.has_fixed_guest_offloads(name).ok();
        names.any(|name| is_fixed(name).unwrap_or_default())
    }

    /// Returns the numbers of refused frames of a port, by reason.
    fn refused(&self, links: &Links, port: &SegmentPort) -> BTreeMap<String, u64> {
        let receivers = || port.receivers.iter().filter_map(|receiver| links.get(*receiver));
        let mut refused = BTreeMap::new();
        for it in self.refused.iter().filter(|it| receivers().any(|receiver| receiver.name == it.interface)) {
            *refused.entry(format!("{} {}", it.action, it.error)).or_default() += it.frames;
        }
        refused
    }

    /// Returns whether a program is vipmux's.
    fn is_ours(&self, id: u32) -> bool {
        let PinnedObjects { programs, links, .. } = &self.pinned;
        programs.values().any(|program| *program == id) || links.values().any(|link| link.program == id)
    }

    fn other_end(&self, veth: &Interface) -> Option<(String, OtherEnd)> {
        self.other_ends.get(&veth.ifindex).map(|end| (veth.name.clone(), *end))
    }

    /// Returns the XDP programs of any mode on an interface. `bypassed`: frames of its port bypass them.
    fn attached(&self, interface: &Interface, bypassed: bool) -> Vec<AttachedProgram> {
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
            let ours = self.is_ours(id);
            Some(AttachedProgram { interface: interface.name.clone(), id, name, generic, ours, bypassed })
        };
        parts.flatten().filter_map(program).collect()
    }

    fn tags<'a>(&self, receivers: impl Iterator<Item = &'a Interface>) -> Seen<TagHandling> {
        let Some(ethtool) = &self.ethtool else {
            return Err(Unseen::without_rights("no socket for ethtool requests"));
        };
        let mut all = TagHandling::Kept;
        for receiver in receivers {
            let name = &receiver.name;
            let strips = ethtool.strips_tags(name).map_err(Unseen::without_rights)?;
            let one = match strips.then(|| ethtool.can_change_tags(name)).transpose().map_err(Unseen::without_rights)? {
                None => TagHandling::Kept,
                Some(true) => TagHandling::Stripped,
                Some(false) => return Ok(TagHandling::AlwaysStripped),
            };
            all = if all == TagHandling::Kept { one } else { all };
        }
        Ok(all)
    }
}

/// Returns the interfaces whose frames bypass the program, as the agent found.
fn bypassed(maps: &Maps) -> BTreeSet<u32> {
    let interfaces = maps.read_interfaces().unwrap_or_default().into_iter();
    let bypassed = interfaces.filter(|(_, interface)| interface.flags & INTERFACE_BYPASSED != 0);
    bypassed.map(|(ifindex, _)| ifindex).collect()
}

/// Returns the ids of the XDP programs on an interface, and whether they run in generic mode.
fn xdp_programs(link: &LinkMessage) -> impl Iterator<Item = (u32, bool)> {
    let parts = link.attributes.iter().filter_map(|attribute| match attribute {
        LinkAttribute::Xdp(parts) => Some(parts),
        _ => None,
    });
    parts.flatten().filter_map(|part| match part {
        LinkXdp::DrvProgId(id) | LinkXdp::HwProgId(id) => Some((*id, false)),
        LinkXdp::SkbProgId(id) => Some((*id, true)),
        _ => None,
    })
}

/// Returns whether the XDP program of one of these pins runs on an interface of this network
/// namespace.
fn runs_here(pins: &Pins, links: &BTreeMap<u32, LinkMessage>) -> bool {
    let pinned = PinnedObjects::read_links(pins).unwrap_or_default();
    pinned.values().any(|pinned| {
        let link = links.get(&pinned.ifindex);
        link.is_some_and(|link| xdp_programs(link).any(|(id, _)| id == pinned.program))
    })
}

/// Returns the features of a driver's native XDP (the generic netlink family `netdev`,
/// Documentation/netlink/specs/netdev.yaml); `None`: the kernel does not report them.
fn xdp_features(ifindex: u32) -> Option<u64> {
    /// `NETDEV_CMD_DEV_GET` and its attributes.
    const GET_DEVICE: u8 = 1;
    const IFINDEX: u16 = 1;
    const XDP_FEATURES: u16 = 3;
    let family = generic_netlink::family("netdev")?;
    let device = generic_netlink::request(family, GET_DEVICE, (IFINDEX, &ifindex.to_ne_bytes()))?;
    Some(u64::from_ne_bytes(generic_netlink::value(&device, XDP_FEATURES)?.first_chunk().copied()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use vipmux_testing::netns::Namespace;

    /// Kernels before 6.3 do not report features.
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
