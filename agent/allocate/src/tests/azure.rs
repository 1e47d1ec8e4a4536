//! Tests features and limits that users of Azure's cloud provider know.

use super::*;

const IPV4: &str = "service.beta.kubernetes.io/azure-load-balancer-ipv4";
const IPV6: &str = "service.beta.kubernetes.io/azure-load-balancer-ipv6";
const INTERNAL: (&str, &str) = ("service.beta.kubernetes.io/azure-load-balancer-internal", "true");
const SUBNET: &str = "service.beta.kubernetes.io/azure-load-balancer-internal-subnet";
const PREFIX: &str = "service.beta.kubernetes.io/azure-pip-prefix-id";
const GROUP: (&str, &str) = ("service.beta.kubernetes.io/azure-load-balancer-resource-group", "rg");
const ALL_PORTS: (&str, &str) =
    ("service.beta.kubernetes.io/azure-load-balancer-enable-high-availability-ports", "true");
const TAGS: &str = "service.beta.kubernetes.io/azure-allowed-service-tags";

/// Returns pools `lan` (192.0.2.10 to .12 and 2001:db8::10 to ::12), which assigns automatically,
/// `internal` (192.0.2.20 to .21) and `apps` (192.0.2.30).
fn cloud() -> Cluster {
    let pool = |addresses: &str| serde_json::json!({"addresses": [addresses], "autoAssign": false});
    Cluster::new(&["192.0.2.10-192.0.2.12", "2001:db8::10-2001:db8::12"])
        .pool("internal", &pool("192.0.2.20-192.0.2.21"))
        .pool("apps", &pool("192.0.2.30/32"))
}

fn at(address: &'static str) -> (&'static str, &'static str) {
    (IPV4, address)
}

#[test]
fn the_first_gets_its_address_from_the_pool_and_later_ones_name_it() {
    let cluster = cloud().service("a/x", &["80/TCP"], &[]).assigned();
    let cluster = cluster.service("a/y", &["443/TCP"], &[at("192.0.2.10")]);
    let cluster = cluster.service("a/z", &["53/UDP"], &[GROUP]);
    let cluster = cluster.spec("a/z", |spec| spec.load_balancer_ip = Some("192.0.2.10".to_owned()));
    assert_eq!(cluster.outcome(), "a/x=10 a/y=10 a/z=10");
    assert_eq!(cluster.message("a/y"), "192.0.2.10 from pool lan, shared with a/x, a/z");
    let cluster = cluster.assigned().service("a/v", &["80/TCP"], &[at("192.0.2.10")]);
    assert_eq!(cluster.outcome(), "a/v:PortConflict a/x=10 a/y=10 a/z=10");
    assert_eq!(cluster.message("a/v"), "port 80/TCP on 192.0.2.10 is held by a/x");
}

#[test]
fn services_of_other_namespaces_share_where_each_names_the_address() {
    let cluster = cloud().service("a/x", &["80/TCP"], &[]).assigned();
    let other = cluster.clone().service("b/x", &["443/TCP"], &[at("192.0.2.10")]);
    assert_eq!(other.outcome(), "a/x=10 b/x:SharingMismatch", "the first one did not ask to share");
    let by_pool = other.sharing("lan", PoolSharing::ByAddress, OnConflict::Spill);
    assert_eq!(by_pool.outcome(), "a/x=10 b/x=10");
    let both = cluster.service("a/x", &["80/TCP"], &[at("192.0.2.10")]).assigned();
    assert_eq!(both.service("b/x", &["443/TCP"], &[at("192.0.2.10")]).outcome(), "a/x=10 b/x=10");
}

#[test]
fn a_service_that_names_no_address_shares_none() {
    let cluster = cloud().service("a/x", &["80/TCP"], &[GROUP]).service("b/x", &["443/TCP"], &[GROUP]);
    assert_eq!(cluster.outcome(), "a/x=10 b/x=11");
}

#[test]
fn an_address_of_each_family() {
    let both = [at("192.0.2.11"), (IPV6, "2001:db8::11")];
    let cluster = cloud().service("a/x", &["80/TCP"], &both).service("b/x", &["81/TCP"], &both);
    let cluster = cluster.service("c/x", &["80/TCP"], &[(IPV6, "2001:db8::12")]);
    assert_eq!(cluster.outcome(), "a/x=11,::11 b/x=11,::11 c/x=::12");
}

#[test]
fn an_address_in_no_pool_is_an_error() {
    let cluster = cloud().service("a/x", &["80/TCP"], &[at("203.0.113.1")]);
    assert_eq!(cluster.outcome(), "a/x:AddressNotInPool");
}

