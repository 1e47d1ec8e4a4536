//! Implements `aya::Pod` for the map types: aya may copy them from and to the kernel as bytes.

use crate::abi::{
    Activity, Address, AffinityKey, AffinityValue, Backend, Budget, Config, Count, EgressFragmentValue, Fence,
    FlowRecord, FlowSecret, FlowSet, FragmentKey, FragmentValue, Interface, Leader, Mac, Member, Node, NodeLabel,
    Range, RefusalKey, Scratch, ServiceKey, ServiceOwner, ServiceState, ServiceValue, Speaker, SpeakerKey, Traced,
    VipSlot, VipValue,
};
use crate::service_index::IndexedService;

macro_rules! pod {
    ($($name:ty),* $(,)?) => {
        // SAFETY: `repr(C)`, made of integers alone, and the size assertions in `abi` leave no
        // implicit padding.
        $(unsafe impl aya::Pod for $name {})*
    };
}
pod!(
    Activity,
    Address,
    AffinityKey,
    AffinityValue,
    Backend,
    Budget,
    Config,
    Count,
    EgressFragmentValue,
    Fence,
    FlowRecord,
    FlowSecret,
    FlowSet,
    FragmentKey,
    FragmentValue,
    IndexedService,
    Interface,
    Leader,
    Mac,
    Member,
    Node,
    NodeLabel,
    Range,
    RefusalKey,
    Scratch,
    ServiceKey,
    ServiceOwner,
    ServiceState,
    ServiceValue,
    Speaker,
    SpeakerKey,
    Traced,
    VipSlot,
    VipValue,
);
