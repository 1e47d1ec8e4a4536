//! Finds the Service of (VIP, protocol, port), and the backend of a new flow.

use core::ptr;

use vipmux_common::{
    abi::{
        Address, DropReason, FlowKey, Interface, NODE_ATTACHED, Node, SERVICE_SPARE, ServiceKey, ServiceState,
        ServiceValue,
    },
    hash,
    service_index::IndexedService,
    table,
};

use crate::{
    client,
    flow::{Target, newest_generation},
    frame::Frame,
    maps::{SERVICE_INDEX, SERVICE_STATES, SERVICES, TABLES, Workspace, copy},
    vip,
    wire::unknown_zero,
};

/// Where a frame comes from, and the VIP that it is for.
pub(crate) struct Source<'a> {
    pub(crate) frame: &'a Frame,
    pub(crate) interface: &'a Interface,
    pub(crate) vip: vip::Flags,
}

/// Returns a copy of the Service port's revision, by its VIP. The element itself may
/// be replaced at any time.
#[inline(always)]
pub(crate) fn find(key: &FlowKey, vip: vip::Flags) -> Result<ServiceValue, DropReason> {
    let claim = ServiceKey { vip: key.vip, port: key.vip_port, protocol: key.protocol as u8, padding: 0 };
    if let Some(element) = SERVICE_INDEX.get_ptr(claim.index()) {
        // SAFETY: words of a map value.
        let word = |number| unsafe { ptr::read_volatile(element.cast::<u64>().add(number)) };
        let copy = IndexedService([word(0), word(1), word(2), word(3)]);
        if let Some(service) = copy.value(claim) {
            // Zero, which the verifier does not know. So it checks once what follows, and not again for a
            // Service from the map.
            let affinity = unknown_zero(copy.0[3]) as u32;
            return Ok(ServiceValue { affinity, ..service });
        }
    }
    let has_copy = |port: u16| service_copy(claim.vip, port.into(), claim.protocol.into()) != 0;
    if !(has_copy(claim.port) || vip.has_all_ports() && has_copy(0)) {
        return Err(DropReason::NoService);
    }
    Workspace::get().map(|workspace| workspace.service.get()).ok_or(DropReason::NoService)
}

/// Copies the value of an entry of `SERVICES` into the workspace. Returns 0 if there is no entry. The verifier
/// checks this function on its own, since the value and two lookups need more stack than its callers have.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn service_copy(vip: u32, port: u32, protocol: u32) -> u32 {
    let claim = ServiceKey { vip, port: port as u16, protocol: protocol as u8, padding: 0 };
    let (Some(value), Some(workspace)) = (copy(&SERVICES, &claim), Workspace::get()) else { return 0 };
    workspace.service.set(value);
    1
}

/// Returns the state that holds for all flows of the Service port.
#[inline(always)]
pub(crate) fn state(service: &ServiceValue) -> Option<&'static ServiceState> {
    SERVICE_STATES.get(service.slot)
}

/// Returns the node, if frames may be handed over to it.
#[inline(always)]
pub(crate) fn node(target: &Target) -> Result<&'static Node, DropReason> {
    match target.remote {
        Some(node) if node.flags & NODE_ATTACHED != 0 => Ok(node),
        _ => Err(DropReason::NodeUnreachable),
    }
}

/// Returns whether a frame may go to this backend. A handed-over frame only goes to a local one,
/// and no frame goes back to where it came from.
#[inline(always)]
pub(crate) fn is_fit(target: &Target, source: &Source) -> bool {
    let is_elsewhere = || node(target).is_ok_and(|node| node.mac != source.frame.source);
    target.local.is_some() || !source.vip.is_handed_over() && is_elsewhere()
}

/// Returns the hash that selects a new flow's backend. `vip` is the packet's destination. The state has the
/// address too, but the lookup in the table would wait for its cache line.
#[inline(always)]
pub(crate) fn hash(key: &FlowKey, service: &ServiceValue, vip: &Address) -> u32 {
    if service.affinity == 0 { hash::flow(key, hash::salt(service, vip)) } else { hash::client(&key.client) }
}

/// Returns the backend of a new flow, and whether to record the client. With session affinity all
/// flows of a client go to one backend, which every node finds by the client's address. A change of
/// backends does not move recorded clients. `attempt`: the number of backends that were tried in
/// vain.
#[inline(always)]
pub(crate) fn pick(
    key: &FlowKey,
    service: &ServiceValue,
    vip: &Address,
    source: &Source,
    attempt: u32,
) -> Result<(Target, bool), DropReason> {
    let hash = self::hash(key, service, vip);
    if service.affinity == 0 || attempt != 0 {
        return Ok((choose_first(service, hash::after(hash, attempt), source)?, false));
    }
    if let Some(target) = client::remembered(&key.client, service, source.vip)
        && is_fit(&target, source)
    {
        return Ok((target, false));
    }
    Ok((choose(service, hash, source)?, true))
}

/// As [`choose`], which costs a call, after a look at the first slot. Nearly always, that one's backend is
/// fit.
#[inline(always)]
fn choose_first(service: &ServiceValue, hash: u32, source: &Source) -> Result<Target, DropReason> {
    let newest = newest_generation();
    if service.table_length != 0
        && let Some(first) = at(service.table, service.table_length, hash, newest, source.vip)
        && is_fit(&first, source)
    {
        return Ok(first);
    }
    choose(service, hash, source)
}

