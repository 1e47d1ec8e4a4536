//! The links, one after the other.

mod kernel;

use std::collections::BTreeSet;

use super::{
    Account, EndpointAccount, Failure, Kernel, Link, PortAccount, ServiceAccount, Standing, State, Step, Target,
};
use crate::{
    inspect::names,
    model::{Vip, name::Port, reason::Reason},
};

/// Names that a finding lists.
const NAMED: usize = 5;

/// Links as they are found.
#[derive(Debug, Default)]
struct Chain(Vec<Link>);

impl Chain {
    fn add(&mut self, step: Step, state: State, finding: impl Into<String>, remedy: Option<String>) {
        self.0.push(Link { step, state, finding: finding.into(), remedy });
    }

    fn holds(&mut self, step: Step, finding: impl Into<String>) {
        self.add(step, State::Holds, finding, None);
    }

    fn note(&mut self, step: Step, finding: impl Into<String>) {
        self.add(step, State::Note, finding, None);
    }

    fn unknown(&mut self, step: Step, finding: impl Into<String>, remedy: &str) {
        self.add(step, State::Unknown, finding, Some(remedy.to_owned()));
    }

    fn breaks(&mut self, step: Step, finding: impl Into<String>, remedy: impl Into<String>) {
        self.add(step, State::Broken, finding, Some(remedy.into()));
    }
}

/// All links; what cannot be there without an address is left out where there is none.
pub(super) fn follow(target: &Target, account: Result<&Account, &String>, kernel: &Kernel) -> Vec<Link> {
    let mut chain = Chain::default();
    match account {
        Ok(account) => {
            chain.model(account);
            if !account.vips.is_empty() {
                chain.agent(account);
                chain.kernel(target, Some(account), kernel);
            }
        }
        Err(why) => {
            chain.unknown(
                Step::Manifest,
                format!("what was asked for and decided is not known: {why}"),
                "start the agent, or name the manifests by --manifests",
            );
            chain.kernel(target, None, kernel);
        }
    }
    chain.0
}

impl Chain {
    fn model(&mut self, account: &Account) {
        match account.problems.as_slice() {
            [] => self.holds(Step::Manifest, "all that was read can be used"),
            [first, ..] => {
                self.note(Step::Manifest, format!("not all can be read, and its last good state is in force: {first}"));
            }
        }
        for service in &account.services {
            // A VIP's Services have their address: what is of interest is who they are.
            let prefix = if account.services.len() > 1 { format!("{}: ", service.name) } else { String::new() };
            self.request(service, &prefix);
            self.allocation(service, &prefix);
        }
        for vip in &account.vips {
            match &vip.leader {
                Some(leader) => self.holds(Step::Leader, format!("{leader} should lead {}: {}", vip.address, vip.why)),
                None => self.breaks(
                    Step::Leader,
                    format!("nobody may lead {}: {}", vip.address, vip.why),
                    "let there be a Node whose network is available, and that a policy for the pool selects if there are policies (docs/pools.md)",
                ),
            }
        }
        for service in &account.services {
            for port in &service.ports {
                self.endpoints(service, port);
            }
        }
    }

    fn request(&mut self, service: &ServiceAccount, prefix: &str) {
        let broken = |reason: Reason| reason.remedy().unwrap_or("see docs/annotations.md").to_owned();
        if service.state == Standing::Ignored {
            self.breaks(Step::Ours, format!("{prefix}{}", service.message), broken(service.reason));
            return;
        }
        self.holds(Step::Ours, format!("{prefix}of type LoadBalancer and of vipmux's class"));
        let misread = matches!(
            service.reason,
            Reason::AmbiguousRequest | Reason::InvalidAnnotation | Reason::InvalidService | Reason::UnsupportedFamily
        );
        match service.state {
            Standing::Pending if misread => {
                self.breaks(Step::Request, format!("{prefix}{}", service.message), broken(service.reason));
            }
            // It keeps what it has, and a warning tells why.
            _ if misread => self.note(Step::Request, format!("{prefix}it cannot be understood any more")),
            _ => self.holds(Step::Request, format!("{prefix}{}", service.request.join("; "))),
        }
        for notice in &service.notices {
            self.note(Step::Request, format!("{prefix}{notice}"));
        }
        if !service.particulars.is_empty() {
            self.note(Step::Request, format!("{prefix}{}", service.particulars.join(", ")));
        }
        if !service.group.is_empty() {
            let names: Vec<_> = service.group.iter().map(ToString::to_string).collect();
            self.holds(Step::Group, format!("{prefix}with {}", listed(&names)));
        }
    }

