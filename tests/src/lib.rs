//! To come.

pub mod frames;
pub mod privilege;
pub mod program;
