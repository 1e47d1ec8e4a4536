//! What `vipmux check` makes of a node: from what was observed there to findings, without I/O.
//!
//! ```text
//! survey (the kernel, netlink, /proc, the API server) -> Observed -> assess -> Finding, one for each check
//! ```
//!
//! What could not be observed is an [`Unseen`], and is told as such: silence would read as a pass.

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

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As it should be.
    Pass,
    /// Something works less well, only on a condition, or could not be looked at.
    Warn,
    /// The agent cannot start, or packets are lost.
    Fail,
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The check's name.
    pub check: &'static str,
    /// What it is about, where there may be several: an interface, for instance.
    pub subject: Option<String>,
    /// How it ended.
    pub verdict: Verdict,
    /// What is there.
    pub found: String,
    /// What to do about it; `None` where it passed.
    pub remedy: Option<String>,
}

impl Finding {
    /// It is as it should be.
    pub(crate) fn pass(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, subject: None, verdict: Verdict::Pass, found: found.into(), remedy: None }
    }

    /// It is to be looked at.
    pub(crate) fn warn(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { verdict: Verdict::Warn, remedy: Some(remedy.into()), ..Self::pass(check, found) }
    }

    /// It is broken.
    pub(crate) fn fail(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { verdict: Verdict::Fail, remedy: Some(remedy.into()), ..Self::pass(check, found) }
    }

    /// It could not be looked at.
    pub(crate) fn unseen(check: &'static str, unseen: &Unseen) -> Self {
        Self::warn(check, format!("could not be looked at: {}", unseen.why), unseen.remedy.clone())
    }

    fn about(self, subject: impl Into<String>) -> Self {
        Self { subject: Some(subject.into()), ..self }
    }
}

/// Why something could not be observed, and what would help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unseen {
    /// Why.
    pub why: String,
    /// What would help.
    pub remedy: String,
}

impl Unseen {
    /// The usual remedy.
    #[expect(clippy::needless_pass_by_value, reason = "errors are mapped by it")]
    pub fn without_rights(why: impl ToString) -> Self {
        Self { why: why.to_string(), remedy: "run it as root, or with the agent's capabilities".to_owned() }
    }
}

/// Something that was observed, or why it was not.
pub type Seen<T> = Result<T, Unseen>;

/// All that was observed of a node.
#[derive(Clone, Debug)]
pub struct Observed {
    /// Its kernel, and the process's rights.
    pub kernel: kernel::Kernel,
    /// Where VIPs are to be announced.
    pub interfaces: Seen<Vec<Result<interface::Segment, interface::Unusable>>>,
    /// How the stack treats packets.
    pub settings: settings::Settings,
    /// What filters them.
    pub firewall: firewall::Firewall,
    /// By which interfaces replies leave.
    pub routes: Seen<routes::Routes>,
    /// Who else is at work.
    pub others: others::Others,
    /// How the agents are to speak to each other.
    pub gossip: gossip::Gossip,
    /// Where Services come from.
    pub source: cluster::Source,
}

/// What all checks find, in the order of a packet's life: the node, its interfaces, the stack, others, the cluster.
pub fn assess(observed: &Observed) -> Vec<Finding> {
    let Observed { kernel, interfaces, settings, firewall, routes, others, gossip, source } = observed;
    let exits: Vec<_> = routes.iter().flat_map(|routes| routes.exits.iter().map(|exit| exit.name.as_str())).collect();
    let mut found = kernel::assess(kernel);
    found.extend(interface::assess(kernel, interfaces));
    for segment in interfaces.iter().flatten().flatten() {
        found.extend(settings::assess_interface(segment, &exits, source.node_has_ipv6()));
    }
    found.push(settings::assess(*settings));
    found.extend(routes::assess(routes));
    found.extend(firewall::assess(firewall, gossip.port, source.node_has_ipv6()));
    found.extend(gossip::assess(gossip));
    found.extend(others::assess(others));
    found.extend(cluster::assess(source));
    found
}

/// Words with commas between them, or `none`.
fn list<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<_> = items.into_iter().map(|item| item.to_string()).collect();
    if items.is_empty() { "none".to_owned() } else { items.join(", ") }
}
