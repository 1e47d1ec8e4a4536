//! Checks after the cut-over that everything is as before.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{api::core::v1::Service, apimachinery::pkg::apis::meta::v1::Condition};

use super::{
    commands::Commands,
    lan::LanAnswer,
    live::LiveCluster,
    plan::{finalizer_removal, has_finalizer, id},
    ready::{LanAnswers, group, programs, some, unasked, webhooks},
    snapshot::{ServiceRecord, Snapshot},
};
use vipmux_allocator::write_result::{FIELD_MANAGER, addresses_owner};
use vipmux_model::{
    IngestOptions, ServiceName, Vip,
    api::{ALLOCATED, ANNOUNCED, FOREIGN_STATUS},
    is_ours,
    published_status::PublishedStatus,
};
use vipmux_preflight::findings::Finding;

/// Returns the findings.
pub fn assess(
    before: &Snapshot,
    cluster: &LiveCluster,
    lan: &LanAnswers,
    options: &IngestOptions,
    folder: &str,
) -> Vec<Finding> {
    let services: BTreeMap<_, _> = cluster.services.iter().map(|service| (id(service), service)).collect();
    let held: BTreeMap<_, _> = before.by_name().into_iter().filter(|(_, it)| !it.addresses.is_empty()).collect();
    // Services of other classes stay with their controllers.
    let ours = |service: &&Service| is_ours(service, options);
    let kept: BTreeMap<_, _> =
        held.keys().filter_map(|name| Some((name, *services.get(name)?))).filter(|(_, it)| ours(it)).collect();
    let mut found = comings_and_goings(before, cluster, &held, &services);
    found.push(addresses(&held, &services));
    found.push(owners(&kept));
    found.push(announced(&kept));
    found.extend(answers(lan, &kept));
    found.push(programs(cluster, &Commands::of(cluster, folder), true));
    found.push(programs(cluster, &Commands::of(cluster, folder), false));
    found.extend(webhooks(cluster));
    found.push(finalizers(cluster));
    found
}

fn comings_and_goings(
    before: &Snapshot,
    cluster: &LiveCluster,
    held: &BTreeMap<ServiceName, &ServiceRecord>,
    services: &BTreeMap<ServiceName, &Service>,
) -> Vec<Finding> {
    const CHECK: &str = "services";
    let (then, now) = (before.by_name(), Snapshot::of(&cluster.services, before.taken));
    let gone: Vec<_> = held.keys().filter(|name| !services.contains_key(*name)).collect();
    let new: Vec<_> = now.services.iter().map(ServiceRecord::id).filter(|name| !then.contains_key(name)).collect();
    let mut found = Vec::new();
    if !gone.is_empty() {
        let remedy = "create them again if that was a mistake";
        found.push(Finding::warn(CHECK, format!("deleted since {}: {}", before.taken, some(&gone)), remedy));
    }
    if !new.is_empty() {
        found.push(Finding::pass(CHECK, format!("new since {}: {}", before.taken, some(&new))));
    }
    if found.is_empty() {
        found.push(Finding::pass(CHECK, format!("none came or went since {}", before.taken)));
    }
    found
}

/// Checks that each Service has the addresses that it had.
fn addresses(held: &BTreeMap<ServiceName, &ServiceRecord>, services: &BTreeMap<ServiceName, &Service>) -> Finding {
    const CHECK: &str = "addresses";
    let list = |addresses: &BTreeSet<Vip>| {
        let listed: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        if listed.is_empty() { "none".to_owned() } else { listed.join(",") }
    };
    let moved = held.iter().filter_map(|(name, record)| {
        let now = PublishedStatus::of(services.get(name)?).addresses;
        (now != record.addresses).then(|| format!("{name} had {} and has {}", list(&record.addresses), list(&now)))
    });
    let moved: Vec<_> = moved.collect();
    if moved.is_empty() {
        return Finding::pass(CHECK, format!("the addresses of all {} Services are as before", held.len()));
    }
    let remedy = "`kubectl describe service` says why (condition vipmux.io/Allocated); `vipmux.io/addresses` asks for \
                  the former address";
    Finding::fail(CHECK, some(&moved), remedy)
}

