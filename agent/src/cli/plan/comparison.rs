//! Compares two plans: the effect of a change of manifests on what is served. The JSON form is as
//! stable as a plan's.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
};

use serde::Serialize;

use super::{
    PlanOutput,
    report::{PlanReport, PortRow, ServiceRow, VipRow, joined},
};
use vipmux_allocate::Allocation;
use vipmux_inspect::{
    explain::AssignmentState,
    output::table::{Cell, Color, Table, Tone},
};
use vipmux_model::{
    PortClaim, PortNumber, ServiceName, Vip,
    objects::Problem,
    port::{self, Port},
    reason::Note,
};

/// The difference of two plans.
#[derive(Debug, Serialize)]
pub(super) struct Comparison<'a> {
    /// The version of this form.
    version: u32,
    /// Services that change. A change of the Services that they share with is only in `vips`.
    services: Vec<ServiceChange<'a>>,
    /// Addresses that are new, gone or changed.
    vips: Vec<VipChange<'a>>,
    /// The numbers of unchanged Services and VIPs.
    unchanged: Unchanged,
    /// Everything that is served before and not after.
    disturbances: Vec<Disturbance>,
    /// Further disturbances, by a changed Service without the other changes.
    disturbances_one_by_one: BTreeSet<Disturbance>,
    /// The notes that are new.
    notes: Vec<&'a Note>,
    /// Documents of either input that cannot be used.
    problems: BTreeSet<&'a Problem>,
}

#[derive(Debug, Serialize)]
struct Unchanged {
    services: usize,
    vips: usize,
}

/// A Service before and after; `None`: it does not exist.
#[derive(Debug, Serialize)]
struct ServiceChange<'a> {
    namespace: &'a str,
    name: &'a str,
    changes: Vec<ChangeKind>,
    before: Option<&'a ServiceRow<'a>>,
    after: Option<&'a ServiceRow<'a>>,
}

/// A change of a Service; the names are stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
enum ChangeKind {
    /// It is new, or was not vipmux's before.
    Comes,
    /// It is gone, or no longer vipmux's.
    Goes,
    /// It waited, and gets its addresses now.
    Served,
    /// It loses all its addresses.
    Pending,
    /// Some of its addresses are replaced by others.
    Moves,
    /// It gets more addresses.
    Gains,
    /// It keeps only some of its addresses.
    Loses,
    /// Its ports change.
    Ports,
    /// The treatment of its packets changes.
    Treatment,
    /// It keeps what it has, but reason, warnings or notices change.
    #[serde(rename = "told")]
    Explanation,
}

impl ChangeKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Comes => "comes",
            Self::Goes => "goes",
            Self::Served => "served",
            Self::Pending => "pending",
            Self::Moves => "moves",
            Self::Gains => "gains",
            Self::Loses => "loses",
            Self::Ports => "ports",
            Self::Treatment => "treatment",
            Self::Explanation => "told",
        }
    }
}

/// An address before and after.
#[derive(Debug, Serialize)]
struct VipChange<'a> {
    address: Vip,
    before: Option<&'a VipRow>,
    after: Option<&'a VipRow>,
}

/// A Service or an address that is served before and not after.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Disturbance {
    address: Vip,
    /// The Service that is no longer served there; `None`: nobody leads the address any more.
    service: Option<ServiceName>,
    /// The ports on which it is no longer served.
    ports: Vec<Port>,
}

/// A plan's report and its allocation.
type Side<'a> = (&'a PlanReport<'a>, &'a Allocation);

impl<'a> Comparison<'a> {
    /// `steps`: the allocations after one change alone.
    pub(super) fn new(
        (before, held): Side<'a>,
        (after, given): Side<'a>,
        steps: impl Iterator<Item = Allocation>,
    ) -> Self {
        let by_name = |report: &'a PlanReport<'a>| report.services.iter().map(|row| ((row.namespace, row.name), row));
        let mut of_services = paired(by_name(before), by_name(after));
        let is_ours = |row: Option<&ServiceRow<'_>>| row.is_some_and(|row| row.state != AssignmentState::Ignored);
        of_services.retain(|_, (before, after)| is_ours(*before) || is_ours(*after));
        let all = of_services.len();
        let changed = of_services.into_iter().filter_map(|((namespace, name), (before, after))| {
            let changes = changes(before.filter(|row| is_ours(Some(row))), after.filter(|row| is_ours(Some(row))));
            (!changes.is_empty()).then_some(ServiceChange { namespace, name, changes, before, after })
        });
        let services: Vec<_> = changed.collect();
        let by_address = |report: &'a PlanReport<'a>| report.vips.iter().map(|row| (row.address, row));
        let of_vips = paired(by_address(before), by_address(after));
        let unchanged = Unchanged {
            services: all - services.len(),
            vips: of_vips.values().filter(|(before, after)| before == after).count(),
        };
        let changed = of_vips.into_iter().filter(|(_, (before, after))| before != after);
        let vips: Vec<_> = changed.map(|(address, (before, after))| VipChange { address, before, after }).collect();
        let known: BTreeSet<&Note> = before.notes.iter().collect();
        let disturbances = disturbances(held, given, &vips);
        let one_by_one = steps.flat_map(|step| lost_claims(held, &step));
        Self {
            version: 1,
            disturbances_one_by_one: one_by_one.filter(|one| !disturbances.contains(one)).collect(),
            disturbances,
            services,
            vips,
            unchanged,
            notes: after.notes.iter().filter(|note| !known.contains(note)).collect(),
            problems: before.problems.iter().chain(after.problems).collect(),
        }
    }

