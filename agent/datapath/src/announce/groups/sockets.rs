//! Holds the group memberships by sockets.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    net::UdpSocket,
    os::fd::{AsRawFd, OwnedFd},
};

use nix::{
    net::if_::if_indextoname,
    sys::socket::{AddressFamily, SockFlag, SockType, socket},
};

use super::SolicitedNodeGroup;
use crate::link::interface_name;

/// A group could not be joined, so solicitations for IPv6 VIPs may not reach this node.
#[derive(Debug, thiserror::Error)]
pub(super) enum GroupError {
    /// The network card's filter could not be set.
    #[error(
        "cannot add {count} multicast groups of IPv6 VIPs to the filter of {interface}: neighbors may not find these \
         VIPs here"
    )]
    Filter { interface: String, count: usize, source: io::Error },
    /// The kernel does not report the group to switches.
    #[error(
        "cannot join {count} multicast groups of IPv6 VIPs on {interface}: a switch that snoops on MLD may not forward \
         neighbor solicitations to this node"
    )]
    Report { interface: String, count: usize, source: io::Error },
    /// IPv6 is disabled, so the kernel reports nothing to switches.
    #[error(
        "IPv6 is disabled on {interface}: its network card takes solicitations for IPv6 VIPs, but a switch that snoops \
         on MLD may not forward them to this node; run `sysctl net.ipv6.conf.{interface}.disable_ipv6=0`"
    )]
    Disabled { interface: String },
}

/// The groups that the node has joined, and their sockets.
#[derive(Debug, Default)]
pub(super) struct GroupSockets {
    joined: BTreeMap<SolicitedNodeGroup, JoinedGroup>,
    /// A packet socket, whose memberships set the network cards' filters.
    filter: Option<OwnedFd>,
    mld_sockets: Vec<MldSocket>,
}

#[derive(Clone, Copy, Debug, Default)]
struct JoinedGroup {
    filtered: bool,
    /// The index in [`GroupSockets::mld_sockets`].
    mld_socket: Option<usize>,
}

/// An IPv6 socket with memberships. The kernel limits the memory of each socket
/// (`net.core.optmem_max`), which suffices for some hundreds of groups.
#[derive(Debug)]
struct MldSocket {
    socket: UdpSocket,
    full: bool,
}

impl GroupSockets {
    /// Joins and leaves groups until exactly the desired ones are joined. Returns the errors, one
    /// per kind and interface.
    pub(super) fn sync(&mut self, desired: &BTreeSet<SolicitedNodeGroup>) -> Vec<GroupError> {
        let gone: Vec<_> = self.joined.keys().filter(|group| !desired.contains(group)).copied().collect();
        for group in gone {
            self.leave(group);
        }
        let filters = failures(desired, |group| self.add_to_filter(group));
        let mut reports = failures(desired, |group| self.join(group));
        let interfaces: BTreeSet<u32> = desired.iter().map(|group| group.ifindex).collect();
        let disabled: Vec<_> = interfaces.into_iter().filter(|&ifindex| is_disabled(ifindex)).collect();
        reports.retain(|ifindex, _| !disabled.contains(ifindex));
        let filters = filters.into_iter().map(|(ifindex, (count, source))| GroupError::Filter {
            interface: interface_name(ifindex),
            count,
            source,
        });
        let reports = reports.into_iter().map(|(ifindex, (count, source))| GroupError::Report {
            interface: interface_name(ifindex),
            count,
            source,
        });
        let disabled = disabled.into_iter().map(|ifindex| GroupError::Disabled { interface: interface_name(ifindex) });
        filters.chain(reports).chain(disabled).collect()
    }

    /// Leaves a group. If the interface is gone, the kernel has dropped the membership already.
    fn leave(&mut self, group: SolicitedNodeGroup) {
        let Some(joined) = self.joined.remove(&group) else { return };
        if let Some(filter) = self.filter.as_ref().filter(|_| joined.filtered) {
            let _ = change(filter, libc::PACKET_DROP_MEMBERSHIP, group);
        }
        if let Some(mld_socket) = joined.mld_socket.and_then(|index| self.mld_sockets.get_mut(index)) {
            let _ = mld_socket.socket.leave_multicast_v6(&group.address, group.ifindex);
            mld_socket.full = false;
        }
    }

