//! `vipmux allocator`.

use std::{fs, net::IpAddr, sync::Arc, time::Duration};

use tokio::sync::watch;

use super::{
    cluster::{AccessArgs, ScopeArgs},
    config::ConfigArgs,
    http::HttpArgs,
    log::LogArgs,
};
use crate::{
    allocator::{self, Options, Pulse},
    cluster::{Access, Cluster},
    model::{self, name::is_subdomain},
};

pub use crate::allocator::AllocatorError;

/// How long an allocator that stops waits for what its threads have begun.
const LAST_WORK: Duration = Duration::from_secs(1);
/// What is said of addresses that are reserved by hand.
const RESERVED: &str = "reserved (--reserve)";

/// The arguments of `vipmux allocator`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    access: AccessArgs,
    #[command(flatten)]
    scope: ScopeArgs,
    /// This allocator's name in its Lease and in Events; the Pod's. Without it: the host's
    #[arg(long, value_name = "NAME", env = "VIPMUX_ALLOCATOR_NAME", value_parser = pod_name)]
    name: Option<String>,
    /// Overwrite addresses that another controller wrote into statuses, such as the MetalLB that was there before. Not to be
    /// left on while that controller runs
    #[arg(long, env = "VIPMUX_ADOPT")]
    adopt: bool,
    /// An address that is never assigned, whatever pools say, such as a router's; repeat for several. Those of Nodes and of
    /// the API server need not be listed
    #[arg(long, value_name = "ADDRESS", env = "VIPMUX_RESERVE", value_delimiter = ',')]
    reserve: Vec<IpAddr>,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    http: HttpArgs,
}

impl Args {
    fn options(&self) -> Options {
        let reserved = self.reserve.iter().map(|address| (address.to_canonical(), RESERVED.to_owned()));
        Options {
            name: self.name.clone().unwrap_or_else(host),
            ours: model::Options { reserved: reserved.collect(), ..model::Options::from(self.scope.clone()) },
            adopt: self.adopt,
            http: self.http.http_listen,
        }
    }
}

/// A Pod's name, as the API server takes it (RFC 1123).
fn pod_name(text: &str) -> Result<String, String> {
    if is_subdomain(text) {
        return Ok(text.to_owned());
    }
    Err("a Pod's name has lowercase letters, digits, '-' and '.' (an RFC 1123 subdomain)".to_owned())
}

/// The host's name; in a Pod that is the Pod's, unless it is on the host's network.
fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    Some(name.trim()).filter(|name| !name.is_empty()).unwrap_or("vipmux-allocator").to_owned()
}

/// Runs the allocator until it is told to stop.
pub fn run(args: Args) -> Result<(), AllocatorError> {
    args.log.start();
    let options = args.options();
    let access = Access::from(args.access);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(AllocatorError::Runtime)?;
    let pulse = Arc::new(watch::Sender::new(Pulse::default()));
    let result = runtime.block_on(async {
        let cluster = Cluster::connect(&access).await?;
        allocator::run(cluster, options, pulse).await
    });
    runtime.shutdown_timeout(LAST_WORK);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn parse(options: &[&str]) -> Result<Args, String> {
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