    /// Returns whether there is a disturbance.
    pub(super) fn disturbs(&self) -> bool {
        !self.disturbances.is_empty() || !self.disturbances_one_by_one.is_empty()
    }

    fn service_table(&self) -> Table {
        let header = ["SERVICE", "CHANGE", "STATE", "ADDRESSES", "PORTS", "REASON", "MESSAGE", "PARTICULARS"];
        // Without a change of treatment, the last column is left out.
        let plain = self.services.iter().all(|row| !row.changes.contains(&ChangeKind::Treatment));
        let mut table = Table::new(&header[..header.len() - usize::from(plain)]);
        for row in &self.services {
            let disturbed = self.disturbances.iter().filter_map(|disturbance| disturbance.service.as_ref());
            let disturbed =
                disturbed.into_iter().any(|name| (name.namespace(), name.name()) == (row.namespace, row.name));
            let of = |text: &dyn Fn(&ServiceRow<'_>) -> String| from_to(row.before.map(text), row.after.map(text));
            let treatment =
                |row: &ServiceRow<'_>| row.treatment.as_ref().map_or_else(String::new, |it| it.text.clone());
            table.row([
                Cell::from(format!("{}/{}", row.namespace, row.name)),
                Cell::toned(
                    row.changes.iter().map(|change| change.name()).collect::<Vec<_>>().join(","),
                    if disturbed { Tone::Bad } else { Tone::Plain },
                ),
                Cell::from(of(&|row| row.state.name().to_owned())),
                Cell::from(of(&|row| joined(&row.addresses))),
                Cell::from(of(&|row| PortRow::list(&row.ports))),
                Cell::from(of(&|row| row.reason.to_string())),
                Cell::from(row.after.map_or("", |row| row.message)),
                Cell::from(of(&treatment)),
            ]);
        }
        table
    }

    fn vip_table(&self) -> Table {
        let mut table = Table::new(&["VIP", "CHANGE", "LEADER", "SERVICES"]);
        for row in &self.vips {
            let change = match (row.before, row.after) {
                (None, _) => "comes",
                (_, None) => "goes",
                (Some(before), Some(after))
                    if (&before.leader, before.unannounced) != (&after.leader, after.unannounced) =>
                {
                    "leader"
                }
                _ => "services",
            };
            let leader = |row: &VipRow| row.leader.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string);
            table.row([
                row.address.to_string(),
                change.to_owned(),
                from_to(row.before.map(leader), row.after.map(leader)),
                sharers(row),
            ]);
        }
        table
    }
}

impl PlanOutput for Comparison<'_> {
    fn print(
        &self,
        out: &mut impl Write,
        err: &mut impl Write,
        color: Color,
        columns: Option<usize>,
    ) -> io::Result<()> {
        for problem in &self.problems {
            writeln!(err, "error: {problem}")?;
        }
        for note in &self.notes {
            writeln!(err, "warning: {}: {}", note.object, note.message)?;
        }
        for row in &self.services {
            let added = |of: fn(&ServiceRow<'_>) -> Vec<String>| {
                let known = row.before.map(of).unwrap_or_default();
                row.after.map(of).unwrap_or_default().into_iter().filter(move |text| !known.contains(text))
            };
            for warning in added(|row| row.warnings.iter().map(|warning| (*warning).to_owned()).collect()) {
                writeln!(err, "warning: {}/{}: {warning}", row.namespace, row.name)?;
            }
            for notice in added(|row| row.notices.to_vec()) {
                writeln!(err, "note: {}/{}: {notice}", row.namespace, row.name)?;
            }
        }
        if !self.services.is_empty() {
            self.service_table().within(columns).print(out, color)?;
            writeln!(out)?;
        }
        if !self.vips.is_empty() {
            self.vip_table().within(columns).print(out, color)?;
            writeln!(out)?;
        }
        writeln!(out, "unchanged: Services {}, VIPs {}", self.unchanged.services, self.unchanged.vips)?;
        for disturbance in &self.disturbances {
            writeln!(out, "disturbed: {}", disturbance.text())?;
        }
        for disturbance in &self.disturbances_one_by_one {
            writeln!(out, "disturbed if applied one by one: {}", disturbance.text())?;
        }
        Ok(())
    }
}

