//! Computes the condition `vipmux.io/Announced`: which nodes answer for a Service's addresses.

use std::collections::BTreeSet;

use super::{ConditionStatus, DesiredCondition, StatusInputs};
use vipmux_model::{NodeName, Vip};

/// Each address has a leader.
const LED: &str = "Led";
/// An address has no leader.
const NO_LEADER: &str = "NoLeader";
/// Nobody may announce an address.
const NOT_COVERED: &str = "NotCovered";
/// The leader's Node is not ready, or gone, and no other node has taken over.
const LEADER_NOT_READY: &str = "LeaderNotReady";
/// The Service has no address.
const NOT_ALLOCATED: &str = "NotAllocated";
/// The Service cannot be read, so nothing is served for it.
const NOT_SERVED: &str = "NotServed";

/// Returns the condition of a Service that has no address.
pub(super) fn not_allocated() -> DesiredCondition {
    DesiredCondition::new(ConditionStatus::False, NOT_ALLOCATED, "it has no address")
}

/// Returns the condition of a Service that cannot be read.
pub(super) fn not_served() -> DesiredCondition {
    DesiredCondition::new(ConditionStatus::False, NOT_SERVED, "nothing is served for it until it can be read")
}

/// Returns the condition of a Service with these addresses.
pub(super) fn announced(addresses: &BTreeSet<Vip>, inputs: StatusInputs<'_>) -> DesiredCondition {
    let each: Vec<_> = addresses.iter().map(|vip| of(*vip, inputs)).collect();
    let message = each.iter().map(|(_, _, text)| text.as_str()).collect::<Vec<_>>().join(", ");
    // The worst address decides for the Service.
    let worst = [ConditionStatus::False, ConditionStatus::Unknown]
        .into_iter()
        .find_map(|status| each.iter().find(|it| it.0 == status));
    let (status, reason) = worst.map_or((ConditionStatus::True, LED), |(status, reason, _)| (*status, *reason));
    DesiredCondition::new(status, reason, message)
}

fn of(vip: Vip, inputs: StatusInputs<'_>) -> (ConditionStatus, &'static str, String) {
    match inputs.leaders.get(&vip) {
        Some(node) if is_ready(node, inputs) => (ConditionStatus::True, LED, format!("{vip} by {node}")),
        Some(node) => {
            let text = format!("{vip} by {node} (last known leader, node not ready)");
            (ConditionStatus::Unknown, LEADER_NOT_READY, text)
        }
        None => match inputs.model.silence(vip) {
            Some(why) => (ConditionStatus::False, NOT_COVERED, format!("{vip} by nobody: {why}")),
            None => (ConditionStatus::False, NO_LEADER, format!("{vip} by nobody yet")),
        },
    }
}

/// Whether the node exists and its kubelet does not say that it is not ready. A Node without a
/// kubelet has no such condition.
fn is_ready(name: &NodeName, inputs: StatusInputs<'_>) -> bool {
    let Some(node) = inputs.objects.nodes.get(name) else { return false };
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.filter(|condition| condition.type_ == "Ready").all(|condition| condition.status == "True")
}
