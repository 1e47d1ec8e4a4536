//! What the tests use of `cargo xtask`: archives, images, and the programs of a cluster.

pub mod archive;
pub mod cluster_programs;
pub mod oci;
