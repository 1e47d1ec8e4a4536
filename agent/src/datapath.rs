//! The kernel's side: loading, attaching and pinning the programs, and their maps.

pub mod apply;
pub mod attach;
pub mod clsact;
pub mod load;
pub mod maps;
pub mod others;
pub mod pinned;
pub mod pins;
pub mod rehearsal;
mod syscall;
mod transition;
pub mod unload;
pub mod vip_index;
pub mod xdp;

use aya::include_bytes_aligned;

/// The BPF object (`ebpf/`), built by the build script.
pub static OBJECT: &[u8] = include_bytes_aligned!(env!("VIPMUX_BPF_OBJECT"));
