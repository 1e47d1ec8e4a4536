//! The report of a plan. The JSON form is stable: fields may be added; `version` changes if one
//! goes or changes its meaning.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
};

use k8s_openapi::api::core::v1 as api;
use serde::Serialize;

use super::PlanOutput;
use vipmux_allocate::Allocation;
use vipmux_election::placement::{self, candidates_of};
use vipmux_inspect::{
    explain::AssignmentState,
    output::table::{Cell, Color, Table, Tone},
};
use vipmux_model::{
    Family, Model, NodeName, Protocol, ServiceName, Vip,
    objects::{Objects, Problem, UnreadObjects},
    policy::{IdleTimeouts, Policy},
    pool::Pool,
    port::{self, Port},
    probe::Probe,
    reason::{Note, Reason},
    service::Service,
};
use vipmux_preflight::dry_run::ManifestAllocation;

/// A plan.
#[derive(Debug, Serialize)]
pub(super) struct PlanReport<'a> {
    /// The version of this form.
    version: u32,
    /// Every Service of the input.
    pub(super) services: Vec<ServiceRow<'a>>,
    /// Every address that is assigned.
    pub(super) vips: Vec<VipRow>,
    /// Every pool, best first.
    pools: Vec<PoolRow<'a>>,
    /// Things that were left out and that affect no Service.
    pub(super) notes: &'a [Note],
    /// Documents that cannot be used.
    pub(super) problems: &'a [Problem],
    /// The reason why no Node can lead anything, whatever the policies say.
    #[serde(skip)]
    no_leader: Option<&'static str>,
    /// The input has nothing that vipmux reads.
    #[serde(skip)]
    empty: bool,
}

/// A Service.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct ServiceRow<'a> {
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    pub(super) state: AssignmentState,
    pub(super) addresses: Vec<Vip>,
    pub(super) ports: Vec<PortRow>,
    pub(super) reason: Reason,
    pub(super) message: &'a str,
    /// The remedy for the reason; `None` if the Service gets what it asks for.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<&'static str>,
    /// Warnings for its owner, although it has an address.
    pub(super) warnings: Vec<&'a str>,
    /// Notices for its owner that stop nothing, such as annotations without effect.
    pub(super) notices: &'a [String],
    /// The treatment of its packets, if it differs from the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) treatment: Option<TreatmentRow<'a>>,
}

/// The treatment of a Service's packets.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct TreatmentRow<'a> {
    #[serde(flatten)]
    policy: &'a Policy,
    idle_s: IdleTimeouts,
    /// Ports of the Service that are not exposed.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    unexposed: &'a BTreeSet<Port>,
    /// The health probes of its ports.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    probes: &'a BTreeMap<Port, Probe>,
    /// The treatment for people.
    #[serde(skip)]
    pub(super) text: String,
}

impl<'a> TreatmentRow<'a> {
    fn of(service: &'a Service) -> Option<Self> {
        let Service { policy, unexposed, probes, .. } = service;
        let text = service.particulars().join(",");
        (!text.is_empty()).then_some(Self { policy, idle_s: service.idle, unexposed, probes, text })
    }
}

/// A port of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct PortRow {
    port: u16,
    protocol: Protocol,
}

impl PortRow {
    /// Returns the ports for people.
    pub(super) fn list(rows: &[Self]) -> String {
        let port = |row: &Self| Port { number: row.port.into(), protocol: row.protocol };
        port::list(&rows.iter().map(port).collect::<Vec<_>>())
    }
}

/// An address that is assigned.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct VipRow {
    pub(super) address: Vip,
    pub(super) services: Vec<String>,
    pub(super) leader: Option<NodeName>,
    /// Its DNS label.
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<String>,
    /// Whether nobody may announce it. Without Nodes, only the policies count.
    #[serde(skip)]
    pub(super) unannounced: bool,
}

#[derive(Debug, Serialize)]
struct PoolRow<'a> {
    name: &'a str,
    /// IPv4 addresses that it can give.
    capacity: u64,
    /// The number of them that are assigned.
    used: u64,
    /// IPv6 addresses that it can give, at most 2^64 - 1.
    ipv6_capacity: u64,
    /// The number of them that are assigned.
    ipv6_used: u64,
}

