//! To come.

pub mod bench;
pub mod frames;
pub mod program;
