//! Plans a migration: who would have which address with vipmux, what changes, and by which commands.

#![cfg_attr(not(test), deny(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types))]

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
};

use k8s_openapi::api::core::v1::Service;
use serde::Serialize;

use super::{
    commands::{Commands, systems, uses_cilium},
    convert::{Converted, name},
    live::LiveCluster,
    programs::{Program, Workload},
    snapshot::Snapshot,
    webhooks::Webhook,
};
use vipmux_allocate::{Allocation, allocate, lost_addresses, previous::with_statuses};
use vipmux_allocator::write_result::FIELD_MANAGER;
use vipmux_inspect::output::{
    Report,
    table::{Cell, Color, Table, Tone},
};
use vipmux_model::{
    IngestOptions, Model, ServiceName, Vip,
    port::{self, Port},
    reason::Note,
};

/// The finalizer of cloud providers. Whoever adds it must also remove it from a deleted Service
/// (<https://kubernetes.io/docs/tasks/access-application-cluster/create-external-load-balancer/#garbage-collecting-load-balancers>).
const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";

/// A plan.
#[derive(Debug, Serialize)]
pub struct MigrationPlan {
    /// The systems that were found.
    systems: Vec<String>,
    /// The Services of type LoadBalancer.
    services: Vec<ServicePlan>,
    /// Objects that change, in order.
    changes: Vec<ObjectChange>,
    /// Settings without a counterpart, and what vipmux leaves out.
    notes: Vec<Note>,
    /// Objects that vipmux cannot use.
    problems: Vec<String>,
    /// The commands that stop the present systems.
    commands: Commands,
    /// The folder of the migration's files.
    folder: String,
}

/// A Service of type LoadBalancer.
#[derive(Debug, Serialize)]
struct ServicePlan {
    service: String,
    /// The addresses now.
    now: BTreeSet<Vip>,
    /// The addresses with vipmux.
    with_vipmux: BTreeSet<Vip>,
    ports: Vec<String>,
    /// The field manager that wrote the addresses.
    owner: Option<String>,
    /// It keeps its addresses.
    keeps: bool,
    message: String,
}

/// An object that changes.
#[derive(Debug, Serialize)]
struct ObjectChange {
    object: String,
    change: String,
}

impl MigrationPlan {
    /// Plans the migration of a cluster. `folder`: the folder of the migration's files.
    pub fn new(
        cluster: &LiveCluster,
        converted: &Converted,
        snapshot: &Snapshot,
        options: &IngestOptions,
        folder: &str,
    ) -> Self {
        let objects = converted.replaced_in(&cluster.objects);
        let model = Model::ingest(&objects, options);
        let allocation = allocate(&model, &with_statuses(BTreeMap::new(), &model));
        let lost = lost_addresses(&objects, &model, &allocation);
        let services = snapshot.services.iter().map(|record| {
            let id = record.id();
            let (with_vipmux, message) = outcome(&id, &model, &allocation);
            let lost = lost.get(&id).cloned().unwrap_or_default();
            let keeps = lost.is_empty() && (record.addresses.is_empty() || record.addresses == with_vipmux);
            let message = [vec![message], lost].concat().join("; ");
            ServicePlan {
                service: id.to_string(),
                now: record.addresses.clone(),
                keeps,
                with_vipmux,
                ports: record.ports.clone(),
                owner: record.owner.clone(),
                message,
            }
        });
        let commands = Commands::of(cluster, folder);
        Self {
            systems: systems(cluster).iter().map(ToString::to_string).collect(),
            services: services.collect(),
            changes: changes(cluster, converted, snapshot),
            notes: converted.notes.iter().chain(&model.notes).cloned().collect(),
            problems: objects.problems.iter().map(ToString::to_string).collect(),
            commands,
            folder: folder.to_owned(),
        }
    }

    /// Whether all Services keep their addresses.
    pub fn keeps_all(&self) -> bool {
        self.services.iter().all(|service| service.keeps)
    }

    fn service_table(&self) -> Table {
        let mut table = Table::new(&["SERVICE", "NOW", "WITH VIPMUX", "PORTS", "STATUS BY", "MESSAGE"]);
        for service in &self.services {
            let tone = if service.keeps { Tone::Good } else { Tone::Bad };
            let ports: Vec<Port> = service.ports.iter().filter_map(|port| port.parse().ok()).collect();
            table.row([
                Cell::from(&service.service),
                Cell::from(joined(&service.now)),
                Cell::toned(joined(&service.with_vipmux), tone),
                Cell::from(port::list(&ports)),
                Cell::from(service.owner.as_deref().unwrap_or_default()),
                Cell::from(&service.message),
            ]);
        }
        table
    }

