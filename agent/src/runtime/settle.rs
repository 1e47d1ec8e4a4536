//! From objects to what should be served: the pure stages in a row, on a thread of their own, so that 10,000 Services
//! never keep the event loop from its heartbeat.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use tokio::sync::watch;

use crate::{
    allocate::{
        Allocation, allocate,
        holders::{Holders, with_statuses},
    },
    election::rendezvous,
    model::{Model, NodeName, Options, PortClaim, ServiceName, Vip, endpoints::desired_services, reason::Refusal},
    plan::DesiredService,
    source::Objects,
};

/// What should be served, and by whom each VIP is led.
#[derive(Clone, Debug, Default)]
pub(super) struct Settled {
    /// Port claims.
    pub(super) services: BTreeMap<PortClaim, DesiredService>,
    /// VIPs, with their chosen leaders.
    pub(super) leaders: BTreeMap<Vip, Option<NodeName>>,
    /// Nodes' first InternalIPv4, if they have one.
    pub(super) nodes: BTreeMap<NodeName, Option<IpAddr>>,
    /// What could not be done as asked, with whom it is about: told once, when it is new.
    pub(super) complaints: BTreeSet<String>,
}

/// Settles each new snapshot.
///
/// Runs until either channel's other end is gone. Cancel-safe: dropping it loses at most the snapshot in work.
pub(super) async fn follow(mut objects: watch::Receiver<Arc<Objects>>, settled: watch::Sender<Arc<Settled>>) {
    let mut holders = Holders::default();
    loop {
        let snapshot = Arc::clone(&objects.borrow_and_update());
        let held = holders.clone();
        let Ok((next, result)) = tokio::task::spawn_blocking(move || settle(&snapshot, held)).await else {
            tracing::error!("settling a snapshot failed; the last good state stays in force");
            return;
        };
        holders = next;
        tell(&settled.borrow().complaints, &result.complaints);
        settled.send_replace(Arc::new(result));
        if objects.changed().await.is_err() {
            return;
        }
    }
}

/// Logs what is new and what is mended.
pub(super) fn tell(before: &BTreeSet<String>, after: &BTreeSet<String>) {
    for complaint in after.difference(before) {
        tracing::warn!("{complaint}");
    }
    for mended in before.difference(after) {
        tracing::info!(was = mended, "mended");
    }
}

/// One snapshot.
fn settle(objects: &Objects, held: Holders) -> (Holders, Settled) {
    let model = Model::ingest(objects, &Options::default());
    let mut complaints: BTreeSet<String> = objects.problems.iter().map(ToString::to_string).collect();
    let run = |holders: Holders| allocate(&model, &with_statuses(holders, &model));
    let allocation = run(held);
    complaints.extend(refusals(&model, &allocation));
    let eligible = rendezvous::eligible(&model.nodes);
    let leader = |vip: Vip| (vip, rendezvous::leader(vip, eligible.iter().copied()).cloned());
    let nodes =
        model.nodes.values().map(|node| (node.name.clone(), node.internal.iter().copied().find(IpAddr::is_ipv4)));
    let settled = Settled {
        services: desired_services(&model, &allocation.claims()),
        leaders: allocation.vips().into_keys().map(leader).collect(),
        nodes: nodes.collect(),
        complaints,
    };
    (allocation.holders(), settled)
}

fn refusals(model: &Model, allocation: &Allocation) -> Vec<String> {
    let one = |(name, refusal): (&ServiceName, &Refusal)| {
        format!("Service {name} is not served: {} ({:?})", refusal.message, refusal.reason)
    };
    let notes = model.notes.iter().map(|note| format!("{}: {}", note.object, note.message));
    let warnings = allocation.assignments.iter().flat_map(|(name, assignment)| {
        assignment.warnings.iter().map(move |warning| format!("Service {name}: {warning}"))
    });
    model.refused.iter().map(one).chain(allocation.refusals.iter().map(one)).chain(notes).chain(warnings).collect()
}
