//! Indexes the addresses of the Services with one sharing key.

use std::{collections::BTreeMap, iter, net::Ipv4Addr, ops::Bound};

use vipmux_model::{
    Vip,
    port::Port,
    request::{Scope, Sharer},
};

/// The addresses of the Services with one sharing key. A Service looks only at those that it has a
/// chance to share, however many the others are.
#[derive(Debug, Default)]
pub(super) struct GroupAddresses {
    vips: VipCounts,
    /// The addresses with a member of this namespace.
    by_namespace: BTreeMap<String, VipCounts>,
    /// The addresses with a member whose key reaches this namespace.
    to_namespace: BTreeMap<String, VipCounts>,
    /// The addresses with a member whose key reaches all namespaces.
    to_all: VipCounts,
    /// For ports that clashed: below this address, each address of the group has the port taken.
    /// The limit goes back if an address joins the group below it, a port becomes free there, or a
    /// pair gets another partner.
    taken_below: BTreeMap<Port, Vip>,
    /// Below this address, each address of the group carries a label.
    labeled_below: Option<Vip>,
    /// Below this address, each address of the group has a partner.
    paired_below: Option<Vip>,
}

/// Addresses, with the number of members on each.
#[derive(Debug, Default)]
struct VipCounts(BTreeMap<Vip, u32>);

impl VipCounts {
    fn add(&mut self, vip: Vip) {
        *self.0.entry(vip).or_default() += 1;
    }

    fn remove(&mut self, vip: Vip) {
        if let Some(count) = self.0.get_mut(&vip) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&vip);
            }
        }
    }

    fn after(&self, from: Bound<Vip>) -> impl Iterator<Item = Vip> {
        self.0.range((from, Bound::Unbounded)).map(|(vip, _)| *vip)
    }
}

impl GroupAddresses {
    /// Adds a member on the address, in this namespace and with this reach of its key.
    pub(super) fn add(&mut self, vip: Vip, namespace: &str, scope: &Scope) {
        self.for_consents(namespace, scope, |vips| vips.add(vip));
        if !self.vips.0.contains_key(&vip) {
            self.reopen(vip);
        }
        self.vips.add(vip);
    }

    /// Removes such a member from the address.
    pub(super) fn remove(&mut self, vip: Vip, namespace: &str, scope: &Scope) {
        self.for_consents(namespace, scope, |vips| vips.remove(vip));
        self.vips.remove(vip);
    }

    fn for_consents(&mut self, namespace: &str, scope: &Scope, change: impl Fn(&mut VipCounts)) {
        change_at(&mut self.by_namespace, namespace, &change);
        match scope {
            Scope::Cluster => change(&mut self.to_all),
            Scope::Namespaces(names) => {
                for name in names {
                    change_at(&mut self.to_namespace, name, &change);
                }
            }
        }
    }

    /// Records that a port or label may be free on the address, or that it may have lost its
    /// partner.
    pub(super) fn reopen(&mut self, vip: Vip) {
        let others = self.labeled_below.iter_mut().chain(&mut self.paired_below);
        for limit in self.taken_below.values_mut().chain(others) {
            *limit = vip.min(*limit);
        }
    }

    /// Returns the addresses, ascending and not below `from`, with a member that may share with the
    /// Service; and some where only one side agrees.
    pub(super) fn reachable<'s>(
        &'s self,
        from: Option<Vip>,
        sharer: Sharer<'s>,
    ) -> impl Iterator<Item = Vip> + use<'s> {
        let namespace = sharer.namespace;
        let mut found: Vec<&VipCounts> = self.by_namespace.get(namespace).into_iter().collect();
        match sharer.sharing.key.as_ref().map(|key| &key.scope) {
            Some(Scope::Cluster) => found.extend(self.to_namespace.get(namespace).into_iter().chain([&self.to_all])),
            Some(Scope::Namespaces(names)) => found.extend(names.iter().filter_map(|name| self.by_namespace.get(name))),
            None => {}
        }
        let mut from = from.map_or(Bound::Unbounded, Bound::Included);
        iter::from_fn(move || {
            let next = found.iter().filter_map(|vips| vips.after(from).next()).min()?;
            from = Bound::Excluded(next);
            Some(next)
        })
    }

    /// Returns an address below which each address of the group has the port taken. `taken` says
    /// whether an address has.
    pub(super) fn taken_below(&mut self, port: Port, taken: impl FnMut(Vip) -> bool) -> Vip {
        let known = self.taken_below.get(&port).copied();
        let limit = self.none_below(known, taken);
        if known != Some(limit) {
            self.taken_below.insert(port, limit);
        }
        limit
    }

    /// Returns an address below which each address of the group carries a label. `labeled` says
    /// whether an address does.
    pub(super) fn labeled_below(&mut self, labeled: impl FnMut(Vip) -> bool) -> Vip {
        let limit = self.none_below(self.labeled_below, labeled);
        self.labeled_below = Some(limit);
        limit
    }

    /// Returns an address below which each address of the group has a partner. `paired` says
    /// whether an address has.
    pub(super) fn paired_below(&mut self, paired: impl FnMut(Vip) -> bool) -> Vip {
        let limit = self.none_below(self.paired_below, paired);
        self.paired_below = Some(limit);
        limit
    }

    fn none_below(&self, known: Option<Vip>, mut unfit: impl FnMut(Vip) -> bool) -> Vip {
        let from = known.unwrap_or(Vip::new(Ipv4Addr::UNSPECIFIED.into()));
        let last = self.vips.after(Bound::Included(from)).take_while(|vip| unfit(*vip)).last();
        last.map_or(from, |vip| Vip::from_number(vip.number().saturating_add(1)))
    }
}