    fn change_table(&self) -> Table {
        let mut table = Table::new(&["OBJECT", "CHANGE"]);
        for change in &self.changes {
            table.row([&change.object, &change.change]);
        }
        table
    }

    fn print_steps(&self, out: &mut impl Write) -> io::Result<()> {
        let folder = &self.folder;
        let steps = |out: &mut dyn Write, title: &str, lines: &[String]| {
            if lines.is_empty() {
                return Ok(());
            }
            writeln!(out, "\n{title}")?;
            lines.iter().try_for_each(|line| writeln!(out, "  {line}"))
        };
        steps(
            out,
            "Before the cut-over (nothing changes for clients):",
            &[
                "kubectl apply -k deploy/crds".to_owned(),
                format!("kubectl apply -f {folder}/pools.yaml"),
                "# write `adopt: true` into vipmux's configuration, and bring its image to each node (docs/migrating.md)"
                    .to_owned(),
            ],
        )?;
        steps(out, "The cut-over. First stop what assigns addresses (traffic goes on):", &self.commands.assigners)?;
        steps(out, "Then stop what announces them. From here on the addresses are away:", &self.commands.announcers)?;
        steps(
            out,
            "Start vipmux as soon as nobody announces them, and check the result:",
            &[
                format!("vipmux migrate ready {folder} --wait 2m && kubectl apply -k deploy/kustomize"),
                format!("vipmux migrate verify {folder} --wait 5m"),
            ],
        )?;
        steps(out, "To go back, uninstall vipmux (docs/install.md#uninstall), and then:", &self.commands.undo)
    }
}

/// Returns the addresses that a Service gets, and why.
fn outcome(name: &ServiceName, model: &Model, allocation: &Allocation) -> (BTreeSet<Vip>, String) {
    if let Some(given) = allocation.assignments.get(name) {
        let message = std::iter::once(&given.message).chain(&given.warnings).cloned().collect::<Vec<_>>();
        return (given.addresses.clone(), message.join("; "));
    }
    let refusal = allocation.refusals.get(name).or_else(|| model.ignored.get(name));
    let message = refusal.map(|refusal| format!("{}: {}", refusal.reason, refusal.message));
    (BTreeSet::new(), message.unwrap_or_default())
}

/// Returns everything that the migration changes, in its order.
fn changes(cluster: &LiveCluster, converted: &Converted, snapshot: &Snapshot) -> Vec<ObjectChange> {
    let workloads = cluster.workloads.iter().filter_map(|workload| {
        let change = workload_change(workload, uses_cilium(cluster))?;
        Some(ObjectChange::new(workload.to_string(), change))
    });
    let held = snapshot.services.iter().filter(|record| !record.addresses.is_empty());
    let foreign = held.filter(|record| record.owner.as_deref() != Some(FIELD_MANAGER));
    let services = foreign.map(|record| {
        let change = "the same addresses in its status, which vipmux-allocator owns then; conditions vipmux.io/...";
        ObjectChange::new(format!("Service {}", record.id()), change)
    });
    let webhooks = obstacles(&cluster.webhooks);
    let finalizers = cluster.services.iter().filter(|service| has_finalizer(service)).map(|service| {
        let change = format!("keeps the finalizer {FINALIZER}: see `vipmux migrate verify`");
        ObjectChange::new(format!("Service {}", id(service)), change)
    });
    let applied = applied(cluster, converted).into_iter();
    applied.chain(workloads).chain(deleted(cluster)).chain(services).chain(webhooks).chain(finalizers).collect()
}

/// Returns the pools and policies of pools.yaml.
fn applied(cluster: &LiveCluster, converted: &Converted) -> Vec<ObjectChange> {
    let change = |same: Option<bool>| match same {
        None => "is created, from pools.yaml",
        Some(true) => "stays as it is",
        Some(false) => "is replaced, from pools.yaml: it exists with another content",
    };
    let there = &cluster.objects;
    let pools = converted.pools.iter().map(|pool| {
        let name = name(&pool.metadata);
        let same = there.vip_pools.get(&name).map(|there| there.spec == pool.spec);
        ObjectChange::new(format!("VipPool {name}"), change(same))
    });
    let policies = converted.policies.iter().map(|policy| {
        let name = name(&policy.metadata);
        let same = there.vip_policies.get(&name).map(|there| there.spec == policy.spec);
        ObjectChange::new(format!("VipPolicy {name}"), change(same))
    });
    pools.chain(policies).collect()
}

