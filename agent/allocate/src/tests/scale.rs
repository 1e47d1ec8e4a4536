//! Tests the cost of allocating many Services of any shape.

use std::{sync::Arc, time::Duration};

use nix::time::{ClockId, clock_gettime};

use super::*;

const SERVICES: u16 = 3_000;

/// Returns a cluster with a large pool and a Service for each number: its namespace, its port, and
/// annotations.
fn cluster<'a>(prefix: u8, service: impl Fn(u16) -> (String, u16, &'a [(&'a str, &'a str)])) -> Cluster {
    (0..SERVICES).fold(Cluster::new(&[&format!("10.64.0.0/{prefix}"), "2001:db8::/64"]), |cluster, i| {
        let (namespace, port, annotations) = service(i);
        cluster.service(&format!("{namespace}/s{i:04}"), &[&format!("{port}/TCP")], annotations)
    })
}

/// Makes the families and the policy of each Service depend on its number.
fn of_families(mut cluster: Cluster, families: impl Fn(usize) -> (&'static [&'static str], &'static str)) -> Cluster {
    let names: Vec<_> = cluster.objects.services.keys().cloned().collect();
    for name in names {
        let i = name.name()[1..].parse().unwrap();
        let (listed, policy) = families(i);
        let spec = Arc::make_mut(&mut cluster.objects.services[&name]).spec.as_mut().unwrap();
        spec.ip_families = Some(listed.iter().map(|&family| family.to_owned()).collect());
        spec.ip_family_policy = Some(policy.to_owned());
    }
    cluster
}

/// Makes the other requests of each Service depend on its number.
fn wishing(cluster: Cluster, wishes: impl Fn(usize) -> Wishes) -> Cluster {
    let names: Vec<_> = cluster.objects.services.keys().cloned().collect();
    names
        .iter()
        .fold(cluster, |cluster, name| cluster.wishing(&name.to_string(), wishes(name.name()[1..].parse().unwrap())))
}

fn label(i: usize) -> &'static str {
    i.to_string().leak()
}

fn setting(i: usize) -> &'static [(&'static str, &'static str)] {
    vec![("setting", &*i.to_string().leak())].leak()
}

/// Returns the processor time of an allocation, and the number of Services with an address.
fn cost(cluster: &Cluster) -> (Duration, usize) {
    let now = || Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap());
    let (model, before) = (cluster.model(), now());
    let allocation = allocate(&model, &cluster.previous);
    (now().saturating_sub(before), allocation.assignments.len())
}

const BOTH: (&[&str], &str) = (&[], "RequireDualStack");
const V6: (&[&str], &str) = (&["IPv6"], "SingleStack");

fn mixed(i: usize) -> (&'static [&'static str], &'static str) {
    [(&["IPv4"][..], "SingleStack"), V6, BOTH, (&[], "PreferDualStack")][i % 4]
}

/// Returns pairs with port 80, then IPv6 only with port 81, then pairs with port 81, which fit only
/// in IPv4.
fn closed(i: usize) -> (&'static [&'static str], &'static str) {
    if i % 2 == 1 && i < usize::from(SERVICES) / 2 { V6 } else { BOTH }
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
        ("both families", of_families(cluster(16, |i| (shop(), 80 + i, &[WEB])), |_| BOTH), all),
        ("both families, no keys", of_families(cluster(16, |_| (shop(), 80, &[])), |_| BOTH), all),
        ("both families, one port", of_families(cluster(16, |_| (shop(), 80, &[WEB])), |_| BOTH), all),
        ("both if there are", of_families(cluster(24, |_| (shop(), 80, &[WEB])), |_| (&[], "PreferDualStack")), all),
        ("families and ports mixed", of_families(cluster(16, |i| (shop(), 80 + i % 7, &[WEB])), mixed), all),
        (
            "one key, a label each",
            wishing(cluster(16, |i| (shop(), 80 + i, &[WEB])), |i| Wishes {
                label: Some(label(i)),
                ..Wishes::default()
            }),
            all,
        ),
        (
            "one key, a setting in each namespace",
            wishing(cluster(16, |i| (format!("ns{i}"), 80, &[WEB])), |i| Wishes {
                alike: setting(i),
                ..Wishes::default()
            }),
            all,
        ),
        (
            "one key, a setting each",
            wishing(cluster(16, |i| (shop(), 80 + i, &[WEB])), |i| Wishes { alike: setting(i), ..Wishes::default() }),
            0,
        ),
        (
            "where there are fewest claims",
            wishing(cluster(16, |_| (shop(), 80, &[])), |_| Wishes { fewest_claims: true, ..Wishes::default() }),
            all,
        ),
        ("pairs closed in one family", of_families(cluster(16, |i| (shop(), 80 + i % 2, &[WEB])), closed), all),
    ] {
        let (taken, placed) = cost(&cluster.limited(16, usize::MAX));
        assert_eq!(placed, expected, "{shape}");
        assert!(taken < ordinary * 20, "{shape}: {taken:?}, and {ordinary:?} where each has its own port");
    }
}
