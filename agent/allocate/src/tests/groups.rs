//! Tests settings that all members of a group must agree on.

use super::*;

const GOLD: &[(&str, &str)] = &[("setting", "gold")];
const SILVER: &[(&str, &str)] = &[("setting", "silver")];
const NOTHING: &[(&str, &str)] = &[];

type Settings = &'static [(&'static str, &'static str)];

/// Adds a Service with these settings, on this port, in a dialect in which a group has only one
/// address.
fn member(cluster: Cluster, service: &str, port: &str, alike: Settings) -> Cluster {
    let wishes = Wishes { alike, never_spills: true, ..Wishes::default() };
    cluster.service(service, &[port], &[WEB]).wishing(service, wishes)
}

fn all(members: &[(&str, &str, Settings)]) -> Cluster {
    members.iter().fold(lan(), |cluster, (service, port, alike)| member(cluster, service, port, alike))
}

#[test]
fn new_members_that_differ_are_all_refused_and_each_message_names_the_others() {
    for (members, outcome) in [
        (&[("shop/a", "80/TCP", GOLD), ("shop/b", "81/TCP", GOLD)][..], "shop/a=10 shop/b=10"),
        (&[("shop/a", "80/TCP", GOLD), ("shop/b", "81/TCP", SILVER)], "shop/a:GroupMismatch shop/b:GroupMismatch"),
        (&[("shop/a", "80/TCP", GOLD), ("shop/b", "81/TCP", NOTHING)], "shop/a:GroupMismatch shop/b:GroupMismatch"),
        (
            &[("shop/a", "80/TCP", GOLD), ("shop/b", "81/TCP", GOLD), ("shop/c", "82/TCP", SILVER)],
            "shop/a:GroupMismatch shop/b:GroupMismatch shop/c:GroupMismatch",
        ),
        // The key stays in its namespace.
        (&[("shop/a", "80/TCP", GOLD), ("team/b", "81/TCP", SILVER)], "shop/a=10 team/b=11"),
    ] {
        assert_eq!(all(members).outcome(), outcome);
    }
    let two = all(&[("shop/a", "80/TCP", GOLD), ("shop/b", "81/TCP", NOTHING)]);
    assert_eq!(
        two.message("shop/a"),
        "setting is \"gold\" here and not set on shop/b, and must be the same with the sharing key \"web\" of vipmux; \
         none of them is served until it is"
    );
    assert!(two.message("shop/b").starts_with("setting is not set here and \"gold\" on shop/a"));
    let assigned = two.assigned();
    assert_eq!(assigned.outcome(), "shop/a:GroupMismatch shop/b:GroupMismatch");
    assert_eq!(member(assigned, "shop/b", "81/TCP", GOLD).outcome(), "shop/a=10 shop/b=10", "fixed");
}

#[test]
fn a_newcomer_that_differs_from_a_holder_is_refused_and_one_that_agrees_is_not() {
    let assigned = all(&[("shop/m", "80/TCP", GOLD)]).assigned();
    let cluster =
        member(member(assigned, "shop/a", "81/TCP", SILVER).created("shop/a", 2001), "shop/z", "82/TCP", GOLD);
    assert_eq!(cluster.outcome(), "shop/a:GroupMismatch shop/m=10 shop/z=10");
    assert_eq!(
        cluster.message("shop/a"),
        "setting is \"silver\" here and \"gold\" on shop/m, and must be the same with the sharing key \"web\" of vipmux; \
         that one holds its address already"
    );
    let cluster = cluster.assigned().without("shop/m").without("shop/z");
    assert_eq!(cluster.outcome(), "shop/a=10", "those who held something are gone");
}

#[test]
fn a_holder_that_comes_to_differ_keeps_its_address_and_both_get_a_message() {
    let assigned = all(&[("shop/a", "80/TCP", GOLD), ("shop/b", "81/TCP", GOLD)]).assigned();
    let cluster = member(assigned, "shop/a", "80/TCP", SILVER).assigned();
    assert_eq!(cluster.outcome(), "shop/a=10 shop/b=10");
    assert_eq!(
        cluster.warnings("shop/b"),
        [
            "setting is \"gold\" here and \"silver\" on shop/a, and must be the same with the sharing key \"web\" of vipmux; \
          both keep what they hold, and others who differ get nothing"
        ]
    );
    assert_eq!(cluster.warnings("shop/a").len(), 1);
    for alike in [GOLD, SILVER] {
        let newcomer = member(cluster.clone(), "shop/c", "82/TCP", alike);
        assert_eq!(newcomer.outcome(), "shop/a=10 shop/b=10 shop/c:GroupMismatch", "it differs from one of them");
    }
    let agreed = member(cluster, "shop/b", "81/TCP", SILVER);
    assert_eq!(agreed.warnings("shop/a"), Vec::<String>::new());
}

#[test]
fn one_that_comes_to_a_group_by_its_key_is_a_newcomer_there() {
    let assigned = all(&[("shop/a", "80/TCP", GOLD)]).service("shop/b", &["81/TCP"], &[API]).assigned();
    assert_eq!(assigned.outcome(), "shop/a=10 shop/b=11");
    assert_eq!(member(assigned.clone(), "shop/b", "81/TCP", SILVER).outcome(), "shop/a=10 shop/b:GroupMismatch");
    assert_eq!(member(assigned, "shop/b", "81/TCP", GOLD).outcome(), "shop/a=10 shop/b=10");
}

#[test]
fn one_that_cannot_be_understood_says_what_it_said() {
    let assigned = all(&[("shop/a", "80/TCP", GOLD)]).assigned();
    let slip = assigned.service("shop/a", &["80/TCP"], &[WEB, ("vipmux.io/addresses", "x")]).assigned();
    assert_eq!(member(slip.clone(), "shop/b", "81/TCP", SILVER).outcome(), "shop/a=10 shop/b:GroupMismatch");
    assert_eq!(member(slip, "shop/b", "81/TCP", GOLD).outcome(), "shop/a=10 shop/b=10");
}

#[test]
fn a_key_that_never_spills_lets_the_loser_wait_in_both_families() {
    let both = |spec: &mut k8s_openapi::api::core::v1::ServiceSpec| {
        spec.ip_family_policy = Some("RequireDualStack".to_owned());
    };
    let pools = Cluster::new(&["192.0.2.10-192.0.2.12", "2001:db8::10-2001:db8::12"]);
    let cluster = member(pools, "shop/a", "80/TCP", GOLD).spec("shop/a", both);
    let cluster = member(cluster, "shop/b", "80/TCP", GOLD).spec("shop/b", both);
    let cluster = member(cluster, "shop/c", "81/TCP", GOLD).spec("shop/c", both).assigned();
    assert_eq!(cluster.outcome(), "shop/a=10,::10 shop/b:PortConflict shop/c=10,::10");
    // By rule 9 it is placed anew, and waits, though it holds an address of its own.
    let own = cluster.service("shop/d", &["80/TCP"], &[API]).assigned();
    assert_eq!(own.outcome(), "shop/a=10,::10 shop/b:PortConflict shop/c=10,::10 shop/d=11");
    let joins = member(own, "shop/d", "80/TCP", GOLD);
    assert_eq!(joins.outcome(), "shop/a=10,::10 shop/b:PortConflict shop/c=10,::10 shop/d:PortConflict");
}
