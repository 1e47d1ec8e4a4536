//! A small LAN of network namespaces with nodes, pods and clients, for vipmux's network suite, its demo and its bench.
//!
//! [`lan`] makes the topology out of [`netns`], [`links`], [`pod_network`] and [`offload`], and [`router`] extends it; [`pod`] and
//! [`agent`] run processes in it; [`client`], [`traffic`], [`transfer`], [`arp`] and [`ndp`] are what a client on the LAN
//! sees, [`mod@watch`] what several see while something happens, and [`wire`] what passes a port; [`manifests`] writes what the agents read.
//! Whatever is made on the machine is known to [`cleanup`], which removes it in every case.
//!
//! [`failover`] is a cluster whose leader is about to fail, [`keepalived`] what it is compared with.
//!
//! [`api_server`] is a real one with its etcd, and [`kube_proxy`] is the real one on a node, [`api_proxy`] a bad connection to the first; [`cluster_programs`] knows where they are.
//!
//! [`frames`] and [`program`] are the packet suite's, [`mod@bench`] is the bench's.

pub mod agent;
pub mod allocator;
pub mod api_proxy;
pub mod api_server;
pub mod arp;
pub mod bench;
pub mod cleanup;
pub mod client;
pub mod cluster;
pub mod cluster_programs;
pub mod conntrack;
pub mod container;
pub mod demo;
pub mod dns;
pub mod failover;
pub mod frames;
pub mod identity;
pub mod keepalived;
pub mod kube_proxy;
pub mod lan;
pub mod links;
pub mod manifests;
pub mod ndp;
pub mod netns;
pub mod offload;
pub mod pod;
pub mod pod_network;
pub mod process;
pub mod program;
pub mod requirement;
pub mod rights;
pub mod router;
pub mod scrape;
pub mod sctp;
pub mod traffic;
pub mod transfer;
pub mod wait;
pub mod watch;
pub mod wire;
