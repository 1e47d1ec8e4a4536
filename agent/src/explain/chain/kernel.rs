//! The kernel's half of the chain.

mod leader;

use std::collections::{BTreeMap, BTreeSet};

use self::leader::Chosen;
use super::{Chain, listed};
use crate::{
    explain::{Account, Held, Kernel, Step, Target, grouped, owns},
    inspect::{
        backends::BackendView,
        names,
        services::ServiceView,
        vips::{Standing, VipView},
    },
    model::{PortClaim, ServiceName, Vip},
};

const COMPARE: &str = "compare by `vipmux inspect diff`; the agent repairs what differs by itself, every --self-check";
const START: &str = "start the agent on this node, and see its log";

impl Chain {
    pub(super) fn kernel(&mut self, target: &Target, account: Option<&Account>, kernel: &Kernel) {
        let held = match (kernel, account.map(|account| &account.node)) {
            (Kernel::Held(held), _) => held,
            (Kernel::Absent(why), Some(None)) => {
                let finding = format!("what this node's kernel holds is not known: {why}");
                return self.unknown(Step::Vip, finding, "ask on a node with an agent, as root");
            }
            (Kernel::Absent(why), _) => return self.breaks(Step::Vip, why, START),
        };
        let remedy = if account.is_some_and(|account| account.node.is_some()) { COMPARE } else { START };
        let vips = match account {
            Some(account) => account.vips.iter().map(|vip| vip.address).collect(),
            None => vips_of(target, held),
        };
        let found: BTreeMap<Vip, &VipView> = held.vips.iter().map(|vip| (Vip(vip.address), vip)).collect();
        for vip in &vips {
            match found.get(vip) {
                Some(_) => self.holds(Step::Vip, format!("the map VIPS has {vip}")),
                None => self.breaks(Step::Vip, format!("the map VIPS has no {vip}"), remedy),
            }
        }
        let services = match account {
            Some(account) => self.wanted(account, held, remedy),
            None => self.all(target, held, remedy),
        };
        for vip in vips.iter().filter_map(|vip| found.get(vip)) {
            let chosen = Chosen {
                local: account.and_then(|account| account.node.as_ref()),
                vip: account.into_iter().flat_map(|account| &account.vips).find(|of| of.address.0 == vip.address),
            };
            self.led(vip, held.fence.standing);
            self.announced(vip, held, chosen);
        }
        self.traffic(&services);
    }

