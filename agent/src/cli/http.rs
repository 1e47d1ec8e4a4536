//! Where a command that runs for long serves metrics and probes.

use crate::http::{DEFAULT_LISTEN, Listen};

/// What of it can be chosen.
#[derive(Clone, Debug, clap::Args)]
pub struct HttpArgs {
    /// Where `/metrics`, `/healthz` and `/readyz` are served: an address with a port, or `off`.
    #[arg(long, value_name = "ADDR:PORT", env = "VIPMUX_HTTP_LISTEN", default_value = DEFAULT_LISTEN)]
    pub http_listen: Listen,
}
