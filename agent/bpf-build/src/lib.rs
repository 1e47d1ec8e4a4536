//! Builds the BPF objects: for build scripts that embed one, and for `cargo xtask`.

pub mod cache;
pub mod toolchain;

mod object;

pub use object::build;
