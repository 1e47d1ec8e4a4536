//! Evaluates the steps that the kernel's state decides.

mod leader;

use std::collections::{BTreeMap, BTreeSet};

use self::leader::DesiredLeader;
use super::{Steps, listed};
use crate::{
    backends::BackendView,
    explain::{ExplainTarget, KernelState, StepKind, TargetDetails, grouped, owns},
    names,
    services::ServiceView,
    vips::{FenceState, VipView},
};
use vipmux_datapath::bpf::maps::MapsError;
use vipmux_model::{PortClaim, ServiceName, Vip};

const COMPARE: &str = "run `vipmux inspect diff`; the agent repairs differences by itself, every --self-check";
const REACH: &str =
    "see `vipmux inspect neighbors`, and docs/troubleshooting.md, \"Works with backends on one node only\"";
const START: &str = "start the agent on this node, and see its log";

impl Steps {
    /// Evaluates the steps of the kernel's half.
    pub(super) fn kernel(
        &mut self,
        target: &ExplainTarget,
        details: Option<&TargetDetails>,
        kernel: Result<&KernelState, &MapsError>,
    ) {
        let held = match (kernel, details.map(|details| &details.node)) {
            (Ok(held), _) => held,
            (Err(error), Some(None)) => {
                let finding = format!("the state of this node's kernel is not known: {error}");
                return self.unknown(StepKind::Vip, finding, "run this as root on a node with an agent");
            }
            (Err(error), _) => return self.broken(StepKind::Vip, error.to_string(), START),
        };
        let remedy = if details.is_some_and(|details| details.node.is_some()) { COMPARE } else { START };
        let vips = match details {
            Some(details) => details.vips.iter().map(|vip| vip.address).collect(),
            None => vips_of(target, held),
        };
        let found: BTreeMap<Vip, &VipView> = held.vips.iter().map(|vip| (Vip::new(vip.address), vip)).collect();
        for vip in &vips {
            match found.get(vip) {
                Some(_) => self.holds(StepKind::Vip, format!("the map VIPS has {vip}")),
                None => self.broken(StepKind::Vip, format!("the map VIPS has no {vip}"), remedy),
            }
        }
        let services = match details {
            Some(details) => self.wanted(details, held, remedy),
            None => self.all(target, held, remedy),
        };
        for vip in vips.iter().filter_map(|vip| found.get(vip)) {
            let desired = DesiredLeader {
                local: details.and_then(|details| details.node.as_ref()),
                vip: details
                    .into_iter()
                    .flat_map(|details| &details.vips)
                    .find(|of| of.address.address() == vip.address),
            };
            self.led(vip, held.fence.state, desired);
            self.announced(vip, held, desired);
        }
        self.traffic(&services);
    }

