//! From objects to what should be served: the pure stages in a row, on a thread of their own, so that 10,000 Services
//! never keep the event loop from its heartbeat.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, mem,
    net::IpAddr,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::{select, sync::watch, task::spawn_blocking, time::sleep};

use crate::{
    allocate::{
        Allocation, allocate,
        holders::{Holders, with_statuses},
    },
    assignments,
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
    /// Nodes' first InternalIP of each family, IPv4 first.
    pub(super) nodes: BTreeMap<NodeName, Vec<IpAddr>>,
    /// What could not be done as asked, with whom it is about: told once, when it is new.
    pub(super) complaints: BTreeSet<String>,
    /// The last look at the manifests that was asked for and that this rests on (see
    /// [`WatchGuard::look`](crate::source::manifests::WatchGuard::look)).
    pub(super) look: u64,
}

/// How often the state file is looked at for what other agents wrote.
const LOOK: Duration = Duration::from_secs(1);

/// Settles each new snapshot, after each look that was asked for, and again when another agent changed the state file
/// `path`: all that share it end with the same view, whoever saw an edit first.
///
/// Runs until the objects' source is gone. Cancel-safe: dropping it loses at most the snapshot in work.
pub(super) async fn follow(
    mut objects: watch::Receiver<Arc<Objects>>,
    mut looked: watch::Receiver<u64>,
    path: PathBuf,
    options: Options,
    settled: watch::Sender<Arc<Settled>>,
) {
    let (path, options): (Arc<Path>, _) = (path.into(), Arc::new(options));
    let mut holders = Holders::default();
    let mut known = BTreeSet::new();
    loop {
        // Taken before it is read: what changes from here on is looked at again, our own writing included.
        let seen = stamp(&path);
        // Before the snapshot, which is then at least as new.
        let look = *looked.borrow_and_update();
        let snapshot = Arc::clone(&objects.borrow_and_update());
        let before = mem::replace(&mut known, snapshot.services.keys().cloned().collect());
        let gone: BTreeSet<ServiceName> = before.difference(&known).cloned().collect();
        let (file, ours, held) = (Arc::clone(&path), Arc::clone(&options), holders.clone());
        if let Ok((next, result)) = spawn_blocking(move || settle(&snapshot, &gone, &ours, &file, &held)).await {
            holders = next;
            tell(&settled.borrow().complaints, &result.complaints);
            settled.send_replace(Arc::new(Settled { look, ..result }));
        } else {
            tracing::error!("settling a snapshot failed; the last good state stays in force until the next one");
        }
        loop {
            select! {
                changed = objects.changed() => if changed.is_ok() { break } else { return },
                Ok(()) = looked.changed() => break,
                () = sleep(LOOK) => if stamp(&path) != seen { break },
            }
        }
    }
}

/// Lines of log of each kind at once.
const MOST_LINES: usize = 100;

/// Tells one version of a file from another: its inode, which every writing replaces, and when it was modified.
fn stamp(path: &Path) -> Option<(u64, SystemTime)> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.ino(), metadata.modified().ok()?))
}

/// Logs what is new and what is mended: of thousands at once, the first.
pub(super) fn tell(before: &BTreeSet<String>, after: &BTreeSet<String>) {
    let (new, mended) = (after.difference(before), before.difference(after));
    for complaint in new.clone().take(MOST_LINES) {
        tracing::warn!("{complaint}");
    }
    for complaint in mended.clone().take(MOST_LINES) {
        tracing::info!(was = complaint, "mended");
    }
    let untold = new.count().saturating_sub(MOST_LINES) + mended.count().saturating_sub(MOST_LINES);
    if untold > 0 {
        tracing::warn!(untold, "more was refused or mended; `vipmux plan` tells all");
    }
}

