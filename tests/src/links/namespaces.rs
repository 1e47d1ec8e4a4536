//! Interfaces that lead to another network namespace, or move to one.

use std::os::fd::AsRawFd as _;

use anyhow::{Context as _, Result};
use netlink_packet_route::link::{InfoData, InfoVeth};
use rtnetlink::{LinkMessageBuilder, LinkUnspec, LinkVeth};

use super::{End, Links};
use crate::netns::Namespace;

impl Links {
    /// Makes a veth pair with its other end in `namespace`. Both ends are up.
    pub fn add_veth(&self, here: End<'_>, there: End<'_>, namespace: &Namespace) -> Result<()> {
        let mut peer = LinkUnspec::new_with_name(there.name).setns_by_fd(namespace.file().as_raw_fd());
        if let Some(mac) = there.mac {
            peer = peer.address(mac.octets().to_vec());
        }
        let mut veth = LinkMessageBuilder::<LinkVeth>::new(here.name, there.name)
            .set_info_data(InfoData::Veth(InfoVeth::Peer(peer.build())))
            .up();
        if let Some(mac) = here.mac {
            veth = veth.address(mac.octets().to_vec());
        }
        self.runtime
            .block_on(self.handle.link().add(veth.build()).execute())
            .with_context(|| format!("cannot make the veth pair {} and {}", here.name, there.name))?;
        // The kernel cannot set the peer up while it makes the pair.
        namespace.links(|links| links.set_up(there.name))
    }

    /// Moves an interface to a namespace, with this name and MAC, and sets it up there.
    pub fn give(&self, name: &str, end: End<'_>, namespace: &Namespace) -> Result<()> {
        self.set(
            LinkUnspec::new_with_index(self.index(name)?)
                .name(end.name.to_owned())
                .setns_by_fd(namespace.file().as_raw_fd()),
        )
        .with_context(|| format!("cannot move {name} to {}", namespace.name()))?;
        namespace.links(|links| {
            end.mac.map_or(Ok(()), |mac| links.set_mac(end.name, mac))?;
            links.set_up(end.name)
        })
    }
}
