//! Computes the statuses of pools and policies: usage and leaders.

use std::collections::{BTreeMap, BTreeSet};

use super::StatusInputs;
use vipmux_model::{
    Family, Vip,
    api::{Leading, Usage, VipPolicyStatus, VipPoolStatus},
    pool::{Pool, PoolKind},
};

/// Returns the desired status of each VipPool.
pub fn pools(inputs: StatusInputs<'_>) -> BTreeMap<String, VipPoolStatus> {
    let used = UsedAddresses::of(inputs);
    let own = inputs.model.pools.iter().enumerate().filter(|(_, pool)| pool.kind == PoolKind::VipPool);
    own.map(|(index, pool)| {
        let generation = inputs.objects.vip_pools.get(&pool.name).and_then(|object| object.metadata.generation);
        let status = VipPoolStatus {
            observed_generation: generation,
            ipv4: used.usage(index, pool, Family::V4),
            ipv6: used.usage(index, pool, Family::V6),
            leading: leading(used.of_pool(index), inputs),
        };
        (pool.name.clone(), status)
    })
    .collect()
}

/// Returns the desired status of each VipPolicy.
pub fn policies(inputs: StatusInputs<'_>) -> BTreeMap<String, VipPolicyStatus> {
    let used = UsedAddresses::of(inputs);
    let status = |name: &String| {
        let object = format!("VipPolicy {name}");
        let all = inputs.model.pools.iter().enumerate();
        let covered: Vec<_> =
            all.filter(|(index, _)| inputs.model.advertisements.of(Some(*index)).is_by(&object)).collect();
        let usages =
            covered.iter().flat_map(|(index, pool)| Family::ALL.map(|family| used.usage(*index, pool, family)));
        let usage = usages.flatten().fold(Usage::default(), |sum, usage| Usage {
            capacity: sum.capacity.saturating_add(usage.capacity),
            used: sum.used.saturating_add(usage.used),
        });
        VipPolicyStatus {
            observed_generation: inputs.objects.vip_policies.get(name).and_then(|object| object.metadata.generation),
            pools: covered.iter().map(|(_, pool)| pool.name.clone()).collect(),
            usage: Some(usage),
            leading: leading(covered.iter().flat_map(|(index, _)| used.of_pool(*index)), inputs),
        }
    };
    inputs.objects.vip_policies.keys().map(|name| (name.clone(), status(name))).collect()
}

/// The addresses that Services hold, by the index of their pool.
struct UsedAddresses(BTreeMap<usize, BTreeSet<Vip>>);

impl UsedAddresses {
    fn of(inputs: StatusInputs<'_>) -> Self {
        let mut held: BTreeMap<usize, BTreeSet<Vip>> = BTreeMap::new();
        let assigned = inputs.allocation.assignments.values().flat_map(|assignment| &assignment.addresses);
        let withheld = inputs.allocation.withheld.values().flat_map(|held| &held.addresses);
        for vip in assigned.chain(withheld) {
            if let Some(pool) = inputs.model.pool_of(*vip) {
                held.entry(pool).or_default().insert(*vip);
            }
        }
        Self(held)
    }

    fn of_pool(&self, index: usize) -> impl Iterator<Item = Vip> {
        self.0.get(&index).into_iter().flatten().copied()
    }

    /// Returns the usage of a pool; `None` if it has no addresses of that family.
    fn usage(&self, index: usize, pool: &Pool, family: Family) -> Option<Usage> {
        let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let used = self.of_pool(index).filter(|vip| vip.family() == family).map(|_| 1).sum();
        let usage = Usage { capacity: count(pool.capacity(family)), used: count(used) };
        (usage != Usage::default()).then_some(usage)
    }
}

/// Returns the leaders of these VIPs, by node. VIPs without a leader come first.
fn leading(vips: impl Iterator<Item = Vip>, inputs: StatusInputs<'_>) -> Vec<Leading> {
    let mut led: BTreeMap<&str, BTreeSet<Vip>> = BTreeMap::new();
    for vip in vips {
        let node = inputs.leaders.get(&vip).map_or("", vipmux_model::NodeName::as_str);
        led.entry(node).or_default().insert(vip);
    }
    let one = |(node, vips): (&str, BTreeSet<Vip>)| Leading {
        node: node.to_owned(),
        addresses: vips.iter().map(ToString::to_string).collect(),
    };
    led.into_iter().map(one).collect()
}