    fn add_to_filter(&mut self, group: SolicitedNodeGroup) -> io::Result<()> {
        let filter = match self.filter.take() {
            Some(filter) => filter,
            // Protocol 0: the socket receives nothing.
            None => socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None)?,
        };
        let filter = self.filter.insert(filter);
        let joined = self.joined.entry(group).or_default();
        if !joined.filtered {
            change(filter, libc::PACKET_ADD_MEMBERSHIP, group)?;
            joined.filtered = true;
        }
        Ok(())
    }

    fn join(&mut self, group: SolicitedNodeGroup) -> io::Result<()> {
        if self.joined.get(&group).is_some_and(|joined| joined.mld_socket.is_some()) {
            return Ok(());
        }
        let index = loop {
            let index = self.mld_socket()?;
            let mld_socket = &mut self.mld_sockets[index];
            match mld_socket.socket.join_multicast_v6(&group.address, group.ifindex) {
                Ok(()) => break index,
                // A new socket without room for a single group is an error, not a full one.
                Err(error)
                    if is_full(&error) && self.joined.values().any(|joined| joined.mld_socket == Some(index)) =>
                {
                    mld_socket.full = true;
                }
                Err(error) => return Err(error),
            }
        };
        self.joined.entry(group).or_default().mld_socket = Some(index);
        Ok(())
    }

    /// Returns the index of a socket with room.
    fn mld_socket(&mut self) -> io::Result<usize> {
        if let Some(index) = self.mld_sockets.iter().position(|mld_socket| !mld_socket.full) {
            return Ok(index);
        }
        // It is not bound, so it receives nothing.
        let socket = socket(AddressFamily::Inet6, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
        self.mld_sockets.push(MldSocket { socket: socket.into(), full: false });
        Ok(self.mld_sockets.len() - 1)
    }
}

/// Returns the number of errors and the first error, by interface.
fn failures(
    groups: &BTreeSet<SolicitedNodeGroup>,
    mut attempt: impl FnMut(SolicitedNodeGroup) -> io::Result<()>,
) -> BTreeMap<u32, (usize, io::Error)> {
    let mut failures = BTreeMap::new();
    for &group in groups {
        if let Err(error) = attempt(group) {
            failures.entry(group.ifindex).or_insert((0, error)).0 += 1;
        }
    }
    failures
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::ENOBUFS))
}

/// Returns whether IPv6 is disabled on the interface, or absent from the kernel. False if the
/// interface is gone.
fn is_disabled(ifindex: u32) -> bool {
    let Ok(name) = if_indextoname(ifindex) else { return false };
    let setting = format!("/proc/sys/net/ipv6/conf/{}/disable_ipv6", name.to_string_lossy());
    fs::read_to_string(setting).map_or(true, |setting| setting.trim() != "0")
}

/// Adds or drops a membership by MAC (packet(7)).
fn change(filter: &OwnedFd, operation: libc::c_int, group: SolicitedNodeGroup) -> io::Result<()> {
    let invalid = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let mut mac = [0; 8];
    mac[..6].copy_from_slice(&group.mac());
    let request = libc::packet_mreq {
        mr_ifindex: i32::try_from(group.ifindex).map_err(invalid)?,
        mr_type: u16::try_from(libc::PACKET_MR_MULTICAST).map_err(invalid)?,
        mr_alen: 6,
        mr_address: mac,
    };
    let length = libc::socklen_t::try_from(size_of_val(&request)).map_err(invalid)?;
    // SAFETY: the descriptor is open as long as `filter` is borrowed; the kernel reads `length`
    // bytes of `request`, which is alive and initialized during the call, and keeps no pointer.
    let result = unsafe {
        libc::setsockopt(filter.as_raw_fd(), libc::SOL_PACKET, operation, (&raw const request).cast(), length)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