    /// What is wanted, as it is found.
    fn wanted<'a>(&mut self, account: &Account, held: &'a Held, remedy: &str) -> Vec<&'a ServiceView> {
        let mut found = Vec::new();
        let all: BTreeMap<_, _> = held.services.iter().map(|service| (key(service), service)).collect();
        let mut backends: BTreeMap<_, &BackendView> = BTreeMap::new();
        for backend in &held.backends {
            backends.insert((backend.address, backend.port), backend);
        }
        for (service, port) in account.services.iter().flat_map(|of| of.ports.iter().map(move |port| (of, port))) {
            let claim = PortClaim { vip: port.vip, protocol: port.port.protocol, port: port.port.number };
            let wanted = (Some(claim.vip.0), claim.port, claim.protocol.to_string());
            let what = super::claim(port.vip, port.port);
            match all.get(&wanted) {
                None => self.breaks(Step::Service, format!("the map SERVICES has no {what}"), remedy),
                Some(view) if !owns(&service.name, view) => {
                    let owner = owner(view);
                    self.breaks(Step::Service, format!("the map SERVICES has {what} for {owner}"), remedy);
                }
                Some(view) => {
                    let known = port.endpoints.iter().filter(|endpoint| endpoint.known);
                    let missing: Vec<_> = known
                        .filter(|endpoint| !backends.contains_key(&(endpoint.address, endpoint.port)))
                        .map(|endpoint| names::endpoint(endpoint.address, endpoint.port))
                        .collect();
                    let draining = port.endpoints.iter().filter_map(|it| backends.get(&(it.address, it.port)));
                    let draining = draining.filter(|backend| !backend.ready).count();
                    self.served(&what, view, draining, &missing, remedy);
                    found.push(*view);
                }
            }
        }
        found
    }

    /// All that is found.
    fn all<'a>(&mut self, target: &Target, held: &'a Held, remedy: &str) -> Vec<&'a ServiceView> {
        let services: Vec<_> = held.services.iter().filter(|service| is_about(target, service)).collect();
        for view in &services {
            let what = format!(
                "{} on {} of {}",
                names::claimed(view.claim.port, &view.claim.protocol),
                names::address(view.claim.vip),
                owner(view)
            );
            self.served(&what, view, 0, &[], remedy);
        }
        services
    }

    fn served(&mut self, what: &str, view: &ServiceView, draining: usize, missing: &[String], remedy: &str) {
        if view.kernel {
            return self.holds(Step::Service, format!("{what} is left to the node's own stack"));
        }
        let counts = format!("backends: {} ready, {} of them here, {draining} draining", view.ready, view.local);
        if view.ready == 0 {
            return self.breaks(Step::Service, format!("{what}: no backend takes new flows"), remedy);
        }
        self.holds(Step::Service, format!("{what}, {counts}"));
        if !missing.is_empty() {
            self.note(Step::Service, format!("{what}: the map BACKENDS has no {}", listed(missing)));
        }
    }

    /// Where the VIP is answered for, and whether this node does.
    fn announced(&mut self, vip: &VipView, held: &Held, chosen: Chosen<'_>) {
        let address = vip.address;
        if vip.interfaces.is_empty() {
            let remedy =
                "let the agent announce on one of the interfaces that policies want (--interface, docs/pools.md)";
            return self.breaks(
                Step::Announced,
                format!("{address} is announced on no interface of this node"),
                remedy,
            );
        }
        let detached: Vec<_> =
            vip.interfaces.iter().filter(|interface| !held.attached.contains(*interface)).cloned().collect();
        if !detached.is_empty() {
            let finding = format!("vipmux_xdp is not attached to {}, where {address} is announced", listed(&detached));
            return self.breaks(Step::Announced, finding, COMPARE);
        }
        if held.fence.standing == Standing::Abandoned {
            let finding = format!("{}: VIPs are left to the node's own stack", held.fence.text());
            return self.breaks(Step::Announced, format!("the fence {finding}"), START);
        }
        self.answers(vip, held, chosen);
    }

    fn traffic(&mut self, services: &[&ServiceView]) {
        let by_owner = grouped(services.iter().map(|view| (owner(view), *view)));
        for (owner, views) in by_owner {
            let sum = |of: fn(&ServiceView) -> u64| views.iter().map(|view| of(view)).sum::<u64>();
            let (packets, bytes, flows) = (sum(|view| view.packets), sum(|view| view.bytes), sum(|view| view.flows));
            let finding = match packets {
                0 => format!(
                    "no packet for {owner} came through this node; `vipmux inspect stats` tells what was dropped"
                ),
                _ => format!("{packets} packets, {bytes} bytes and {flows} flows for {owner} came through this node"),
            };
            self.note(Step::Traffic, finding);
        }
    }
}

fn key(service: &ServiceView) -> (Option<std::net::IpAddr>, u16, String) {
    (service.claim.vip, service.claim.port, service.claim.protocol.clone())
}

fn owner(view: &ServiceView) -> String {
    ServiceName { namespace: view.claim.namespace.clone(), name: view.claim.name.clone() }.to_string()
}

fn is_about(target: &Target, service: &ServiceView) -> bool {
    match target {
        Target::Service(name) => owns(name, service),
        Target::Vip(vip) => service.claim.vip == Some(vip.0),
    }
}

fn vips_of(target: &Target, held: &Held) -> BTreeSet<Vip> {
    match target {
        Target::Vip(vip) => [*vip].into(),
        Target::Service(_) => {
            let services = held.services.iter().filter(|service| is_about(target, service));
            services.filter_map(|service| service.claim.vip).map(Vip).collect()
        }
    }
}
