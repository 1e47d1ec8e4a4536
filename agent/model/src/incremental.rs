//! Updates the model after changes of EndpointSlices alone, which are the most frequent ones.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use imbl::ordmap::DiffItem;
use k8s_openapi::api::discovery::v1::EndpointSlice;

use crate::{
    Model, Protocol, ServiceName,
    endpoints::{Endpoints, Places, service_of},
    ingest::is_api_server,
    objects::Objects,
};

/// A slice's namespace and name.
type SliceKey = (String, String);

/// The EndpointSlices of each Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slices(BTreeMap<ServiceName, BTreeSet<SliceKey>>);

impl Slices {
    /// Collects the slices of these objects.
    pub fn of(objects: &Objects) -> Self {
        let mut slices = Self::default();
        for (key, slice) in &objects.endpoint_slices {
            slices.insert(key, slice);
        }
        slices
    }

    fn insert(&mut self, key: &SliceKey, slice: &EndpointSlice) {
        if let Some(service) = service_of(&key.0, slice) {
            self.0.entry(service).or_default().insert(key.clone());
        }
    }

    fn remove(&mut self, key: &SliceKey, slice: &EndpointSlice) {
        let Some(service) = service_of(&key.0, slice) else { return };
        if let Some(keys) = self.0.get_mut(&service) {
            keys.remove(key);
            if keys.is_empty() {
                self.0.remove(&service);
            }
        }
    }
}