/// Returns the table's backend for a new flow, or the next usable one.
#[inline(always)]
pub(crate) fn choose(service: &ServiceValue, hash: u32, source: &Source) -> Result<Target, DropReason> {
    let &Source { frame, vip, .. } = source;
    let table = u64::from(service.table) << 32 | u64::from(service.table_length);
    let local = u64::from(service.local_table) << 32 | u64::from(service.local_length);
    let from = u64::from(frame.source.head) << 16 | u64::from(frame.source.tail);
    let spare = service.flags & SERVICE_SPARE != 0;
    let newest = newest_generation();
    let how = if spare { vip.0 | SPARE } else { vip.0 };
    let chosen = choose_backend(table, local, hash, from, how);
    match chosen & STATUS {
        FOUND => match (chosen >> NODE) as u32 {
            0 => Target::get(chosen as u32, vip).ok_or(DropReason::NoBackend),
            node => Ok(Target::elsewhere(chosen as u32, newest, node - 1, vip)),
        },
        NOT_LOCAL => Err(DropReason::NotLocal),
        HAIRPIN => Err(DropReason::Hairpin),
        UNREACHABLE => Err(DropReason::NodeUnreachable),
        _ => Err(DropReason::NoBackend),
    }
}

/// The results of [`choose_backend`], without the numbers of [`encode`].
const STATUS: u64 = 0xff << 32;
const FOUND: u64 = 0;
const NO_BACKEND: u64 = 1 << 32;
const NOT_LOCAL: u64 = 2 << 32;
const HAIRPIN: u64 = 3 << 32;
const UNREACHABLE: u64 = 4 << 32;

/// [`SERVICE_SPARE`], beside the VIP's flags.
const SPARE: u32 = 1 << 29;

/// The bit from which on a result has the node.
const NODE: u32 = 40;

/// Returns [`FOUND`], with the index of a backend in the low 32 bits. From [`NODE`] on, it has the index
/// of the other node that the backend is on, plus one.
#[inline(always)]
fn encode(target: &Target) -> u64 {
    let node = if target.remote.is_some() { u64::from(target.node) + 1 } else { 0 };
    u64::from(target.index) | node << NODE
}

/// The verifier checks this function on its own, since its probes would multiply with all earlier
/// paths. `tables` have the first slot above 32 bits and the length below; `from` is the frame's
/// source MAC.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn choose_backend(tables: u64, local: u64, hash: u32, from: u64, how: u32) -> u64 {
    let (table, length) = ((tables >> 32) as u32, tables as u32);
    let (local, local_length) = ((local >> 32) as u32, local as u32);
    let vip = vip::Flags(how);
    let handed_over = vip.is_handed_over();
    let is_fit =
        |target: &Target| target.local.is_some() || !handed_over && node(target).is_ok_and(|node| !is_from(node, from));
    if length == 0 {
        return NO_BACKEND;
    }
    let Some(first) = at(table, length, hash, ANY_GENERATION, vip) else { return NO_BACKEND };
    if is_fit(&first) {
        return encode(&first);
    }
    let here = || at(local, local_length, hash, ANY_GENERATION, vip).map_or(NO_BACKEND, |target| encode(&target));
    if handed_over {
        return if local_length == 0 { NOT_LOCAL } else { here() };
    }
    // Where nothing marks a node's frames, that node may have chosen a backend here.
    let came_back = vip.path(first.node).is_some_and(|node| is_from(node, from));
    if came_back && local_length != 0 && how & SPARE == 0 {
        return here();
    }
    let mut next = hash;
    for _ in 0..hash::PROBES {
        next = hash::next(next);
        let probed = probe_slot(tables, next, from, how);
        if probed & STATUS == FOUND {
            return probed;
        }
    }
    match (local_length, came_back) {
        (0, true) => HAIRPIN,
        (0, false) => UNREACHABLE,
        _ => here(),
    }
}

/// Returns a slot's backend, if a frame that was not handed over may go there; else
/// [`UNREACHABLE`]. A function of its own, or the verifier would follow it in each turn of the loop.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn probe_slot(table: u64, hash: u32, from: u64, vip: u32) -> u64 {
    match at((table >> 32) as u32, table as u32, hash, ANY_GENERATION, vip::Flags(vip)) {
        Some(target) if target.local.is_some() || node(&target).is_ok_and(|node| !is_from(node, from)) => {
            encode(&target)
        }
        _ => UNREACHABLE,
    }
}

/// A generation where the result of a function has none.
const ANY_GENERATION: u32 = 1;

/// Returns the backend in a hash's slot of a table. `newest`: [`Target::of_table`]'s.
#[inline(always)]
fn at(first: u32, length: u32, hash: u32, newest: u32, vip: vip::Flags) -> Option<Target> {
    let slot = first.wrapping_add(hash::slot(hash, length));
    let element = TABLES.get(table::element(slot))?;
    Target::of_table(table::get(*element, slot), newest, vip)
}

#[inline(always)]
fn is_from(node: &Node, from: u64) -> bool {
    u64::from(node.mac.head) << 16 | u64::from(node.mac.tail) == from
}
