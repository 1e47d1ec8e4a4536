//! Checksum offload, by `SIOCETHTOOL`.

use std::{io, os::fd::AsRawFd};

use anyhow::{Context as _, Result, ensure};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

/// `SIOCETHTOOL` of linux/sockios.h.
const SIOCETHTOOL: libc::Ioctl = 0x8946;
/// `ETHTOOL_STXCSUM` of linux/ethtool.h.
const ETHTOOL_STXCSUM: u32 = 0x17;

/// `struct ethtool_value` of linux/ethtool.h.
#[repr(C)]
struct EthtoolValue {
    cmd: u32,
    data: u32,
}

/// `struct ifreq` of linux/if.h, with the member of its union that `SIOCETHTOOL` takes.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; libc::IFNAMSIZ],
    data: *mut EthtoolValue,
    rest_of_union: [u8; 16],
}

/// Turns an interface's transmit checksumming (and with it segmentation offload) off, in the calling thread's network
/// namespace: a local sender's packets then carry final checksums, as they do on a wire.
pub fn disable_tx_checksum(interface: &str) -> Result<()> {
    ensure!(interface.len() < libc::IFNAMSIZ, "interface name {interface} is too long");
    let mut name = [0; libc::IFNAMSIZ];
    name[..interface.len()].copy_from_slice(interface.as_bytes());
    let mut value = EthtoolValue { cmd: ETHTOOL_STXCSUM, data: 0 };
    let mut request = InterfaceRequest { name, data: &raw mut value, rest_of_union: [0; 16] };
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    // SAFETY: the request has the layout (and at least the size) of `struct ifreq`, its name is terminated, and its
    // pointer is to a live `struct ethtool_value`, all that ETHTOOL_STXCSUM reads.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    if result != 0 {
        return Err(io::Error::last_os_error())
            .with_context(|| format!("cannot turn off transmit checksumming of {interface}"));
    }
    Ok(())
}
