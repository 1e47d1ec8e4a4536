//! The command line.

pub mod agent;
pub mod inspect;
pub mod table;
pub mod unload;
