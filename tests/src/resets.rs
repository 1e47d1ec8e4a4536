//! Notes the RSTs that a network namespace sends on connections that it has not ended.
//!
//! A RST on a connection whose FIN was sent says nothing. A late ACK causes one where the connection
//! has ended on both sides (RFC 9293, section 3.10.7.1), and ACKs overtake each other between CPUs.
//! Nothing limits how late they come: the hypervisor can stop one CPU and not the other.

use std::collections::BTreeSet;

use anyhow::Result;

use crate::netns::Namespace;

const TABLE: &str = "resets";
/// The families of nftables. A table of both has no type for an address of either.
const FAMILIES: [(&str, &str); 2] = [("ip", "ipv4_addr"), ("ip6", "ipv6_addr")];

/// Begins to note them, until the namespace is removed.
pub fn watch(namespace: &Namespace) -> Result<()> {
    let tables = FAMILIES.map(|(family, address)| {
        let connection = format!("{family} saddr . tcp sport . {family} daddr . tcp dport");
        let of_connections = format!("type {address} . inet_service . {address} . inet_service; flags dynamic");
        format!(
            "table {family} {TABLE} {{
                set ended {{ {of_connections}; size 65536; }}
                set noted {{ {of_connections}; size 64; }}
                chain output {{
                    type filter hook output priority 0;
                    tcp flags syn delete @ended {{ {connection} }}
                    tcp flags fin add @ended {{ {connection} }}
                    tcp flags rst {connection} != @ended update @noted {{ {connection} counter }}
                }}
            }}
            "
        )
    });
    namespace.nft(&tables.concat()).map(drop)
}

/// Returns those noted so far, as nftables lists them: the source, the destination and the number of
/// segments of each connection.
pub fn noted(namespace: &Namespace) -> Result<BTreeSet<String>> {
    let mut all = BTreeSet::new();
    for (family, _) in FAMILIES {
        let listed = namespace.nft(&format!("list set {family} {TABLE} noted"))?;
        let elements = listed.split_once("elements = {").and_then(|(_, rest)| rest.split_once('}'));
        let elements = elements.into_iter().flat_map(|(elements, _)| elements.split(','));
        all.extend(elements.map(|element| element.trim().to_owned()));
    }
    Ok(all)
}
