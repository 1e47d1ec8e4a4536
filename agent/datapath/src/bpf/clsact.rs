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
    ProgramError, SchedClassifier, TcAttachType,
    tc::{NlOptions, SchedClassifierLink, TcAttachOptions, TcError, TcHandle, qdisc_add_clsact},
};
use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP};
use netlink_packet_route::{
    RouteNetlinkMessage,
    tc::{TcAttribute, TcHandle as Handle, TcMessage},
};

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
/// `htons(ETH_P_ALL)`: the protocol for which aya attaches filters.
const ALL_PROTOCOLS: u16 = 0x0003_u16.to_be();

/// Attaches the program by a filter, or replaces the program in an earlier agent's filter. Returns
/// whether it added the qdisc.
pub(super) fn attach(
    program: &mut SchedClassifier,
    interface: &str,
    direction: TcAttachType,
) -> Result<bool, ProgramError> {
    let known = SchedClassifierLink::attached(interface, direction, PRIORITY, HANDLE, None);
    let replaced = program.attach_to_link(known.map_err(TcError::IoError)?);
    let (id, qdisc_added) = match replaced {
        Ok(id) => (id, false),
        Err(error) => {
            tracing::debug!(interface, %error, "no filter of an earlier agent");
            let qdisc_added = match qdisc_add_clsact(interface) {
                Ok(()) => true,
                Err(TcError::NetlinkError(error)) if error.raw_os_error() == Some(libc::EEXIST) => false,
                Err(error) => return Err(error.into()),
            };
            let options = NlOptions { priority: PRIORITY, handle: HANDLE, classid: None };
            let options = TcAttachOptions::Netlink(options);
            (program.attach_with_options(interface, direction, options)?, qdisc_added)
        }
    };
    // To drop the link would remove the filter.
    mem::forget(program.take_link(id)?);
    Ok(qdisc_added)
}

/// Removes vipmux's filters of both directions. With `qdisc_added`, removes the qdisc too, unless
/// it has other filters.
pub(super) fn remove(ifindex: u32, qdisc_added: bool) -> Result<(), FilterError> {
    remove_both(ifindex, qdisc_added).map_err(failed(ifindex))
}

/// A filter on an interface's egress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// `bpf`, `flower` and so on.
    pub kind: String,
    /// Its priority. The lowest comes first.
    pub priority: u16,
    /// It has the priority and the handle of vipmux's filter.
    pub ours: bool,
}

/// Returns the filters on an interface's egress, in order.
pub fn egress_filters(ifindex: u32) -> io::Result<Vec<Filter>> {
    let found = list(ifindex, Handle::MIN_EGRESS)?;
    let filter = |found: &TcMessage| {
        let handle = u32::from(found.header.handle);
        // The kernel lists each classifier first, without a handle, then its filters.
        if handle == 0 {
            return None;
        }
        let kind = found.attributes.iter().find_map(|attribute| match attribute {
            TcAttribute::Kind(kind) => Some(kind.clone()),
            _ => None,
        });
        let priority = u16::try_from(found.header.info >> 16).unwrap_or_default();
        Some(Filter { kind: kind?, priority, ours: priority == PRIORITY && handle == u32::from(HANDLE) })
    };
    let mut filters: Vec<_> = found.iter().filter_map(filter).collect();
    filters.sort_by_key(|filter| filter.priority);
    Ok(filters)
}

/// Removes the ingress filter, if there is one.
pub(super) fn remove_ingress(ifindex: u32) -> Result<(), FilterError> {
    remove_filter(ifindex, Handle::MIN_INGRESS).map_err(failed(ifindex))
}

fn failed(ifindex: u32) -> impl FnOnce(io::Error) -> FilterError {
    move |source| FilterError { interface: interface_name(ifindex), source }
}

fn remove_both(ifindex: u32, qdisc_added: bool) -> io::Result<()> {
    let directions = [Handle::MIN_INGRESS, Handle::MIN_EGRESS];
    directions.into_iter().try_for_each(|direction| remove_filter(ifindex, direction))?;
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

fn remove_filter(ifindex: u32, direction: u16) -> io::Result<()> {
    let mut filter = message(ifindex, direction)?;
    filter.header.handle = u32::from(HANDLE).into();
    filter.header.info = u32::from(PRIORITY) << 16 | u32::from(ALL_PROTOCOLS);
    request(RouteNetlinkMessage::DelTrafficFilter(filter), NLM_F_ACK).map(drop)
}

/// Returns a message about one direction of the clsact qdisc of an interface.
fn message(ifindex: u32, direction: u16) -> io::Result<TcMessage> {
    let mut message = TcMessage::with_index(i32::try_from(ifindex).map_err(io::Error::other)?);
    message.header.parent = Handle { major: u16::MAX, minor: direction };
    Ok(message)
}

/// Returns all filters of one direction.
fn list(ifindex: u32, direction: u16) -> io::Result<Vec<TcMessage>> {
    let answer = request(RouteNetlinkMessage::GetTrafficFilter(message(ifindex, direction)?), NLM_F_DUMP)?;
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
