//! Runs the agent, the allocator and the commands around them.
//!
//! The crates below this one decide and act. This one reads the clock, gives them their inputs and
//! executes their commands:
//!
//! ```text
//! Service, EndpointSlice -> vipmux_cluster::source -> vipmux_model -> vipmux_allocate
//!                        -> vipmux_plan -> vipmux_datapath -> XDP
//! gossip, Lease, tick    -> vipmux_election -> commands -> Lease write, fence, announcement
//! ```

pub mod cli;
