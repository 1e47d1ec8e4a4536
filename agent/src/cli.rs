//! The command line.

pub mod table;
