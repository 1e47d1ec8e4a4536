//! The kernel's version.

use aya::util::KernelVersion;

/// Returns whether the kernel has this version or a later one.
pub(super) fn kernel_is(major: u8, minor: u8) -> bool {
    KernelVersion::current().is_ok_and(|current| current >= KernelVersion::new(major, minor, 0))
}