impl<'a> PlanReport<'a> {
    /// `lost`: messages about addresses that statuses show and Services would lose.
    pub(super) fn new(plan: &'a ManifestAllocation, lost: &'a BTreeMap<ServiceName, Vec<String>>) -> Self {
        let ManifestAllocation { objects, model, allocation, .. } = plan;
        let vips = allocation.vips();
        let leaders = placement::leaders(&candidates_of(model, vips.keys().copied()));
        let mut used: BTreeMap<(&str, Family), u64> = BTreeMap::new();
        for vip in vips.keys() {
            if let Some(pool) = model.pools.iter().find(|pool| pool.contains(*vip)) {
                *used.entry((&pool.name, vip.family())).or_default() += 1;
            }
        }
        let used = |pool: &Pool, family| used.get(&(pool.name.as_str(), family)).copied().unwrap_or(0);
        let labels = allocation.labels();
        let vip_row = |(address, names): (&Vip, &BTreeSet<&ServiceName>)| {
            let leader = leaders.get(address).cloned().flatten();
            VipRow {
                address: *address,
                services: names.iter().map(ToString::to_string).collect(),
                unannounced: leader.is_none() && (!model.nodes.is_empty() || model.silence(*address).is_some()),
                leader,
                label: labels.get(address).map(|label| (*label).to_owned()),
            }
        };
        let pools = model.pools.iter().map(|pool| PoolRow {
            name: &pool.name,
            capacity: pool.capacity(Family::V4),
            used: used(pool, Family::V4),
            ipv6_capacity: pool.capacity(Family::V6),
            ipv6_used: used(pool, Family::V6),
        });
        let services = objects.services.iter().filter_map(|(name, object)| {
            let mut row = service_row(model, allocation, name, object)?;
            row.warnings.extend(lost.get(name).into_iter().flatten().map(String::as_str));
            Some(row)
        });
        Self {
            version: 1,
            services: services.collect(),
            vips: vips.iter().map(vip_row).collect(),
            pools: pools.collect(),
            notes: &model.notes,
            problems: &objects.problems,
            no_leader: match model.nodes.values().all(|node| node.network_unavailable) {
                true if model.nodes.is_empty() => Some("there are no Nodes in the input"),
                true => Some("no Node's network is available"),
                false => None,
            },
            empty: Objects { unread: UnreadObjects::default(), ..objects.clone() } == Objects::default(),
        }
    }

    /// Whether each address could be announced, as far as the input says.
    pub(super) fn is_announced(&self) -> bool {
        self.vips.iter().all(|row| !row.unannounced)
    }

    fn service_table(&self) -> Table {
        let header = ["SERVICE", "STATE", "ADDRESSES", "PORTS", "REASON", "MESSAGE", "PARTICULARS"];
        // Without any, the last column is left out.
        let plain = self.services.iter().all(|row| row.treatment.is_none());
        let mut table = Table::new(&header[..header.len() - usize::from(plain)]);
        for row in self.services.iter().filter(|row| row.is_shown()) {
            let tone = match row.state {
                AssignmentState::Allocated if row.warnings.is_empty() => Tone::Good,
                AssignmentState::Allocated => Tone::Warn,
                AssignmentState::Pending => Tone::Bad,
                AssignmentState::Ignored => Tone::Plain,
            };
            table.row([
                Cell::from(format!("{}/{}", row.namespace, row.name)),
                Cell::toned(row.state.name(), tone),
                Cell::from(joined(&row.addresses)),
                Cell::from(PortRow::list(&row.ports)),
                Cell::toned(row.reason.to_string(), tone),
                Cell::from(row.message),
                Cell::from(row.treatment.as_ref().map_or("", |treatment| &treatment.text)),
            ]);
        }
        table
    }

    fn vip_table(&self) -> Table {
        let mut table = Table::new(&["VIP", "LEADER", "SERVICES"]);
        for row in &self.vips {
            let leader = row.leader.as_ref().map_or("", NodeName::as_str);
            table.row([row.address.to_string(), leader.to_owned(), joined(&row.services)]);
        }
        table
    }
}

