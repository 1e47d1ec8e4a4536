//! Compares the kernel's maps with their mirror, and corrects the mirror.

use std::{collections::BTreeMap, fmt::Debug, net::IpAddr};

use vipmux_common::abi;

use crate::{arena::TableRange, entries::MapEntries, observed::Observed, step::Step};
use vipmux_model::hashing;

/// The flags that a program changes when it yields a VIP.
const LEADERSHIP: u32 = abi::VIP_LEADING | abi::VIP_YIELDED | abi::VIP_ASSURED;

/// An entry in which kernel and mirror differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryDifference {
    /// The map.
    pub map: &'static str,
    /// The key of the entry, for people.
    pub entry: String,
    /// The mirror's value; `None`: no such entry.
    pub wanted: Option<String>,
    /// The kernel's value.
    pub found: Option<String>,
    correction: Correction,
}

/// The correction of the mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Correction {
    /// Record this as written.
    Written(Step),
    /// The range does not hold the table that it should.
    Damaged(TableRange),
    /// Write this again. No plan does.
    Again(Step),
}

impl Observed {
    /// Returns the differences between the kernel and this mirror. Writes of the programs
    /// themselves are none: a yielded VIP is noticed elsewhere.
    pub fn differences(&self, found: &MapEntries) -> Vec<EntryDifference> {
        let mut all = Differences::default();
        if self.maps.config != found.config {
            let again = Correction::Again(Step::Config(self.maps.config));
            all.add("CONFIG", &0, Some(&self.maps.config), Some(&found.config), again);
        }
        self.compare_nodes(found, &mut all);
        let wanted = self.maps.backends.iter().filter(|(_, backend)| backend.generation != 0);
        all.compare("BACKENDS", wanted, &found.backends, |index, found| {
            Step::Backend(*index, found.copied().unwrap_or_default())
        });
        self.compare_services(found, &mut all);
        let wanted = self.maps.sources.keys();
        for key in wanted.symmetric_difference(&found.source_ranges) {
            let [wanted, found] = [&wanted, &found.source_ranges].map(|keys| keys.contains(key).then_some(1));
            let again = Correction::Again(Step::SourceRange(*key, wanted.is_some()));
            all.add("SOURCE_RANGES", key, wanted.as_ref(), found.as_ref(), again);
        }
        let yielded = |found: &abi::VipValue| found.flags & abi::VIP_YIELDED != 0;
        for (address, wanted, found) in pairs(self.maps.vips.iter().map(|(key, value)| (*key, value)), &found.vips) {
            let same = wanted.zip(found).is_some_and(|(wanted, found)| {
                let mask = if yielded(found) { !LEADERSHIP } else { u32::MAX };
                let masked = |value: &abi::VipValue| abi::VipValue { flags: value.flags & mask, ..*value };
                masked(wanted) == masked(found)
            });
            if !same {
                let correction = Correction::Written(Step::Vip(address, found.copied()));
                all.add("VIPS", &IpAddr::from(address), wanted, found, correction);
            }
        }
        all.0
    }

    fn compare_nodes(&self, found: &MapEntries, all: &mut Differences) {
        let named = self.maps.nodes.iter().filter_map(|(index, entry)| Some((index, entry.name.as_ref()?)));
        all.compare("NODE_NAMES", named, &found.node_names, |index, found| Step::NodeName(*index, found.cloned()));
        let nodes = self.maps.nodes.iter().map(|(index, entry)| (index, &entry.node));
        let paths = self.maps.paths.iter().map(|(element, node)| (*element, node));
        let nodes = nodes.filter(|(_, node)| **node != abi::Node::default()).chain(paths);
        all.compare("NODES", nodes, &found.nodes, |index, found| {
            Step::Node(*index, found.copied().unwrap_or_default())
        });
        let peers = self.maps.peers.iter().map(|(mac, index)| (*mac, index));
        all.compare("PEERS", peers, &found.peers, |mac, found| Step::Peer(*mac, found.copied()));
    }

    fn compare_services(&self, found: &MapEntries, all: &mut Differences) {
        let named = self.maps.slots.iter().filter_map(|(index, slot)| Some((index, slot.name.as_ref()?)));
        all.compare("SERVICE_NAMES", named, &found.service_names, |index, found| {
            Step::ServiceName(*index, found.cloned())
        });
        let states = self.maps.slots.iter().map(|(index, slot)| (index, &slot.state));
        let states = states.filter(|(_, state)| state.generation != 0);
        all.compare("SERVICE_STATES", states, &found.service_states, |index, found| {
            Step::ServiceState(*index, found.copied().unwrap_or_default())
        });
        for (range, wanted) in self.maps.tables.digests() {
            // If the kernel lacks the table, an entry of `SERVICES` that differs refers to it.
            let found = found.tables.get(&(range.offset, range.length)).map(|table| hashing::digest(table));
            if let Some(found) = found.filter(|found| *found != wanted) {
                let slots = format!("{}..{}", range.offset, range.offset + range.length);
                let [wanted, found] = [wanted, found].map(|digest| format!("digest {digest:016x}"));
                all.add("TABLES", &slots, Some(&wanted), Some(&found), Correction::Damaged(range));
            }
        }
        let services = self.maps.services.iter().map(|(key, value)| (*key, value));
        all.compare("SERVICES", services, &found.services, |key, found| Step::Service(*key, found.copied()));
    }

    /// Takes over the kernel's value, so that the next plan repairs it. Returns a step if the entry
    /// is to be written again instead.
    pub fn correct(&mut self, difference: &EntryDifference, now: std::time::Duration) -> Option<Step> {
        self.forget_reached();
        match &difference.correction {
            Correction::Written(step) => self.record(step, now),
            Correction::Damaged(range) => self.maps.tables.damage(*range),
            Correction::Again(step) => return Some(step.clone()),
        }
        None
    }
}

#[derive(Default)]
struct Differences(Vec<EntryDifference>);

impl Differences {
    fn compare<'a, K: Copy + Ord + Debug, V: PartialEq + Debug + 'a>(
        &mut self,
        map: &'static str,
        wanted: impl Iterator<Item = (K, &'a V)>,
        found: &'a BTreeMap<K, V>,
        written: impl Fn(&K, Option<&V>) -> Step,
    ) {
        for (key, wanted, found) in pairs(wanted, found).filter(|(_, wanted, found)| wanted != found) {
            self.add(map, &key, wanted, found, Correction::Written(written(&key, found)));
        }
    }

    fn add(
        &mut self,
        map: &'static str,
        entry: &dyn Debug,
        wanted: Option<&impl Debug>,
        found: Option<&impl Debug>,
        correction: Correction,
    ) {
        let (wanted, found) = (wanted.map(|value| format!("{value:?}")), found.map(|value| format!("{value:?}")));
        self.0.push(EntryDifference { map, entry: format!("{entry:?}"), wanted, found, correction });
    }
}

/// Returns all keys, with the wanted and the found value.
fn pairs<'a, K: Copy + Ord, V: 'a>(
    wanted: impl Iterator<Item = (K, &'a V)>,
    found: &'a BTreeMap<K, V>,
) -> impl Iterator<Item = (K, Option<&'a V>, Option<&'a V>)> {
    let wanted: BTreeMap<K, &V> = wanted.collect();
    let surplus: Vec<_> = found.iter().filter(|(key, _)| !wanted.contains_key(key)).collect();
    let both = wanted.into_iter().map(|(key, value)| (key, Some(value), found.get(&key)));
    both.chain(surplus.into_iter().map(|(key, value)| (*key, None, Some(value))))
}

#[cfg(test)]
mod tests;
