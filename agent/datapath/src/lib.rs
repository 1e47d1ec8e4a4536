//! Programs the kernel: BPF programs and maps, network interfaces, announcements, nftables.

#[cfg(test)]
extern crate self as vipmux_datapath;

pub mod announce;
pub mod bpf;
pub mod error_chain;
pub mod link;
pub mod netlink;
pub mod reconciler;
pub mod snat;
