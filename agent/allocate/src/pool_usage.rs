//! Tracks the use of each pool: its port claims and its lowest free addresses.

use std::{collections::BTreeMap, iter};

use vipmux_model::{Family, Model, Vip, pool::Pool};

/// The use of each pool. Pools are given by their index in the model.
#[derive(Debug, Default)]
pub(crate) struct PoolUsage {
    /// For each pool and family, the address below which none is free. No entry: the pool is full.
    free_from: BTreeMap<(usize, Family), Vip>,
    /// The number of port claims on addresses of each pool.
    claims: Vec<usize>,
}

impl PoolUsage {
    /// Returns the use while nobody has anything.
    pub(crate) fn new(model: &Model) -> Self {
        let pools = model.pools.iter().enumerate();
        let free_from = pools
            .flat_map(|(i, pool)| Family::ALL.map(|family| ((i, family), pool.first(family))))
            .filter_map(|(key, vip)| Some((key, vip?)));
        Self { free_from: free_from.collect(), claims: vec![0; model.pools.len()] }
    }

    /// Returns the number of port claims on addresses of a pool.
    pub(crate) fn claims(&self, index: usize) -> Option<usize> {
        self.claims.get(index).copied()
    }

    /// Counts the port claims of a Service that got the address.
    pub(crate) fn add_claims(&mut self, vip: Vip, ports: usize, model: &Model) {
        if let Some(claims) = self.claims_on(vip, model) {
            *claims += ports;
        }
    }

    /// Removes the port claims of a Service that lost the address.
    pub(crate) fn remove_claims(&mut self, vip: Vip, ports: usize, model: &Model) {
        if let Some(claims) = self.claims_on(vip, model) {
            *claims -= ports;
        }
    }

    fn claims_on(&mut self, vip: Vip, model: &Model) -> Option<&mut usize> {
        self.claims.get_mut(model.pool_of(vip)?)
    }

    /// Makes an address available again that nobody has any more.
    pub(crate) fn release(&mut self, vip: Vip, model: &Model) {
        for (index, _) in model.pools.iter().enumerate().filter(|(_, pool)| pool.contains(vip)) {
            let from = self.free_from.entry((index, vip.family())).or_insert(vip);
            *from = vip.min(*from);
        }
    }

    /// Returns the pool's free addresses, lowest first.
    pub(crate) fn free_addresses<'p, F: Fn(Vip) -> bool>(
        &mut self,
        (index, pool): (usize, &'p Pool),
        family: Family,
        is_free: F,
    ) -> impl Iterator<Item = Vip> + use<'p, F> {
        let key = (index, family);
        let mut candidate = self.free_from.get(&key).copied();
        while let Some(vip) = candidate.filter(|vip| !is_free(*vip)) {
            candidate = pool.next(vip);
        }
        match candidate {
            Some(vip) => self.free_from.insert(key, vip),
            None => self.free_from.remove(&key),
        };
        iter::successors(candidate, |vip| pool.next(*vip)).filter(move |vip| is_free(*vip))
    }
}
