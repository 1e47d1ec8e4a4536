//! Checks before the cut-over that nobody else announces or assigns addresses.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    commands::{Commands, uses_cilium},
    lan::LanAnswer,
    live::LiveCluster,
    programs::{Program, ProgramPod},
    snapshot::Snapshot,
    webhooks::Backend,
};
use vipmux_model::{Vip, objects::Objects};
use vipmux_preflight::findings::Finding;

/// The most items that a finding names.
const SHOWN: usize = 5;

/// The answers of the LAN, by address.
pub type LanAnswers = BTreeMap<Vip, LanAnswer>;

/// Returns the findings. `written`: the objects of pools.yaml.
pub fn assess(
    before: &Snapshot,
    written: &Objects,
    cluster: &LiveCluster,
    lan: &LanAnswers,
    folder: &str,
) -> Vec<Finding> {
    let commands = Commands::of(cluster, folder);
    let mut found = vec![services(before, cluster, folder), pools(written, cluster, folder)];
    found.push(programs(cluster, &commands, true));
    found.push(programs(cluster, &commands, false));
    found.extend(webhooks(cluster));
    found.extend(silence(lan));
    found
}

fn services(before: &Snapshot, cluster: &LiveCluster, folder: &str) -> Finding {
    let now = Snapshot::of(&cluster.services, before.taken);
    let (then, now) = (before.by_name(), now.by_name());
    let names: BTreeSet<_> = then.keys().chain(now.keys()).collect();
    let held = |records: &BTreeMap<_, &super::snapshot::ServiceRecord>, name| {
        records.get(name).map(|record| (record.addresses.clone(), record.ports.clone()))
    };
    let changed: Vec<_> = names.into_iter().filter(|name| held(&then, name) != held(&now, name)).collect();
    if changed.is_empty() {
        return Finding::pass("services", format!("all {} are as planned at {}", then.len(), before.taken));
    }
    Finding::fail(
        "services",
        format!("changed since the plan was made at {}: {}", before.taken, some(&changed)),
        format!("plan again: `vipmux migrate plan` into another folder than {folder}"),
    )
}

fn pools(written: &Objects, cluster: &LiveCluster, folder: &str) -> Finding {
    const CHECK: &str = "pools";
    let there = &cluster.objects;
    let mut missing = Vec::new();
    for (name, pool) in &written.vip_pools {
        if there.vip_pools.get(name).is_none_or(|there| there.spec != pool.spec) {
            missing.push(format!("VipPool {name}"));
        }
    }
    for (name, policy) in &written.vip_policies {
        if there.vip_policies.get(name).is_none_or(|there| there.spec != policy.spec) {
            missing.push(format!("VipPolicy {name}"));
        }
    }
    if missing.is_empty() {
        let all = written.vip_pools.len() + written.vip_policies.len();
        return Finding::pass(CHECK, format!("the cluster has all {all} pools and policies of {folder}/pools.yaml"));
    }
    let remedy = format!("`kubectl apply -k deploy/crds`, then `kubectl apply -f {folder}/pools.yaml`");
    Finding::fail(CHECK, format!("missing or different in the cluster: {}", some(&missing)), remedy)
}

/// Checks that no program runs that announces, or assigns, addresses.
pub(super) fn programs(cluster: &LiveCluster, commands: &Commands, announce: bool) -> Finding {
    let check = if announce { "speakers" } else { "assigners" };
    let counts = |pod: &&ProgramPod| match pod.program {
        // It assigns addresses only while there are pools.
        Program::CiliumOperator => !announce && !cluster.foreign.cilium_pools.is_empty(),
        program => program.announces() == announce,
    };
    let pod = |pod: &ProgramPod| match pod.node.as_str() {
        "" => pod.name.clone(),
        node => format!("{} on {node}", pod.name),
    };
    let mut found: Vec<_> = cluster.pods.iter().filter(counts).map(pod).collect();
    if announce && uses_cilium(cluster) {
        let policies = cluster.foreign.cilium_policies.iter().filter_map(|value| value["metadata"]["name"].as_str());
        found.extend(policies.map(|name| format!("CiliumL2AnnouncementPolicy {name}")));
    }
    match (found.is_empty(), announce) {
        (true, true) => Finding::pass(check, "no other load balancer announces addresses"),
        (true, false) => Finding::pass(check, "no other load balancer assigns addresses"),
        (false, true) => Finding::fail(check, format!("announce addresses: {}", some(&found)), commands.remedy(true)),
        (false, false) => Finding::fail(check, format!("assign addresses: {}", some(&found)), commands.remedy(false)),
    }
}

