//! To come.

pub mod frames;
pub mod program;
