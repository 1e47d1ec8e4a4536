//! What the kernel's maps hold otherwise than their mirror.

use std::{collections::BTreeMap, fmt::Debug, net::IpAddr};

use vipmux_common::abi;

use crate::{
    hashing,
    plan::{Entries, Observed, Step, arena::Range},
};

/// The flags of a VIP that a program changes when it yields it.
const LEADERSHIP: u32 = abi::VIP_LEADING | abi::VIP_YIELDED;

/// An entry that the kernel holds otherwise than the mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The map.
    pub map: &'static str,
    /// The entry's key, for people.
    pub entry: String,
    /// What the mirror has; `None`: no such entry.
    pub wanted: Option<String>,
    /// What the kernel has.
    pub found: Option<String>,
    truth: Truth,
}

/// What to tell the mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Truth {
    /// As if this had been written.
    Written(Step),
    /// The range does not hold the table that it should.
    Damaged(Range),
    /// Not planned, but to be written again.
    Again(Step),
}

impl Observed {
    /// What the kernel holds otherwise than this mirror. What programs write by themselves is none: that a VIP was
    /// yielded is noticed elsewhere.
    pub fn differences(&self, found: &Entries) -> Vec<Difference> {
        let mut all = Differences::default();
        if self.config != found.config {
            let again = Truth::Again(Step::Config(self.config));
            all.add("CONFIG", &0, Some(&self.config), Some(&found.config), again);
        }
        self.compare_nodes(found, &mut all);
        let wanted = self.backends.iter().filter(|(_, backend)| backend.generation != 0);
        all.compare("BACKENDS", wanted, &found.backends, |index, found| {
            Step::Backend(*index, found.copied().unwrap_or_default())
        });
        self.compare_services(found, &mut all);
        let wanted = self.sources.keys();
        for key in wanted.symmetric_difference(&found.source_ranges) {
            let [wanted, found] = [&wanted, &found.source_ranges].map(|keys| keys.contains(key).then_some(1));
            let again = Truth::Again(Step::SourceRange(*key, wanted.is_some()));
            all.add("SOURCE_RANGES", key, wanted.as_ref(), found.as_ref(), again);
        }
        let yielded = |found: &abi::VipValue| found.flags & abi::VIP_YIELDED != 0;
        for (address, wanted, found) in pairs(self.vips.iter().map(|(key, value)| (*key, value)), &found.vips) {
            let same = wanted.zip(found).is_some_and(|(wanted, found)| {
                let mask = if yielded(found) { !LEADERSHIP } else { u32::MAX };
                let masked = |value: &abi::VipValue| abi::VipValue { flags: value.flags & mask, ..*value };
                masked(wanted) == masked(found)
            });
            if !same {
                let truth = Truth::Written(Step::Vip(address, found.copied()));
                all.add("VIPS", &IpAddr::from(address), wanted, found, truth);
            }
        }
        all.0
    }

    fn compare_nodes(&self, found: &Entries, all: &mut Differences) {
        let named = self.nodes.iter().filter_map(|(index, entry)| Some((index, entry.name.as_ref()?)));
        all.compare("NODE_NAMES", named, &found.node_names, |index, found| Step::NodeName(*index, found.cloned()));
        let nodes = self.nodes.iter().map(|(index, entry)| (index, &entry.node));
        let nodes = nodes.filter(|(_, node)| **node != abi::Node::default());
        all.compare("NODES", nodes, &found.nodes, |index, found| {
            Step::Node(*index, found.copied().unwrap_or_default())
        });
        let peers = self.peers.iter().map(|(mac, index)| (*mac, index));
        all.compare("PEERS", peers, &found.peers, |mac, found| Step::Peer(*mac, found.copied()));
    }

    fn compare_services(&self, found: &Entries, all: &mut Differences) {
        let named = self.slots.iter().filter_map(|(index, slot)| Some((index, slot.name.as_ref()?)));
        all.compare("SERVICE_NAMES", named, &found.service_names, |index, found| {
            Step::ServiceName(*index, found.cloned())
        });
        let states = self.slots.iter().map(|(index, slot)| (index, &slot.state));
        let states = states.filter(|(_, state)| state.generation != 0);
        all.compare("SERVICE_STATES", states, &found.service_states, |index, found| {
            Step::ServiceState(*index, found.copied().unwrap_or_default())
        });
        for (range, wanted) in self.tables.digests() {
            // One that is missing was referred to by an entry of `SERVICES` that differs.
            let found = found.tables.get(&(range.offset, range.length)).map(|table| hashing::digest(table));
            if let Some(found) = found.filter(|found| *found != wanted) {
                let slots = format!("{}..{}", range.offset, range.offset + range.length);
                let [wanted, found] = [wanted, found].map(|digest| format!("digest {digest:016x}"));
                all.add("TABLES", &slots, Some(&wanted), Some(&found), Truth::Damaged(range));
            }
        }
        let services = self.services.iter().map(|(key, value)| (*key, value));
        all.compare("SERVICES", services, &found.services, |key, found| Step::Service(*key, found.copied()));
    }

    /// Takes over what the kernel holds, so that the next plan puts it right; or what is to be written again instead.
    pub fn correct(&mut self, difference: &Difference, now: std::time::Duration) -> Option<Step> {
        self.unsettle();
        match &difference.truth {
            Truth::Written(step) => self.record(step, now),
            Truth::Damaged(range) => self.tables.damage(*range),
            Truth::Again(step) => return Some(step.clone()),
        }
        None
    }
}

#[derive(Default)]
struct Differences(Vec<Difference>);

impl Differences {
    fn compare<'a, K: Copy + Ord + Debug, V: PartialEq + Debug + 'a>(
        &mut self,
        map: &'static str,
        wanted: impl Iterator<Item = (K, &'a V)>,
        found: &'a BTreeMap<K, V>,
        written: impl Fn(&K, Option<&V>) -> Step,
    ) {
        for (key, wanted, found) in pairs(wanted, found).filter(|(_, wanted, found)| wanted != found) {
            self.add(map, &key, wanted, found, Truth::Written(written(&key, found)));
        }
    }

    fn add(
        &mut self,
        map: &'static str,
        entry: &dyn Debug,
        wanted: Option<&impl Debug>,
        found: Option<&impl Debug>,
        truth: Truth,
    ) {
        let (wanted, found) = (wanted.map(|value| format!("{value:?}")), found.map(|value| format!("{value:?}")));
        self.0.push(Difference { map, entry: format!("{entry:?}"), wanted, found, truth });
    }
}

/// All keys, with what is wanted and what was found.
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
