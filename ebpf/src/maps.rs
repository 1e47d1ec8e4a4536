//! All maps. The agent pins each under its name and sizes it at load time. `vipmux_common::abi` has
//! the types.

use core::{
    cell::{Cell, UnsafeCell},
    mem::MaybeUninit,
    ptr,
};

use aya_ebpf::{
    bindings::{BPF_F_MMAPABLE, BPF_F_NO_PREALLOC},
    macros::map,
    maps::{Array, HashMap, LpmTrie, LruHashMap, PerCpuArray, PerCpuHashMap, ProgramArray},
};
use vipmux_common::{
    abi::{
        Activity, Address, AffinityKey, AffinityValue, Backend, Budget, CALL_INGRESS, CALLS as CALL_COUNT, Config,
        Count, DropReason, EgressFragmentValue, Fence, FlowRecord, FlowSet, FragmentKey, FragmentValue, Interface,
        Leader, Mac, Member, Node, NodeLabel, Range, RefusalKey, Scratch, ServiceKey, ServiceOwner, ServiceState,
        ServiceValue, Speaker, SpeakerKey, Stat, Traced, VipSlot, VipValue, capacity,
    },
    backend_nodes, budget,
    flow_table::Place,
    service_index::IndexedService,
    table,
};

/// A map of one element, as a global variable: one instruction has its address, where a lookup needs 14
/// and the registers. In the object, such a map has the name of its section.
#[unsafe(link_section = ".data.CONFIG")]
#[unsafe(no_mangle)]
static mut CONFIG: MaybeUninit<Config> = MaybeUninit::zeroed();
/// As [`CONFIG`].
#[unsafe(link_section = ".data.FENCE")]
#[unsafe(no_mangle)]
static mut FENCE: MaybeUninit<Fence> = MaybeUninit::zeroed();

/// As [`CONFIG`]. In a map of its own, since it is in use on all CPUs and rarely changes.
#[unsafe(link_section = ".data.ACTIVITY")]
#[unsafe(no_mangle)]
static mut ACTIVITY: MaybeUninit<Activity> = MaybeUninit::zeroed();

/// Returns the configuration.
#[inline(always)]
pub(crate) fn config() -> &'static Config {
    // SAFETY: all zero is a value. The agent writes it meanwhile, a word at a time, as in every map.
    unsafe { &*(&raw const CONFIG).cast() }
}

/// Returns the fence.
#[inline(always)]
pub(crate) fn fence() -> *mut Fence {
    (&raw mut FENCE).cast()
}

/// Returns where the XDP program ran.
#[inline(always)]
pub(crate) fn activity() -> *mut Activity {
    (&raw mut ACTIVITY).cast()
}

#[map]
pub(crate) static INTERFACES: Array<Interface> = Array::with_max_entries(capacity::INTERFACES, 0);
#[map]
pub(crate) static VIPS: HashMap<Address, VipValue> = HashMap::with_max_entries(capacity::VIPS, 0);
#[map]
pub(crate) static VIP_INDEX: Array<VipSlot> = Array::with_max_entries(capacity::VIP_INDEX, 0);
#[map]
pub(crate) static SERVICES: HashMap<ServiceKey, ServiceValue> = HashMap::with_max_entries(capacity::SERVICES, 0);
/// Copies of `SERVICES`. An array that can be mapped begins with a page, so each element is in one cache line.
#[map]
pub(crate) static SERVICE_INDEX: Array<IndexedService> =
    Array::with_max_entries(capacity::SERVICE_INDEX, BPF_F_MMAPABLE);
#[map]
pub(crate) static SERVICE_STATES: Array<ServiceState> = Array::with_max_entries(capacity::SERVICES, 0);
/// For people and for a restarted agent; no program reads it.
#[map]
pub(crate) static SERVICE_NAMES: Array<ServiceOwner> = Array::with_max_entries(capacity::SERVICES, 0);
#[map]
pub(crate) static TABLES: Array<u64> = Array::with_max_entries(capacity::TABLES / table::SLOTS, BPF_F_MMAPABLE);
#[map]
pub(crate) static BACKENDS: Array<Backend> = Array::with_max_entries(capacity::BACKENDS, 0);
/// The other node that each backend is on (`vipmux_common::backend_nodes`).
#[map]
pub(crate) static BACKEND_NODES: Array<u64> =
    Array::with_max_entries(capacity::BACKENDS / backend_nodes::BACKENDS, BPF_F_MMAPABLE);
/// The paths to nodes, by `vipmux_common::abi::node_element`.
#[map]
pub(crate) static NODES: Array<Node> = Array::with_max_entries(capacity::NODE_ELEMENTS, 0);
/// For people and for a restarted agent; no program reads it.
#[map]
pub(crate) static NODE_NAMES: Array<NodeLabel> = Array::with_max_entries(capacity::NODES, 0);
/// For people; no program reads it. A trie only takes memory for its entries.
#[map]
pub(crate) static LEADERS: LpmTrie<[u32; 4], Leader> = LpmTrie::with_max_entries(capacity::VIPS, 0);
/// For people; no program reads it.
#[map]
pub(crate) static MEMBERS: HashMap<u32, Member> = HashMap::with_max_entries(capacity::NODES, BPF_F_NO_PREALLOC);
#[map]
pub(crate) static PEERS: HashMap<Mac, u32> = HashMap::with_max_entries(capacity::PEERS, 0);
/// For the agent; no program reads it.
#[map]
pub(crate) static SPEAKERS: LruHashMap<SpeakerKey, Speaker> = LruHashMap::with_max_entries(capacity::SPEAKERS, 0);
/// The flow table. `vipmux_common::flow_table` says where a record may be.
#[map]
pub(crate) static FLOWS: Array<FlowSet> = Array::with_max_entries(capacity::FLOW_SETS, BPF_F_MMAPABLE);
/// A bit for each address and port of this node's backends (`hash::local_port`).
#[map]
pub(crate) static LOCAL_PORTS: Array<u64> = Array::with_max_entries(capacity::LOCAL_PORTS / u64::BITS, BPF_F_MMAPABLE);
#[map]
pub(crate) static FRAGMENTS: LruHashMap<FragmentKey, FragmentValue> =
    LruHashMap::with_max_entries(capacity::FRAGMENTS, 0);