impl Disturbance {
    fn text(&self) -> String {
        match &self.service {
            Some(service) => {
                format!("{service} would no longer be served on {}: {}", self.address, port::list(&self.ports))
            }
            None => format!("nobody would lead {}", self.address),
        }
    }
}

/// Returns the rows of both sides by key.
fn paired<K: Ord, R>(
    before: impl Iterator<Item = (K, R)>,
    after: impl Iterator<Item = (K, R)>,
) -> BTreeMap<K, (Option<R>, Option<R>)> {
    let mut pairs: BTreeMap<K, (Option<R>, Option<R>)> = BTreeMap::new();
    for (key, row) in before {
        pairs.entry(key).or_default().0 = Some(row);
    }
    for (key, row) in after {
        pairs.entry(key).or_default().1 = Some(row);
    }
    pairs
}

fn changes(before: Option<&ServiceRow<'_>>, after: Option<&ServiceRow<'_>>) -> Vec<ChangeKind> {
    let (before, after) = match (before, after) {
        (Some(before), Some(after)) => (before, after),
        (None, _) => return vec![ChangeKind::Comes],
        (_, None) => return vec![ChangeKind::Goes],
    };
    let kept = before.addresses.iter().filter(|vip| after.addresses.contains(vip)).count();
    let (lost, gained) = (kept < before.addresses.len(), kept < after.addresses.len());
    let of_addresses = match (before.state, after.state, lost, gained) {
        (AssignmentState::Pending, AssignmentState::Allocated, ..) => Some(ChangeKind::Served),
        (AssignmentState::Allocated, AssignmentState::Pending, ..) => Some(ChangeKind::Pending),
        (_, _, true, true) => Some(ChangeKind::Moves),
        (_, _, true, false) => Some(ChangeKind::Loses),
        (_, _, false, true) => Some(ChangeKind::Gains),
        (_, _, false, false) => None,
    };
    let ports: [BTreeSet<_>; 2] = [before, after].map(|row| row.ports.iter().collect());
    let asked = [before, after].map(|row| row.reason.remedy().is_none());
    // The message also names the Services that it shares with, which the table of VIPs shows.
    let same_message = asked == [true, true] || before.message == after.message;
    let reason = asked != [true, true] && before.reason != after.reason;
    let differs = reason || !same_message || (&before.warnings, before.notices) != (&after.warnings, after.notices);
    let explanation = differs && before.state == after.state;
    let changes = [
        of_addresses,
        (ports[0] != ports[1]).then_some(ChangeKind::Ports),
        (before.treatment != after.treatment).then_some(ChangeKind::Treatment),
        explanation.then_some(ChangeKind::Explanation),
    ];
    changes.into_iter().flatten().collect()
}

/// Returns the port claims that their owners lose.
fn lost_claims(held: &Allocation, given: &Allocation) -> Vec<Disturbance> {
    let claims = given.claims();
    let mut lost: BTreeMap<(Vip, ServiceName), Vec<Port>> = BTreeMap::new();
    for (claim, owner) in held.claims() {
        // A claim on all ports includes this one.
        let wide = PortClaim { port: PortNumber::Every, ..claim };
        if [claim, wide].iter().all(|claim| claims.get(claim) != Some(&owner)) {
            lost.entry((claim.vip, owner)).or_default().push(Port { number: claim.port, protocol: claim.protocol });
        }
    }
    lost.into_iter().map(|((address, owner), ports)| Disturbance { address, service: Some(owner), ports }).collect()
}

/// Returns the port claims that their owners lose, and the addresses that lose their leader.
fn disturbances(held: &Allocation, given: &Allocation, vips: &[VipChange<'_>]) -> Vec<Disturbance> {
    let leaderless = vips.iter().filter(|row| {
        let (Some(before), Some(after)) = (row.before, row.after) else { return false };
        before.leader.is_some() && after.leader.is_none() || after.unannounced && !before.unannounced
    });
    let leaderless = leaderless.map(|row| Disturbance { address: row.address, service: None, ports: Vec::new() });
    let mut all: Vec<_> = lost_claims(held, given).into_iter().chain(leaderless).collect();
    all.sort();
    all
}

/// Returns the Services that come to the address and those that leave it.
fn sharers(row: &VipChange<'_>) -> String {
    let names = |row: Option<&'_ VipRow>| -> BTreeSet<String> {
        row.into_iter().flat_map(|row| row.services.clone()).collect()
    };
    let (before, after) = (names(row.before), names(row.after));
    let came = after.difference(&before).map(|name| format!("+{name}"));
    joined(came.chain(before.difference(&after).map(|name| format!("-{name}"))))
}

/// Returns `before -> after`, or the one value if both are equal or one is missing.
fn from_to(before: Option<String>, after: Option<String>) -> String {
    let shown = |text: String| if text.is_empty() { "none".to_owned() } else { text };
    match (before, after) {
        (Some(before), Some(after)) if before != after => format!("{} -> {}", shown(before), shown(after)),
        (_, Some(one)) | (Some(one), None) => one,
        (None, None) => String::new(),
    }
}
