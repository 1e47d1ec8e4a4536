//! Turns offloads of interfaces on or off, by `SIOCETHTOOL`.

use std::{io, os::fd::AsRawFd};

use anyhow::{Context as _, Result, ensure};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

/// `SIOCETHTOOL` of linux/sockios.h.
const SIOCETHTOOL: libc::Ioctl = 0x8946;
/// `ETHTOOL_STXCSUM` of linux/ethtool.h.
const ETHTOOL_STXCSUM: u32 = 0x17;

/// `ETHTOOL_GFLAGS` of linux/ethtool.h.
const ETHTOOL_GFLAGS: u32 = 0x25;
/// `ETHTOOL_SFLAGS` of linux/ethtool.h.
const ETHTOOL_SFLAGS: u32 = 0x26;
/// `ETH_FLAG_TXVLAN` of linux/ethtool.h.
const ETH_FLAG_TXVLAN: u32 = 1 << 7;
/// `ETH_FLAG_RXVLAN` of linux/ethtool.h.
const ETH_FLAG_RXVLAN: u32 = 1 << 8;

/// `ETHTOOL_SGRO` of linux/ethtool.h.
const ETHTOOL_SGRO: u32 = 0x2c;

/// `ETH_FLAG_LRO` of linux/ethtool.h.
const ETH_FLAG_LRO: u32 = 1 << 15;

/// A setting of `ethtool -K`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feature {
    /// Its name there.
    pub name: &'static str,
    get: u32,
    set: u32,
    /// Its bit, if the commands read and write several settings.
    flag: u32,
}

impl Feature {
    /// All that concern received or sent frames.
    pub const ALL: [Self; 9] = [
        Self { name: "rx", get: 0x14, set: 0x15, flag: 1 },
        Self { name: "tx", get: 0x16, set: ETHTOOL_STXCSUM, flag: 1 },
        Self { name: "sg", get: 0x18, set: 0x19, flag: 1 },
        Self { name: "tso", get: 0x1e, set: 0x1f, flag: 1 },
        Self { name: "gso", get: 0x23, set: 0x24, flag: 1 },
        Self { name: "gro", get: 0x2b, set: ETHTOOL_SGRO, flag: 1 },
        Self { name: "lro", get: ETHTOOL_GFLAGS, set: ETHTOOL_SFLAGS, flag: ETH_FLAG_LRO },
        Self { name: "rxvlan", get: ETHTOOL_GFLAGS, set: ETHTOOL_SFLAGS, flag: ETH_FLAG_RXVLAN },
        Self { name: "txvlan", get: ETHTOOL_GFLAGS, set: ETHTOOL_SFLAGS, flag: ETH_FLAG_TXVLAN },
    ];

    /// Returns the setting of this name.
    pub fn named(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|feature| feature.name == name).with_context(|| format!("no setting {name}"))
    }

    /// Turns the setting on, in the calling thread's network namespace. Another component may turn it off at once.
    pub fn turn_on(self, interface: &str) -> Result<()> {
        self.set(interface, true)
    }

    /// Turns the setting off, as [`Self::turn_on`] turns it on.
    pub fn turn_off(self, interface: &str) -> Result<()> {
        self.set(interface, false)
    }

    fn set(self, interface: &str, on: bool) -> Result<()> {
        let others = ethtool(interface, self.get, 0)? & !self.flag;
        let set = ethtool(interface, self.set, others | if on { self.flag } else { 0 });
        set.map(drop).with_context(|| format!("cannot change {} of {interface}", self.name))
    }

    /// Inverts the setting, in the calling thread's network namespace. Returns whether the interface allows that.
    pub fn invert(self, interface: &str) -> Result<bool> {
        let wanted = ethtool(interface, self.get, 0)? ^ self.flag;
        Ok(ethtool(interface, self.set, wanted).is_ok() && ethtool(interface, self.get, 0)? == wanted)
    }
}

/// An offload that can be turned off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offload {
    /// Transmit checksumming, and with it segmentation offload. Without it, a local sender's
    /// packets have final checksums, as on a wire.
    TxChecksum,
    /// Carrying VLAN tags beside sent frames. Without it, the frames contain their tags, as on a
    /// wire.
    TxVlan,
}

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

/// Turns an offload off, in the calling thread's network namespace.
pub fn disable(interface: &str, offload: Offload) -> Result<()> {
    let (cmd, data) = match offload {
        Offload::TxChecksum => (ETHTOOL_STXCSUM, 0),
        Offload::TxVlan => (ETHTOOL_SFLAGS, ethtool(interface, ETHTOOL_GFLAGS, 0)? & !ETH_FLAG_TXVLAN),
    };
    ethtool(interface, cmd, data).map(drop).with_context(|| format!("cannot turn off {offload:?} of {interface}"))
}

/// Turns generic receive offload on, in the calling thread's network namespace. Then a veth takes
/// frames that XDP redirects to it, without an XDP program of its own.
pub fn enable_gro(interface: &str) -> Result<()> {
    ethtool(interface, ETHTOOL_SGRO, 1).map(drop).with_context(|| format!("cannot turn on GRO of {interface}"))
}

/// Returns whether an interface takes VLAN tags out of received frames.
pub fn strips_tags(interface: &str) -> Result<bool> {
    Ok(ethtool(interface, ETHTOOL_GFLAGS, 0)? & ETH_FLAG_RXVLAN != 0)
}

fn ethtool(interface: &str, cmd: u32, data: u32) -> Result<u32> {
    ensure!(interface.len() < libc::IFNAMSIZ, "interface name {interface} is too long");
    let mut name = [0; libc::IFNAMSIZ];
    name[..interface.len()].copy_from_slice(interface.as_bytes());
    let mut value = EthtoolValue { cmd, data };
    let mut request = InterfaceRequest { name, data: &raw mut value, rest_of_union: [0; 16] };
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    // SAFETY: the request has the layout (and at least the size) of `struct ifreq`, its name is
    // terminated, and its pointer is to a live `struct ethtool_value`, all that these commands read
    // and write.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    ensure!(result == 0, "ethtool request {cmd:#x} to {interface}: {}", io::Error::last_os_error());
    Ok(value.data)
}
