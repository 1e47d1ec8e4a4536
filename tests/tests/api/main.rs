//! Tests with a real API server and its etcd, and with the real kube-proxy on the nodes.
//!
//! Each test has its own API server, as it has its own LAN, because VipPools, Nodes and Leases
//! exist once per cluster. Tests run in parallel.

mod allocating;
mod announcing;
// Tests start in the order of their names. The longest waits are here.
mod api_watches;
mod bad_connection;
mod churning;
mod coexisting;
mod deploy;
mod failing_over;
mod harness;
mod installing;
mod kube_proxy;
mod leases;
mod many_nodes;
mod metallb;
mod migrating;
mod pools;
mod preflight;
mod records;
mod restarting;
mod rights;
mod scale;
mod serving;
