//! Decides the findings of `vipmux check` from what was observed on a node, without I/O.
//!
//! An observation that failed is an [`Unseen`], and has a finding of its own: no finding would read
//! as a pass.

#![cfg_attr(not(test), deny(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types))]

pub mod classifiers;
pub mod cluster;
pub mod firewall;
pub mod gossip;
pub mod interface;
pub mod kernel;
pub mod others;
pub mod routes;
pub mod settings;

#[cfg(test)]
mod tests;

use serde::Serialize;

/// The status of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckStatus {
    /// Nothing to do.
    Pass,
    /// Something works less well, works only on a condition, or could not be checked.
    Warn,
    /// The agent cannot start, or packets are lost.
    Fail,
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The check's name.
    pub check: &'static str,
    /// The object, if there may be several, such as an interface.
    pub subject: Option<String>,
    /// The status.
    #[serde(rename = "verdict")]
    pub status: CheckStatus,
    /// The finding.
    pub found: String,
    /// The remedy; `None` if the check passed.
    pub remedy: Option<String>,
}

impl Finding {
    /// Makes a finding of a check that passed.
    pub fn pass(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, subject: None, status: CheckStatus::Pass, found: found.into(), remedy: None }
    }

    /// Makes a finding that needs attention.
    pub fn warn(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { status: CheckStatus::Warn, remedy: Some(remedy.into()), ..Self::pass(check, found) }
    }

    /// Makes a finding of a check that failed.
    pub fn fail(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { status: CheckStatus::Fail, remedy: Some(remedy.into()), ..Self::pass(check, found) }
    }

    /// Makes a finding of a check that could not be done.
    pub(crate) fn unseen(check: &'static str, unseen: &Unseen) -> Self {
        Self::warn(check, format!("could not be checked: {}", unseen.why), unseen.remedy.clone())
    }

    /// Returns it with the object that it is about.
    pub fn about(self, subject: impl Into<String>) -> Self {
        Self { subject: Some(subject.into()), ..self }
    }
}

/// The reason why something could not be observed, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unseen {
    /// The reason.
    pub why: String,
    /// The remedy.
    pub remedy: String,
}

impl Unseen {
    /// Makes one with the usual remedy: more rights.
    #[expect(clippy::needless_pass_by_value, reason = "it is passed to map_err")]
    pub fn without_rights(why: impl ToString) -> Self {
        Self { why: why.to_string(), remedy: "run `vipmux check` as root, or with the agent's capabilities".to_owned() }
    }
}

/// An observation, or the reason why there is none.
pub type Seen<T> = Result<T, Unseen>;

/// All observations of a node.
#[derive(Clone, Debug)]
pub struct Observations {
    /// The kernel, and the process's rights.
    pub kernel: kernel::KernelObservation,
    /// The interfaces where VIPs would be announced.
    pub interfaces: Seen<Vec<Result<interface::SegmentObservation, interface::Unusable>>>,
    /// The programs on the interfaces by which replies leave.
    pub classifiers: Seen<Vec<classifiers::ClassifierObservation>>,
    /// Settings of the network stack.
    pub settings: settings::NodeSysctlObservation,
    /// The firewall rules.
    pub firewall: firewall::Firewall,
    /// The routes, by which replies leave.
    pub routes: Seen<routes::Routes>,
    /// Other software.
    pub others: others::Others,
    /// The gossip port and key.
    pub gossip: gossip::GossipObservation,
    /// The source of objects.
    pub source: cluster::ObjectSourceObservation,
}

/// Returns the findings of all checks, in the order of a packet's life: node, interfaces, stack,
/// other software, cluster.
pub fn assess(observed: &Observations) -> Vec<Finding> {
    let Observations { kernel, interfaces, classifiers, settings, firewall, routes, others, gossip, source } = observed;
    let exits: Vec<_> = routes.iter().flat_map(|routes| routes.exits.iter().map(|exit| exit.name.as_str())).collect();
    let mut found = kernel::assess(kernel);
    found.extend(interface::assess(kernel, interfaces));
    found.extend(classifiers::assess(kernel, classifiers));
    for segment in interfaces.iter().flatten().flatten() {
        found.extend(settings::assess_interface(segment, &exits, source.node_has_ipv6(), others.has_ipvs()));
    }
    found.push(settings::assess(*settings));
    found.extend(routes::assess(routes));
    found.extend(firewall::assess(firewall, gossip.port, source.node_has_ipv6()));
    found.extend(gossip::assess(gossip));
    found.extend(others::assess(others));
    found.extend(cluster::assess(source));
    found
}

/// Joins items with commas; without items `none`.
fn list<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<_> = items.into_iter().map(|item| item.to_string()).collect();
    if items.is_empty() { "none".to_owned() } else { items.join(", ") }
}
