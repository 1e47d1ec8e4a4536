//! Attaches classifiers as tc filters in a clsact qdisc, for kernels without tcx links (before
//! Linux 6.6; tc-bpf(8)).
//!
//! A fixed priority and handle identify the filter. So a later agent finds it and replaces its
//! program in place. Nothing is pinned: the filter itself holds the program.
//!
//! rtnetlink cannot delete one filter: its request has neither priority nor handle. So the messages
//! are built here.

use std::{io, mem};

use aya::programs::{
    ProgramError, SchedClassifier,
    tc::{NlOptions, SchedClassifierLink, TcAttachOptions, TcError, TcHandle, qdisc_add_clsact},
};
use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP};
use netlink_packet_route::{
    RouteNetlinkMessage,
    tc::{TcAttribute, TcHandle as Handle, TcMessage},
};

use super::direction::Direction;
use crate::{
    link::interface_name,
    netlink::{self, NETLINK_ROUTE},
};

/// A filter or its qdisc could not be removed.
#[derive(Debug, thiserror::Error)]
#[error("cannot remove the tc filters of vipmux or their clsact qdisc from {interface}")]
pub struct FilterError {
    interface: String,
    #[source]
    source: io::Error,
}

/// The filter's priority: the first.
const PRIORITY: u16 = 1;
/// The filter's handle within its priority: "vipm".
const HANDLE: TcHandle = TcHandle::new(0x7669, 0x706d);
/// The handle of the filter that stands in for that one while it is moved: "vips".
const STAND_IN: TcHandle = TcHandle::new(0x7669, 0x7073);
/// `htons(ETH_P_ALL)`: the protocol for which aya attaches filters.
const ALL_PROTOCOLS: u16 = 0x0003_u16.to_be();

/// Attaches the program by a filter, or replaces the program in an earlier agent's filter. Returns
/// whether it added the qdisc.
pub(super) fn attach(
    program: &mut SchedClassifier,
    interface: &str,
    direction: Direction,
) -> Result<bool, ProgramError> {
    let known = SchedClassifierLink::attached(interface, direction.tc_type(), PRIORITY, HANDLE, None);
    let replaced = program.attach_to_link(known.map_err(TcError::IoError)?);
    match replaced {
        Ok(id) => {
            // To drop the link would remove the filter.
            mem::forget(program.take_link(id)?);
            Ok(false)
        }
        Err(error) => {
            tracing::debug!(interface, %error, "no filter of an earlier agent");
            let qdisc_added = match qdisc_add_clsact(interface) {
                Ok(()) => true,
                Err(TcError::NetlinkError(error)) if error.raw_os_error() == Some(libc::EEXIST) => false,
                Err(error) => return Err(error.into()),
            };
            add(program, interface, direction, HANDLE)?;
            Ok(qdisc_added)
        }
    }
}

/// Adds a filter. It comes before all others of its priority (`cls_bpf_change` of
/// net/sched/cls_bpf.c).
fn add(
    program: &mut SchedClassifier,
    interface: &str,
    direction: Direction,
    handle: TcHandle,
) -> Result<(), ProgramError> {
    let options = TcAttachOptions::Netlink(NlOptions { priority: PRIORITY, handle, classid: None });
    let id = program.attach_with_options(interface, direction.tc_type(), options)?;
    // As above.
    mem::forget(program.take_link(id)?);
    Ok(())
}

/// Puts the filter before all others. Every packet meets it or the one that stands in for it.
pub(super) fn put_first(
    program: &mut SchedClassifier,
    interface: &str,
    ifindex: u32,
    direction: Direction,
) -> Result<(), ProgramError> {
    for (new, old) in [(STAND_IN, HANDLE), (HANDLE, STAND_IN)] {
        add(program, interface, direction, new)?;
        remove_filter(ifindex, direction, old).map_err(TcError::IoError)?;
    }
    Ok(())
}

/// Removes what an agent left that ended while it moved its filter.
pub(super) fn remove_stand_in(ifindex: u32, direction: Direction) -> Result<(), FilterError> {
    remove_filter(ifindex, direction, STAND_IN).map_err(failed(ifindex))
}

/// Removes vipmux's filters of both directions. With `qdisc_added`, removes the qdisc too, unless
/// it has other filters.
pub(super) fn remove(ifindex: u32, qdisc_added: bool) -> Result<(), FilterError> {
    remove_both(ifindex, qdisc_added).map_err(failed(ifindex))
}

/// A filter of one direction of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// `bpf`, `flower` and so on.
    pub kind: String,
    /// Its priority. The lowest comes first.
    pub priority: u16,
    /// It is for frames of all protocols, not of one.
    pub all_protocols: bool,
    /// It has the priority and a handle of vipmux's filters.
    pub ours: bool,
}

