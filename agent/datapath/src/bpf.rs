//! Loads, attaches and pins the BPF programs, and reads and writes their maps.

pub mod apply;
pub mod attach;
mod btf;
pub mod clsact;
pub mod direction;
pub mod dry_run;
pub mod flow_table;
pub mod jiffies;
mod kernel_version;
pub mod load;
pub mod maps;
pub mod object;
pub mod pinned;
pub mod pins;
pub mod place;
pub mod programs;
pub mod refusals;
pub mod service_index;
mod syscall;
pub mod tcx;
mod transition;
pub mod uninterrupted;
pub mod unload;
pub mod vip_index;
pub mod xdp;

#[cfg(test)]
mod tests;

pub use self::object::OBJECT;