/// Checks that no webhook without a program behind it refuses writes.
pub(super) fn webhooks(cluster: &LiveCluster) -> Vec<Finding> {
    const CHECK: &str = "webhooks";
    let gone = cluster.webhooks.iter().filter(|webhook| webhook.backend == Backend::Gone);
    let mut by_configuration: BTreeMap<_, (BTreeSet<_>, bool, String)> = BTreeMap::new();
    for webhook in gone {
        let entry = by_configuration.entry(&webhook.configuration).or_default();
        entry.0.extend(&webhook.resources);
        entry.1 |= webhook.blocks_vipmux;
        entry.2 = webhook.removal();
    }
    let finding = |(name, (resources, blocks, removal)): (&String, (BTreeSet<&str>, bool, String))| {
        let found = format!("nobody answers {name}, so it refuses writes of {}", some(&resources));
        let remedy = format!("`{removal}`, or start the program behind it");
        let finding = if blocks { Finding::fail(CHECK, found, remedy) } else { Finding::warn(CHECK, found, remedy) };
        finding.about(name)
    };
    let found: Vec<_> = by_configuration.into_iter().map(finding).collect();
    if found.is_empty() { vec![Finding::pass(CHECK, "none refuses writes for want of an answer")] } else { found }
}

/// Checks that nobody answers for the addresses.
fn silence(lan: &LanAnswers) -> Vec<Finding> {
    const CHECK: &str = "lan";
    let mut found = Vec::new();
    let mut silent = 0;
    for (vip, answer) in lan {
        match answer {
            LanAnswer::Macs(macs) if macs.is_empty() => silent += 1,
            LanAnswer::Macs(macs) => {
                let remedy = "find the machine by its MAC, and stop what answers there (`ip address`, the speaker)";
                found.push(Finding::fail(CHECK, format!("{} answers", some(macs)), remedy).about(vip.to_string()));
            }
            _ => found.extend(unasked(*vip, answer)),
        }
    }
    if silent > 0 {
        found.insert(0, Finding::pass(CHECK, format!("nobody answers for {silent} of {} addresses", lan.len())));
    }
    group(found)
}

/// Returns the finding about an address that was not asked for.
pub(super) fn unasked(vip: Vip, answer: &LanAnswer) -> Option<Finding> {
    const CHECK: &str = "lan";
    let finding = match answer {
        LanAnswer::Macs(_) => return None,
        LanAnswer::Here(interface) => Finding::fail(
            CHECK,
            format!("this machine has the address on {interface}"),
            format!("`ip address del {vip} dev {interface}`, and stop the software that put it there"),
        ),
        LanAnswer::Elsewhere => Finding::warn(
            CHECK,
            "not asked: this machine is not on its segment",
            "run this command as root on a machine of the segment, or name its interface by --interface",
        ),
        LanAnswer::Failed(why) => {
            Finding::warn(CHECK, format!("not asked: {why}"), "run this command as root, or with CAP_NET_RAW")
        }
    };
    Some(finding.about(vip.to_string()))
}

/// Returns one finding for all that differ only in the address.
pub(super) fn group(findings: Vec<Finding>) -> Vec<Finding> {
    let mut grouped: Vec<(Finding, Vec<String>)> = Vec::new();
    for finding in findings {
        let of_same = |(other, _): &&mut (Finding, Vec<String>)| {
            (other.status, &other.found, &other.remedy) == (finding.status, &finding.found, &finding.remedy)
        };
        if let Some((_, subjects)) = grouped.iter_mut().find(of_same) {
            subjects.extend(finding.subject);
        } else {
            let subjects = finding.subject.iter().cloned().collect();
            grouped.push((finding, subjects));
        }
    }
    let one = |(finding, subjects): (Finding, Vec<String>)| {
        if subjects.is_empty() { finding } else { finding.about(some(&subjects)) }
    };
    grouped.into_iter().map(one).collect()
}