    /// Compares the Service ports that the agent wants with those in the maps.
    fn wanted<'a>(&mut self, details: &TargetDetails, held: &'a KernelState, remedy: &str) -> Vec<&'a ServiceView> {
        let mut found = Vec::new();
        let all: BTreeMap<_, _> = held.services.iter().map(|service| (key(service), service)).collect();
        let mut backends: BTreeMap<_, &BackendView> = BTreeMap::new();
        for backend in &held.backends {
            backends.insert((backend.address, backend.port), backend);
        }
        for (service, port) in details.services.iter().flat_map(|of| of.ports.iter().map(move |port| (of, port))) {
            let claim = PortClaim { vip: port.vip, protocol: port.port.protocol, port: port.port.number };
            let wanted = (Some(claim.vip.address()), u16::from(claim.port), claim.protocol.to_string());
            let what = super::claim(port.vip, port.port);
            match all.get(&wanted) {
                None => self.broken(StepKind::Service, format!("the map SERVICES has no {what}"), remedy),
                Some(view) if !owns(&service.name, view) => {
                    let owner = owner(view);
                    self.broken(StepKind::Service, format!("the map SERVICES has {what} for {owner}"), remedy);
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
                    self.reached(&what, view, held);
                    found.push(*view);
                }
            }
        }
        found
    }

    /// Shows all Service ports of the target in the maps.
    fn all<'a>(&mut self, target: &ExplainTarget, held: &'a KernelState, remedy: &str) -> Vec<&'a ServiceView> {
        let services: Vec<_> = held.services.iter().filter(|service| is_about(target, service)).collect();
        for view in &services {
            let what = format!(
                "{} on {} of {}",
                names::claimed(view.claim.port, &view.claim.protocol),
                names::address(view.claim.vip),
                owner(view)
            );
            self.served(&what, view, 0, &[], remedy);
            self.reached(&what, view, held);
        }
        services
    }

    fn served(&mut self, what: &str, view: &ServiceView, draining: usize, missing: &[String], remedy: &str) {
        if view.kernel {
            return self.holds(StepKind::Service, format!("{what} is left to the node's own stack"));
        }
        let counts = format!("backends: {} ready ({} on this node), {draining} draining", view.ready, view.local);
        if view.ready == 0 {
            return self.broken(StepKind::Service, format!("{what}: no backend takes new flows"), remedy);
        }
        self.holds(StepKind::Service, format!("{what}, {counts}"));
        if !missing.is_empty() {
            self.note(StepKind::Service, format!("{what}: the map BACKENDS has no {}", listed(missing)));
        }
    }

    /// Checks whether frames can be handed over to the backends' nodes.
    fn reached(&mut self, what: &str, view: &ServiceView, held: &KernelState) {
        let states: BTreeMap<_, _> = held.neighbors.iter().map(|it| (it.node.as_str(), it)).collect();
        let unreached = |backend: &&BackendView| {
            let node = states.get(backend.node.as_deref()?)?;
            (!node.is_self && !node.attached).then(|| format!("{} ({})", node.node, node.state()))
        };
        let taking = || held.backends.iter().filter(|it| it.ready && it.used_by.contains(&view.claim));
        let nodes: BTreeSet<_> = taking().filter_map(|backend| unreached(&backend)).collect();
        if nodes.is_empty() {
            return;
        }
        let (count, all) = (taking().filter(|backend| unreached(backend).is_some()).count(), taking().count());
        let named = listed(&nodes.into_iter().collect::<Vec<_>>());
        if count == all {
            let finding = format!("{what}: no backend is on a node that frames can be handed over to: {named}");
            return self.broken(StepKind::Service, finding, REACH);
        }
        let finding = format!("{what}: {count} of {all} backends get no packets from this node: {named}");
        self.note(StepKind::Service, finding);
    }

    /// Checks where the VIP is announced, and whether this node answers for it.
    fn announced(&mut self, vip: &VipView, held: &KernelState, desired: DesiredLeader<'_>) {
        let address = vip.address;
        if vip.interfaces.is_empty() {
            let remedy = "let the agent announce on an interface that the policies select (--interface, docs/pools.md)";
            return self.broken(
                StepKind::Announced,
                format!("{address} is announced on no interface of this node"),
                remedy,
            );
        }
        let detached: Vec<_> =
            vip.interfaces.iter().filter(|interface| !held.attached.contains(*interface)).cloned().collect();
        if !detached.is_empty() {
            let finding = format!("vipmux_xdp is not attached to {}, where {address} is announced", listed(&detached));
            return self.broken(StepKind::Announced, finding, COMPARE);
        }
        if held.fence.state == FenceState::Abandoned {
            let finding = format!("{}: new flows are left to the node's own stack", held.fence.text());
            return self.broken(StepKind::Announced, format!("the fence {finding}"), START);
        }
        self.answers(vip, held, desired);
    }

    fn traffic(&mut self, services: &[&ServiceView]) {
        let by_owner = grouped(services.iter().map(|view| (owner(view), *view)));
        for (owner, views) in by_owner {
            let sum = |of: fn(&ServiceView) -> u64| views.iter().map(|view| of(view)).sum::<u64>();
            let (packets, bytes, flows) = (sum(|view| view.packets), sum(|view| view.bytes), sum(|view| view.flows));
            let finding = match packets {
                0 => format!(
                    "no packet for {owner} came through this node; `vipmux inspect stats` shows what was dropped"
                ),
                _ => format!("{packets} packets, {bytes} bytes and {flows} flows for {owner} came through this node"),
            };
            self.note(StepKind::Traffic, finding);
        }
    }
}

fn key(service: &ServiceView) -> (Option<std::net::IpAddr>, u16, String) {
    (service.claim.vip, service.claim.port, service.claim.protocol.clone())
}

fn owner(view: &ServiceView) -> String {
    ServiceName::new(view.claim.namespace.clone(), view.claim.name.clone()).to_string()
}

fn is_about(target: &ExplainTarget, service: &ServiceView) -> bool {
    match target {
        ExplainTarget::Service(name) => owns(name, service),
        ExplainTarget::Vip(vip) => service.claim.vip == Some(vip.address()),
    }
}

fn vips_of(target: &ExplainTarget, held: &KernelState) -> BTreeSet<Vip> {
    match target {
        ExplainTarget::Vip(vip) => [*vip].into(),
        ExplainTarget::Service(_) => {
            let services = held.services.iter().filter(|service| is_about(target, service));
            services.filter_map(|service| service.claim.vip).map(Vip::new).collect()
        }
    }
}
