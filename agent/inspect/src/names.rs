//! Translates the numbers in the maps into names.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use serde::Serialize;
use vipmux_common::abi::{Backend, ServiceKey, ServiceValue};

use vipmux_datapath::bpf::maps::{Maps, MapsError};
use vipmux_model::{Protocol, ServiceName};

/// Returns a backend's port in wire order: its own, or the one that the client asked for.
pub fn port(backend: &Backend, asked: u16) -> u16 {
    if backend.port == 0 { asked } else { backend.port }
}

/// Formats a claim's port and protocol.
pub fn claimed(port: u16, protocol: &str) -> String {
    if port == 0 { format!("all/{protocol}") } else { format!("{port}/{protocol}") }
}

/// Formats a backend's address and port.
pub fn endpoint(address: IpAddr, port: u16) -> String {
    match (port, address) {
        (0, IpAddr::V4(address)) => format!("{address}:all"),
        (0, IpAddr::V6(address)) => format!("[{address}]:all"),
        (port, address) => SocketAddr::new(address, port).to_string(),
    }
}

/// Returns a protocol's name, or its IANA number.
pub fn protocol(number: u32) -> Cow<'static, str> {
    let known = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
    let name = known.into_iter().find(|known| u32::from(known.number()) == number).map(Protocol::name);
    name.map_or_else(|| number.to_string().into(), Cow::from)
}

/// A port claim with its owner.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Claim {
    /// The VIP; `None`: its entry was removed while the maps were read.
    pub vip: Option<IpAddr>,
    /// The Service port; 0: all ports that no other claim names.
    pub port: u16,
    /// `TCP`, `UDP`, `SCTP`, or a number.
    pub protocol: String,
    /// The Service's namespace; empty: unknown.
    pub namespace: String,
    /// The Service's name; empty: unknown.
    pub name: String,
}

impl Claim {
    /// Formats the claim: `shop/web:80/TCP`.
    pub fn label(&self) -> String {
        format!("{}/{}:{}", self.namespace, self.name, claimed(self.port, &self.protocol))
    }
}

/// VIPs by id, owners by slot, nodes by index.
#[derive(Debug, Default)]
pub struct Names {
    /// [`vipmux_common::abi::VipValue::id`] to address.
    pub vips: BTreeMap<u32, IpAddr>,
    /// Slot to owner.
    pub owners: BTreeMap<u32, ServiceName>,
    /// Index in `NODES` to the Node's name.
    pub nodes: BTreeMap<u32, String>,
}

impl Names {
    /// Reads all of them.
    pub fn read(maps: &Maps) -> Result<Self, MapsError> {
        let owners = maps.read_service_names()?.into_iter().map(|(slot, owner)| {
            let (namespace, name) = owner.parts();
            (slot, ServiceName::new(namespace, name))
        });
        Ok(Self {
            vips: maps.read_vips()?.into_iter().map(|(address, vip)| (vip.id, address.into())).collect(),
            owners: owners.collect(),
            nodes: maps.read_node_names()?.into_iter().map(|(index, label)| (index, label.to_string())).collect(),
        })
    }

    /// Returns the claim of an entry of `SERVICES`.
    pub fn claim(&self, key: &ServiceKey, value: &ServiceValue) -> Claim {
        let owner = self.owners.get(&value.slot);
        Claim {
            vip: self.vips.get(&key.vip).copied(),
            port: u16::from_be(key.port),
            protocol: protocol(key.protocol.into()).into_owned(),
            namespace: owner.map(|owner| owner.namespace().to_owned()).unwrap_or_default(),
            name: owner.map(|owner| owner.name().to_owned()).unwrap_or_default(),
        }
    }
}

/// Formats an address for a table; `?`: it was removed in between.
pub fn address(address: Option<IpAddr>) -> String {
    address.map_or_else(|| "?".to_owned(), |address| address.to_string())
}