/// Checks that vipmux's allocator owns the addresses in the statuses.
fn owners(kept: &BTreeMap<&ServiceName, &Service>) -> Finding {
    const CHECK: &str = "status-owner";
    let undecided: Vec<_> = kept.iter().filter(|(_, service)| condition(service, ALLOCATED).is_none()).collect();
    if !undecided.is_empty() {
        let names = some(undecided.iter().map(|(name, _)| name));
        let remedy = "check that the allocator runs: `kubectl --namespace vipmux-system get pods`";
        return Finding::fail(CHECK, format!("the allocator has not seen {names}"), remedy);
    }
    let is_foreign = |service: &Service| {
        condition(service, ALLOCATED).is_some_and(|it| it.reason == FOREIGN_STATUS)
            || addresses_owner(service) != Some(FIELD_MANAGER)
    };
    let foreign = kept.iter().filter(|(_, service)| is_foreign(service));
    let foreign: Vec<_> =
        foreign.map(|(name, service)| format!("{name} ({})", addresses_owner(service).unwrap_or("nobody"))).collect();
    if foreign.is_empty() {
        return Finding::pass(CHECK, format!("{FIELD_MANAGER} owns the addresses in all {} statuses", kept.len()));
    }
    let remedy = "write `adopt: true` into vipmux's configuration (`vipmux allocator --adopt`) while no other \
                  controller runs";
    Finding::fail(CHECK, format!("others own the addresses in the statuses of {}", some(&foreign)), remedy)
}

/// Checks that each address has a leader.
fn announced(kept: &BTreeMap<&ServiceName, &Service>) -> Finding {
    const CHECK: &str = "announced";
    let silent = kept.iter().filter(|(_, service)| !is_announced(service)).map(|(name, service)| {
        let why = condition(service, ANNOUNCED).map_or("no condition", |condition| condition.reason.as_str());
        format!("{name} ({why})")
    });
    let silent: Vec<_> = silent.collect();
    if silent.is_empty() {
        return Finding::pass(CHECK, format!("the addresses of all {} Services have leaders", kept.len()));
    }
    Finding::fail(CHECK, format!("no node leads all addresses of {}", some(&silent)), "`vipmux explain NAMESPACE/NAME`")
}

/// Checks that one machine answers for each address.
fn answers(lan: &LanAnswers, kept: &BTreeMap<&ServiceName, &Service>) -> Vec<Finding> {
    const CHECK: &str = "lan";
    let led: BTreeSet<_> = kept
        .values()
        .filter(|service| is_announced(service))
        .flat_map(|service| PublishedStatus::of(service).addresses)
        .collect();
    let (mut found, mut answered) = (Vec::new(), 0);
    for (vip, answer) in lan {
        let finding = match answer {
            LanAnswer::Macs(macs) if macs.len() == 1 => {
                answered += 1;
                continue;
            }
            LanAnswer::Macs(macs) if macs.is_empty() && led.contains(vip) => Finding::warn(
                CHECK,
                "nobody answers this machine, and the cluster says that a node leads the address",
                "ask from another machine of the segment: a leader does not hear its own answer",
            ),
            LanAnswer::Macs(macs) if macs.is_empty() => {
                Finding::fail(CHECK, "nobody answers", format!("`vipmux explain {vip}` on a node"))
            }
            LanAnswer::Macs(macs) => {
                let found = format!("more than one machine answers: {}", some(macs));
                Finding::fail(
                    CHECK,
                    found,
                    "find the machine that is no leader by its MAC, and stop what answers there",
                )
            }
            _ => {
                found.extend(unasked(*vip, answer));
                continue;
            }
        };
        found.push(finding.about(vip.to_string()));
    }
    if answered > 0 {
        let summary = format!("one machine answers for {answered} of {} addresses", lan.len());
        found.insert(0, Finding::pass(CHECK, summary));
    }
    group(found)
}

/// Checks that no Service waits for a cloud provider that is gone.
fn finalizers(cluster: &LiveCluster) -> Finding {
    const CHECK: &str = "finalizers";
    let waiting: Vec<_> = cluster.services.iter().filter(|service| has_finalizer(service)).collect();
    let Some(first) = waiting.first() else {
        return Finding::pass(CHECK, "no Service waits for a cloud provider when it is deleted");
    };
    let names = some(waiting.iter().map(|service| id(service)));
    let found = format!("when they are deleted, these Services wait for the former cloud provider: {names}");
    Finding::warn(CHECK, found, format!("for each: `{}`", finalizer_removal(first)))
}

