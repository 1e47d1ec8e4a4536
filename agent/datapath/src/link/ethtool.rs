//! Reads and changes driver settings by `SIOCETHTOOL` (include/uapi/linux/ethtool.h).
//!
//! rtnetlink has no ethtool messages.

mod counters;

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

/// `SIOCETHTOOL` of include/uapi/linux/sockios.h.
const SIOCETHTOOL: libc::Ioctl = 0x8946;
/// `ETHTOOL_GDRVINFO`.
const GET_DRIVER: u32 = 0x03;
/// `ETHTOOL_GFLAGS`.
const GET_FLAGS: u32 = 0x25;
/// `ETHTOOL_SFLAGS`.
const SET_FLAGS: u32 = 0x26;
/// `ETHTOOL_GSTRINGS`.
const GET_STRINGS: u32 = 0x1b;
/// `ETHTOOL_GFEATURES`.
const GET_FEATURES: u32 = 0x3a;
/// `ETH_SS_FEATURES`: the set of the features' names.
const FEATURES: u32 = 4;
/// Blocks of 32 features each.
const BLOCKS: u32 = 2;
/// `ETH_FLAG_RXVLAN`: the driver removes the tags of received frames.
const RX_VLAN: u32 = 1 << 8;
/// Drivers that deliver frames of senders on the same machine: pairs, taps, and emulated cards.
/// Their checksums may be partial (`CHECKSUM_PARTIAL`), left to hardware that the frame never
/// passes.
const LOCAL_SENDERS: [&str; 8] = ["veth", "tun", "virtio_net", "vif", "macvlan", "netkit", "vmxnet3", "hv_netvsc"];

/// A driver's setting could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum EthtoolError {
    /// No socket for requests.
    #[error("cannot open a socket for ethtool requests")]
    Open(#[source] io::Error),
    /// The interface's name does not fit a request.
    #[error("interface name {0:?} is too long")]
    Name(String),
    /// A request failed.
    #[error("cannot {operation} of {interface}")]
    Request {
        /// The operation.
        operation: &'static str,
        /// The interface.
        interface: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The driver removes VLAN tags, and that cannot be turned off.
    #[error(
        "{interface} takes VLAN tags out of frames before a program sees them, and this cannot be turned off \
         (`ethtool -K {interface} rxvlan off`): announce VIPs on an untagged interface, or use another card"
    )]
    TagsStripped {
        /// The interface.
        interface: String,
    },
}

/// A socket for requests, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Ethtool(OwnedFd);

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct Driver {
    command: u32,
    name: [u8; 32],
    rest: [u8; 160],
}

/// `struct ethtool_gstrings`.
#[repr(C)]
struct StringSet {
    command: u32,
    set: u32,
    count: u32,
    texts: [[u8; 32]; BLOCKS as usize * 32],
}

/// `struct ethtool_gfeatures`.
#[repr(C)]
struct Features {
    command: u32,
    blocks: u32,
    block: [Block; BLOCKS as usize],
}

/// `struct ethtool_get_features_block`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Block {
    available: u32,
    requested: u32,
    active: u32,
    never_changed: u32,
}

/// A setting of `ethtool -K`.
#[derive(Clone, Copy, Debug, Default)]
struct Feature {
    /// It can be changed.
    is_available: bool,
    /// It is on.
    is_active: bool,
}

/// `struct ifreq` of include/uapi/linux/if.h, with the member of its union that is used here.
#[repr(C)]
struct IoctlRequest {
    name: [u8; libc::IFNAMSIZ],
    data: *mut libc::c_void,
    rest_of_union: [u8; 16],
}

