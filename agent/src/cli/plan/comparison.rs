//! What a change of manifests would do to what is served: two plans side by side. The JSON form is as stable as a plan's.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
};

use serde::Serialize;

use super::{
    Printed,
    report::{Report, ServiceRow, State, VipRow, joined},
};
use crate::{
    allocate::Allocation,
    cli::table::{Cell, Colour, Table, Tone},
    model::{PortClaim, ServiceName, Vip, name::Port, reason::Note},
    source::Problem,
};

/// What would change.
#[derive(Debug, Serialize)]
pub(super) struct Comparison<'a> {
    /// Of this form.
    version: u32,
    /// Services that change in any way but in whom they share with, which `vips` tells.
    services: Vec<ServiceChange<'a>>,
    /// Addresses that come, go, or change.
    vips: Vec<VipChange<'a>>,
    /// What stays as it is.
    unchanged: Unchanged,
    /// What is served before, and is not after.
    disturbances: Vec<Disturbance>,
    /// What is new of what was left out without stopping anyone.
    notes: Vec<&'a Note>,
    /// Documents of either input that could not be used.
    problems: BTreeSet<&'a Problem>,
}

#[derive(Debug, Serialize)]
struct Unchanged {
    services: usize,
    vips: usize,
}

/// A Service, before and after; `None`: it is not there.
#[derive(Debug, Serialize)]
struct ServiceChange<'a> {
    namespace: &'a str,
    name: &'a str,
    changes: Vec<Change>,
    before: Option<&'a ServiceRow<'a>>,
    after: Option<&'a ServiceRow<'a>>,
}

/// What changes about a Service; the names are stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Change {
    /// It is new here.
    Comes,
    /// It goes, or is not ours any more.
    Goes,
    /// It waited, and gets what it asks for.
    Served,
    /// It loses all of its addresses.
    Pending,
    /// It gets other addresses for some that it had.
    Moves,
    /// It gets more addresses.
    Gains,
    /// It keeps only some of its addresses.
    Loses,
    /// It has other ports.
    Ports,
    /// Its packets are treated otherwise.
    Treatment,
    /// The reason is another one; or what is told along with it.
    Told,
}

impl Change {
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
            Self::Told => "told",
        }
    }
}

/// An address, before and after.
#[derive(Debug, Serialize)]
struct VipChange<'a> {
    address: Vip,
    before: Option<&'a VipRow>,
    after: Option<&'a VipRow>,
}

/// Something that is served before, and is not after.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Disturbance {
    address: Vip,
    /// The Service that is not served there any more; `None`: nobody leads the address any more.
    service: Option<ServiceName>,
    /// The ports on which it is not served any more.
    ports: Vec<Port>,
}

/// A plan's report, and what it is about.
type Side<'a> = (&'a Report<'a>, &'a Allocation);

impl<'a> Comparison<'a> {
    pub(super) fn new((before, held): Side<'a>, (after, given): Side<'a>) -> Self {
        let by_name = |report: &'a Report<'a>| report.services.iter().map(|row| ((row.namespace, row.name), row));
        let mut of_services = paired(by_name(before), by_name(after));
        let is_ours = |row: Option<&ServiceRow<'_>>| row.is_some_and(|row| row.state != State::Ignored);
        of_services.retain(|_, (before, after)| is_ours(*before) || is_ours(*after));
        let all = of_services.len();
        let changed = of_services.into_iter().filter_map(|((namespace, name), (before, after))| {
            let changes = changes(before.filter(|row| is_ours(Some(row))), after.filter(|row| is_ours(Some(row))));
            (!changes.is_empty()).then_some(ServiceChange { namespace, name, changes, before, after })
        });
        let services: Vec<_> = changed.collect();
        let by_address = |report: &'a Report<'a>| report.vips.iter().map(|row| (row.address, row));
        let of_vips = paired(by_address(before), by_address(after));
        let unchanged = Unchanged {
            services: all - services.len(),
            vips: of_vips.values().filter(|(before, after)| before == after).count(),
        };
        let changed = of_vips.into_iter().filter(|(_, (before, after))| before != after);
        let vips: Vec<_> = changed.map(|(address, (before, after))| VipChange { address, before, after }).collect();
        let known: BTreeSet<&Note> = before.notes.iter().collect();
        Self {
            version: 1,
            disturbances: disturbances(held, given, &vips),
            services,
            vips,
            unchanged,
            notes: after.notes.iter().filter(|note| !known.contains(note)).collect(),
            problems: before.problems.iter().chain(after.problems).collect(),
        }
    }

    /// Whether anything is served before, and is not after.
    pub(super) fn disturbs(&self) -> bool {
        !self.disturbances.is_empty()
    }

