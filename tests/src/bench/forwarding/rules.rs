//! nftables rules shaped like kube-proxy's (`pkg/proxy/nftables/proxier.go`), for the Services of a
//! node's maps.

use std::{collections::BTreeSet, fmt::Write as _, net::Ipv4Addr};

use anyhow::{Context, Result};
use vipmux_common::abi::{ServiceKey, ServiceValue};

use super::super::workload::{LOCAL, REMOTE};
use crate::program::State;

/// The table's name.
pub(super) const TABLE: &str = "kube-proxy";

/// Rules that kube-proxy has for any number of Services.
const FRAME: &str = "
 map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
 map service-nodeports { type inet_proto . inet_service : verdict; }
 map no-endpoint-services { type ipv4_addr . inet_proto . inet_service : verdict; }
 map firewall-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
 set cluster-ips { type ipv4_addr; }
 set nodeport-ips { type ipv4_addr; }
 chain mark-for-masquerade { mark set mark or 0x4000; }
 chain masquerading {
  mark and 0x4000 == 0 return
  mark set mark xor 0x4000
  masquerade fully-random
 }
";

/// The hooks. They follow the chains that the map names.
const HOOKS: &str = "
 chain services {
  ip daddr . meta l4proto . th dport vmap @service-ips
  ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
 }
 chain firewall-check { ip daddr . meta l4proto . th dport vmap @firewall-ips; }
 chain service-endpoints-check { ip daddr . meta l4proto . th dport vmap @no-endpoint-services; }
 chain cluster-ips-check { ip daddr @cluster-ips reject; }
 chain filter-prerouting {
  type filter hook prerouting priority -110; policy accept;
  ct state new jump firewall-check
 }
 chain filter-forward {
  type filter hook forward priority -110; policy accept;
  ct state new jump service-endpoints-check
  ct state new jump cluster-ips-check
 }
 chain nat-prerouting { type nat hook prerouting priority dstnat; policy accept; jump services; }
 chain nat-output { type nat hook output priority -100; policy accept; jump services; }
 chain nat-postrouting { type nat hook postrouting priority srcnat; policy accept; jump masquerading; }
}
";

/// Returns input for `nft -f`. Services with endpoints elsewhere have the external traffic policy
/// `Cluster`, so that replies come back through this node. Those with endpoints here have `Local`,
/// which keeps clients' addresses.
pub(super) fn ruleset(state: &State) -> Result<String> {
    let mut text = format!("table ip {TABLE} {{{FRAME}");
    let mut elements = Vec::new();
    for (number, (key, service)) in state.services.iter().enumerate() {
        let ServiceKey { vip, port, protocol, .. } = *key;
        let vip: Ipv4Addr = if vip == 1 { REMOTE } else { LOCAL };
        let endpoints = endpoints(state, service)?;
        for (index, (address, port)) in endpoints.iter().enumerate() {
            writeln!(text, " chain endpoint-{number}-{index} {{")?;
            writeln!(text, "  ip saddr {address} jump mark-for-masquerade")?;
            writeln!(text, "  meta l4proto {protocol} dnat to {address}:{port}\n }}")?;
        }
        let choices = (0..endpoints.len()).map(|index| format!("{index} : goto endpoint-{number}-{index}"));
        let choices = choices.collect::<Vec<_>>().join(", ");
        writeln!(text, " chain service-{number} {{ numgen random mod {} vmap {{ {choices} }}; }}", endpoints.len())?;
        let masquerade = if service.local_length == 0 { "jump mark-for-masquerade; " } else { "" };
        writeln!(text, " chain external-{number} {{ {masquerade}goto service-{number}; }}")?;
        elements.push(format!("{vip} . {protocol} . {} : goto external-{number}", u16::from_be(port)));
    }
    text.push_str(HOOKS);
    for elements in elements.chunks(500) {
        writeln!(text, "add element ip {TABLE} service-ips {{ {} }}", elements.join(", "))?;
    }
    Ok(text)
}

fn endpoints(state: &State, service: &ServiceValue) -> Result<BTreeSet<(Ipv4Addr, u16)>> {
    let (first, length) = (usize::try_from(service.table)?, usize::try_from(service.table_length)?);
    let slots = state.tables.get(first..first + length).context("a table beyond the tables")?;
    slots
        .iter()
        .map(|slot| {
            let backend = state.backends.get(usize::try_from(*slot)?).context("a backend beyond the backends")?;
            let address = Ipv4Addr::from(backend.address.w3.to_ne_bytes());
            Ok((address, u16::from_be(backend.port)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{super::super::workload, *};

    #[test]
    fn each_service_leads_to_all_its_endpoints_and_only_cluster_policy_masquerades() {
        let text = ruleset(&workload::state(4, workload::UDP).unwrap()).unwrap();
        assert_eq!(text.matches("dnat to").count(), 40, "{text}");
        assert_eq!(text.matches("{ jump mark-for-masquerade; goto service-").count(), 2, "{text}");
        for element in ["192.0.2.1 . 17 . 20000", "192.0.2.1 . 17 . 20001", "192.0.2.2 . 17 . 20000"] {
            assert!(text.contains(element), "{element}: {text}");
        }
    }
}
