//! The command line.

pub mod inspect;
pub mod table;
pub mod unload;
