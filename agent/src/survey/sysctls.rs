//! Sysctls. What is below `/proc/sys/net` depends on the network namespace of the thread that opens it.

use super::kernel::number;
use crate::{
    link,
    preflight::settings::{Interface, Settings},
};

pub(super) fn observe() -> Settings {
    let flag = |name: &str| number(format!("/proc/sys/net/netfilter/{name}")).map(|value| value != 0);
    Settings { tcp_loose: flag("nf_conntrack_tcp_loose"), tcp_be_liberal: flag("nf_conntrack_tcp_be_liberal") }
}

/// Those of one interface.
pub(super) fn of(interface: &link::Interface, has_advertised_routes: bool) -> Interface {
    let of = |family: &str, whose: &str, name: &str| number(format!("/proc/sys/net/{family}/conf/{whose}/{name}"));
    let own = |family, name| of(family, &interface.name, name);
    // The greater one counts (Documentation/networking/ip-sysctl.rst).
    let both = |name| {
        let greater = own("ipv4", name)?.max(of("ipv4", "all", name).unwrap_or_default());
        u8::try_from(greater).ok()
    };
    let is_global = |address: &std::net::IpAddr| match address {
        std::net::IpAddr::V4(_) => false,
        std::net::IpAddr::V6(address) => !address.is_unicast_link_local(),
    };
    Interface {
        rp_filter: both("rp_filter"),
        forwarding: own("ipv4", "forwarding").map(|value| value != 0),
        arp_ignore: both("arp_ignore"),
        ipv6_disabled: own("ipv6", "disable_ipv6").map(|value| value != 0),
        ipv6_forwarding: own("ipv6", "forwarding").map(|value| value != 0),
        accept_ra: own("ipv6", "accept_ra").and_then(|value| u8::try_from(value).ok()),
        has_ipv6: interface.addresses.iter().any(|(address, _)| is_global(address)),
        has_advertised_routes,
    }
}