#[test]
fn an_internal_one_is_of_the_pool_of_its_subnet() {
    let cluster = cloud()
        .service("a/x", &["80/TCP"], &[INTERNAL])
        .service("a/y", &["80/TCP"], &[INTERNAL, (SUBNET, "Apps")])
        .service("a/z", &["80/TCP"], &[(SUBNET, "apps")])
        .service("b/x", &["443/TCP"], &[INTERNAL, at("192.0.2.20")])
        .service("b/y", &["443/TCP"], &[INTERNAL, at("192.0.2.10")])
        .service("b/z", &["80/TCP"], &[INTERNAL, (SUBNET, "db")])
        .service("c/x", &["80/TCP"], &[(PREFIX, "/subscriptions/s/publicIPPrefixes/apps")])
        .service("c/y", &["80/TCP"], &[INTERNAL, (PREFIX, "/subscriptions/s/publicIPPrefixes/apps")]);
    let outcome = "a/x=21 a/y=30 a/z=10 b/x=20 b/y:AddressNotInPool b/z:NoPool c/x:PoolExhausted c/y:AmbiguousRequest";
    assert_eq!(cluster.outcome(), outcome);
}

#[test]
fn one_that_becomes_internal_leaves_its_public_address() {
    for named in [&[][..], &[at("192.0.2.10")]] {
        let public = cloud().service("a/x", &["80/TCP"], named).assigned();
        let internal = public.clone().service("a/x", &["80/TCP"], &[named, &[INTERNAL]].concat());
        let expected = if named.is_empty() { "a/x=20" } else { "a/x:AddressNotInPool" };
        assert_eq!(internal.outcome(), expected);
        let restarted = Cluster { previous: PreviousAssignments::new(), ..public.published() };
        let object = restarted.objects.services[&service_name("a/x")].status.clone();
        let mut restarted = restarted.service("a/x", &["80/TCP"], &[named, &[INTERNAL]].concat());
        restarted.object("a/x").status = object;
        assert_eq!(restarted.restarted().outcome(), expected);
    }
    let public = cloud().service("a/x", &["80/TCP"], &[at("192.0.2.10")]).assigned();
    let internal = public.service("a/x", &["80/TCP"], &[at("192.0.2.20"), INTERNAL]);
    assert_eq!(internal.outcome(), "a/x=20");
}

#[test]
fn high_availability_ports_are_refused_where_anyone_holds_a_claim() {
    let cluster = cloud().service("a/x", &["80/TCP"], &[at("192.0.2.10")]).assigned();
    let cluster = cluster.service("b/x", &["443/TCP"], &[at("192.0.2.10"), ALL_PORTS]);
    let cluster = cluster.service("c/x", &["443/TCP"], &[at("192.0.2.11"), ALL_PORTS]);
    assert_eq!(cluster.outcome(), "a/x=10 b/x:PortConflict c/x=11");
    assert_eq!(cluster.message("b/x"), "port 80/TCP on 192.0.2.10 is held by a/x");
    let cluster = cluster.assigned().service("d/x", &["53/UDP"], &[at("192.0.2.11")]);
    assert_eq!(cluster.message("d/x"), "every TCP port on 192.0.2.11 is held by c/x");
    let cluster = cluster.without("a/x");
    assert_eq!(cluster.outcome(), "b/x=10 c/x=11 d/x:PortConflict", "it gets them once nobody else is there");
}

#[test]
fn a_port_without_a_rule_claims_nothing() {
    let status = ("service.beta.kubernetes.io/port_15021_no_lb_rule", "true");
    let cluster = cloud()
        .service("a/x", &["80/TCP", "15021/TCP"], &[at("192.0.2.10"), status])
        .service("b/x", &["443/TCP", "15021/TCP"], &[at("192.0.2.10"), status])
        .assigned();
    assert_eq!(cluster.outcome(), "a/x=10 b/x=10");
    let claims: Vec<_> = cluster.allocate().claims().into_keys().map(|claim| claim.to_string()).collect();
    assert_eq!(claims, ["port 80/TCP on 192.0.2.10", "port 443/TCP on 192.0.2.10"]);
    let cluster = cluster.service("b/x", &["443/TCP", "15021/TCP"], &[at("192.0.2.10")]).assigned();
    let cluster = cluster.service("a/x", &["80/TCP", "15021/TCP"], &[at("192.0.2.10")]);
    assert_eq!(cluster.outcome(), "a/x:PortConflict b/x=10", "one that comes to expose it is placed anew");
}

#[test]
fn clients_whose_restriction_is_not_understood_are_refused() {
    let assigned = cloud().service("a/x", &["80/TCP"], &[at("192.0.2.10")]).assigned();
    let cluster = assigned.service("a/x", &["80/TCP"], &[at("192.0.2.10"), (TAGS, "AzureCloud")]);
    assert_eq!(cluster.outcome(), "a/x:InvalidAnnotation");
    assert_eq!((cluster.allocate().claims(), cluster.allocate().withheld.len()), (BTreeMap::new(), 1));
}

