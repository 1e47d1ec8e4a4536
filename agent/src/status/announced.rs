//! The condition `vipmux.io/Announced`: who answers for a Service's addresses.

use std::collections::BTreeSet;

use super::{Told, Truth, View};
use crate::model::{NodeName, Vip};

/// Each address has a leader.
const LED: &str = "Led";
/// An address has none.
const NO_LEADER: &str = "NoLeader";
/// Nobody may announce an address.
const NOT_COVERED: &str = "NotCovered";
/// The leader's Node is not ready, or gone, and nobody has followed it.
const LEADER_NOT_READY: &str = "LeaderNotReady";
/// The Service has no address.
const NOT_ALLOCATED: &str = "NotAllocated";
/// The Service cannot be read, so nothing is served for it.
const NOT_SERVED: &str = "NotServed";

/// Of a Service that has no address.
pub(super) fn not_allocated() -> Told {
    Told::new(Truth::False, NOT_ALLOCATED, "it has no address")
}

/// Of one that cannot be read.
pub(super) fn not_served() -> Told {
    Told::new(Truth::False, NOT_SERVED, "nothing is served for it until it can be read")
}

/// Of a Service with these addresses.
pub(super) fn announced(addresses: &BTreeSet<Vip>, view: View<'_>) -> Told {
    let each: Vec<_> = addresses.iter().map(|vip| of(*vip, view)).collect();
    let message = each.iter().map(|(_, _, text)| text.as_str()).collect::<Vec<_>>().join(", ");
    // What is worst tells the whole.
    let worst = [Truth::False, Truth::Unknown].into_iter().find_map(|truth| each.iter().find(|it| it.0 == truth));
    let (truth, reason) = worst.map_or((Truth::True, LED), |(truth, reason, _)| (*truth, *reason));
    Told::new(truth, reason, message)
}

fn of(vip: Vip, view: View<'_>) -> (Truth, &'static str, String) {
    match view.leaders.get(&vip) {
        Some(node) if is_ready(node, view) => (Truth::True, LED, format!("{vip} by {node}")),
        Some(node) => {
            let text = format!("{vip} by {node} when last heard of, which is not ready");
            (Truth::Unknown, LEADER_NOT_READY, text)
        }
        None => match view.model.silence(vip) {
            Some(why) => (Truth::False, NOT_COVERED, format!("{vip} by nobody: {why}")),
            None => (Truth::False, NO_LEADER, format!("{vip} by nobody yet")),
        },
    }
}

/// Whether the node is there and its kubelet does not say otherwise. Nodes that nobody speaks for have no such condition.
fn is_ready(name: &NodeName, view: View<'_>) -> bool {
    let Some(node) = view.objects.nodes.get(name) else { return false };
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.filter(|condition| condition.type_ == "Ready").all(|condition| condition.status == "True")
}