fn workload_change(workload: &Workload, cilium: bool) -> Option<&'static str> {
    match workload.program {
        Program::CiliumOperator => cilium.then_some("is away for a moment, while the pools are deleted"),
        _ if workload.control_plane => Some("goes on for the control plane only"),
        _ => Some("is stopped, and stays"),
    }
}

/// Returns Cilium's pools and policies.
fn deleted(cluster: &LiveCluster) -> impl Iterator<Item = ObjectChange> {
    let kinds = [
        ("CiliumLoadBalancerIPPool", &cluster.foreign.cilium_pools),
        ("CiliumL2AnnouncementPolicy", &cluster.foreign.cilium_policies),
    ];
    kinds.into_iter().flat_map(|(kind, objects)| {
        objects.iter().map(move |object| {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            ObjectChange::new(format!("{kind} {name}"), "is saved to cilium.yaml and deleted")
        })
    })
}

impl ObjectChange {
    fn new(object: impl Into<String>, change: impl Into<String>) -> Self {
        Self { object: object.into(), change: change.into() }
    }
}

/// Returns the webhooks that refuse writes, one for each configuration and program.
fn obstacles(webhooks: &[Webhook]) -> Vec<ObjectChange> {
    let mut grouped: Vec<(&Webhook, BTreeSet<&str>)> = Vec::new();
    for webhook in webhooks {
        let of_same = |(other, _): &&mut (&Webhook, BTreeSet<&str>)| {
            (other.kind, &other.configuration, &other.service)
                == (webhook.kind, &webhook.configuration, &webhook.service)
        };
        match grouped.iter_mut().find(of_same) {
            Some((_, resources)) => resources.extend(&webhook.resources),
            None => grouped.push((webhook, webhook.resources.iter().copied().collect())),
        }
    }
    let change = |(webhook, resources): (&Webhook, BTreeSet<&str>)| {
        let resources: Vec<_> = resources.into_iter().collect();
        let change = format!(
            "refuses writes of {} while {} does not run; when the system is removed: {}",
            resources.join(", "),
            if webhook.service.is_empty() { "its program" } else { &webhook.service },
            webhook.removal()
        );
        ObjectChange::new(format!("{} {}", webhook.kind, webhook.configuration), change)
    };
    grouped.into_iter().map(change).collect()
}

/// Whether a cloud provider must release a Service before it can be deleted.
pub(super) fn has_finalizer(service: &Service) -> bool {
    service.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER)
}

/// Returns the command that removes the finalizer from a Service.
pub(super) fn finalizer_removal(service: &Service) -> String {
    let index = service.metadata.finalizers.iter().flatten().position(|finalizer| finalizer == FINALIZER).unwrap_or(0);
    let name = id(service);
    format!(
        "kubectl -n {} patch service {} --type json -p '[{{\"op\":\"test\",\"path\":\"/metadata/finalizers/{index}\",\
         \"value\":\"{FINALIZER}\"}},{{\"op\":\"remove\",\"path\":\"/metadata/finalizers/{index}\"}}]'",
        name.namespace(),
        name.name()
    )
}

pub(super) fn id(service: &Service) -> ServiceName {
    let text = |part: &Option<String>| part.clone().unwrap_or_default();
    ServiceName::new(text(&service.metadata.namespace), text(&service.metadata.name))
}

fn joined(addresses: &BTreeSet<Vip>) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

impl Report for MigrationPlan {
    const KIND: &'static str = "migrate-plan";

