//! The options that the agent, the allocator and the commands that compute their decisions share.

use std::{net::IpAddr, path::PathBuf};

use clap::ArgAction;

use vipmux_cluster::access::ClusterAccess;
use vipmux_model as model;
use vipmux_model::tag::ServiceTag;

/// How to reach the API server.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct AccessArgs {
    /// The kubeconfig file; its current context is used. Default: the Pod's service account
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// The namespace of vipmux's own objects, such as its Leases. Default: the service account's or
    /// the context's namespace
    #[arg(long, value_name = "NAME", env = "VIPMUX_NAMESPACE")]
    namespace: Option<String>,
}

impl AccessArgs {
    /// Returns the access of a program, which names itself so to the API server.
    pub fn of(self, component: &'static str) -> ClusterAccess {
        ClusterAccess { component, kubeconfig: self.kubeconfig, namespace: self.namespace }
    }
}

/// Which Services vipmux serves, and the service tags that they may name. All agents and the
/// allocator of a cluster need the same values.
#[derive(Clone, Debug, clap::Args)]
pub struct ScopeArgs {
    /// The spec.loadBalancerClass of the Services to serve
    #[arg(global = true, long, value_name = "NAME", env = "VIPMUX_LOAD_BALANCER_CLASS", default_value_t = model::IngestOptions::default().load_balancer_class)]
    load_balancer_class: String,
    /// Whether to serve Services without a spec.loadBalancerClass too
    #[arg(global = true, long, value_name = "BOOL", env = "VIPMUX_UNSET_CLASS", default_value_t = true, action = ArgAction::Set)]
    unset_class: bool,
    /// A named set of source ranges for the annotation
    /// service.beta.kubernetes.io/azure-allowed-service-tags; repeat for several
    #[arg(
        global = true,
        long = "service-tag",
        value_name = "NAME=CIDR,...",
        env = "VIPMUX_SERVICE_TAGS",
        value_delimiter = ';'
    )]
    service_tags: Vec<ServiceTag>,
    /// How many addresses one Service may get
    #[arg(global = true, long, value_name = "N", env = "VIPMUX_SERVICE_ADDRESSES", default_value_t = model::AddressLimits::default().of_service)]
    service_addresses: usize,
    /// How many addresses the Services of a namespace may get together. A shared address counts once
    #[arg(global = true, long, value_name = "N", env = "VIPMUX_NAMESPACE_ADDRESSES", default_value_t = model::AddressLimits::default().of_namespace)]
    namespace_addresses: usize,
}

impl From<ScopeArgs> for model::IngestOptions {
    fn from(args: ScopeArgs) -> Self {
        let limits =
            model::AddressLimits { of_service: args.service_addresses, of_namespace: args.namespace_addresses };
        Self {
            load_balancer_class: args.load_balancer_class,
            unset_class_is_ours: args.unset_class,
            service_tags: args.service_tags.into_iter().collect(),
            limits,
            ..Self::default()
        }
    }
}

/// The reason shown for addresses that are reserved by hand.
const RESERVED: &str = "reserved (--reserve)";

/// All options that decide which Service gets which address: of the allocator, and of the commands that compute
/// what it would decide.
#[derive(Clone, Debug, clap::Args)]
pub struct AllocationArgs {
    #[command(flatten)]
    scope: ScopeArgs,
    /// An address that is never assigned even if a pool has it, such as a router's; repeat for
    /// several. Addresses of Nodes and of the API server are reserved anyway
    #[arg(global = true, long, value_name = "ADDRESS", env = "VIPMUX_RESERVE", value_delimiter = ',')]
    reserve: Vec<IpAddr>,
}

impl From<AllocationArgs> for model::IngestOptions {
    fn from(AllocationArgs { scope, reserve }: AllocationArgs) -> Self {
        let reserved = reserve.into_iter().map(|address| (address.to_canonical(), RESERVED.to_owned()));
        Self { reserved: reserved.collect(), ..Self::from(scope) }
    }
}
