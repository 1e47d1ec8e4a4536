//! kube-proxy's modes.

use std::fmt;

/// Its proxy mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// With `iptables-restore`, the default.
    Iptables,
    /// With `nft`.
    Nftables,
}

impl Mode {
    /// Both modes.
    pub const ALL: [Self; 2] = [Self::Iptables, Self::Nftables];
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
        })
    }
}
