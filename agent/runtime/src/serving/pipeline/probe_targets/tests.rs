//! Tests which backends are probed.

use std::{net::SocketAddr, time::Duration};

use super::*;
use vipmux_model::probe::Check;
use vipmux_testing::names::{node_name, service_name};

/// `10.0.x.y` for the number, on `n1`.
fn checkup(number: usize) -> (NodeName, HealthKey, Checkup) {
    let [.., high, low] = number.to_be_bytes();
    let to = SocketAddr::from(([10, 0, high, low], 8080));
    let key = HealthKey { address: to.ip(), port: to.port(), check: 1 };
    (node_name("n1"), key, Checkup { to, check: Check::Tcp, interval: Duration::from_secs(5), failures: 2 })
}

fn down(numbers: &[usize]) -> Health {
    let mut health = Health::default();
    health.hear(node_name("n1"), numbers.iter().map(|number| checkup(*number).1).collect());
    health
}

#[test]
fn services_with_the_same_backend_and_probe_share_a_checkup_until_the_last_of_them_goes() {
    let (web, shop) = (service_name("web"), service_name("a/shop"));
    let mut probed = ProbedBackends::default();
    probed.set(&web, vec![checkup(1), checkup(2)]);
    probed.set(&shop, vec![checkup(2)]);
    let shown = |probed: &ProbedBackends| {
        let all = probed.checkups(&node_name("n1")).all;
        all.values().map(|(checkup, namespace)| format!("{} for {namespace}", checkup.to)).collect::<Vec<_>>()
    };
    assert_eq!(shown(&probed), ["10.0.0.1:8080 for shop", "10.0.0.2:8080 for a"]);
    assert_eq!(probed.checkups(&node_name("n2")), Checkups::default());
    probed.set(&web, vec![checkup(3)]);
    assert_eq!(shown(&probed), ["10.0.0.2:8080 for a", "10.0.0.3:8080 for shop"]);
    probed.set(&web, Vec::new());
    probed.set(&shop, Vec::new());
    assert!(probed.of.is_empty() && probed.by.is_empty(), "{probed:?}");
}

#[test]
fn a_change_of_health_concerns_the_services_that_depend_on_it() {
    let mut probed = ProbedBackends::default();
    let names = ["a", "b", "c"].map(service_name);
    probed.set(&names[0], vec![checkup(1)]);
    probed.set(&names[1], vec![checkup(1), checkup(2)]);
    probed.set(&names[2], vec![checkup(3)]);
    let concerned = |before: &[usize], after: &[usize]| {
        let all = probed.concerned(&down(before), &down(after));
        all.into_iter().map(|service| service.name().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(concerned(&[], &[1]), ["a", "b"]);
    assert_eq!(concerned(&[1, 2], &[1]), ["b"]);
    assert_eq!(concerned(&[3], &[2]), ["b", "c"]);
    assert_eq!(concerned(&[1, 3], &[1, 3, 9]), Vec::<String>::new(), "an unknown backend concerns no Service");
    let mut elsewhere = Health::default();
    elsewhere.hear(node_name("n2"), [checkup(1).1].into());
    assert_eq!(probed.concerned(&Health::default(), &elsewhere), BTreeSet::new());
}

#[test]
fn the_checkups_of_a_node_are_limited_for_each_namespace_and_in_all() {
    let mut probed = ProbedBackends::default();
    // The greedy one's come first by their keys.
    let greedy: Vec<_> = (0..MOST_OF_NAMESPACE + 5).map(checkup).collect();
    probed.set(&service_name("greedy/web"), greedy);
    probed.set(&service_name("modest/web"), vec![checkup(60_000)]);
    let checkups = probed.checkups(&node_name("n1"));
    assert_eq!(checkups.all.len(), MOST_OF_NAMESPACE + 1);
    assert!(checkups.all.contains_key(&checkup(60_000).1));
    assert_eq!(checkups.left_out, [(Arc::from("greedy"), 5)].into());
    for i in 0..5 {
        let from = 10_000 + i * MOST_OF_NAMESPACE;
        probed.set(&service_name(format!("n{i}/web")), (from..from + MOST_OF_NAMESPACE).map(checkup).collect());
    }
    let checkups = probed.checkups(&node_name("n1"));
    assert_eq!(checkups.all.len(), MOST);
    assert_eq!(checkups.all.len() + checkups.left_out.values().sum::<usize>(), 6 * MOST_OF_NAMESPACE + 6);
}
