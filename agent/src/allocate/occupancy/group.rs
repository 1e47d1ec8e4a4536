//! The addresses on which one key is found.

use std::{
    collections::{BTreeMap, BTreeSet},
    iter,
    net::Ipv4Addr,
    ops::Bound,
};

use crate::model::{
    Vip,
    name::Port,
    request::{Party, Scope},
};

/// The addresses on which one key is found, so that a Service looks at those alone that it has a chance to share, however
/// many the others of its key have.
#[derive(Debug, Default)]
pub(super) struct Group<'a> {
    vips: BTreeSet<Vip>,
    /// The same by whom a member there lets share.
    by_consent: BTreeMap<Consent<'a>, BTreeSet<Vip>>,
    /// For ports that clashed: below this address each of the group's has the port taken. Ports are only ever taken while
    /// an allocation is made, so this goes back only where an address joins the group below it, or another partner a pair.
    taken_below: BTreeMap<Port, Vip>,
    /// Below this address each of the group's has a partner. They come and never go, as ports do.
    paired_below: Option<Vip>,
}

/// How members can be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Consent<'a> {
    /// They are in this namespace.
    In(&'a str),
    /// They let this other namespace share.
    To(&'a str),
    /// They let every namespace share.
    ToAll,
}

impl<'a> Group<'a> {
    /// Notes that a member in this namespace, whose key reaches so far, is on the address.
    pub(super) fn add(&mut self, vip: Vip, namespace: &'a str, scope: &'a Scope) {
        let listed = match scope {
            Scope::Cluster => None,
            Scope::Namespaces(names) => Some(names.iter().map(|name| Consent::To(name))),
        };
        let reach = listed.map_or_else(|| vec![Consent::ToAll], Iterator::collect);
        for consent in iter::once(Consent::In(namespace)).chain(reach) {
            self.by_consent.entry(consent).or_default().insert(vip);
        }
        if self.vips.insert(vip) {
            self.reopen(vip);
        }
    }

    /// Notes that a port which was taken on the address may be so no more.
    pub(super) fn reopen(&mut self, vip: Vip) {
        for limit in self.taken_below.values_mut().chain(&mut self.paired_below) {
            *limit = vip.min(*limit);
        }
    }

    /// The addresses, ascending and not below `from`, with a member that may share with the party; and some without, where only one side
    /// agrees.
    pub(super) fn reachable<'s>(
        &'s self,
        from: Option<Vip>,
        party: Party<'s>,
    ) -> impl Iterator<Item = Vip> + use<'s, 'a> {
        let namespace = party.namespace;
        let mut asked = vec![Consent::In(namespace)];
        match party.sharing.key.as_ref().map(|key| &key.scope) {
            Some(Scope::Cluster) => asked.extend([Consent::To(namespace), Consent::ToAll]),
            Some(Scope::Namespaces(names)) => asked.extend(names.iter().map(|name| Consent::In(name))),
            None => {}
        }
        let found: Vec<&BTreeSet<Vip>> = asked.iter().filter_map(|consent| self.by_consent.get(consent)).collect();
        let mut from = from.map_or(Bound::Unbounded, Bound::Included);
        iter::from_fn(move || {
            let next = found.iter().filter_map(|vips| vips.range((from, Bound::Unbounded)).next()).min().copied()?;
            from = Bound::Excluded(next);
            Some(next)
        })
    }

    /// An address below which each of the group's has the port taken. `taken` says whether one has.
    pub(super) fn taken_below(&mut self, port: Port, taken: impl FnMut(Vip) -> bool) -> Vip {
        let known = self.taken_below.get(&port).copied();
        let limit = self.none_below(known, taken);
        if known != Some(limit) {
            self.taken_below.insert(port, limit);
        }
        limit
    }

    /// An address below which each of the group's has a partner. `paired` says whether one has.
    pub(super) fn paired_below(&mut self, paired: impl FnMut(Vip) -> bool) -> Vip {
        let limit = self.none_below(self.paired_below, paired);
        self.paired_below = Some(limit);
        limit
    }

    fn none_below(&self, known: Option<Vip>, mut unfit: impl FnMut(Vip) -> bool) -> Vip {
        let from = known.unwrap_or(Vip(Ipv4Addr::UNSPECIFIED.into()));
        let last = self.vips.range(from..).take_while(|vip| unfit(**vip)).last();
        last.map_or(from, |vip| Vip::from_number(vip.number().saturating_add(1)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection, prelude::*};

    use super::*;
    use crate::model::{
        Protocol,
        pool::PoolSharing,
        request::{ByAddress, Sharing, SharingKey},
    };

    const PORT: Port = Port { number: 80, protocol: Protocol::Tcp };

    fn vip(last: u8) -> Vip {
        Vip([192, 0, 2, last].into())
    }

    /// Somebody's namespace and what it says about sharing.
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
        fn whoever_may_share_is_found(
            members in collection::vec((any::<u8>(), member()), 0..20),
            asking in member(),
            from in option_of_vip(),
        ) {
            let mut group = Group::default();
            for (last, (namespace, sharing)) in &members {
                group.add(vip(*last), namespace, scope(sharing));
            }
            let party = Party { namespace: asking.0, sharing: &asking.1 };
            let found: Vec<Vip> = group.reachable(from, party).collect();
            prop_assert!(found.is_sorted_by(|a, b| a < b));
            for (last, (namespace, sharing)) in &members {
                let may = party.may_share(Party { namespace, sharing }, PoolSharing::Any).is_ok();
                let wanted = may && from.is_none_or(|from| from <= vip(*last));
                prop_assert!(!wanted || found.contains(&vip(*last)));
            }
            prop_assert!(found.iter().all(|vip| group.vips.contains(vip) && from.is_none_or(|from| from <= *vip)));
        }

        #[test]
        fn below_the_limit_all_is_taken_and_at_it_nothing(steps in collection::vec((any::<u8>(), any::<bool>()), 0..60)) {
            let (mut group, mut taken) = (Group::default(), BTreeSet::new());
            for (last, take) in steps {
                group.add(vip(last), "a", &Scope::Cluster);
                if take {
                    taken.insert(vip(last));
                }
                let limit = group.taken_below(PORT, |vip| taken.contains(&vip));
                let free = group.vips.iter().find(|vip| !taken.contains(vip));
                prop_assert!(group.vips.range(..limit).all(|vip| taken.contains(vip)));
                prop_assert_eq!(group.vips.range(limit..).next(), free);
            }
        }
    }

    fn option_of_vip() -> impl Strategy<Value = Option<Vip>> {
        prop::option::of(any::<u8>().prop_map(vip))
    }

    #[test]
    fn a_group_where_all_clash_is_walked_once() {
        let mut group = Group::default();
        let mut asked = 0;
        for last in 0..=255 {
            group.add(vip(last), "a", &Scope::Cluster);
            group.taken_below(PORT, |_| {
                asked += 1;
                true
            });
        }
        assert_eq!(asked, 256);
    }
}