#[map]
pub(crate) static EGRESS_FRAGMENTS: LruHashMap<FragmentKey, EgressFragmentValue> =
    LruHashMap::with_max_entries(capacity::FRAGMENTS, 0);
#[map]
pub(crate) static AFFINITY: LruHashMap<AffinityKey, AffinityValue> =
    LruHashMap::with_max_entries(capacity::AFFINITY, 0);
#[map]
pub(crate) static SOURCE_RANGES: LpmTrie<Range, u32> = LpmTrie::with_max_entries(capacity::SOURCE_RANGES, 0);
#[map]
pub(crate) static BUDGETS: Array<Budget> = Array::with_max_entries(budget::ELEMENTS, 0);
/// Programs that the one on the interface calls for the rarer packets.
#[map]
pub(crate) static CALLS: ProgramArray = ProgramArray::with_max_entries(CALL_COUNT, 0);
/// The same for frames in several buffers: a program can only call programs of its own kind.
#[map]
pub(crate) static CALLS_FRAGMENTED: ProgramArray = ProgramArray::with_max_entries(CALL_COUNT, 0);
/// The classifiers, for their stand-ins. It is in use only while an agent moves them.
#[map]
pub(crate) static CLASSIFIERS: ProgramArray = ProgramArray::with_max_entries(CALL_INGRESS + 1, 0);
#[map]
pub(crate) static SCRATCH: PerCpuArray<Scratch> = PerCpuArray::with_max_entries(1, 0);
/// Scratch space for map values, for which the stack has no room. It has no meaning between uses.
#[map]
pub(crate) static WORKSPACE: PerCpuArray<Workspace> = PerCpuArray::with_max_entries(1, 0);
/// For the programs at tracepoints.
#[map]
pub(crate) static REFUSALS: PerCpuHashMap<RefusalKey, u64> = PerCpuHashMap::with_max_entries(capacity::REFUSALS, 0);
/// The XDP program whose refused frames are counted. It belongs to one agent.
#[map]
pub(crate) static TRACED: Array<Traced> = Array::with_max_entries(1, 0);
#[map]
pub(crate) static STATS: PerCpuArray<Count> = PerCpuArray::with_max_entries(Stat::ALL.len() as u32, 0);
#[map]
pub(crate) static DROPS: PerCpuArray<Count> = PerCpuArray::with_max_entries(DropReason::ALL.len() as u32, 0);
#[map]
pub(crate) static SERVICE_STATS: PerCpuArray<Count> = PerCpuArray::with_max_entries(capacity::SERVICES, 0);

/// Returns a copy of a value that the agent may replace meanwhile. The kernel gives the element of a
/// replaced or removed value to the next key that is written on that CPU, at once (`extra_elems` of
/// kernel/bpf/hashtab.c). So the key is looked up again: if it still has its element, the copy is of no other
/// key. Else its value has just been replaced, and the new one is copied.
#[inline(always)]
pub(crate) fn copy<K, V: Copy>(map: &HashMap<K, V>, key: &K) -> Option<V> {
    let first = map.get_ptr(key)?;
    // SAFETY: a map value, which is always one of some key.
    let value = unsafe { ptr::read_volatile(first) };
    let second = map.get_ptr(key)?;
    // SAFETY: as above.
    Some(if first == second { value } else { unsafe { ptr::read_volatile(second) } })
}

/// See [`WORKSPACE`]. Programs on one CPU do not interrupt each other. Functions that call each other have it at
/// one time, so it consists of cells.
#[repr(C)]
pub(crate) struct Workspace {
    /// A new record of the flow table.
    pub(crate) flow: [Cell<u64>; size_of::<FlowRecord>() / 8],
    /// Its place.
    pub(crate) place: Cell<Place>,
    /// The low half of the time.
    pub(crate) now: Cell<u32>,
    /// 1: a record of the same flow stays as it is.
    pub(crate) keeps: Cell<u32>,
    /// The highest rank of a record that it may replace, and the outcome if there is none.
    pub(crate) highest: Cell<u32>,
    pub(crate) otherwise: Cell<u32>,
    /// 1: a record in the reserve translates the same replies.
    pub(crate) collides: Cell<u32>,
    /// A copy of an entry of [`SERVICES`].
    pub(crate) service: Cell<ServiceValue>,
    pub(crate) fragment_key: UnsafeCell<FragmentKey>,
    pub(crate) fragment: UnsafeCell<FragmentValue>,
}

// SAFETY: each CPU has its own.
unsafe impl Sync for Workspace {}

impl Workspace {
    #[inline(always)]
    pub(crate) fn get() -> Option<&'static Self> {
        // SAFETY: a per-CPU value.
        WORKSPACE.get_ptr(0).map(|workspace| unsafe { &*workspace })
    }
}
