//! Evaluates the steps of an explanation, one after the other.

mod kernel;

use std::collections::BTreeSet;

use super::{
    AssignmentState, DetailsError, EndpointDetails, ExplainTarget, KernelState, PortDetails, ProbeFailure,
    ServiceDetails, StepKind, StepReport, StepState, TargetDetails,
};
use crate::names;
use vipmux_datapath::bpf::maps::MapsError;
use vipmux_election::membership::sealing::KEY_REMEDY;
use vipmux_model::{Vip, port::Port, reason::Reason};

/// The most names that a finding lists.
const MOST_NAMES: usize = 5;
const SEE_ANNOTATIONS: &str = "see docs/annotations.md";

/// The steps that are evaluated so far.
#[derive(Debug, Default)]
struct Steps(Vec<StepReport>);

impl Steps {
    fn add(&mut self, step: StepKind, state: StepState, finding: impl Into<String>, remedy: Option<String>) {
        self.0.push(StepReport { step, state, finding: finding.into(), remedy });
    }

    fn holds(&mut self, step: StepKind, finding: impl Into<String>) {
        self.add(step, StepState::Holds, finding, None);
    }

    fn note(&mut self, step: StepKind, finding: impl Into<String>) {
        self.add(step, StepState::Note, finding, None);
    }

    fn unknown(&mut self, step: StepKind, finding: impl Into<String>, remedy: &str) {
        self.add(step, StepState::Unknown, finding, Some(remedy.to_owned()));
    }

    fn broken(&mut self, step: StepKind, finding: impl Into<String>, remedy: impl Into<String>) {
        self.add(step, StepState::Broken, finding, Some(remedy.into()));
    }
}

/// Evaluates all steps. Without an address, the steps that need one are left out.
pub(super) fn evaluate(
    target: &ExplainTarget,
    details: Result<&TargetDetails, &DetailsError>,
    kernel: Result<&KernelState, &MapsError>,
) -> Vec<StepReport> {
    let mut steps = Steps::default();
    match details {
        Ok(details) => {
            steps.model(details);
            if !details.vips.is_empty() {
                steps.agent(details);
                steps.kernel(target, Some(details), kernel);
            }
        }
        Err(error) => {
            steps.unknown(
                StepKind::Manifest,
                format!("request and decisions are not known: {error}"),
                "start the agent, or name the manifests by --manifests",
            );
            steps.kernel(target, None, kernel);
        }
    }
    steps.0
}

impl Steps {
    fn model(&mut self, details: &TargetDetails) {
        match details.problems.as_slice() {
            [] => self.holds(StepKind::Manifest, "all objects can be used"),
            [first, ..] => {
                self.note(
                    StepKind::Manifest,
                    format!("some objects cannot be used; their last good state is in force: {first}"),
                );
            }
        }
        for service in &details.services {
            // Only a VIP has several Services: their names tell them apart.
            let prefix = if details.services.len() > 1 { format!("{}: ", service.name) } else { String::new() };
            self.request(service, &prefix);
            self.allocation(service, &prefix);
        }
        for vip in &details.vips {
            match &vip.leader {
                Some(leader) => self.holds(StepKind::Leader, format!("{leader} is preferred for {}: {}", vip.address, vip.why)),
                None => self.broken(
                    StepKind::Leader,
                    format!("nobody may lead {}: {}", vip.address, vip.why),
                    "make sure that a Node's network is available, and that a policy for the pool selects this Node if there are policies (docs/pools.md)",
                ),
            }
        }
        for service in &details.services {
            for port in &service.ports {
                self.endpoints(service, port);
            }
        }
    }

    fn request(&mut self, service: &ServiceDetails, prefix: &str) {
        let remedy = |reason: Reason| reason.remedy().unwrap_or(SEE_ANNOTATIONS).to_owned();
        if service.state == AssignmentState::Ignored {
            self.broken(StepKind::Ours, format!("{prefix}{}", service.message), remedy(service.reason));
            return;
        }
        self.holds(StepKind::Ours, format!("{prefix}of type LoadBalancer and of vipmux's class"));
        let misread = matches!(
            service.reason,
            Reason::AmbiguousRequest | Reason::InvalidAnnotation | Reason::InvalidService | Reason::UnsupportedFamily
        );
        match service.state {
            AssignmentState::Pending if misread => {
                self.broken(StepKind::Request, format!("{prefix}{}", service.message), remedy(service.reason));
            }
            // It keeps what it has, and a warning says why.
            _ if misread => self.note(StepKind::Request, format!("{prefix}it can no longer be understood")),
            _ => self.holds(StepKind::Request, format!("{prefix}{}", service.request.join("; "))),
        }
        for notice in &service.notices {
            self.note(StepKind::Request, format!("{prefix}{notice}"));
        }
        if !service.particulars.is_empty() {
            self.note(StepKind::Request, format!("{prefix}{}", service.particulars.join(", ")));
        }
        if !service.group.is_empty() {
            let names: Vec<_> = service.group.iter().map(ToString::to_string).collect();
            self.holds(StepKind::Group, format!("{prefix}may share with {}", listed(&names)));
        }
    }

