//! The sockets that hold the memberships.

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

use super::Group;
use crate::link::interface_name;

/// Solicitations for IPv6 VIPs may not reach this node.
#[derive(Debug, thiserror::Error)]
pub(super) enum GroupError {
    /// The network card was not told.
    #[error(
        "{interface} cannot be told to take frames to the multicast groups of IPv6 VIPs ({count} of them): neighbours \
         may not find these VIPs here"
    )]
    Filter { interface: String, count: usize, source: io::Error },
    /// The switches were not told.
    #[error(
        "{interface}: the multicast groups of IPv6 VIPs cannot be joined ({count} of them): a switch that snoops on MLD \
         may keep neighbours' solicitations from this node"
    )]
    Report { interface: String, count: usize, source: io::Error },
    /// The switches are not told.
    #[error(
        "IPv6 is disabled on {interface}: its network card takes solicitations for IPv6 VIPs, but a switch that snoops \
         on MLD is not told of them and may keep them from this node (`sysctl \
         net.ipv6.conf.{interface}.disable_ipv6=0` mends it)"
    )]
    Disabled { interface: String },
}

/// What the node is in.
#[derive(Debug, Default)]
pub(super) struct Groups {
    held: BTreeMap<Group, Held>,
    /// A packet socket.
    filter: Option<OwnedFd>,
    reporters: Vec<Reporter>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Held {
    filtered: bool,
    /// Its place in [`Groups::reporters`].
    reporter: Option<usize>,
}

/// An IPv6 socket with memberships: the kernel charges them to the socket, and has a limit for each
/// (`net.core.optmem_max`), some hundreds of groups.
#[derive(Debug)]
struct Reporter {
    socket: UdpSocket,
    full: bool,
}

impl Groups {
    /// Leaves and joins what differs, and tries again what failed before. What went wrong, once for each interface.
    pub(super) fn sync(&mut self, wanted: &BTreeSet<Group>) -> Vec<GroupError> {
        let gone: Vec<_> = self.held.keys().filter(|group| !wanted.contains(group)).copied().collect();
        for group in gone {
            self.leave(group);
        }
        let filters = failures(wanted, |group| self.take(group));
        let mut reports = failures(wanted, |group| self.report(group));
        let interfaces: BTreeSet<u32> = wanted.iter().map(|group| group.ifindex).collect();
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

    /// Also where the interface is gone, and the kernel's side of the membership with it.
    fn leave(&mut self, group: Group) {
        let Some(held) = self.held.remove(&group) else { return };
        if let Some(filter) = self.filter.as_ref().filter(|_| held.filtered) {
            let _ = change(filter, libc::PACKET_DROP_MEMBERSHIP, group);
        }
        if let Some(reporter) = held.reporter.and_then(|place| self.reporters.get_mut(place)) {
            let _ = reporter.socket.leave_multicast_v6(&group.address, group.ifindex);
            reporter.full = false;
        }
    }

    fn take(&mut self, group: Group) -> io::Result<()> {
        let filter = match self.filter.take() {
            Some(filter) => filter,
            // Its protocol is 0, so it receives nothing.
            None => socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None)?,
        };
        let filter = self.filter.insert(filter);
        let held = self.held.entry(group).or_default();
        if !held.filtered {
            change(filter, libc::PACKET_ADD_MEMBERSHIP, group)?;
            held.filtered = true;
        }
        Ok(())
    }

    fn report(&mut self, group: Group) -> io::Result<()> {
        if self.held.get(&group).is_some_and(|held| held.reporter.is_some()) {
            return Ok(());
        }
        let place = loop {
            let place = self.reporter()?;
            let reporter = &mut self.reporters[place];
            match reporter.socket.join_multicast_v6(&group.address, group.ifindex) {
                Ok(()) => break place,
                // A socket that takes not even one is no use in trying again.
                Err(error) if is_full(&error) && self.held.values().any(|held| held.reporter == Some(place)) => {
                    reporter.full = true;
                }
                Err(error) => return Err(error),
            }
        };
        self.held.entry(group).or_default().reporter = Some(place);
        Ok(())
    }

    /// The place of a socket that has room.
    fn reporter(&mut self) -> io::Result<usize> {
        if let Some(place) = self.reporters.iter().position(|reporter| !reporter.full) {
            return Ok(place);
        }
        // Not bound, so it receives nothing.
        let socket = socket(AddressFamily::Inet6, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
        self.reporters.push(Reporter { socket: socket.into(), full: false });
        Ok(self.reporters.len() - 1)
    }
}

/// The first error on each interface, and how many there were.
fn failures(
    groups: &BTreeSet<Group>,
    mut attempt: impl FnMut(Group) -> io::Result<()>,
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

/// Also where the kernel has no IPv6 at all; not of an interface that is gone.
fn is_disabled(ifindex: u32) -> bool {
    let Ok(name) = if_indextoname(ifindex) else { return false };
    let setting = format!("/proc/sys/net/ipv6/conf/{}/disable_ipv6", name.to_string_lossy());
    fs::read_to_string(setting).map_or(true, |setting| setting.trim() != "0")
}

/// Adds or drops a membership by MAC (packet(7)).
fn change(filter: &OwnedFd, operation: libc::c_int, group: Group) -> io::Result<()> {
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
    // SAFETY: the descriptor is open as long as `filter` is borrowed; the kernel reads `length` bytes of `request`, which
    // is alive and initialised during the call, and keeps no pointer.
    let result = unsafe {
        libc::setsockopt(filter.as_raw_fd(), libc::SOL_PACKET, operation, (&raw const request).cast(), length)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
