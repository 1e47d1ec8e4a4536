//! The test harness: a small LAN of network namespaces with nodes, pods and clients, for the
//! suites, the demo and the bench.
//!
//! - Topology: [`lan`] builds it from [`netns`], [`links`], [`pod_network`] and [`offload`].
//!   [`router`] extends it. [`foreign_program`] attaches programs of other components.
//! - Processes: [`mod@agent`], [`allocator`] and [`pod`]. [`cleanup`] removes everything that a run
//!   makes on the machine.
//! - Clients: [`client`], [`traffic`], [`transfer`], [`arp`] and [`ndp`]. [`mod@watch`] observes a
//!   VIP with several clients, [`wire`] observes a port, [`resets`] a network namespace.
//! - Configuration: [`manifests`] writes what the agents read.
//! - Clusters: [`api_server`] and [`kube_proxy`] are real ones, [`api_proxy`] is a bad connection
//!   to the API server. [`cluster_programs`] finds the binaries. [`real_cluster`] also has nodes with
//!   kubelet and containerd.
//! - Failovers: [`failover`] is a cluster whose leader is about to fail. The bench compares it with
//!   [`keepalived`].
//! - Slow drivers: [`rtnl`] lets an agent wait for the kernel's lock of all interfaces.
//! - [`mod@churn`] changes a cluster in a loop and looks for leaks.
//! - [`frames`], [`program`] and [`packet`] are for the packet suite, [`mod@bench`] is for the bench.

pub mod agent;
pub mod allocator;
pub mod api_proxy;
pub mod api_server;
pub mod arp;
pub mod bench;
pub mod churn;
pub mod cleanup;
pub mod client;
pub mod cluster;
pub mod cluster_programs;
pub mod conntrack;
pub mod container;
pub mod demo;
pub mod dns;
pub mod failover;
pub mod flood;
pub mod foreign_program;
pub mod frames;
pub mod guide;
pub mod identity;
pub mod ip_families;
pub mod keepalived;
pub mod kube_proxy;
pub mod lan;
pub mod links;
pub mod manifests;
pub mod ndp;
pub mod netns;
pub mod offload;
pub mod packet;
pub mod packet_ring;
pub mod pod;
pub mod pod_network;
pub mod process;
pub mod program;
pub mod real_cluster;
pub mod requirement;
pub mod resets;
pub mod rights;
pub mod router;
pub mod rtnl;
pub mod scrape;
pub mod sctp;
pub mod traffic;
pub mod transfer;
pub mod wait;
pub mod watch;
pub mod wire;