fn change_at(vips: &mut BTreeMap<String, VipCounts>, namespace: &str, change: impl Fn(&mut VipCounts)) {
    match vips.get_mut(namespace) {
        Some(counted) => {
            change(counted);
            if counted.0.is_empty() {
                vips.remove(namespace);
            }
        }
        None => change(vips.entry(namespace.to_owned()).or_default()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::{collection, prelude::*};

    use super::*;
    use std::num::NonZeroU16;

    use vipmux_model::{
        PortNumber, Protocol,
        pool::PoolSharing,
        request::{ByAddress, Sharing, SharingKey},
    };
    use vipmux_testing::names::vip4;

    const PORT: Port = Port { number: PortNumber::One(NonZeroU16::new(80).unwrap()), protocol: Protocol::Tcp };

    /// Returns a namespace and a sharing setting.
    fn member() -> impl Strategy<Value = (&'static str, Sharing)> {
        let namespaces = || prop::sample::select(vec!["a", "b", "c"]);
        let scope = prop_oneof![
            Just(Scope::Cluster),
            collection::btree_set(namespaces().prop_map(str::to_owned), 0..3).prop_map(Scope::Namespaces),
        ];
        (namespaces(), scope).prop_map(|(namespace, scope)| {
            let key = SharingKey { dialect: "vipmux".to_owned(), key: "web".to_owned(), scope };
            (namespace, Sharing { key: Some(key), by_address: ByAddress::Never })
        })
    }

    fn scope(sharing: &Sharing) -> &Scope {
        &sharing.key.as_ref().unwrap().scope
    }

    proptest! {
        #[test]
        fn a_service_that_may_share_is_found(
            members in collection::vec((any::<u8>(), member()), 0..20),
            asking in member(),
            from in option_of_vip(),
        ) {
            let mut group = GroupAddresses::default();
            for (last, (namespace, sharing)) in &members {
                group.add(vip4(*last), namespace, scope(sharing));
            }
            let sharer = Sharer { namespace: asking.0, sharing: &asking.1 };
            let found: Vec<Vip> = group.reachable(from, sharer).collect();
            prop_assert!(found.is_sorted_by(|a, b| a < b));
            for (last, (namespace, sharing)) in &members {
                let may = sharer.may_share(Sharer { namespace, sharing }, PoolSharing::Any).is_ok();
                let wanted = may && from.is_none_or(|from| from <= vip4(*last));
                prop_assert!(!wanted || found.contains(&vip4(*last)));
            }
            prop_assert!(found.iter().all(|vip| group.vips.0.contains_key(vip) && from.is_none_or(|from| from <= *vip)));
        }

        #[test]
        fn a_removed_service_leaves_nothing_behind(members in collection::vec((any::<u8>(), member()), 0..20)) {
            let mut group = GroupAddresses::default();
            for (last, (namespace, sharing)) in &members {
                group.add(vip4(*last), namespace, scope(sharing));
            }
            for (last, (namespace, sharing)) in &members {
                group.remove(vip4(*last), namespace, scope(sharing));
            }
            let GroupAddresses { vips, by_namespace, to_namespace, to_all, .. } = group;
            prop_assert!(vips.0.is_empty() && to_all.0.is_empty() && by_namespace.is_empty() && to_namespace.is_empty());
        }

        #[test]
        fn below_the_limit_all_is_taken_and_at_it_nothing(steps in collection::vec((any::<u8>(), any::<bool>()), 0..60)) {
            let (mut group, mut taken) = (GroupAddresses::default(), BTreeSet::new());
            for (last, take) in steps {
                group.add(vip4(last), "a", &Scope::Cluster);
                if take {
                    taken.insert(vip4(last));
                }
                let limit = group.taken_below(PORT, |vip| taken.contains(&vip));
                let free = group.vips.0.keys().find(|vip| !taken.contains(vip));
                prop_assert!(group.vips.0.range(..limit).all(|(vip, _)| taken.contains(vip)));
                prop_assert_eq!(group.vips.0.range(limit..).next().map(|(vip, _)| vip), free);
            }
        }
    }

    fn option_of_vip() -> impl Strategy<Value = Option<Vip>> {
        prop::option::of(any::<u8>().prop_map(vip4))
    }

    #[test]
    fn a_group_where_all_clash_is_walked_once() {
        let mut group = GroupAddresses::default();
        let mut asked = 0;
        for last in 0..=255 {
            group.add(vip4(last), "a", &Scope::Cluster);
            group.taken_below(PORT, |_| {
                asked += 1;
                true
            });
        }
        assert_eq!(asked, 256);
    }
}
