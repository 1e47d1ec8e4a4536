//! The state and the properties of frames, for the packet suite and the fuzz target.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::missing_panics_doc,
    missing_docs,
    reason = "a fixture that fails fails its test, and its constants say what they are by their values"
)]

pub mod family;
pub mod fixture;
pub mod property;
