//! Loads, attaches and pins the BPF programs, and reads and writes their maps.

pub mod apply;
pub mod attach;
pub mod backend_indices;
pub mod clsact;
pub mod dry_run;
pub mod flow_table;
pub mod load;
pub mod maps;
pub mod pinned;
pub mod pins;
pub mod place;
pub mod service_index;
mod syscall;
pub mod tcx;
mod transition;
pub mod unload;
pub mod vip_index;
pub mod xdp;

#[cfg(test)]
mod tests;

use aya::include_bytes_aligned;

/// The BPF object (`ebpf/`), built by the build script.
pub static OBJECT: &[u8] = include_bytes_aligned!(env!("VIPMUX_BPF_OBJECT"));
