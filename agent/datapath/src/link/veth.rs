//! Finds out whether frames that native XDP sends by a veth arrive.
//!
//! Such a frame goes into a queue of the other end (`veth_xdp_xmit` in drivers/net/veth.c). There
//! is no queue unless the other end has a native XDP program or generic receive offload (GRO).
//! Without a program nobody is told of the frame (`veth_xdp_flush`): it waits for an ordinary one.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::TryStreamExt;
use netlink_packet_core::DefaultNla;
use netlink_packet_route::link::{LinkAttribute, LinkMessage, LinkXdp};
use rtnetlink::Handle;

use super::{Interface, LinkError, Links, SegmentPort, Segments, connection};

/// `IFLA_TARGET_NETNSID` of include/uapi/linux/if_link.h (Linux 4.20): the network namespace to
/// look into, by its id in this one. It needs `CAP_NET_ADMIN` for that namespace.
const TARGET_NAMESPACE: u16 = 46;

/// The other end of a veth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherEnd {
    /// It has a native XDP program. Frames arrive as long as it has one.
    Program,
    /// It has no native XDP program. Frames are lost.
    NoProgram,
    /// It cannot be read.
    Unknown,
}

/// Whether frames that native XDP sends by a port arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Nothing shows that they are lost.
    Arrives,
    /// They are lost.
    Lost,
    /// The other end of a veth has not been read yet.
    Unread,
}

impl Links {
    /// Returns the veths by which a port sends: itself, or a bond's cards.
    pub fn veths_of(&self, port: &SegmentPort) -> impl Iterator<Item = &Interface> {
        let receivers = port.receivers.iter().filter_map(|receiver| self.get(*receiver));
        receivers.filter(|receiver| receiver.kind.is_veth())
    }

    /// Returns whether one of these segments is reached by a veth.
    pub fn has_veth(&self, segments: &Segments) -> bool {
        segments.ports().values().any(|port| self.veths_of(port).next().is_some())
    }

    /// Returns whether frames that native XDP sends by a port arrive. A bond loses them if each of
    /// its cards does.
    pub fn delivery(&self, port: &SegmentPort) -> Delivery {
        let receivers = port.receivers.iter().filter_map(|receiver| self.get(*receiver));
        let cards = || receivers.clone().filter(|card| !card.kind.is_aggregate());
        let ends = || cards().map(|card| self.other_ends.get(&card.ifindex));
        if cards().any(|card| !card.kind.is_veth()) {
            Delivery::Arrives
        } else if ends().any(|end| end.is_none()) {
            Delivery::Unread
        } else if ends().next().is_some() && ends().all(|end| end == Some(&OtherEnd::NoProgram)) {
            Delivery::Lost
        } else {
            Delivery::Arrives
        }
    }
}

/// Reads the other ends of these veths, in the calling thread's network namespace.
pub async fn other_ends(veths: &BTreeSet<u32>) -> Result<BTreeMap<u32, OtherEnd>, LinkError> {
    Ok(read(&connection::connect()?, veths).await)
}

/// Reads the other ends of these veths.
pub(super) async fn read(handle: &Handle, veths: &BTreeSet<u32>) -> BTreeMap<u32, OtherEnd> {
    let mut found = BTreeMap::new();
    for &veth in veths {
        let end = other_end(handle, veth).await.unwrap_or_else(|error| {
            tracing::debug!(veth, %error, "cannot read the other end");
            None
        });
        found.insert(veth, end.map_or(OtherEnd::Unknown, |end| program(&end)));
    }
    found
}

/// Returns the interface at the other end; `None`: it names none.
async fn other_end(handle: &Handle, veth: u32) -> Result<Option<LinkMessage>, rtnetlink::Error> {
    let own = handle.link().get().match_index(veth).execute().try_next().await?;
    let attributes = own.iter().flat_map(|own| &own.attributes);
    let (mut index, mut namespace) = (None, None);
    for attribute in attributes {
        match attribute {
            LinkAttribute::Link(end) => index = Some(*end).filter(|end| *end != 0),
            LinkAttribute::LinkNetNsId(id) => namespace = Some(*id),
            _ => {}
        }
    }
    let Some(index) = index else { return Ok(None) };
    let mut request = handle.link().get().match_index(index);
    if let Some(namespace) = namespace {
        let target = DefaultNla::new(TARGET_NAMESPACE, namespace.to_ne_bytes().to_vec());
        request.message_mut().attributes.push(LinkAttribute::Other(target));
    }
    request.execute().try_next().await
}

fn program(end: &LinkMessage) -> OtherEnd {
    let xdp = end.attributes.iter().filter_map(|attribute| match attribute {
        LinkAttribute::Xdp(parts) => Some(parts),
        _ => None,
    });
    let native = xdp.flatten().any(|part| matches!(part, LinkXdp::DrvProgId(_)));
    if native { OtherEnd::Program } else { OtherEnd::NoProgram }
}

#[cfg(test)]
mod tests;
