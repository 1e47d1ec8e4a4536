//! The `vipmux` binary: see [`vipmux::cli`].
fn main() {}
