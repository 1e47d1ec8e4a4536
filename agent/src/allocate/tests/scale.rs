//! What allocating many Services costs, whatever their shape.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use super::*;

const SERVICES: u16 = 3_000;

/// A cluster with a large pool and a Service for each number: its namespace, its port, and annotations.
fn cluster<'a>(prefix: u8, service: impl Fn(u16) -> (String, u16, &'a [(&'a str, &'a str)])) -> Cluster {
    (0..SERVICES).fold(Cluster::new(&[&format!("10.64.0.0/{prefix}")]), |cluster, i| {
        let (namespace, port, annotations) = service(i);
        cluster.service(&format!("{namespace}/s{i}"), &[&format!("{port}/TCP")], annotations)
    })
}

/// The processor's time that an allocation takes, and how many got an address.
fn cost(cluster: &Cluster) -> (Duration, usize) {
    let now = || Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap());
    let (model, before) = (cluster.model(), now());
    let allocation = allocate(&model, &cluster.holders);
    (now().saturating_sub(before), allocation.assignments.len())
}

#[test]
fn no_shape_costs_many_times_what_another_does() {
    let shop = || "shop".to_owned();
    let all = usize::from(SERVICES);
    let (ordinary, placed) = cost(&cluster(16, |i| (shop(), 80 + i, &[WEB])));
    assert_eq!(placed, all);
    for (shape, cluster, expected) in [
        ("no keys", cluster(16, |_| (shop(), 80, &[])), all),
        ("one key, one port", cluster(16, |_| (shop(), 80, &[WEB])), all),
        ("one key, a namespace each", cluster(16, |i| (format!("ns{i}"), 80 + i, &[WEB])), all),
        ("one key for all, a namespace each", cluster(16, |i| (format!("ns{i}"), 80 + i, &[METALLB_WEB])), all),
        ("a full pool", cluster(24, |_| (shop(), 80, &[WEB])), 256),
    ] {
        let (taken, placed) = cost(&cluster);
        assert_eq!(placed, expected, "{shape}");
        assert!(taken < ordinary * 20, "{shape}: {taken:?}, and {ordinary:?} where each has its own port");
    }
}
