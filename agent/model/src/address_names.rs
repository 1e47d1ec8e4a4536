//! Resolves addresses that Services ask for by name.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    Vip,
    pool::Pool,
    reason::{Note, Reason, Refusal, quoted},
    request::Request,
};

/// The maximum number of known names in a refusal.
const NAMED: usize = 8;

/// Addresses that Services ask for by name. Names ignore case, as Azure's do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressNames(BTreeMap<String, NamedAddress>);

/// An address, and its name as the pool has it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NamedAddress {
    name: String,
    vip: Vip,
}

impl AddressNames {
    /// Returns the names of these pools. If several pools have a name, the best one gets it.
    pub(super) fn of(pools: &[Pool], notes: &mut Vec<Note>) -> Self {
        let mut names: BTreeMap<String, NamedAddress> = BTreeMap::new();
        for pool in pools {
            // Names that this pool alone gives twice, in other cases.
            let mut own = BTreeSet::new();
            for (name, vip) in &pool.address_names {
                let key = name.to_ascii_lowercase();
                let first = || NamedAddress { name: name.clone(), vip: *vip };
                let known = names.entry(key.clone()).or_insert_with(first).vip;
                if known != *vip {
                    let by = if own.contains(&key) { "the pool also" } else { "a better pool" };
                    let message = format!("spec.addressNames.{name}: {by} gives that name to {known}; left out");
                    notes.push(Note::new(pool.object(), message));
                }
                own.insert(key);
            }
        }
        Self(names)
    }

    /// Returns the request, with the addresses that it asks for by name added to its other
    /// addresses.
    pub(super) fn resolve(&self, mut request: Request) -> Result<Request, Refusal> {
        for name in &request.address_names {
            let named = self.0.get(&name.to_ascii_lowercase()).ok_or_else(|| self.unknown(name))?;
            request.addresses.insert(named.vip);
        }
        Ok(request)
    }

    fn unknown(&self, name: &str) -> Refusal {
        let known: Vec<&str> = self.0.values().take(NAMED).map(|named| named.name.as_str()).collect();
        let known = match self.0.len().saturating_sub(NAMED) {
            _ if known.is_empty() => "no pool names any".to_owned(),
            0 => format!("known: {}", known.join(", ")),
            more => format!("known: {} and {more} more", known.join(", ")),
        };
        let message =
            format!("no address is called {} ({known}); spec.addressNames of a VipPool names them", quoted(name));
        Refusal::new(Reason::AddressNotInPool, message)
    }
}
