//! Checks this process's capabilities: an ordinary user cannot make network namespaces or load BPF
//! programs.

use std::fs;

use anyhow::{Context, Result, bail};

/// Capabilities needed for network namespaces and BPF programs, with their bits
/// (`linux/capability.h`).
const CAPABILITIES: [(u32, &str); 4] =
    [(12, "CAP_NET_ADMIN"), (13, "CAP_NET_RAW"), (21, "CAP_SYS_ADMIN"), (39, "CAP_BPF")];

/// Returns the [`CAPABILITIES`] that this process lacks.
pub(crate) fn missing() -> Result<Vec<&'static str>> {
    let status = fs::read_to_string("/proc/self/status").context("cannot read /proc/self/status")?;
    Ok(missing_in(effective(&status).context("no CapEff in /proc/self/status")?))
}

/// Fails early if `command` could not do its work for lack of capabilities.
pub(crate) fn require(command: &str) -> Result<()> {
    let missing = missing()?;
    if !missing.is_empty() {
        bail!("`cargo xtask {command}` needs {}: run it as root", missing.join(", "));
    }
    Ok(())
}

fn missing_in(mask: u64) -> Vec<&'static str> {
    CAPABILITIES.iter().filter(|(bit, _)| mask >> bit & 1 == 0).map(|(_, name)| *name).collect()
}

fn effective(status: &str) -> Option<u64> {
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_read_as_proc_writes_them() {
        let status = "Name:\tx\nCapPrm:\t0000000000000000\nCapEff:\t000001ffffffffff\nCapBnd:\t0\n";
        assert_eq!(effective(status), Some(0x1ff_ffff_ffff));
        assert_eq!(effective("Name:\tx\n"), None);
    }

    #[test]
    fn missing_capabilities_are_named() {
        assert!(missing_in(0x1ff_ffff_ffff).is_empty());
        assert_eq!(missing_in(0x1ff_ffff_ffff & !(1 << 39)), ["CAP_BPF"]);
        assert_eq!(missing_in(0).len(), CAPABILITIES.len());
    }
}