    fn service_table(&self) -> Table {
        let header = ["SERVICE", "CHANGE", "STATE", "ADDRESSES", "PORTS", "REASON", "MESSAGE", "PARTICULARS"];
        // Where they stay, the last column is left out.
        let plain = self.services.iter().all(|row| !row.changes.contains(&Change::Treatment));
        let mut table = Table::new(&header[..header.len() - usize::from(plain)]);
        for row in &self.services {
            let disturbed = self.disturbances.iter().filter_map(|disturbance| disturbance.service.as_ref());
            let disturbed =
                disturbed.into_iter().any(|name| (&*name.namespace, &*name.name) == (row.namespace, row.name));
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
                Cell::from(of(&|row| joined(&row.ports))),
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
                (Some(before), Some(after)) if before.leader != after.leader => "leader",
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

impl Printed for Comparison<'_> {
    fn print(&self, out: &mut impl Write, err: &mut impl Write, colour: Colour) -> io::Result<()> {
        for problem in &self.problems {
            writeln!(err, "error: {problem}")?;
        }
        for note in &self.notes {
            writeln!(err, "warning: {}: {}", note.object, note.message)?;
        }
        for row in &self.services {
            let news = |of: fn(&ServiceRow<'_>) -> Vec<String>| {
                let known = row.before.map(of).unwrap_or_default();
                row.after.map(of).unwrap_or_default().into_iter().filter(move |text| !known.contains(text))
            };
            for warning in news(|row| row.warnings.to_vec()) {
                writeln!(err, "warning: {}/{}: {warning}", row.namespace, row.name)?;
            }
            for notice in news(|row| row.notices.to_vec()) {
                writeln!(err, "note: {}/{}: {notice}", row.namespace, row.name)?;
            }
        }
        if !self.services.is_empty() {
            self.service_table().print(out, colour)?;
            writeln!(out)?;
        }
        if !self.vips.is_empty() {
            self.vip_table().print(out, colour)?;
            writeln!(out)?;
        }
        writeln!(out, "unchanged: Services {}, VIPs {}", self.unchanged.services, self.unchanged.vips)?;
        for disturbance in &self.disturbances {
            writeln!(out, "disturbed: {}", disturbance.text())?;
        }
        Ok(())
    }
}

impl Disturbance {
    fn text(&self) -> String {
        match &self.service {
            Some(service) => {
                format!("{service} would no longer be served on {}: {}", self.address, joined(&self.ports))
            }
            None => format!("nobody would lead {}", self.address),
        }
    }
}

/// What both have under each key.
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

fn changes(before: Option<&ServiceRow<'_>>, after: Option<&ServiceRow<'_>>) -> Vec<Change> {
    let (before, after) = match (before, after) {
        (Some(before), Some(after)) => (before, after),
        (None, _) => return vec![Change::Comes],
        (_, None) => return vec![Change::Goes],
    };
    let kept = before.addresses.iter().filter(|vip| after.addresses.contains(vip)).count();
    let (lost, gained) = (kept < before.addresses.len(), kept < after.addresses.len());
    let of_addresses = match (before.state, after.state, lost, gained) {
        (State::Pending, State::Allocated, ..) => Some(Change::Served),
        (State::Allocated, State::Pending, ..) => Some(Change::Pending),
        (_, _, true, true) => Some(Change::Moves),
        (_, _, true, false) => Some(Change::Loses),
        (_, _, false, true) => Some(Change::Gains),
        (_, _, false, false) => None,
    };
    let ports: [BTreeSet<_>; 2] = [before, after].map(|row| row.ports.iter().collect());
    let asked = [before, after].map(|row| row.reason.remedy().is_none());
    // Whom it shares with is in the message too, and told by address.
    let same_message = asked == [true, true] || before.message == after.message;
    let reason = asked != [true, true] && before.reason != after.reason;
    let news = reason || !same_message || (before.warnings, before.notices) != (after.warnings, after.notices);
    let told = news && before.state == after.state;
    let changes = [
        of_addresses,
        (ports[0] != ports[1]).then_some(Change::Ports),
        (before.treatment != after.treatment).then_some(Change::Treatment),
        told.then_some(Change::Told),
    ];
    changes.into_iter().flatten().collect()
}

/// Claims that their owner has no more, and addresses that nobody leads any more.
fn disturbances(held: &Allocation, given: &Allocation, vips: &[VipChange<'_>]) -> Vec<Disturbance> {
    let claims = given.claims();
    let mut lost: BTreeMap<(Vip, ServiceName), Vec<Port>> = BTreeMap::new();
    for (claim, owner) in held.claims() {
        // Every port has this one among them.
        let wide = PortClaim { port: 0, ..claim };
        if [claim, wide].iter().all(|claim| claims.get(claim) != Some(&owner)) {
            lost.entry((claim.vip, owner)).or_default().push(Port { number: claim.port, protocol: claim.protocol });
        }
    }
    let lost = lost.into_iter().map(|((address, owner), ports)| Disturbance { address, service: Some(owner), ports });
    let leaderless = vips.iter().filter(|row| {
        let led = |row: Option<&VipRow>| row.map(|row| row.leader.is_some());
        (led(row.before), led(row.after)) == (Some(true), Some(false))
    });
    let leaderless = leaderless.map(|row| Disturbance { address: row.address, service: None, ports: Vec::new() });
    let mut all: Vec<_> = lost.chain(leaderless).collect();
    all.sort();
    all
}

/// Who comes to the address and who leaves it.
fn sharers(row: &VipChange<'_>) -> String {
    let names = |row: Option<&'_ VipRow>| -> BTreeSet<String> {
        row.into_iter().flat_map(|row| row.services.clone()).collect()
    };
    let (before, after) = (names(row.before), names(row.after));
    let came = after.difference(&before).map(|name| format!("+{name}"));
    joined(came.chain(before.difference(&after).map(|name| format!("-{name}"))))
}

/// `before -> after`; one of them where they are the same, or where there is only one.
fn from_to(before: Option<String>, after: Option<String>) -> String {
    let shown = |text: String| if text.is_empty() { "none".to_owned() } else { text };
    match (before, after) {
        (Some(before), Some(after)) if before != after => format!("{} -> {}", shown(before), shown(after)),
        (_, Some(one)) | (Some(one), None) => one,
        (None, None) => String::new(),
    }
}
