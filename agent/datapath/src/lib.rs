//! Programs the kernel: BPF programs and maps, network interfaces, announcements, nftables.

pub mod announce;
pub mod bpf;
pub mod capabilities;
pub mod error_chain;
#[cfg(any(test, feature = "testing"))]
pub mod fixture;
pub mod link;
pub mod netlink;
pub mod reconciler;
pub mod snat;
