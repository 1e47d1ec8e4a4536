//! Tests Services that cannot be understood or read, and the addresses that they hold.

use std::num::NonZeroUsize;

use super::*;

#[test]
fn a_service_that_cannot_be_understood_is_refused_and_disturbs_nobody() {
    let cluster = lan()
        .service("shop/a", &["80/TCP"], &[("vipmux.io/addresses", "nonsense")])
        .service("shop/b", &["80/TCP"], &[WEB, METALLB_WEB])
        .service("shop/c", &["80/TCP"], &[]);
    assert_eq!(cluster.outcome(), "shop/a:InvalidAnnotation shop/b:AmbiguousRequest shop/c=10");
}

#[test]
fn a_slip_of_the_pen_gives_no_address_to_another() {
    let slip = ("vipmux.io/addresses", "192.0.2.1O");
    let assigned = lan().service("shop/a", &["80/TCP"], &[WEB]).service("shop/b", &["443/TCP"], &[WEB]).assigned();
    let cluster =
        assigned.clone().service("shop/a", &["80/TCP"], &[API, slip]).service("shop/c", &["80/TCP"], &[TEN, WEB]);
    let cluster = cluster.created("shop/c", 2001).assigned();
    assert_eq!(cluster.outcome(), "shop/a=10 shop/b=10 shop/c:PortConflict");
    let allocation = cluster.allocate();
    let kept = &allocation.assignments[&service_name("shop/a")];
    assert_eq!(kept.reason, Reason::InvalidAnnotation);
    assert!(!kept.is_as_asked() && !allocation.is_complete());
    assert!(
        kept.warnings[0].starts_with("vipmux.io/addresses: \"192.0.2.1O\" is malformed"),
        "the annotation is named: {}",
        kept.warnings[0]
    );
    assert!(kept.warnings[0].ends_with("; it keeps what it holds until that is fixed"), "{}", kept.warnings[0]);
    let fixed = cluster.without("shop/c").service("shop/a", &["80/TCP"], &[WEB]);
    assert_eq!(fixed.allocate(), assigned.allocate());
}

#[test]
fn a_slip_of_the_pen_costs_no_other_holder_its_address() {
    // Statuses do not show for which request `a` and `b` came to share.
    let held = PreviousAssignment { addresses: [vip("192.0.2.10")].into(), snapshot: None };
    let mut cluster = lan().service("shop/a", &["80/TCP"], &[WEB, METALLB_WEB]).created("shop/a", 2001).service(
        "shop/b",
        &["443/TCP"],
        &[WEB],
    );
    cluster.previous = [(service_name("shop/a"), held.clone()), (service_name("shop/b"), held)].into();
    assert_eq!(cluster.outcome(), "shop/a=10 shop/b=10");
    let clash = cluster.service("shop/b", &["80/TCP"], &[WEB]);
    assert_eq!(clash.outcome(), "shop/a:AmbiguousRequest shop/b=10");
    assert_eq!(clash.reserving("192.0.2.10").outcome(), "shop/a:AmbiguousRequest shop/b=11");
}

#[test]
fn nothing_is_said_about_the_keys_of_a_request_that_cannot_be_understood() {
    let both = [WEB, METALLB_WEB];
    let cluster = lan().service("shop/a", &["80/TCP"], &both).service("shop/b", &["81/TCP"], &both);
    let cluster = cluster.showing("shop/a", "192.0.2.10").showing("shop/b", "192.0.2.10").restarted();
    let cluster = cluster.service("shop/c", &["82/TCP"], &[WEB, TEN]);
    assert_eq!(cluster.outcome(), "shop/a=10 shop/b=10 shop/c:SharingMismatch");
    let [warning] = &cluster.warnings("shop/a")[..] else { panic!("{:?}", cluster.warnings("shop/a")) };
    assert!(warning.ends_with("it keeps what it holds until that is fixed"), "{warning}");
    assert!(
        cluster.message("shop/c").ends_with("the two may not share it: the request of shop/a cannot be understood")
    );
}

#[test]
fn a_service_that_cannot_be_read_leaves_no_address_to_others() {
    let assigned = lan().service("shop/a", &["80/TCP"], &[WEB]).service("shop/b", &["443/TCP"], &[WEB]).assigned();
    let newcomers =
        |cluster: Cluster| cluster.service("shop/c", &["80/TCP"], &[WEB, TEN]).service("shop/d", &["80/TCP"], &[WEB]);
    // The Service is refused, or in a file that is broken just now.
    let refused = newcomers(assigned.clone()).spec("shop/a", |spec| spec.ports = None);
    let mut unread = newcomers(assigned.clone().without("shop/a"));
    unread.objects.problems.push(vipmux_model::objects::Problem {
        file: "a.yaml".into(),
        document: Some(NonZeroUsize::MIN),
        line: None,
        field: String::new(),
        message: String::new(),
    });
    for (cluster, own) in [(refused, "shop/a:InvalidService "), (unread, "")] {
        let cluster = cluster.assigned();
        assert_eq!(cluster.outcome(), format!("{own}shop/b=10 shop/c:PortConflict shop/d=11"));
        assert_eq!(cluster.message("shop/c"), "port 80/TCP on 192.0.2.10 is held by shop/a");
        assert_eq!(cluster.allocate().as_previous(), cluster.previous);
        let mut back = cluster.service("shop/a", &["80/TCP"], &[WEB]);
        back.objects.problems.clear();
        assert_eq!(back.outcome(), "shop/a=10 shop/b=10 shop/c:PortConflict shop/d=11");
    }
    let deleted = newcomers(assigned.without("shop/a"));
    assert_eq!(deleted.outcome(), "shop/b=10 shop/c=10 shop/d=11");
}

#[test]
fn a_service_that_is_no_load_balancer_any_more_gives_its_address_back() {
    let cluster = lan().service("shop/a", &["80/TCP"], &[]).assigned();
    let cluster = cluster.spec("shop/a", |spec| spec.type_ = Some("ClusterIP".to_owned()));
    assert_eq!(cluster.service("shop/b", &["80/TCP"], &[]).outcome(), "shop/b=10");
}
