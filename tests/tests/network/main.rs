//! Tests with real agents, clients and servers in network namespaces.
//!
//! Each test has its own LAN. Tests run in parallel, one per core.

mod advertising;
mod affinity;
mod bad_days;
mod changes;
mod checking;
mod closed;
mod collisions;
mod demo;
mod direct;
mod direct_return;
mod draining;
mod duplicates;
mod explaining;
mod failing_over;
mod flood;
mod forging;
mod forwarding;
mod harness;
mod health;
mod image;
mod ipv6;
mod ipv6_nodes;
mod leading;
mod manifests;
mod members;
mod observing;
mod outlets;
mod paths;
mod policies;
mod preflight;
mod program_order;
mod recovering;
mod removal;
mod replies;
mod rules;
mod sctp;
mod segments;
mod services;
mod serving;
mod starting;
mod transfers;
mod upgrading;
mod uplinks;
mod veths;