#[test]
fn a_probe_that_cannot_be_read_costs_nobody_an_address() {
    let assigned = cloud().service("a/x", &["80/TCP"], &[at("192.0.2.10")]).assigned();
    let slip = ("service.beta.kubernetes.io/azure-load-balancer-health-probe-interval", "4");
    let cluster = assigned.service("a/x", &["80/TCP"], &[at("192.0.2.10"), slip]);
    let cluster = cluster.service("b/x", &["80/TCP"], &[at("192.0.2.11"), slip]);
    assert_eq!(cluster.outcome(), "a/x=10 b/x:InvalidAnnotation");
    assert!(cluster.warnings("a/x")[0].ends_with("it keeps what it holds until that is fixed"));
}

#[test]
fn an_address_or_a_pool_is_found_by_the_names_that_a_vip_pool_gives() {
    const NAME: &str = "service.beta.kubernetes.io/azure-pip-name";
    let front = serde_json::json!({
        "addresses": ["192.0.2.50-192.0.2.51"], "autoAssign": false,
        "aliases": ["front-prefix"], "addressNames": {"shop-ip": "192.0.2.51"},
    });
    let cluster = cloud()
        .vip_pool("front", &front)
        .service("a/x", &["80/TCP"], &[(NAME, "shop-ip")])
        .service("a/y", &["443/TCP"], &[(NAME, "shop-ip")])
        .service("b/x", &["53/UDP"], &[at("192.0.2.51"), (NAME, "shop-ip")])
        .service("b/y", &["80/TCP"], &[(NAME, "blog-ip")])
        .service("c/x", &["80/TCP"], &[(PREFIX, "/subscriptions/s/publicIPPrefixes/Front_Prefix")]);
    assert_eq!(cluster.outcome(), "a/x=51 a/y=51 b/x=51 b/y:AddressNotInPool c/x=50");
    assert!(cluster.message("b/y").starts_with("no address is called \"blog-ip\" (known: shop-ip)"));
}

#[test]
fn a_second_label_on_an_address_is_an_error_and_the_first_stays() {
    const LABEL: &str = "service.beta.kubernetes.io/azure-dns-label-name";
    let cluster = cloud()
        .service("a/x", &["80/TCP"], &[at("192.0.2.10"), (LABEL, "shop")])
        .service("a/y", &["81/TCP"], &[at("192.0.2.10"), (LABEL, "shop")])
        .service("a/z", &["82/TCP"], &[at("192.0.2.10")])
        .assigned();
    let cluster = cluster.service("0/x", &["83/TCP"], &[at("192.0.2.10"), (LABEL, "blog")]).assigned();
    assert_eq!(cluster.outcome(), "0/x:LabelConflict a/x=10 a/y=10 a/z=10");
    let message = "the label of 192.0.2.10 is \"shop\", set by a/x, so it cannot also be \"blog\"";
    assert_eq!(cluster.message("0/x"), message);
    let cluster = cluster.without("a/x").assigned();
    assert_eq!(cluster.outcome(), "0/x:LabelConflict a/y=10 a/z=10");
    assert_eq!(cluster.without("a/y").outcome(), "0/x=10 a/z=10");
}

#[test]
fn additional_addresses_are_given_beside_the_services_own() {
    let more = ("service.beta.kubernetes.io/azure-additional-public-ips", "192.0.2.12,192.0.2.20");
    let cluster = cloud().service("a/x", &["80/TCP"], &[more]).service("b/x", &["443/TCP"], &[at("192.0.2.12")]);
    assert_eq!(cluster.outcome(), "a/x=10,12,20 b/x=12");
    assert_eq!(cluster.allocate().claims().len(), 4);
    let taken =
        cloud().service("b/x", &["80/TCP"], &[at("192.0.2.12")]).assigned().service("a/x", &["80/TCP"], &[more]);
    assert_eq!(taken.outcome(), "a/x:PortConflict b/x=12");
}

#[test]
fn a_mode_chooses_the_pool_with_the_fewest_claims_when_the_address_is_given() {
    let auto = ("service.beta.kubernetes.io/azure-load-balancer-mode", "__auto__");
    let cluster = cloud()
        .pool("more", &serde_json::json!({"addresses": ["192.0.2.40-192.0.2.41"]}))
        .service("a/x", &["80/TCP", "443/TCP"], &[auto])
        .service("a/y", &["80/TCP"], &[auto])
        .assigned();
    assert_eq!(cluster.outcome(), "a/x=10 a/y=40");
    assert_eq!(cluster.without("a/x").outcome(), "a/y=40");
}
