//! Checks the capabilities of the process.

use std::{fs, io};

/// The capabilities that the agent uses (include/uapi/linux/capability.h), with their purpose.
const NEEDED: [(u32, &str, &str); 4] = [
    (12, "CAP_NET_ADMIN", "attaching programs, neighbors, the SNAT chain"),
    (13, "CAP_NET_RAW", "announcements"),
    (38, "CAP_PERFMON", "BPF programs that compare packet pointers"),
    (39, "CAP_BPF", "BPF maps and programs"),
];
/// The numbers and names of these capabilities.
pub const CAPABILITIES: [(u32, &str); NEEDED.len()] = {
    let mut capabilities = [(0, ""); NEEDED.len()];
    let mut at = 0;
    while at < NEEDED.len() {
        capabilities[at] = (NEEDED[at].0, NEEDED[at].1);
        at += 1;
    }
    capabilities
};
/// `CAP_SYS_ADMIN`, which includes `CAP_BPF` and `CAP_PERFMON`.
pub const SYS_ADMIN: u32 = 21;

/// The process lacks capabilities.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegeError {
    /// Capabilities are missing.
    #[error("the agent needs more rights: {}; run it as root, or give it these capabilities", .0.join(", "))]
    Missing(Vec<String>),
    /// They could not be read.
    #[error("cannot read the process's capabilities from /proc/self/status")]
    Unknown(#[source] io::Error),
}

/// Checks that every needed capability is effective.
pub fn check() -> Result<(), PrivilegeError> {
    let missing = missing(held()?);
    if missing.is_empty() { Ok(()) } else { Err(PrivilegeError::Missing(missing)) }
}

/// Returns the effective capabilities of this process, as a mask.
pub fn held() -> Result<u64, PrivilegeError> {
    let status = fs::read_to_string("/proc/self/status").map_err(PrivilegeError::Unknown)?;
    effective(&status).ok_or_else(|| PrivilegeError::Unknown(io::ErrorKind::InvalidData.into()))
}

/// Parses the mask after `CapEff:`.
fn effective(status: &str) -> Option<u64> {
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

/// Returns the needed capabilities that the mask lacks, with their purpose.
pub fn missing(effective: u64) -> Vec<String> {
    let has = |bit: u32| effective & 1 << bit != 0;
    let granted = |bit: u32| has(bit) || bit >= 38 && has(SYS_ADMIN);
    let lacking = NEEDED.iter().filter(|(bit, ..)| !granted(*bit));
    lacking.map(|(_, name, purpose)| format!("{name} ({purpose})")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_is_read_from_status() {
        assert_eq!(effective("Name:\tx\nCapEff:\t000001ffffffffff\nCapBnd:\t0\n"), Some(0x1ff_ffff_ffff));
        assert_eq!(effective("Name:\tx\n"), None);
    }

    #[test]
    fn missing_capabilities_are_named_with_their_purpose() {
        assert!(missing(u64::MAX).is_empty());
        assert_eq!(missing(0).len(), 4);
        assert_eq!(missing(1 << SYS_ADMIN | 1 << 12), ["CAP_NET_RAW (announcements)"]);
    }
}