fn is_announced(service: &Service) -> bool {
    condition(service, ANNOUNCED).is_some_and(|condition| condition.status == "True")
}

fn condition<'a>(service: &'a Service, kind: &str) -> Option<&'a Condition> {
    service.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;
    use vipmux_common::abi::Mac;

    use super::*;
    use crate::fixture::service;
    use vipmux_preflight::findings::CheckStatus;
    use vipmux_testing::names::vip;

    /// A Service of vipmux with these reasons in its conditions.
    fn migrated(name: &str, address: &str, manager: &str, allocated: &str, announced: (&str, &str)) -> Service {
        let mut service = service(name, address, manager);
        let condition = |kind: &str, status: &str, reason: &str| -> Condition {
            serde_json::from_value(json!({"type": kind, "status": status, "reason": reason, "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}))
            .unwrap()
        };
        service.status.as_mut().unwrap().conditions =
            Some(vec![condition(ALLOCATED, "True", allocated), condition(ANNOUNCED, announced.0, announced.1)]);
        service
    }

    fn before() -> Snapshot {
        Snapshot::of(&[service("shop/web", "192.0.2.10", "controller")], Timestamp::UNIX_EPOCH)
    }

    fn found(services: Vec<Service>, macs: &[u8]) -> Vec<Finding> {
        let macs = macs.iter().map(|last| Mac::new([2, 0, 0, 0, 0, *last])).collect();
        let lan = [(vip("192.0.2.10"), LanAnswer::Macs(macs))].into();
        assess(&before(), &LiveCluster { services, ..LiveCluster::default() }, &lan, &IngestOptions::default(), "out")
    }

    fn failed(found: &[Finding]) -> Vec<&str> {
        found.iter().filter(|finding| finding.status == CheckStatus::Fail).map(|finding| finding.check).collect()
    }

    #[test]
    fn a_migrated_cluster_passes_all_checks() {
        let web = migrated("shop/web", "192.0.2.10", FIELD_MANAGER, "Allocated", ("True", "Led"));
        let found = found(vec![web], &[1]);
        assert!(found.iter().all(|finding| finding.status == CheckStatus::Pass), "{found:#?}");
    }

    #[test]
    fn another_address_another_owner_or_no_leader_fails() {
        let led = ("True", "Led");
        for (services, macs, expected) in [
            (vec![migrated("shop/web", "192.0.2.11", FIELD_MANAGER, "Allocated", led)], &[1][..], vec!["addresses"]),
            (vec![migrated("shop/web", "192.0.2.10", "kube-vip", FOREIGN_STATUS, led)], &[1], vec!["status-owner"]),
            (vec![service("shop/web", "192.0.2.10", "controller")], &[], vec!["status-owner", "announced", "lan"]),
            (
                vec![migrated("shop/web", "192.0.2.10", FIELD_MANAGER, "Shared", ("False", "NoLeader"))],
                &[1],
                vec!["announced"],
            ),
            (vec![migrated("shop/web", "192.0.2.10", FIELD_MANAGER, "Shared", led)], &[1, 2], vec!["lan"]),
            (vec![migrated("shop/web", "192.0.2.10", FIELD_MANAGER, "Shared", led)], &[], vec![]),
            (vec![], &[1], vec![]),
        ] {
            let found = found(services, macs);
            assert_eq!(failed(&found), expected, "{found:#?}");
            assert!(found.iter().all(|finding| (finding.status == CheckStatus::Pass) == finding.remedy.is_none()));
        }
    }

    #[test]
    fn services_that_came_or_went_are_named() {
        let new = migrated("shop/new", "192.0.2.12", FIELD_MANAGER, "Allocated", ("True", "Led"));
        let found = found(vec![new], &[1]);
        let texts: Vec<_> = found.iter().filter(|it| it.check == "services").map(|it| it.found.as_str()).collect();
        assert!(texts[0].starts_with("deleted since") && texts[0].ends_with("shop/web"), "{texts:?}");
        assert!(texts[1].ends_with("shop/new"), "{texts:?}");
    }
}