impl Ethtool {
    /// Opens the socket.
    pub fn open() -> Result<Self, EthtoolError> {
        let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None);
        socket.map(Self).map_err(|errno| EthtoolError::Open(errno.into()))
    }

    /// Returns whether `interface` may receive frames of local senders, whose checksums may be
    /// partial. False if the driver does not report its name.
    pub fn has_local_senders(&self, interface: &str) -> Result<bool, EthtoolError> {
        let driver = self.driver(interface)?;
        Ok(driver.is_some_and(|driver| LOCAL_SENDERS.contains(&driver.as_str())))
    }

    /// Returns the driver's name. `None`: the driver does not report it.
    pub fn driver(&self, interface: &str) -> Result<Option<String>, EthtoolError> {
        let mut info = Driver { command: GET_DRIVER, name: [0; 32], rest: [0; 160] };
        // SAFETY: ETHTOOL_GDRVINFO writes a `struct ethtool_drvinfo`.
        match unsafe { self.ask("ask for the driver", interface, &mut info) } {
            Err(EthtoolError::Request { source, .. }) if source.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(None),
            Err(error) => Err(error),
            Ok(()) => {
                let name = info.name.split(|byte| *byte == 0).next().unwrap_or_default();
                Ok(Some(String::from_utf8_lossy(name).into_owned()))
            }
        }
    }

    /// Returns whether the removal of VLAN tags can be changed.
    pub fn can_change_tags(&self, interface: &str) -> Result<bool, EthtoolError> {
        Ok(self.feature(interface, b"rx-vlan-hw-parse")?.is_available)
    }

    /// Returns whether the host of this virtual machine merges segments for the interface, and does not let the
    /// driver turn that off (`VIRTIO_NET_F_CTRL_GUEST_OFFLOADS` of Virtual I/O Device 1.2, 5.1.3). Then
    /// virtio_net refuses native XDP (`virtnet_xdp_set` in drivers/net/virtio_net.c).
    pub fn has_fixed_guest_offloads(&self, interface: &str) -> Result<bool, EthtoolError> {
        if self.driver(interface)?.as_deref() != Some("virtio_net") {
            return Ok(false);
        }
        let merging = self.feature(interface, b"rx-gro-hw")?;
        Ok(merging.is_active && !merging.is_available)
    }

    /// Returns whether the interface computes the checksums of TCP and UDP in both families, for frames that the
    /// stack sends without them.
    pub fn computes_checksums(&self, interface: &str) -> Result<bool, EthtoolError> {
        let is_active = |name: &[u8]| Ok(self.feature(interface, name)?.is_active);
        Ok(is_active(b"tx-checksum-ip-generic")? || is_active(b"tx-checksum-ipv4")? && is_active(b"tx-checksum-ipv6")?)
    }

    /// Returns a feature by the kernel's name; one that the kernel does not have is off.
    fn feature(&self, interface: &str, name: &[u8]) -> Result<Feature, EthtoolError> {
        let mut names =
            StringSet { command: GET_STRINGS, set: FEATURES, count: 0, texts: [[0; 32]; BLOCKS as usize * 32] };
        // SAFETY: ETHTOOL_GSTRINGS writes as many names as the set has. The kernel has at most as
        // many features as there is room for (`NETDEV_FEATURE_COUNT`, at most 64: they are bits of
        // a `u64`).
        unsafe { self.ask("ask for the features' names", interface, &mut names) }?;
        let mut features =
            Features { command: GET_FEATURES, blocks: BLOCKS, block: [Block::default(); BLOCKS as usize] };
        // SAFETY: ETHTOOL_GFEATURES writes as many blocks as the structure declares.
        unsafe { self.ask("ask for the features", interface, &mut features) }?;
        let is_it = |text: &[u8; 32]| text.split(|byte| *byte == 0).next() == Some(name);
        let Some(bit) = names.texts.iter().position(is_it) else { return Ok(Feature::default()) };
        let has = |bits: u32| bits & 1 << (bit % 32) != 0;
        let block = features.block[bit / 32];
        Ok(Feature { is_available: has(block.available), is_active: has(block.active) })
    }

    /// Returns whether `interface` removes the VLAN tags of received frames.
    pub fn strips_tags(&self, interface: &str) -> Result<bool, EthtoolError> {
        Ok(self.flags(interface)? & RX_VLAN != 0)
    }

    /// Sets whether `interface` removes the VLAN tags of received frames.
    pub fn strip_tags(&self, interface: &str, strip: bool) -> Result<(), EthtoolError> {
        let flags = self.flags(interface)?;
        let flags = if strip { flags | RX_VLAN } else { flags & !RX_VLAN };
        let mut value = Value { command: SET_FLAGS, data: flags };
        // SAFETY: ETHTOOL_SFLAGS reads a `struct ethtool_value`.
        let set = unsafe { self.ask("change the VLAN offload", interface, &mut value) };
        match set {
            // The driver may accept the request and ignore it.
            Ok(()) if self.strips_tags(interface)? == strip => Ok(()),
            Err(EthtoolError::Request { source, .. })
                if !matches!(source.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) =>
            {
                let interface = interface.to_owned();
                Err(EthtoolError::Request { operation: "change the VLAN offload", interface, source })
            }
            _ => Err(EthtoolError::TagsStripped { interface: interface.to_owned() }),
        }
    }

    fn flags(&self, interface: &str) -> Result<u32, EthtoolError> {
        let mut value = Value { command: GET_FLAGS, data: 0 };
        // SAFETY: ETHTOOL_GFLAGS writes a `struct ethtool_value`.
        unsafe { self.ask("ask for the offloads", interface, &mut value) }?;
        Ok(value.data)
    }

    /// # Safety
    /// `T` is the structure that the command in its first word reads and writes.
    unsafe fn ask<T>(&self, operation: &'static str, interface: &str, data: &mut T) -> Result<(), EthtoolError> {
        let mut name = [0; libc::IFNAMSIZ];
        // The last byte stays zero.
        if interface.len() >= name.len() {
            return Err(EthtoolError::Name(interface.to_owned()));
        }
        name[..interface.len()].copy_from_slice(interface.as_bytes());
        let mut request = IoctlRequest { name, data: std::ptr::from_mut(data).cast(), rest_of_union: [0; 16] };
        // SAFETY: the request has the layout and at least the size of `struct ifreq`, its name is
        // terminated, and its pointer is to a live structure of the kind that the command takes.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
        if result == 0 {
            return Ok(());
        }
        let source = io::Error::last_os_error();
        Err(EthtoolError::Request { operation, interface: interface.to_owned(), source })
    }
}