    fn allocation(&mut self, service: &ServiceAccount, prefix: &str) {
        let Standing::Pending = service.state else {
            if service.state == Standing::Allocated {
                self.holds(Step::Allocation, format!("{prefix}{} ({})", service.message, service.reason));
                for warning in &service.warnings {
                    self.note(Step::Allocation, format!("{prefix}{warning}"));
                }
            }
            return;
        };
        // What could not be understood was told.
        if self.0.last().is_none_or(|link| link.state != State::Broken) {
            let remedy = service.reason.remedy().unwrap_or("see docs/annotations.md");
            self.breaks(Step::Allocation, format!("{prefix}{} ({})", service.message, service.reason), remedy);
        }
    }

    fn endpoints(&mut self, service: &ServiceAccount, port: &PortAccount) {
        let what = claim(port.vip, port.port);
        if port.kernel {
            self.holds(Step::Endpoints, format!("{what} is left to the node's own stack"));
            return;
        }
        let name = if port.name.is_empty() { "no name".to_owned() } else { format!("the name {}", port.name) };
        let usable = port.endpoints.iter().filter(|endpoint| endpoint.known && endpoint.ready).count();
        let draining = port.endpoints.iter().filter(|endpoint| !endpoint.ready && !endpoint.failing).count();
        let lost = port.endpoints.iter().find(|endpoint| !endpoint.known);
        match (port.endpoints.len(), usable, lost) {
            (0, ..) => self.breaks(
                Step::Endpoints,
                format!("{what} has no {} endpoints", port.vip.family()),
                format!(
                    "let an EndpointSlice with the label kubernetes.io/service-name={} have a port with {name} and this \
                     protocol: do Pods match the Service's selector?",
                    service.name.name
                ),
            ),
            (all, 0, Some(lost)) => self.breaks(
                Step::Endpoints,
                format!(
                    "endpoints of {what}: {all}, and none that is ready is on a node that is known ({} is on {:?})",
                    lost.address, lost.node.0
                ),
                "let the manifests have the Nodes that the endpoints name",
            ),
            (all, 0, None) => self.breaks(
                Step::Endpoints,
                format!("endpoints of {what}: {all}, and none is ready"),
                "see why the Pods are not ready: their readiness probes decide",
            ),
            _ => {
                let ready = port.endpoints.iter().filter(|endpoint| endpoint.known && endpoint.ready);
                let nodes: BTreeSet<String> = ready.map(|endpoint| endpoint.node.to_string()).collect();
                let nodes: Vec<_> = nodes.into_iter().collect();
                self.holds(
                    Step::Endpoints,
                    format!("endpoints of {what}: {usable} ready, {draining} draining, on {}", listed(&nodes)),
                );
                self.failing(&what, port);
            }
        }
    }

    /// Which endpoints fail their health probes.
    fn failing(&mut self, what: &str, port: &PortAccount) {
        let failing: Vec<_> = port.endpoints.iter().filter(|endpoint| endpoint.failing).collect();
        let Some(first) = failing.first() else { return };
        let described = |endpoint: &&EndpointAccount| {
            let at = names::endpoint(endpoint.address, endpoint.port);
            match &endpoint.failure {
                Some(Failure { for_s, error }) => format!("{at} on {} for {for_s} s ({error})", endpoint.node),
                None => format!("{at} on {}", endpoint.node),
            }
        };
        let named = listed(&failing.iter().map(described).collect::<Vec<_>>());
        let (count, all) = (failing.len(), if first.ready { ", so that probes are ignored" } else { "" });
        self.note(Step::Endpoints, format!("endpoints of {what}: {count} fail their health probes{all}: {named}"));
    }

    fn agent(&mut self, account: &Account) {
        let Some(node) = &account.node else {
            self.unknown(
                Step::Agent,
                "what the agent makes of it is not known: it was not asked",
                "ask on a node with an agent",
            );
            return;
        };
        let vips: BTreeSet<String> = account.vips.iter().map(|vip| vip.address.to_string()).collect();
        let about = |text: &&String| {
            let mut words = text.split(|letter: char| letter.is_whitespace() || letter == ',');
            words.any(|word| vips.contains(word.trim_end_matches([':', '.', ';'])))
        };
        let refused: Vec<_> = account.refused.iter().filter(about).collect();
        for refused in &refused {
            let remedy = "mend what it says; the agent tries again by itself";
            self.breaks(Step::Agent, format!("on {node}: {refused}"), remedy);
        }
        if refused.is_empty() {
            self.holds(Step::Agent, format!("the agent on {node} wants it so"));
        }
    }
}

/// `port 80/TCP on 192.0.2.10`.
fn claim(vip: Vip, port: Port) -> String {
    format!("{port} on {vip}")
}

/// The first of them, and how many more there are.
fn listed(names: &[String]) -> String {
    let more = names.len().saturating_sub(NAMED);
    let first = names.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    if more == 0 { first } else { format!("{first} and {more} more") }
}
