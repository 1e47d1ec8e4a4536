//! Runs `vipmux allocator`.

use std::{fs, sync::Arc};

use tokio::sync::watch;

use super::{
    cluster::{AccessArgs, AllocationArgs},
    config::ConfigArgs,
    http::HttpArgs,
    log::LogArgs,
    service_runtime,
};
use vipmux_allocator::{AllocatorOptions, health::AllocatorHealth};
use vipmux_cluster::access::ClusterClient;
use vipmux_model::name::is_subdomain;
use vipmux_supervisor::Supervisor;

/// The arguments of `vipmux allocator`.
#[derive(Debug, clap::Args)]
pub struct AllocatorArgs {
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    access: AccessArgs,
    #[command(flatten)]
    allocation: AllocationArgs,
    /// The allocator's name in its Lease and in Events, such as the Pod's name. Default: the host
    /// name
    #[arg(long, value_name = "NAME", env = "VIPMUX_ALLOCATOR_NAME", value_parser = pod_name)]
    name: Option<String>,
    /// Overwrite addresses that another controller wrote into statuses, such as a former MetalLB.
    /// Do not use it while that controller runs
    #[arg(long, env = "VIPMUX_ADOPT")]
    adopt: bool,
    /// The agents are removed from the nodes (deploy/uninstall): write to all Services that nobody
    /// announces their addresses. `/readyz` passes when that is done
    #[arg(long)]
    uninstalling: bool,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    http: HttpArgs,
}

impl AllocatorArgs {
    fn options(&self) -> AllocatorOptions {
        AllocatorOptions {
            name: self.name.clone().unwrap_or_else(host),
            ours: self.allocation.clone().into(),
            adopt: self.adopt,
            uninstalling: self.uninstalling,
            http: self.http.http_listen,
        }
    }
}

/// Parses a Pod's name, as the API server accepts it (RFC 1123).
fn pod_name(text: &str) -> Result<String, String> {
    if is_subdomain(text) {
        return Ok(text.to_owned());
    }
    Err("a Pod's name has lowercase letters, digits, '-' and '.' (an RFC 1123 subdomain)".to_owned())
}

/// Returns the host's name. In a Pod it is the Pod's name, unless the Pod uses the host's network.
fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    Some(name.trim()).filter(|name| !name.is_empty()).unwrap_or("vipmux-allocator").to_owned()
}

/// Runs the allocator until it is asked to stop.
pub fn run(args: AllocatorArgs, supervisor: &Supervisor) -> anyhow::Result<()> {
    args.log.start();
    let options = args.options();
    let access = args.access.of("vipmux-allocator");
    let health = Arc::new(watch::Sender::new(AllocatorHealth::default()));
    let work = async {
        let cluster = ClusterClient::connect(&access).await?;
        vipmux_allocator::run(cluster, options, health, supervisor).await
    };
    Ok(service_runtime::run(work)??)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        args: AllocatorArgs,
    }

    fn parse(options: &[&str]) -> Result<AllocatorArgs, String> {
        let command = ["allocator"].iter().chain(options);
        let parsed = <Command as clap::Parser>::try_parse_from(command);
        parsed.map(|command| command.args).map_err(|error| error.to_string())
    }

    #[test]
    fn options_are_read() {
        let options = parse(&["--name", "a", "--reserve", "192.0.2.1,::ffff:192.0.2.2", "--adopt"]).unwrap().options();
        assert_eq!((options.name.as_str(), options.adopt), ("a", true));
        let reserved: Vec<_> = options.ours.reserved.keys().map(ToString::to_string).collect();
        assert_eq!(reserved, ["192.0.2.1", "192.0.2.2"]);
        assert!(options.ours.unset_class_is_ours);
        assert!(!parse(&[]).unwrap().options().adopt);
        assert!(parse(&["--name", "a_b"]).unwrap_err().contains("RFC 1123"));
        assert!(parse(&["--reserve", "x"]).unwrap_err().contains("invalid value 'x'"));
    }
}
