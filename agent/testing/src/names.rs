//! Makes typed VIPs, names and port claims out of short texts and numbers.

use vipmux_model::{NodeName, PortClaim, Protocol, ServiceName, Vip};

/// Returns the VIP with this address.
pub fn vip(address: &str) -> Vip {
    Vip::new(address.parse().unwrap())
}

/// Returns the VIP 192.0.2.`last`.
pub fn vip4(last: u8) -> Vip {
    Vip::new([192, 0, 2, last].into())
}

/// Returns the name of a Node.
pub fn node_name(name: impl AsRef<str>) -> NodeName {
    NodeName::new(name.as_ref()).unwrap()
}

/// Returns the name of a Service: `namespace/name`, or a name alone for one in the namespace
/// `shop`.
pub fn service_name(name: impl AsRef<str>) -> ServiceName {
    let (namespace, name) = name.as_ref().split_once('/').unwrap_or(("shop", name.as_ref()));
    ServiceName::new(namespace, name)
}

/// Returns a port claim.
pub fn claim(vip: Vip, protocol: Protocol, port: u16) -> PortClaim {
    PortClaim { vip, protocol, port: port.into() }
}

/// Returns a claim to a TCP port.
pub fn tcp_claim(vip: Vip, port: u16) -> PortClaim {
    claim(vip, Protocol::Tcp, port)
}
