//! Tests edits that wait for the rest of a change (rule 9).

use std::time::Duration;

use super::*;
use crate::{POSTPONED, PostponedEdits};

const OTHER: (&str, &str) = ("vipmux.io/sharing-key", "other");

/// An allocator that sees one change after the other, one every 100 ms.
struct Changes {
    cluster: Cluster,
    postponed: PostponedEdits,
    now: Duration,
}

impl Changes {
    fn new(cluster: Cluster) -> Self {
        Self { cluster: cluster.assigned(), postponed: PostponedEdits::default(), now: Duration::from_secs(9) }
    }

    /// Returns the outcome after this change.
    fn then(&mut self, change: impl FnOnce(Cluster) -> Cluster) -> String {
        self.now += Duration::from_millis(100);
        let fresh = change(self.fresh());
        self.look(&fresh)
    }

    /// Returns the outcome so much later. `fresh`: the cluster as it is.
    fn later(&mut self, fresh: &Cluster, after: Duration) -> String {
        self.now += after;
        self.look(fresh)
    }

    fn look(&mut self, fresh: &Cluster) -> String {
        let (before, allocation) = (&self.cluster.objects, self.cluster.allocate());
        let objects = self.postponed.apply(before, &fresh.objects, &allocation, &fresh.options, self.now);
        self.cluster = Cluster { objects, previous: allocation.as_previous(), ..fresh.clone() };
        self.cluster.outcome()
    }

    fn fresh(&self) -> Cluster {
        self.cluster.clone()
    }
}

fn two() -> Cluster {
    lan().service("shop/a", &["80/TCP", "443/TCP"], &[WEB]).service("shop/b", &["53/UDP"], &[WEB])
}

#[test]
fn a_port_that_goes_from_one_service_to_another_in_two_steps_moves_nobody() {
    let receiver = |cluster: Cluster| cluster.service("shop/b", &["53/UDP", "443/TCP"], &[WEB]);
    let giver = |cluster: Cluster| cluster.service("shop/a", &["80/TCP"], &[WEB]);
    assert_eq!(receiver(two().assigned()).outcome(), "shop/a=10 shop/b=11", "at once it would move");
    let mut changes = Changes::new(two());
    let half = receiver(two());
    assert_eq!(changes.later(&half, Duration::ZERO), "shop/a=10 shop/b=10");
    assert_eq!(changes.postponed.next(), Some(changes.now + POSTPONED));
    assert_eq!(changes.later(&giver(half), Duration::from_millis(100)), "shop/a=10 shop/b=10");
    assert_eq!(changes.cluster.allocate().claims().len(), 3, "b has both ports");
    assert_eq!(changes.postponed.next(), None);
}

#[test]
fn a_group_whose_key_is_renamed_one_by_one_stays() {
    let mut changes = Changes::new(two().service("shop/c", &["81/TCP"], &[WEB]));
    let ports: [(&str, &[&str]); 3] =
        [("shop/a", &["80/TCP", "443/TCP"]), ("shop/b", &["53/UDP"]), ("shop/c", &["81/TCP"])];
    let mut fresh = changes.fresh();
    for (service, ports) in ports {
        fresh = fresh.service(service, ports, &[OTHER]);
        assert_eq!(changes.later(&fresh, Duration::from_millis(500)), "shop/a=10 shop/b=10 shop/c=10", "{service}");
    }
    assert_eq!((changes.cluster.objects == fresh.objects, changes.postponed.next()), (true, None));
}

#[test]
fn an_edit_that_stays_alone_counts_after_two_seconds() {
    let mut changes = Changes::new(two());
    let half = two().service("shop/b", &["53/UDP", "443/TCP"], &[WEB]);
    for _ in 0..4 {
        assert_eq!(changes.later(&half, Duration::from_millis(450)), "shop/a=10 shop/b=10");
    }
    assert_eq!(changes.later(&half, Duration::from_millis(650)), "shop/a=10 shop/b=11");
    assert_eq!(changes.postponed.next(), None);
}

#[test]
fn an_edit_that_costs_nobody_an_address_does_not_wait() {
    let mut changes = Changes::new(two());
    changes.then(|cluster| cluster.service("shop/b", &["54/UDP"], &[WEB]));
    assert!(changes.cluster.allocate().claims().keys().any(|claim| claim.to_string().contains("54/UDP")));
    assert_eq!(changes.postponed.next(), None);
    // It asks for the other address.
    assert_eq!(changes.then(|cluster| cluster.service("shop/b", &["443/TCP"], &[WEB, ELEVEN])), "shop/a=10 shop/b=11");
    assert_eq!(changes.postponed.next(), None);
}

#[test]
fn a_service_that_is_made_anew_does_not_wait() {
    let mut changes = Changes::new(two());
    let replaced = |cluster: Cluster| {
        let mut cluster = cluster.service("shop/b", &["443/TCP"], &[WEB]);
        cluster.object("shop/b").metadata.uid = Some("new".to_owned());
        cluster
    };
    assert_eq!(changes.then(replaced), "shop/a=10 shop/b=11");
}
