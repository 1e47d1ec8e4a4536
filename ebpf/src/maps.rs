//! All maps. The agent pins those of the table in `vipmux_common::maps` under their names, and sizes them at
//! load time. `vipmux_common::abi` has the types.

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
    abi::{self, Activity, CALL_INGRESS, Config, Fence, FlowRecord, FragmentKey, FragmentValue, ServiceValue, Traced},
    backend_nodes, budget,
    flow_table::Place,
    maps, service_index, table,
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

macro_rules! declare {
    (
        globals { $($globals:tt)* }
        maps { $($(#[$doc:meta])* $name:ident $field:ident: $kind:ident<$($part:ty),+> = $elements:expr $(, $flag:ident)?;)* }
        calls { $($(#[$call_doc:meta])* $call:ident: $array:ty = $programs:expr;)* }
    ) => {
        $(
            $(#[$doc])*
            #[map]
            pub(crate) static $name: $kind<$($part),+> = $kind::with_max_entries($elements, 0 $(| $flag)?);
        )*
        $(
            $(#[$call_doc])*
            #[map]
            pub(crate) static $call: $array = <$array>::with_max_entries($programs, 0);
        )*
    };
}
maps!(declare);

/// The classifiers, for their stand-ins. It is in use only while an agent moves them, and not pinned.
#[map]
pub(crate) static CLASSIFIERS: ProgramArray = ProgramArray::with_max_entries(CALL_INGRESS + 1, 0);
/// Scratch space for map values, for which the stack has no room. It has no meaning between uses.
#[map]
pub(crate) static WORKSPACE: PerCpuArray<Workspace> = PerCpuArray::with_max_entries(1, 0);
/// The XDP program whose refused frames are counted. It belongs to one agent.
#[map]
pub(crate) static TRACED: Array<Traced> = Array::with_max_entries(1, 0);

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