/// A slice before and after the change.
type SliceChange<'a> = (&'a SliceKey, [Option<&'a Arc<EndpointSlice>>; 2]);

impl Model {
    /// Updates the model of `before`, and its `slices`, to `after`, if nothing but endpoints
    /// changed. The cost grows with the change alone. Returns the Services whose endpoints changed.
    /// `None`: nothing was done, and [`Model::ingest`] is needed.
    pub fn update_endpoints(
        &mut self,
        slices: &mut Slices,
        before: &Objects,
        after: &Objects,
    ) -> Option<BTreeSet<ServiceName>> {
        if !differ_in_slices_alone(before, after) {
            return None;
        }
        let changes: Vec<SliceChange<'_>> =
            before.endpoint_slices.diff(&after.endpoint_slices).map(|item| change(&item)).collect();
        let places = Places::new(&self.nodes);
        let mut touched = BTreeSet::new();
        for (key, slice) in changes.iter().flat_map(|(key, both)| both.iter().flatten().map(move |it| (key, it))) {
            // Notes about a slice or its endpoints, and addresses that it reserves, need
            // `Model::ingest`.
            let service = service_of(&key.0, slice)?;
            if is_api_server(&service) || after.unread.endpoints.contains(&service) {
                return None;
            }
            if let Some(ours) = self.services.get(&service) {
                let translated = !ours.policy.direct && ours.ports.keys().all(|port| port.protocol != Protocol::Sctp);
                (translated && Endpoints::are_sound(ours, slice, &places)).then_some(())?;
                touched.insert(service);
            }
        }
        for (key, [old, new]) in &changes {
            if let Some(slice) = old {
                slices.remove(key, slice);
            }
            if let Some(slice) = new {
                slices.insert(key, slice);
            }
        }
        for service in touched.iter().filter_map(|name| self.services.get(name)) {
            self.endpoints.remove(&service.name);
            let keys = slices.0.get(&service.name).into_iter().flatten();
            for slice in keys.filter_map(|key| after.endpoint_slices.get(key)) {
                // The notes about the other slices exist already.
                self.endpoints.add(service, slice, &places, &mut Vec::new());
            }
        }
        Some(touched)
    }
}

fn differ_in_slices_alone(before: &Objects, after: &Objects) -> bool {
    // All fields are named here, so that no kind is forgotten.
    let Objects {
        services,
        endpoint_slices: _,
        nodes,
        namespaces,
        address_pools,
        l2_advertisements,
        vip_pools,
        vip_policies,
        problems,
        unread,
    } = before;
    services.diff(&after.services).next().is_none()
        && nodes.diff(&after.nodes).next().is_none()
        && namespaces.diff(&after.namespaces).next().is_none()
        && address_pools.diff(&after.address_pools).next().is_none()
        && l2_advertisements.diff(&after.l2_advertisements).next().is_none()
        && vip_pools.diff(&after.vip_pools).next().is_none()
        && vip_policies.diff(&after.vip_policies).next().is_none()
        && *problems == after.problems
        && *unread == after.unread
}

fn change<'a>(item: &DiffItem<'a, 'a, SliceKey, Arc<EndpointSlice>>) -> SliceChange<'a> {
    match *item {
        DiffItem::Add(key, new) => (key, [None, Some(new)]),
        DiffItem::Update { old: (_, old), new: (key, new) } => (key, [Some(old), Some(new)]),
        DiffItem::Remove(key, old) => (key, [Some(old), None]),
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection, prelude::*};
    use serde_json::json;

    use super::*;
    use crate::{
        IngestOptions,
        endpoints::SERVICE_LABEL,
        fixture::{node_name, service_name},
    };
    use vipmux_testing::object;

    /// One of a few slices: its name, its Service if it has one, and the addresses and nodes of its
    /// endpoints.
    type Edit = (u8, Option<u8>, Vec<(u8, u8)>);

    fn edit() -> impl Strategy<Value = (bool, Edit)> {
        let service = prop_oneof![8 => (0..3u8).prop_map(Some), 1 => Just(None)];
        // One of the endpoints' nodes is not known.
        (prop::bool::weighted(0.8), (0..4u8, service, collection::vec((1..6u8, 0..4u8), 0..4)))
    }

    fn objects() -> Objects {
        let mut objects = Objects::default();
        for n in 0..3 {
            objects.nodes.insert(node_name(format!("node-{n}")), object(json!({})));
        }
        // The third Service is not ours.
        for (n, kind) in [(0, "LoadBalancer"), (1, "LoadBalancer"), (2, "ClusterIP")] {
            let name = service_name(format!("web-{n}"));
            objects.services.insert(name, object(json!({"spec": {"type": kind, "ports": [{"port": 80}]}})));
        }
        objects
    }

    fn apply(objects: &mut Objects, stays: bool, (n, service, endpoints): &Edit) {
        let key = ("shop".to_owned(), format!("slice-{n}"));
        if !stays {
            objects.endpoint_slices.remove(&key);
            return;
        }
        let endpoint = |(address, node): &(u8, u8)| json!({"addresses": [format!("10.0.0.{address}")], "nodeName": format!("node-{node}")});
        let labels = service.map_or(json!({}), |n| json!({(SERVICE_LABEL): format!("web-{n}")}));
        let slice = object(json!({
            "metadata": {"name": key.1, "labels": labels}, "addressType": "IPv4", "ports": [{"port": 8080}],
            "endpoints": endpoints.iter().map(endpoint).collect::<Vec<_>>(),
        }));
        objects.endpoint_slices.insert(key, slice);
    }

    proptest! {
        #[test]
        fn a_renewed_model_is_the_one_that_ingesting_makes(
            episodes in collection::vec(collection::vec(edit(), 1..4), 1..12),
        ) {
            let options = IngestOptions::default();
            let mut before = objects();
            let (mut model, mut slices) = (Model::ingest(&before, &options), Slices::of(&before));
            for edits in episodes {
                let mut after = before.clone();
                for (stays, edit) in &edits {
                    apply(&mut after, *stays, edit);
                }
                let fresh = Model::ingest(&after, &options);
                if model.update_endpoints(&mut slices, &before, &after).is_none() {
                    prop_assert!(fresh.notes.len() + model.notes.len() > 0, "the long way was taken without need");
                    (model, slices) = (Model::ingest(&after, &options), Slices::of(&after));
                }
                prop_assert_eq!(&model, &fresh);
                prop_assert_eq!(&slices, &Slices::of(&after));
                before = after;
            }
        }
    }

    #[test]
    fn only_changes_of_endpoints_alone_are_applied() {
        let before = objects();
        let mut after = before.clone();
        after.nodes.remove(&node_name("node-0"));
        let mut model = Model::ingest(&before, &IngestOptions::default());
        let mut slices = Slices::of(&before);
        assert_eq!(model.update_endpoints(&mut slices, &before, &after), None);
        assert_eq!(model, Model::ingest(&before, &IngestOptions::default()));
        assert_eq!(model.update_endpoints(&mut slices, &before, &before.clone()), Some(BTreeSet::new()));
    }
}