/// Returns the first items as text, and how many more there are.
pub(super) fn some<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<_> = items.into_iter().map(|item| item.to_string()).collect();
    let more = items.len().saturating_sub(SHOWN);
    let shown = items[..items.len() - more].join(", ");
    if more > 0 { format!("{shown} and {more} more") } else { shown }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;
    use vipmux_common::abi::Mac;

    use super::*;
    use crate::{convert::Converted, fixture::service, webhooks::Webhook};
    use vipmux_preflight::findings::CheckStatus;
    use vipmux_testing::{names::vip, object};

    const FOLDER: &str = "out";

    /// A cluster after MetalLB was stopped, its record, and the pools that were written.
    fn stopped() -> (Snapshot, Objects, LiveCluster) {
        let mut cluster =
            LiveCluster { services: vec![service("shop/web", "192.0.2.10", "controller")], ..LiveCluster::default() };
        let pool = json!({"metadata": {"name": "lan"}, "spec": {"addresses": ["192.0.2.10-192.0.2.12"]}});
        cluster.objects.address_pools.insert("lan".to_owned(), object(pool));
        let written = Converted::of(&cluster.objects, &cluster.foreign).replaced_in(&Objects::default());
        cluster.objects.vip_pools = written.vip_pools.clone();
        (Snapshot::of(&cluster.services, Timestamp::UNIX_EPOCH), written, cluster)
    }

    fn statuses(found: &[Finding]) -> Vec<(&str, CheckStatus)> {
        found.iter().map(|finding| (finding.check, finding.status)).collect()
    }

    fn nobody() -> LanAnswers {
        [(vip("192.0.2.10"), LanAnswer::Macs(BTreeSet::new()))].into()
    }

    #[test]
    fn all_is_ready_when_the_old_system_is_silent() {
        let (before, written, cluster) = stopped();
        let found = assess(&before, &written, &cluster, &nobody(), FOLDER);
        let checks = ["services", "pools", "speakers", "assigners", "webhooks", "lan"];
        assert_eq!(statuses(&found), checks.map(|check| (check, CheckStatus::Pass)), "{found:#?}");
    }

    #[test]
    fn each_obstacle_fails_with_its_remedy() {
        let (before, written, mut cluster) = stopped();
        let pod = |program, name: &str| ProgramPod {
            program,
            name: format!("metallb-system/{name}"),
            node: "n1".to_owned(),
            is_static: false,
        };
        cluster.pods = vec![pod(Program::MetalLbSpeaker, "speaker-x"), pod(Program::MetalLbController, "controller-y")];
        cluster.objects.vip_pools.clear();
        cluster.services.push(service("shop/new", "192.0.2.11", "controller"));
        cluster.webhooks = vec![Webhook {
            kind: "validatingwebhookconfiguration",
            configuration: "hook".to_owned(),
            service: "a/b".to_owned(),
            resources: vec!["services"],
            blocks_vipmux: true,
            backend: Backend::Gone,
        }];
        let mac = Mac::new([2, 0, 0, 0, 0, 7]);
        let lan = [(vip("192.0.2.10"), LanAnswer::Macs([mac].into()))].into();
        let found = assess(&before, &written, &cluster, &lan, FOLDER);
        let checks = ["services", "pools", "speakers", "assigners", "webhooks", "lan"];
        assert_eq!(statuses(&found), checks.map(|check| (check, CheckStatus::Fail)), "{found:#?}");
        assert!(found.iter().all(|finding| finding.remedy.is_some()));
        assert!(found[2].found.contains("metallb-system/speaker-x on n1"), "{}", found[2].found);
        assert_eq!(found[5].subject.as_deref(), Some("192.0.2.10"));
    }

    #[test]
    fn a_webhook_for_pools_of_others_is_only_a_warning() {
        let (.., mut cluster) = stopped();
        let webhook = |resource, backend| Webhook {
            kind: "validatingwebhookconfiguration",
            configuration: "metallb-webhook-configuration".to_owned(),
            service: "a/b".to_owned(),
            resources: vec![resource],
            blocks_vipmux: false,
            backend,
        };
        cluster.webhooks = vec![webhook("ipaddresspools", Backend::Gone), webhook("l2advertisements", Backend::Gone)];
        let found = webhooks(&cluster);
        assert_eq!(statuses(&found), [("webhooks", CheckStatus::Warn)]);
        assert!(found[0].found.ends_with("refuses writes of ipaddresspools, l2advertisements"), "{}", found[0].found);
        cluster.webhooks = vec![webhook("ipaddresspools", Backend::Ready)];
        assert_eq!(statuses(&webhooks(&cluster)), [("webhooks", CheckStatus::Pass)]);
    }

    #[test]
    fn addresses_that_were_not_asked_for_are_one_warning() {
        let lan = ["192.0.2.10", "192.0.2.11"].map(|address| (vip(address), LanAnswer::Elsewhere)).into();
        let found = silence(&lan);
        assert_eq!(statuses(&found), [("lan", CheckStatus::Warn)]);
        assert_eq!(found[0].subject.as_deref(), Some("192.0.2.10, 192.0.2.11"));
        let here = [(vip("192.0.2.10"), LanAnswer::Here("eth0".to_owned()))].into();
        assert_eq!(statuses(&silence(&here)), [("lan", CheckStatus::Fail)]);
    }

    #[test]
    fn long_lists_are_cut() {
        assert_eq!(some(1..=5), "1, 2, 3, 4, 5");
        assert_eq!(some(1..=7), "1, 2, 3, 4, 5 and 2 more");
    }
}
