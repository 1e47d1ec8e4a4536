//! Tests rules as network policies create them: they apply to packets through the VIP as to others.

use std::net::{IpAddr, TcpStream};

use anyhow::{Context as _, Result, bail, ensure};
use vipmux_tests::{
    client::{Datagrams, Kind},
    kube_proxy::Mode,
    lan::{Client, PodNetwork},
};

use super::{
    SILENCE,
    services::{Offer, SharedServices, VIPS, of_family},
    unanswered,
};

/// The place of a CNI's rule.
#[derive(Clone, Copy, Debug)]
enum Hook {
    /// In the forward hook, as in Calico, kube-router and kube-network-policies.
    Forward,
    /// The point where packets leave the node for the pod, as programs at pods' interfaces do.
    Veth,
}

impl Hook {
    /// Returns the family of its table.
    fn family(self) -> &'static str {
        match self {
            Self::Forward => "inet",
            Self::Veth => "netdev",
        }
    }

    /// Admits one client to the pod. `refused` counts the others' packets.
    fn rules(self, offer: &Offer<'_>, client: &Client) -> String {
        let pod = offer.pod;
        let (established, at) = match self {
            Self::Forward => ("ct state established,related accept", "hook forward priority 5;".to_owned()),
            Self::Veth => ("", format!("hook egress device \"{}\" priority 0;", pod.port())),
        };
        format!(
            "table {} rules {{
                counter refused {{}}
                chain to_pod {{
                    type filter {at} policy accept;
                    {established}
                    ip saddr {} ip daddr {} accept
                    ip6 saddr {} ip6 daddr {} accept
                    ip saddr 192.0.2.100/30 ip daddr {} counter name refused drop
                    ip6 saddr 2001:db8::c:0/112 ip6 daddr {} counter name refused drop
                }}
            }}",
            self.family(),
            client.address,
            pod.address,
            client.address_v6,
            pod.address_v6,
            pod.address,
            pod.address_v6,
        )
    }
}

#[test]
fn a_policy_for_routed_pods_holds_for_the_vip() -> Result<()> {
    a_policy_holds(Mode::Nftables, PodNetwork::Routed)
}

#[test]
fn a_policy_for_pods_of_a_bridge_holds_for_the_vip() -> Result<()> {
    a_policy_holds(Mode::Iptables, PodNetwork::Bridged)
}

fn a_policy_holds(mode: Mode, pods: PodNetwork) -> Result<()> {
    let Some(services) = SharedServices::new(mode, pods, |service| service)? else { return Ok(()) };
    let [welcome, other] = services.cluster.lan.clients.as_slice() else { bail!("there are two clients") };
    let offers: Vec<_> = services.offers_of(Kind::Http).into_iter().chain(services.offers_of(Kind::UdpEcho)).collect();
    for offer in &offers {
        for vip in VIPS {
            let seen = offer.seen_by(other.namespace(), offer.at(vip))?;
            assert_eq!(seen, of_family(vip, other.address, other.address_v6), "before there is a policy");
        }
    }
    for hook in [Hook::Forward, Hook::Veth] {
        for offer in services.offers_of(Kind::Http) {
            offer.node.nft(&hook.rules(&offer, welcome)).with_context(|| format!("{hook:?}"))?;
        }
        for offer in &offers {
            holds(offer, hook, welcome, other).with_context(|| format!("{hook:?} on {}", offer.node.name))?;
        }
        for node in &services.cluster.lan.nodes {
            node.nft(&format!("delete table {} rules", hook.family()))?;
        }
    }
    Ok(())
}

fn holds(offer: &Offer<'_>, hook: Hook, welcome: &Client, other: &Client) -> Result<()> {
    for vip in VIPS {
        let seen = offer.seen_by(welcome.namespace(), offer.at(vip))?;
        assert_eq!(seen, of_family(vip, welcome.address, welcome.address_v6));
        let refused = || offer.node.nft_packets((hook.family(), "rules", "refused"));
        let before = refused()?;
        other.namespace().run(|| unanswered(&ask(offer, vip)))?;
        ensure!(refused()? > before, "{} was not refused by the rule", offer.at(vip));
    }
    Ok(())
}

fn ask(offer: &Offer<'_>, vip: IpAddr) -> Result<()> {
    let server = offer.at(vip).server;
    if offer.kind == Kind::UdpEcho {
        return Datagrams::connect(server, SILENCE)?.echo("anyone?").map(drop);
    }
    Ok(TcpStream::connect_timeout(&server, SILENCE).map(drop)?)
}