/// One snapshot. `gone` are Services that were in the one before: what they hold is free, though there may be others in what
/// cannot be read. `held` serves where the state file cannot be used: what is held never moves for that.
fn settle(
    objects: &Objects,
    gone: &BTreeSet<ServiceName>,
    options: &Options,
    path: &Path,
    held: &Holders,
) -> (Holders, Settled) {
    let model = Model::ingest(objects, options);
    let mut complaints: BTreeSet<String> = objects.problems.iter().map(ToString::to_string).collect();
    let allocate = |holders: &Holders| {
        let left = holders.iter().filter(|(name, _)| !gone.contains(name));
        let left = left.map(|(name, held)| (name.clone(), held.clone())).collect();
        allocate(&model, &with_statuses(left, &model))
    };
    let agreed = assignments::update(path, |holders| {
        let allocation = allocate(holders);
        (allocation.holders(), allocation)
    });
    let allocation = agreed.unwrap_or_else(|error| {
        complaints.insert(format!("{:#}; addresses are held in memory only", anyhow::Error::from(error)));
        allocate(held)
    });
    complaints.extend(refusals(&model, &allocation));
    let eligible = rendezvous::eligible(&model.nodes);
    let leader = |vip: Vip| (vip, rendezvous::leader(vip, eligible.iter().copied()).cloned());
    let nodes = model.nodes.values().map(|node| (node.name.clone(), node.reached_by().collect()));
    let settled = Settled {
        services: desired_services(&model, &allocation.claims()),
        leaders: allocation.vips().into_keys().map(leader).collect(),
        nodes: nodes.collect(),
        complaints,
        look: 0,
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
    let withheld = allocation.withheld.iter().map(|(name, held)| {
        let addresses: Vec<_> = held.addresses.iter().map(ToString::to_string).collect();
        format!("Service {name} cannot be read: {} is kept for it, and nothing is served there", addresses.join(", "))
    });
    let refused = allocation.refusals.iter().map(one);
    refused.chain(notes).chain(warnings).chain(withheld).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{model::ingest::object, source::manifests::Problem};

    fn name(text: &str) -> ServiceName {
        ServiceName { namespace: "shop".to_owned(), name: text.to_owned() }
    }

    fn objects(services: &[&str]) -> Objects {
        let mut objects = Objects::default();
        let pool = serde_json::json!({"spec": {"addresses": ["192.0.2.1-192.0.2.3"]}});
        objects.address_pools.insert("lan".to_owned(), object(pool));
        for service in services {
            let spec = serde_json::json!({"spec": {"type": "LoadBalancer", "ports": [{"port": 80}]}});
            objects.services.insert(name(service), object(spec));
        }
        objects
    }

    /// The holders, as `service=address`.
    fn held(holders: &Holders) -> Vec<String> {
        let one = |(name, held): (&ServiceName, &crate::allocate::holders::Held)| {
            format!("{}={}", name.name, held.addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
        };
        holders.iter().map(one).collect()
    }

    #[test]
    fn an_agent_that_starts_beside_a_broken_file_gives_no_address_away() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("assignments.yaml");
        let settle = |objects: &Objects, gone: &[&str]| {
            let gone = gone.iter().map(|gone| name(gone)).collect();
            settle(objects, &gone, &Options::default(), &path, &Holders::new())
        };
        settle(&objects(&["a"]), &[]);
        let mut broken = objects(&["b"]);
        broken.problems.push(Problem {
            file: "a.yaml".into(),
            document: 1,
            line: None,
            field: String::new(),
            message: "no YAML".to_owned(),
        });
        let (holders, settled) = settle(&broken, &[]);
        assert_eq!(held(&holders), ["a=192.0.2.1", "b=192.0.2.2"]);
        assert_eq!(held(&assignments::load(&path).unwrap().unwrap()), held(&holders));
        let told = "Service shop/a cannot be read: 192.0.2.1 is kept for it, and nothing is served there";
        assert!(settled.complaints.contains(told), "{:?}", settled.complaints);
        assert_eq!(settled.leaders.keys().map(ToString::to_string).collect::<Vec<_>>(), ["192.0.2.2"]);
        let (holders, _) = settle(&broken, &["a"]);
        assert_eq!(held(&holders), ["b=192.0.2.2"], "it was seen to be deleted");
    }

    #[test]
    fn a_gateway_is_never_assigned() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("assignments.yaml");
        let gateway = ([192, 0, 2, 1].into(), "a gateway of the nodes".to_owned());
        let options = Options { reserved: [gateway].into(), ..Options::default() };
        let (holders, _) = settle(&objects(&["a"]), &BTreeSet::new(), &options, &path, &Holders::new());
        assert_eq!(held(&holders), ["a=192.0.2.2"]);
    }
}
