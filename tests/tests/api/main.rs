//! Against a real API server with its etcd, and with the real kube-proxy on the nodes.
//!
//! Each test owns its API server, as it owns its LAN: VipPools, Nodes and Leases are the whole cluster's. They run in parallel,
//! as many as there are cores.

mod allocating;
mod bad_connection;
mod coexisting;
mod deploy;
mod failing_over;
mod harness;
mod installing;
mod kube_proxy;
mod leases;
mod pools;
mod preflight;
mod rights;
mod scale;
mod serving;
mod watches;
