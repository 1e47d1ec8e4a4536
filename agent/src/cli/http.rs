//! The option for the HTTP server of metrics and probes.

use vipmux_telemetry::http::{DEFAULT_LISTEN, Listen};

/// The address of the HTTP server.
#[derive(Clone, Debug, clap::Args)]
pub struct HttpArgs {
    /// The address and port that serve `/metrics`, `/healthz` and `/readyz`, or `off`.
    #[arg(long, value_name = "ADDR:PORT", env = "VIPMUX_HTTP_LISTEN", default_value = DEFAULT_LISTEN)]
    pub http_listen: Listen,
}
