//! Real agents, clients and servers in network namespaces.
//!
//! Each test owns its LAN; they run in parallel, as many as there are cores.

mod changes;
mod demo;
mod harness;
mod ipv6;
mod leading;
mod recovering;
mod removal;
mod replies;
mod services;
mod serving;
mod starting;
mod uplinks;