impl Filter {
    /// Returns whether vipmux cannot attach a filter beside it: all filters of one priority are of
    /// one kind and for the same protocol.
    pub fn is_in_the_way(&self) -> bool {
        self.priority == PRIORITY && !(self.kind == "bpf" && self.all_protocols)
    }
}

/// Returns the filters of one direction of an interface, in the order in which they run.
pub(super) fn filters(direction: Direction, ifindex: u32) -> io::Result<Vec<Filter>> {
    let found = list(ifindex, direction)?;
    let filter = |found: &TcMessage| {
        let handle = u32::from(found.header.handle);
        let is_elsewhere = |one: &TcAttribute| matches!(one, TcAttribute::Chain(chain) if *chain != 0);
        // The kernel lists each classifier first, without a handle, then its filters. Other chains
        // are only for packets that a filter sends there.
        if handle == 0 || found.attributes.iter().any(is_elsewhere) {
            return None;
        }
        let kind = found.attributes.iter().find_map(|attribute| match attribute {
            TcAttribute::Kind(kind) => Some(kind.clone()),
            _ => None,
        });
        let priority = u16::try_from(found.header.info >> 16).unwrap_or_default();
        let all_protocols = found.header.info & 0xffff == u32::from(ALL_PROTOCOLS);
        let ours = priority == PRIORITY && [HANDLE, STAND_IN].map(u32::from).contains(&handle);
        Some(Filter { kind: kind?, priority, all_protocols, ours })
    };
    let mut filters: Vec<_> = found.iter().filter_map(filter).collect();
    filters.sort_by_key(|filter| filter.priority);
    Ok(filters)
}

/// Removes the ingress filter, if there is one.
pub(super) fn remove_ingress(ifindex: u32) -> Result<(), FilterError> {
    remove_filters(ifindex, Direction::Ingress).map_err(failed(ifindex))
}

fn failed(ifindex: u32) -> impl FnOnce(io::Error) -> FilterError {
    move |source| FilterError { interface: interface_name(ifindex), source }
}

fn remove_both(ifindex: u32, qdisc_added: bool) -> io::Result<()> {
    let directions = [Direction::Ingress, Direction::Egress];
    directions.into_iter().try_for_each(|direction| remove_filters(ifindex, direction))?;
    if !qdisc_added {
        return Ok(());
    }
    for direction in directions {
        if !list(ifindex, direction)?.is_empty() {
            return Ok(());
        }
    }
    let mut qdisc = message(ifindex, 0)?;
    qdisc.header.handle = Handle { major: u16::MAX, minor: 0 };
    qdisc.header.parent = Handle::CLSACT;
    request(RouteNetlinkMessage::DelQueueDiscipline(qdisc), NLM_F_ACK).map(drop)
}

fn remove_filters(ifindex: u32, direction: Direction) -> io::Result<()> {
    [HANDLE, STAND_IN].into_iter().try_for_each(|handle| remove_filter(ifindex, direction, handle))
}

fn remove_filter(ifindex: u32, direction: Direction, handle: TcHandle) -> io::Result<()> {
    let mut filter = message(ifindex, minor(direction))?;
    filter.header.handle = u32::from(handle).into();
    filter.header.info = u32::from(PRIORITY) << 16 | u32::from(ALL_PROTOCOLS);
    request(RouteNetlinkMessage::DelTrafficFilter(filter), NLM_F_ACK).map(drop)
}

/// Returns the part of the clsact qdisc for one direction.
const fn minor(direction: Direction) -> u16 {
    match direction {
        Direction::Egress => Handle::MIN_EGRESS,
        Direction::Ingress => Handle::MIN_INGRESS,
    }
}

/// Returns a message about a part of the clsact qdisc of an interface.
fn message(ifindex: u32, part: u16) -> io::Result<TcMessage> {
    let mut message = TcMessage::with_index(i32::try_from(ifindex).map_err(io::Error::other)?);
    message.header.parent = Handle { major: u16::MAX, minor: part };
    Ok(message)
}

/// Returns all filters of one direction.
fn list(ifindex: u32, direction: Direction) -> io::Result<Vec<TcMessage>> {
    let message = message(ifindex, minor(direction))?;
    let answer = request(RouteNetlinkMessage::GetTrafficFilter(message), NLM_F_DUMP)?;
    let filter = |message| match message {
        RouteNetlinkMessage::NewTrafficFilter(filter) => Some(filter),
        _ => None,
    };
    Ok(answer.into_iter().filter_map(filter).collect())
}

/// Sends a request. The answer is empty if there is no such filter, qdisc or interface.
fn request(message: RouteNetlinkMessage, flags: u16) -> io::Result<Vec<RouteNetlinkMessage>> {
    match netlink::request(NETLINK_ROUTE, message, flags) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINVAL | libc::ENODEV)) => {
            Ok(Vec::new())
        }
        result => result,
    }
}
