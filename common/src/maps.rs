//! The table of all maps that are pinned. Each is declared here alone.

/// Passes the table to `$declare`, another macro. The BPF crate makes the maps of it, and the agent opens
/// them. Names are looked up where this macro is called: modules of this crate, and kinds of maps, which
/// both have.
///
/// - `globals`: global variables of the programs, one element each, which `ebpf/src/maps.rs` makes itself:
///   `NAME field: value;`
/// - `maps`: `NAME field: kind<types> = elements, flag;`
/// - `calls`: those by which programs call each other: `NAME: type = elements;`
#[macro_export]
macro_rules! maps {
    ($declare:ident) => {
        $declare! {
            globals {
                /// The configuration.
                CONFIG config: abi::Config;
                /// The fence deadline.
                FENCE fence: abi::Fence;
                /// Where the XDP program ran.
                ACTIVITY activity: abi::Activity;
            }
            maps {
                /// By ifindex.
                INTERFACES interfaces: Array<abi::Interface> = abi::capacity::INTERFACES;
                /// The VIPs.
                VIPS vips: HashMap<abi::Address, abi::VipValue> = abi::capacity::VIPS;
                /// A cache of `VIPS`, by the hash of the address.
                VIP_INDEX vip_index: Array<abi::VipSlot> = abi::capacity::VIP_INDEX;
                /// The port claims.
                SERVICES services: HashMap<abi::ServiceKey, abi::ServiceValue> = abi::capacity::SERVICES;
                /// Copies of `SERVICES`, by [`ServiceKey::index`]. An array that can be mapped begins with a page, so
                /// each element is in one cache line.
                SERVICE_INDEX service_index: Array<service_index::IndexedService> = abi::capacity::SERVICE_INDEX, BPF_F_MMAPABLE;
                /// By slot.
                SERVICE_STATES service_states: Array<abi::ServiceState> = abi::capacity::SERVICES;
                /// By slot. For people and for a restarted agent; no program reads it.
                SERVICE_NAMES service_names: Array<abi::ServiceOwner> = abi::capacity::SERVICES;
                /// Backend indices, two to an element (`vipmux_common::table`).
                TABLES tables: Array<u64> = abi::capacity::TABLES / table::SLOTS, BPF_F_MMAPABLE;
                /// By the index that tables have.
                BACKENDS backends: Array<abi::Backend> = abi::capacity::BACKENDS;
                /// The other node that each backend is on (`vipmux_common::backend_nodes`).
                BACKEND_NODES backend_nodes: Array<u64> = abi::capacity::BACKENDS / backend_nodes::BACKENDS, BPF_F_MMAPABLE;
                /// The paths to nodes, by `vipmux_common::abi::node_element`.
                NODES nodes: Array<abi::Node> = abi::capacity::NODE_ELEMENTS;
                /// By the index of `NODES`. For people and for a restarted agent; no program reads it.
                NODE_NAMES node_names: Array<abi::NodeLabel> = abi::capacity::NODES;
                /// By VIP. For people; no program reads it. A trie only takes memory for its entries.
                LEADERS leaders: LpmTrie<[u32; 4], abi::Leader> = abi::capacity::VIPS;
                /// By the index of `NODES`. For people; no program reads it.
                MEMBERS members: HashMap<u32, abi::Member> = abi::capacity::NODES, BPF_F_NO_PREALLOC;
                /// The index of `NODES` for each MAC.
                PEERS peers: HashMap<abi::Mac, u32> = abi::capacity::PEERS;
                /// For the agent; no program reads it.
                SPEAKERS speakers: LruHashMap<abi::SpeakerKey, abi::Speaker> = abi::capacity::SPEAKERS;
                /// The flow table, by set. `vipmux_common::flow_table` says where a record may be.
                FLOWS flows: Array<abi::FlowSet> = abi::capacity::FLOW_SETS, BPF_F_MMAPABLE;
                /// A bit for each address and port of this node's backends (`hash::local_port`).
                LOCAL_PORTS local_ports: Array<u64> = abi::capacity::LOCAL_PORTS / u64::BITS, BPF_F_MMAPABLE;
                /// The first fragments of datagrams to VIPs.
                FRAGMENTS fragments: LruHashMap<abi::FragmentKey, abi::FragmentValue> = abi::capacity::FRAGMENTS;
                /// Those of replies.
                EGRESS_FRAGMENTS egress_fragments: LruHashMap<abi::FragmentKey, abi::EgressFragmentValue> = abi::capacity::FRAGMENTS;
                /// The backends of clients, for session affinity.
                AFFINITY affinity: LruHashMap<abi::AffinityKey, abi::AffinityValue> = abi::capacity::AFFINITY;
                /// The prefixes of source ranges.
                SOURCE_RANGES source_ranges: LpmTrie<abi::Range, u32> = abi::capacity::SOURCE_RANGES;
                /// By `vipmux_common::budget`.
                BUDGETS budgets: Array<abi::Budget> = budget::ELEMENTS;
                /// For the programs at tracepoints.
                REFUSALS refusals: PerCpuHashMap<abi::RefusalKey, u64> = abi::capacity::REFUSALS;
                /// By [`Stat`].
                STATS stats: PerCpuArray<abi::Count> = abi::Stat::COUNT;
                /// By [`DropReason`].
                DROPS drops: PerCpuArray<abi::Count> = abi::DropReason::COUNT;
                /// By slot.
                SERVICE_STATS service_stats: PerCpuArray<abi::Count> = abi::capacity::SERVICES;
            }
            calls {
                /// Programs that the one on the interface calls for the rarer packets.
                CALLS: ProgramArray = abi::CALLS;
                /// The same for frames in several buffers: a program can only call programs of its own kind.
                CALLS_FRAGMENTED: ProgramArray = abi::CALLS;
                /// The data that programs pass to those that they call.
                SCRATCH: PerCpuArray<abi::Scratch> = 1;
            }
        }
    };
}

/// aya may copy values from and to the kernel as bytes.
#[cfg(feature = "aya")]
macro_rules! pod {
    ($module:ident: $($name:ident),*) => {
        // SAFETY: `repr(C)`, made of integers alone, and the size assertions in `abi` leave no
        // implicit padding.
        $(unsafe impl aya::Pod for crate::$module::$name {})*
    };
}
#[cfg(feature = "aya")]
pod! {
    abi: Activity, Address, AffinityKey, AffinityValue, Backend, Budget, Config, Count, EgressFragmentValue, Fence,
    FlowRecord, FlowSecret, FlowSet, FragmentKey, FragmentValue, Interface, Leader, Mac, Member, Node, NodeLabel,
    Range, RefusalKey, Scratch, ServiceKey, ServiceOwner, ServiceState, ServiceValue, Speaker, SpeakerKey, Traced,
    VipSlot, VipValue
}
#[cfg(feature = "aya")]
pod!(service_index: IndexedService);