const _: () = {
    assert!(size_of::<Driver>() == 196);
    assert!(size_of::<IoctlRequest>() == 40);
};

#[cfg(test)]
mod tests {
    use super::*;
    use vipmux_testing::netns::Namespace;

    #[test]
    fn a_driver_is_read_and_set() {
        let Some([node, peer]) = Namespace::new() else { return };
        node.veth("eth0", &peer, "lan0");
        node.bridge("br0");
        node.enter(|| {
            let ethtool = Ethtool::open().unwrap();
            assert!(ethtool.has_local_senders("eth0").unwrap());
            assert!(!ethtool.has_local_senders("br0").unwrap());
            assert_eq!(ethtool.driver("eth0").unwrap().as_deref(), Some("veth"));
            assert!(ethtool.strips_tags("eth0").unwrap(), "veth does so by default");
            assert!(ethtool.can_change_tags("eth0").unwrap());
            assert!(!ethtool.has_fixed_guest_offloads("eth0").unwrap(), "another driver");
            assert!(ethtool.computes_checksums("eth0").unwrap());
            let [tags, unknown] =
                [b"rx-vlan-hw-parse", b"no-such-feature0"].map(|it| ethtool.feature("eth0", it).unwrap());
            assert!(tags.is_active && !unknown.is_active && !unknown.is_available);
            for strip in [false, false, true] {
                ethtool.strip_tags("eth0", strip).unwrap();
                assert_eq!(ethtool.strips_tags("eth0").unwrap(), strip);
            }
        });
    }

    #[test]
    fn features_that_cannot_be_turned_off_or_are_missing_are_reported() {
        let Some([node]) = Namespace::new() else { return };
        node.enter(|| {
            let ethtool = Ethtool::open().unwrap();
            // The loopback can do neither; turning on what is fixed off is refused as the other way
            // round.
            let error = ethtool.strip_tags("lo", true).unwrap_err();
            assert!(matches!(error, EthtoolError::TagsStripped { .. }), "{error}");
            assert!(!ethtool.can_change_tags("lo").unwrap());
            let error = ethtool.strips_tags("eth7").unwrap_err();
            assert!(error.to_string().contains("eth7"), "{error}");
            assert!(matches!(ethtool.strips_tags("a-name-beyond-limits"), Err(EthtoolError::Name(_))));
        });
    }
}