    fn print(&self, out: &mut impl Write, color: Color) -> io::Result<()> {
        writeln!(out, "found: {}\n", self.systems.join(", "))?;
        if self.services.is_empty() {
            writeln!(out, "no Services of type LoadBalancer")?;
        } else {
            self.service_table().print(out, color)?;
        }
        writeln!(out)?;
        self.change_table().print(out, color)?;
        if !self.notes.is_empty() || !self.problems.is_empty() {
            writeln!(out)?;
        }
        for problem in &self.problems {
            writeln!(out, "error: {problem}")?;
        }
        for note in &self.notes {
            writeln!(out, "note: {}: {}", note.object, note.message)?;
        }
        self.print_steps(out)?;
        let moved = self.services.iter().filter(|service| !service.keeps).count();
        if moved > 0 {
            writeln!(out, "\n{moved} Services would lose or change addresses: correct that first")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::{fixture::service, webhooks::Backend};
    use vipmux_testing::object;

    fn cluster(services: &[Service]) -> LiveCluster {
        let mut cluster = LiveCluster { services: services.to_vec(), ..LiveCluster::default() };
        for service in services {
            cluster.objects.services.insert(id(service), service.clone().into());
        }
        let pool = json!({"metadata": {"name": "lan"}, "spec": {"addresses": ["192.0.2.10-192.0.2.12"]}});
        cluster.objects.address_pools.insert("lan".to_owned(), object(pool));
        cluster
    }

    fn plan(cluster: &LiveCluster) -> MigrationPlan {
        let converted = Converted::of(&cluster.objects, &cluster.foreign);
        let snapshot = Snapshot::of(&cluster.services, Timestamp::UNIX_EPOCH);
        MigrationPlan::new(cluster, &converted, &snapshot, &IngestOptions::default(), "out")
    }

    #[test]
    fn services_keep_addresses_of_converted_pools() {
        let found = plan(&cluster(&[service("shop/web", "192.0.2.11", "controller"), service("shop/new", "", "")]));
        assert!(found.keeps_all(), "{found:#?}");
        assert_eq!(found.services[1].now, found.services[1].with_vipmux);
        let changes: Vec<_> = found.changes.iter().map(|change| change.object.as_str()).collect();
        assert_eq!(changes, ["VipPool lan", "Service shop/web"]);
    }

    #[test]
    fn a_service_that_would_move_is_shown_with_the_reason() {
        let mut other = service("shop/other", "192.0.2.10", "controller");
        other.spec.as_mut().unwrap().load_balancer_class = Some("metallb.io/x".to_owned());
        let found = plan(&cluster(&[service("shop/web", "198.51.100.1", "controller"), other]));
        assert!(!found.keeps_all());
        assert_eq!(found.services.iter().map(|it| it.keeps).collect::<Vec<_>>(), [false, false]);
        assert!(found.services[0].message.starts_with("OtherClass: "), "{}", found.services[0].message);
        let mut out = Vec::new();
        found.print(&mut out, Color::Never).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("2 Services would lose or change addresses"), "{text}");
        assert!(text.contains("kubectl apply -f out/pools.yaml"), "{text}");
    }

    #[test]
    fn each_address_that_a_service_would_lose_is_told_with_the_reason() {
        let mut two = service("shop/web", "192.0.2.11", "controller");
        let ingress = json!([{"ip": "192.0.2.11"}, {"ip": "192.0.2.12", "ipMode": "Proxy"}, {"ip": "203.0.113.7"}]);
        two.status.as_mut().unwrap().load_balancer = serde_json::from_value(json!({"ingress": ingress})).unwrap();
        let found = plan(&cluster(&[two]));
        assert!(!found.keeps_all(), "{found:#?}");
        let message = &found.services[0].message;
        for part in ["would lose 192.0.2.12, which its status shows: its ipMode is Proxy", "203.0.113.7 is in no pool"]
        {
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn the_webhooks_of_a_configuration_are_one_change() {
        let webhook = |configuration: &str, resource| Webhook {
            kind: "validatingwebhookconfiguration",
            configuration: configuration.to_owned(),
            service: "a/b".to_owned(),
            resources: vec![resource],
            blocks_vipmux: false,
            backend: Backend::Ready,
        };
        let mut cluster = cluster(&[]);
        cluster.webhooks =
            vec![webhook("x", "l2advertisements"), webhook("x", "ipaddresspools"), webhook("y", "ipaddresspools")];
        let found = plan(&cluster);
        let changes: Vec<_> = found.changes.iter().filter(|change| change.object.contains("webhook")).collect();
        let [first, _] = changes[..] else { panic!("{changes:?}") };
        assert!(first.object.ends_with(" x"), "{first:?}");
        assert!(first.change.starts_with("refuses writes of ipaddresspools, l2advertisements while a/b"), "{first:?}");
    }

    #[test]
    fn a_finalizer_is_shown_and_its_removal_tests_what_it_removes() {
        let mut web = service("shop/web", "192.0.2.10", "kube-vip");
        web.metadata.finalizers = Some(vec!["other".to_owned(), FINALIZER.to_owned()]);
        let found = plan(&cluster(std::slice::from_ref(&web)));
        assert!(found.changes.iter().any(|change| change.change.contains(FINALIZER)));
        let removal = finalizer_removal(&web);
        assert!(removal.starts_with(
            "kubectl -n shop patch service web --type json -p '[{\"op\":\"test\",\"path\":\"/metadata/finalizers/1\""
        ));
    }
}
