//! Real agents, clients and servers in network namespaces.
//!
//! Each test owns its LAN; they run in parallel, as many as there are cores.

mod harness;
