//! The table's name, its sets, and the layouts of IP versions.

use netlink_packet_netfilter::nftables::Register;

/// The table's name.
pub(super) const TABLE: &str = "vipmux";

/// The constants of an IP version for rules.
pub(super) struct FamilyLayout {
    /// `NFPROTO_IPV4` or `NFPROTO_IPV6`.
    pub(super) protocol: u8,
    /// The offset of the source address in the header, bytes (RFC 791, 3.1; RFC 8200, 3).
    pub(super) source: u32,
    /// The length of an address, bytes. The destination follows the source.
    pub(super) length: u32,
    /// The registers of a set's key: address, protocol, port. Each part fills whole 32-bit
    /// registers.
    pub(super) registers: [Register; 3],
    /// The registers of a client's key: its address, the backend's, its port, the backend's.
    pub(super) client_registers: [Register; 4],
    /// nft(8)'s id of the address type. It only helps nft to print the sets.
    pub(super) address_type: u32,
    /// The protocol number of ICMP.
    pub(super) icmp: u8,
}

pub(super) const IPV4: FamilyLayout = FamilyLayout {
    protocol: 2,
    source: 12,
    length: 4,
    registers: [Register::Reg32_00, Register::Reg32_01, Register::Reg32_02],
    client_registers: [Register::Reg32_00, Register::Reg32_01, Register::Reg32_02, Register::Reg32_03],
    address_type: 7,
    icmp: 1,
};
pub(super) const IPV6: FamilyLayout = FamilyLayout {
    protocol: 10,
    source: 8,
    length: 16,
    registers: [Register::Reg32_00, Register::Reg32_04, Register::Reg32_05],
    client_registers: [Register::Reg32_00, Register::Reg32_04, Register::Reg32_08, Register::Reg32_09],
    address_type: 8,
    icmp: 58,
};

/// A set of sources of packets.
pub(super) struct NftSet {
    pub(super) name: &'static str,
    pub(super) family: &'static FamilyLayout,
    /// The keys have a port. Otherwise they stand for all ports of an address and protocol.
    pub(super) ports: bool,
}

/// The sets of backends.
pub(super) const SOURCES: [NftSet; 4] = [
    NftSet { name: "backends4", family: &IPV4, ports: true },
    NftSet { name: "addresses4", family: &IPV4, ports: false },
    NftSet { name: "backends6", family: &IPV6, ports: true },
    NftSet { name: "addresses6", family: &IPV6, ports: false },
];
/// The sets of VIPs with direct server return.
pub(super) const DIRECT: [NftSet; 4] = [
    NftSet { name: "direct4", family: &IPV4, ports: true },
    NftSet { name: "direct_addresses4", family: &IPV4, ports: false },
    NftSet { name: "direct6", family: &IPV6, ports: true },
    NftSet { name: "direct_addresses6", family: &IPV6, ports: false },
];
/// The set of interfaces.
pub(super) const UPLINKS: &str = "uplinks";

/// A set of clients that sent datagrams to backends. Only rules write it.
pub(super) struct ClientSet {
    pub(super) name: &'static str,
    pub(super) family: &'static FamilyLayout,
}

impl ClientSet {
    /// The limit of elements, as high as that of connections that conntrack takes on most machines.
    /// An element takes about 100 bytes, for as long as it is there.
    pub(super) const LIMIT: u32 = 262_144;
    const V4: Self = Self { name: "clients4", family: &IPV4 };
    const V6: Self = Self { name: "clients6", family: &IPV6 };
    /// Both families.
    pub(super) const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// Returns the set for clients of a family.
    pub(super) const fn of(family: &FamilyLayout) -> Self {
        if family.length == IPV4.length { Self::V4 } else { Self::V6 }
    }
}
