//! Options that the commands of a cluster have in common.

use std::path::PathBuf;

use clap::ArgAction;

use crate::{
    cluster::Access,
    model::{self, tag::ServiceTag},
};

/// How the API server is reached.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct AccessArgs {
    /// The kubeconfig file to reach the API server with, by its current context. Without it: the Pod's service account
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// The namespace of vipmux's own objects, such as its Leases. Without it: the service account's, or the context's
    #[arg(long, value_name = "NAME", env = "VIPMUX_NAMESPACE")]
    namespace: Option<String>,
}

impl From<AccessArgs> for Access {
    fn from(AccessArgs { kubeconfig, namespace }: AccessArgs) -> Self {
        Self { kubeconfig, namespace }
    }
}

/// Which Services are ours, and what they may name. All agents and the allocator of a cluster need the same.
#[derive(Clone, Debug, clap::Args)]
pub struct ScopeArgs {
    /// The spec.loadBalancerClass of the Services to serve
    #[arg(long, value_name = "NAME", env = "VIPMUX_LOAD_BALANCER_CLASS", default_value_t = model::Options::default().load_balancer_class)]
    load_balancer_class: String,
    /// Whether Services without a spec.loadBalancerClass are served too
    #[arg(long, value_name = "BOOL", env = "VIPMUX_UNSET_CLASS", default_value_t = true, action = ArgAction::Set)]
    unset_class: bool,
    /// A named set of source ranges that Services ask for by service.beta.kubernetes.io/azure-allowed-service-tags; repeat
    /// for several
    #[arg(long = "service-tag", value_name = "NAME=CIDR,...", env = "VIPMUX_SERVICE_TAGS", value_delimiter = ';')]
    service_tags: Vec<ServiceTag>,
}

impl From<ScopeArgs> for model::Options {
    fn from(ScopeArgs { load_balancer_class, unset_class, service_tags }: ScopeArgs) -> Self {
        let service_tags = service_tags.into_iter().collect();
        Self { load_balancer_class, unset_class_is_ours: unset_class, service_tags, ..Self::default() }
    }
}
