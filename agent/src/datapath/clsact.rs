//! Classifiers as tc filters in a clsact qdisc, for kernels without tcx links (before Linux 6.6; tc-bpf(8)).
//!
//! The filter is known by its priority and its handle, also to a later agent, which puts its program in its place
//! at once. Nothing of it is pinned: the filter itself holds the program.

use std::{io, mem};

use aya::programs::{
    ProgramError, SchedClassifier, TcAttachType,
    tc::{NlOptions, SchedClassifierLink, TcAttachOptions, TcError, TcHandle, qdisc_add_clsact},
};
use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::{
    RouteNetlinkMessage,
    tc::{TcAttribute, TcHandle as Handle, TcMessage},
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use crate::link::interface_name;

/// Filters or their qdisc could not be removed.
#[derive(Debug, thiserror::Error)]
#[error("cannot remove the tc filters of vipmux or their clsact qdisc from {interface}")]
pub struct FilterError {
    interface: String,
    #[source]
    source: io::Error,
}

/// The filter's priority: the first.
const PRIORITY: u16 = 1;
/// The filter's handle among those of its priority: "vipm".
const HANDLE: TcHandle = TcHandle::new(0x7669, 0x706d);
/// `htons(ETH_P_ALL)`: what aya attaches filters for.
const ALL_PROTOCOLS: u16 = 0x0003_u16.to_be();
/// The kernel's answers to a dump come in datagrams of at most this many bytes.
const ANSWER: usize = 64 * 1024;

/// Attaches the program by a filter, in place of an earlier agent's; whether the qdisc had to be made for it.
pub(super) fn attach(program: &mut SchedClassifier, interface: &str, side: TcAttachType) -> Result<bool, ProgramError> {
    let known = SchedClassifierLink::attached(interface, side, PRIORITY, HANDLE, None);
    let replaced = program.attach_to_link(known.map_err(TcError::IoError)?);
    let (id, made) = match replaced {
        Ok(id) => (id, false),
        Err(error) => {
            tracing::debug!(interface, %error, "there is no filter of an earlier agent");
            let made = match qdisc_add_clsact(interface) {
                Ok(()) => true,
                Err(TcError::NetlinkError(error)) if error.raw_os_error() == Some(libc::EEXIST) => false,
                Err(error) => return Err(error.into()),
            };
            let options = NlOptions { priority: PRIORITY, handle: HANDLE, classid: None };
            let options = TcAttachOptions::Netlink(options);
            (program.attach_with_options(interface, side, options)?, made)
        }
    };
    // Dropped, it would remove the filter.
    mem::forget(program.take_link(id)?);
    Ok(made)
}

/// Removes the filters of both sides, as far as they are there, and with `made` the qdisc, unless others have filters in
/// it.
pub(super) fn remove(ifindex: u32, made: bool) -> Result<(), FilterError> {
    remove_both(ifindex, made).map_err(failed(ifindex))
}

/// A filter on an interface's way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// `bpf`, `flower` and so on.
    pub kind: String,
    /// The lowest comes first.
    pub priority: u16,
    /// It has the priority and the handle of vipmux's.
    pub ours: bool,
}

/// The filters on an interface's way out, in their order.
pub fn on_the_way_out(ifindex: u32) -> io::Result<Vec<Filter>> {
    let all = RouteNetlinkMessage::GetTrafficFilter(message(ifindex, Handle::MIN_EGRESS)?);
    let found = gone(exchange(&open()?, all, NLM_F_DUMP))?.unwrap_or_default();
    let filter = |found: &TcMessage| {
        let handle = u32::from(found.header.handle);
        // The kernel tells of a classifier once more, without a handle, before its filters.
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

/// Removes the filter of the way in alone, if it is there.
pub(super) fn remove_ingress(ifindex: u32) -> Result<(), FilterError> {
    open().and_then(|socket| remove_filter(&socket, ifindex, Handle::MIN_INGRESS)).map_err(failed(ifindex))
}

fn failed(ifindex: u32) -> impl FnOnce(io::Error) -> FilterError {
    move |source| FilterError { interface: interface_name(ifindex), source }
}

fn remove_both(ifindex: u32, made: bool) -> io::Result<()> {
    let socket = open()?;
    let directions = [Handle::MIN_INGRESS, Handle::MIN_EGRESS];
    directions.into_iter().try_for_each(|direction| remove_filter(&socket, ifindex, direction))?;
    if !made {
        return Ok(());
    }
    for direction in directions {
        let all = RouteNetlinkMessage::GetTrafficFilter(message(ifindex, direction)?);
        if !gone(exchange(&socket, all, NLM_F_DUMP))?.unwrap_or_default().is_empty() {
            return Ok(());
        }
    }
    let mut qdisc = message(ifindex, 0)?;
    qdisc.header.handle = Handle { major: u16::MAX, minor: 0 };
    qdisc.header.parent = Handle::CLSACT;
    gone(exchange(&socket, RouteNetlinkMessage::DelQueueDiscipline(qdisc), NLM_F_ACK)).map(drop)
}

fn open() -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    Ok(socket)
}

fn remove_filter(socket: &Socket, ifindex: u32, direction: u16) -> io::Result<()> {
    let mut filter = message(ifindex, direction)?;
    filter.header.handle = u32::from(HANDLE).into();
    filter.header.info = u32::from(PRIORITY) << 16 | u32::from(ALL_PROTOCOLS);
    gone(exchange(socket, RouteNetlinkMessage::DelTrafficFilter(filter), NLM_F_ACK)).map(drop)
}

/// About what hangs on the clsact qdisc of an interface, in one direction.
fn message(ifindex: u32, direction: u16) -> io::Result<TcMessage> {
    let mut message = TcMessage::with_index(i32::try_from(ifindex).map_err(io::Error::other)?);
    message.header.parent = Handle { major: u16::MAX, minor: direction };
    Ok(message)
}

/// `None` for what is not there: no such filter or qdisc, or no such interface any more.
fn gone<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINVAL | libc::ENODEV)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// One question or request; the filters that the kernel told of.
fn exchange(socket: &Socket, inner: RouteNetlinkMessage, flags: u16) -> io::Result<Vec<TcMessage>> {
    let mut message = NetlinkMessage::from(inner);
    message.header.flags = NLM_F_REQUEST | flags;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    socket.send_to(&bytes, &SocketAddr::new(0, 0), 0)?;
    let mut filters = Vec::new();
    let mut buffer = Vec::with_capacity(ANSWER);
    loop {
        buffer.clear();
        socket.recv(&mut buffer, 0)?;
        let mut rest = buffer.as_slice();
        while !rest.is_empty() {
            let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest).map_err(io::Error::other)?;
            rest = rest.get((answer.header.length as usize).next_multiple_of(4)..).unwrap_or_default();
            match answer.payload {
                NetlinkPayload::Done(_) => return Ok(filters),
                NetlinkPayload::Error(error) if error.raw_code() == 0 => return Ok(filters),
                NetlinkPayload::Error(error) => return Err(error.to_io()),
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewTrafficFilter(filter)) => filters.push(filter),
                _ => {}
            }
        }
    }
}