    fn allocation(&mut self, service: &ServiceDetails, prefix: &str) {
        let AssignmentState::Pending = service.state else {
            if service.state == AssignmentState::Allocated {
                self.holds(StepKind::Allocation, format!("{prefix}{} ({})", service.message, service.reason));
                for warning in &service.warnings {
                    self.note(StepKind::Allocation, format!("{prefix}{warning}"));
                }
            }
            return;
        };
        // A request that is not understood has a broken step already.
        if self.0.last().is_none_or(|step| step.state != StepState::Broken) {
            let remedy = service.reason.remedy().unwrap_or(SEE_ANNOTATIONS);
            self.broken(StepKind::Allocation, format!("{prefix}{} ({})", service.message, service.reason), remedy);
        }
    }

    fn endpoints(&mut self, service: &ServiceDetails, port: &PortDetails) {
        let what = claim(port.vip, port.port);
        if port.kernel {
            self.holds(StepKind::Endpoints, format!("{what} is left to the node's own stack"));
            return;
        }
        let name = if port.name.is_empty() { "no name".to_owned() } else { format!("the name {}", port.name) };
        let usable = port.endpoints.iter().filter(|endpoint| endpoint.known && endpoint.ready).count();
        let draining = port.endpoints.iter().filter(|endpoint| !endpoint.ready && !endpoint.failing).count();
        let lost = port.endpoints.iter().find(|endpoint| !endpoint.known);
        match (port.endpoints.len(), usable, lost) {
            (0, ..) => self.broken(
                StepKind::Endpoints,
                format!("{what} has no {} endpoints", port.vip.family()),
                format!(
                    "an EndpointSlice with the label kubernetes.io/service-name={} must have a port with {name} and \
                     this protocol; check whether Pods match the Service's selector",
                    service.name.name()
                ),
            ),
            (all, 0, Some(lost)) => self.broken(
                StepKind::Endpoints,
                format!(
                    "endpoints of {what}: {all}, and no ready one is on a known node ({} is on {:?})",
                    lost.address, lost.node
                ),
                "make sure that the Nodes that the endpoints name exist",
            ),
            (all, 0, None) => self.broken(
                StepKind::Endpoints,
                format!("endpoints of {what}: {all}, and none is ready"),
                "find out why the Pods are not ready: their readiness probes decide",
            ),
            _ => {
                let ready = port.endpoints.iter().filter(|endpoint| endpoint.known && endpoint.ready);
                let nodes: BTreeSet<String> = ready.map(|endpoint| endpoint.node.as_str().to_owned()).collect();
                let nodes: Vec<_> = nodes.into_iter().collect();
                self.holds(
                    StepKind::Endpoints,
                    format!("endpoints of {what}: {usable} ready, {draining} draining, on {}", listed(&nodes)),
                );
                self.failing(&what, port);
            }
        }
    }

    /// Names the endpoints that fail their health probes.
    fn failing(&mut self, what: &str, port: &PortDetails) {
        let failing: Vec<_> = port.endpoints.iter().filter(|endpoint| endpoint.failing).collect();
        let Some(first) = failing.first() else { return };
        let described = |endpoint: &&EndpointDetails| {
            let at = names::endpoint(endpoint.address, endpoint.port);
            match &endpoint.failure {
                Some(ProbeFailure { for_s, error }) => format!("{at} on {} for {for_s} s ({error})", endpoint.node),
                None => format!("{at} on {}", endpoint.node),
            }
        };
        let named = listed(&failing.iter().map(described).collect::<Vec<_>>());
        let (count, all) = (failing.len(), if first.ready { ", so that probes are ignored" } else { "" });
        self.note(StepKind::Endpoints, format!("endpoints of {what}: {count} fail their health probes{all}: {named}"));
    }

    fn agent(&mut self, details: &TargetDetails) {
        let Some(node) = &details.node else {
            self.unknown(StepKind::Agent, "not known: the agent was not asked", "run this on a node with an agent");
            return;
        };
        let vips: BTreeSet<String> = details.vips.iter().map(|vip| vip.address.to_string()).collect();
        let about = |text: &&String| {
            let mut words = text.split(|letter: char| letter.is_whitespace() || letter == ',');
            words.any(|word| vips.contains(word.trim_end_matches([':', '.', ';'])))
        };
        let refused: Vec<_> = details.refused.iter().filter(about).collect();
        for refused in &refused {
            let remedy = "fix the cause that it names; the agent tries again by itself";
            self.broken(StepKind::Agent, format!("on {node}: {refused}"), remedy);
        }
        if let Some(silence) = &details.silence {
            self.broken(StepKind::Agent, format!("on {node}: {silence}"), KEY_REMEDY);
        } else if refused.is_empty() {
            self.holds(StepKind::Agent, format!("accepted by the agent on {node}"));
        }
    }
}

/// `port 80/TCP on 192.0.2.10`.
fn claim(vip: Vip, port: Port) -> String {
    format!("{port} on {vip}")
}

/// Returns the first names, and how many more there are.
fn listed(names: &[String]) -> String {
    let more = names.len().saturating_sub(MOST_NAMES);
    let first = names.iter().take(MOST_NAMES).cloned().collect::<Vec<_>>().join(", ");
    if more == 0 { first } else { format!("{first} and {more} more") }
}
