//! Reads sysctls. Those below `/proc/sys/net` depend on the network namespace of the thread that
//! opens them.

use super::kernel::number;
use crate::findings::{interface::InterfaceSysctlObservation, settings::NodeSysctlObservation};
use vipmux_datapath::link;

pub(super) fn observe() -> NodeSysctlObservation {
    let flag = |name: &str| number(format!("/proc/sys/net/netfilter/{name}")).map(|value| value != 0);
    NodeSysctlObservation {
        tcp_loose: flag("nf_conntrack_tcp_loose"),
        tcp_be_liberal: flag("nf_conntrack_tcp_be_liberal"),
    }
}

/// Reads the settings of one interface.
pub(super) fn of(interface: &link::Interface, has_advertised_routes: bool) -> InterfaceSysctlObservation {
    let of = |family: &str, whose: &str, name: &str| number(format!("/proc/sys/net/{family}/conf/{whose}/{name}"));
    let own = |family, name| of(family, &interface.name, name);
    // The greater value counts (Documentation/networking/ip-sysctl.rst).
    let both = |name| {
        let greater = own("ipv4", name)?.max(of("ipv4", "all", name).unwrap_or_default());
        u8::try_from(greater).ok()
    };
    let is_global = |address: &std::net::IpAddr| match address {
        std::net::IpAddr::V4(_) => false,
        std::net::IpAddr::V6(address) => !address.is_unicast_link_local(),
    };
    InterfaceSysctlObservation {
        rp_filter: both("rp_filter"),
        forwarding: own("ipv4", "forwarding").map(|value| value != 0),
        ignores_linkdown: own("ipv4", "ignore_routes_with_linkdown").map(|value| value != 0),
        arp_ignore: both("arp_ignore"),
        ipv6_disabled: own("ipv6", "disable_ipv6").map(|value| value != 0),
        ipv6_forwarding: own("ipv6", "forwarding").map(|value| value != 0),
        accept_ra: own("ipv6", "accept_ra").and_then(|value| u8::try_from(value).ok()),
        has_ipv6: interface.addresses.iter().any(|(address, _)| is_global(address)),
        has_advertised_routes,
    }
}