impl PlanOutput for PlanReport<'_> {
    fn print(
        &self,
        out: &mut impl Write,
        err: &mut impl Write,
        color: Color,
        columns: Option<usize>,
    ) -> io::Result<()> {
        for problem in self.problems {
            writeln!(err, "error: {problem}")?;
        }
        for note in self.notes {
            writeln!(err, "warning: {}: {}", note.object, note.message)?;
        }
        for row in &self.services {
            for warning in &row.warnings {
                writeln!(err, "warning: {}/{}: {warning}", row.namespace, row.name)?;
            }
        }
        for row in &self.services {
            for notice in row.notices {
                writeln!(err, "note: {}/{}: {notice}", row.namespace, row.name)?;
            }
        }
        let refused: BTreeSet<Reason> =
            self.services.iter().filter(|row| row.is_shown()).map(|row| row.reason).collect();
        for (reason, remedy) in refused.iter().filter_map(|reason| Some((reason, reason.remedy()?))) {
            writeln!(err, "remedy: {reason}: {remedy}")?;
        }
        if let Some(why) = self.no_leader.filter(|_| !self.vips.is_empty()) {
            writeln!(err, "warning: nobody would lead: {why}")?;
        }
        if self.empty {
            writeln!(err, "warning: the input has no objects that vipmux reads")?;
        }
        if self.services.iter().any(ServiceRow::is_shown) {
            self.service_table().within(columns).print(out, color)?;
        } else {
            let usable = if self.problems.is_empty() { "" } else { "usable " };
            writeln!(out, "no {usable}Services of type LoadBalancer")?;
        }
        let unseen = self.services.iter().filter(|row| !row.is_shown()).count();
        if unseen > 0 {
            writeln!(out, "(not shown: {unseen} of other types)")?;
        }
        if !self.vips.is_empty() {
            writeln!(out)?;
            self.vip_table().within(columns).print(out, color)?;
        }
        Ok(())
    }
}

impl ServiceRow<'_> {
    /// Returns whether the table shows the Service. A cluster's many internal Services would hide
    /// the others.
    fn is_shown(&self) -> bool {
        self.reason != Reason::NotLoadBalancer
    }
}

fn service_row<'a>(
    model: &'a Model,
    allocation: &'a Allocation,
    name: &'a ServiceName,
    object: &api::Service,
) -> Option<ServiceRow<'a>> {
    let service = model.services.get(name);
    let row = |state, reason: Reason, message| ServiceRow {
        namespace: name.namespace(),
        name: name.name(),
        state,
        addresses: Vec::new(),
        ports: ports(object, service),
        reason,
        message,
        remedy: reason.remedy(),
        warnings: Vec::new(),
        notices: service.map_or(&[], |service| &service.notices),
        treatment: service.and_then(TreatmentRow::of),
    };
    if let Some(given) = allocation.assignments.get(name) {
        let addresses = given.addresses.iter().copied().collect();
        let allocated = row(AssignmentState::Allocated, given.reason, given.message.as_str());
        let warnings = given.warnings.iter().map(String::as_str).collect();
        return Some(ServiceRow { addresses, warnings, ..allocated });
    }
    let refused = allocation.refusals.get(name).map(|refusal| (AssignmentState::Pending, refusal));
    let ignored = model.ignored.get(name).map(|refusal| (AssignmentState::Ignored, refusal));
    refused.or(ignored).map(|(state, refusal)| row(state, refusal.reason, refusal.message.as_str()))
}

/// Returns the valid, exposed ports of the object, also for Services that were refused because of
/// their ports.
fn ports(object: &api::Service, service: Option<&Service>) -> Vec<PortRow> {
    let listed = object.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    let row = |entry: &api::ServicePort| {
        let protocol = entry.protocol.as_deref().map_or(Some(Protocol::default()), |text| text.parse().ok())?;
        let number = u16::try_from(entry.port).ok()?;
        let unexposed =
            service.is_some_and(|service| service.unexposed.contains(&Port { number: number.into(), protocol }));
        (!unexposed).then_some(PortRow { port: number, protocol })
    };
    listed.filter_map(row).collect()
}

pub(super) fn joined<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(",")
}
