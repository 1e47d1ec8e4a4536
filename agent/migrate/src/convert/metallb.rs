//! Converts MetalLB's IPAddressPools and L2Advertisements. vipmux reads them as they are, but
//! `helm uninstall` deletes their kinds, and so all of them.

use super::{Converted, name, pool};
use vipmux_model::{
    api::{IpAddressPool, L2Advertisement, VipPolicy, VipPolicySpec, VipPool},
    objects::Objects,
};

pub(super) fn convert(objects: &Objects, converted: &mut Converted) {
    for found in objects.address_pools.values() {
        let object = format!("IPAddressPool {}", name(&found.metadata));
        converted.add_pool(&object, of_pool(found));
    }
    for found in objects.l2_advertisements.values() {
        if !found.spec.service_selectors.is_empty() {
            let object = format!("L2Advertisement {}", name(&found.metadata));
            converted.note(object, "serviceSelectors have no counterpart: all addresses of its pools are announced");
        }
        converted.policies.push(of_advertisement(found));
    }
    if !objects.address_pools.is_empty() && objects.l2_advertisements.is_empty() {
        let message = "there is none, so MetalLB announces nothing by ARP and NDP; vipmux would announce all pools";
        converted.note("L2Advertisement", message);
    }
}

fn of_pool(found: &IpAddressPool) -> VipPool {
    let spec = &found.spec;
    let mut made = pool(&name(&found.metadata), spec.addresses.clone());
    made.metadata.labels.clone_from(&found.metadata.labels);
    made.spec.auto_assign = spec.auto_assign.unwrap_or(true);
    made.spec.avoid_buggy_ips = spec.avoid_buggy_ips.unwrap_or(false);
    if let Some(allocation) = &spec.service_allocation {
        made.spec.priority = allocation.priority.filter(|priority| *priority > 0);
        made.spec.namespaces.clone_from(&allocation.namespaces);
        made.spec.namespace_selectors.clone_from(&allocation.namespace_selectors);
        made.spec.service_selectors.clone_from(&allocation.service_selectors);
    }
    made
}

fn of_advertisement(found: &L2Advertisement) -> VipPolicy {
    let spec = VipPolicySpec {
        pools: found.spec.ip_address_pools.clone(),
        pool_selectors: found.spec.ip_address_pool_selectors.clone(),
        node_selectors: found.spec.node_selectors.clone(),
        interfaces: found.spec.interfaces.clone(),
        preferred_nodes: Vec::new(),
    };
    VipPolicy::new(&name(&found.metadata), spec)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use vipmux_model::Model;
    use vipmux_testing::object;

    fn objects() -> Objects {
        let mut objects = Objects::default();
        let lan = json!({
            "metadata": {"name": "lan", "labels": {"zone": "dmz"}},
            "spec": {"addresses": ["192.0.2.0/28"], "autoAssign": false, "avoidBuggyIPs": true, "serviceAllocation": {
                "priority": 7, "namespaces": ["shop"], "serviceSelectors": [{"matchLabels": {"tier": "front"}}]}},
        });
        let l2 = json!({
            "metadata": {"name": "l2"},
            "spec": {"ipAddressPoolSelectors": [{"matchLabels": {"zone": "dmz"}}], "interfaces": ["eth1"],
                "nodeSelectors": [{"matchLabels": {"rack": "a"}}], "serviceSelectors": [{"matchLabels": {"a": "b"}}]},
        });
        objects.address_pools.insert("lan".to_owned(), object(lan));
        objects.l2_advertisements.insert("l2".to_owned(), object(l2));
        objects
    }

    #[test]
    fn a_converted_pool_means_the_same_as_the_original() {
        let (objects, mut converted) = (objects(), Converted::default());
        convert(&objects, &mut converted);
        let model = |objects: &Objects| Model::ingest(objects, &vipmux_model::IngestOptions::default());
        let (before, after) = (model(&objects), model(&converted.replaced_in(&objects)));
        let (before, after) = (&before.pools[0], &after.pools[0]);
        assert_eq!(
            (before.ranges(), before.rank(), before.auto_assign),
            (after.ranges(), after.rank(), after.auto_assign)
        );
        assert_eq!((before.avoid_buggy, &before.labels), (after.avoid_buggy, &after.labels));
        let front = [("tier".to_owned(), "front".to_owned())].into();
        for (namespace, labels, served) in
            [("shop", &front, true), ("other", &front, false), ("shop", &[].into(), false)]
        {
            assert_eq!(before.serves(namespace, &[].into(), labels), served);
            assert_eq!(after.serves(namespace, &[].into(), labels), served);
        }
    }

    #[test]
    fn an_advertisement_becomes_a_policy_and_what_is_lost_is_noted() {
        let mut converted = Converted::default();
        convert(&objects(), &mut converted);
        let spec = &converted.policies[0].spec;
        assert_eq!(
            (spec.interfaces.as_slice(), spec.pool_selectors.len(), spec.node_selectors.len()),
            (&["eth1".to_owned()][..], 1, 1)
        );
        assert_eq!(converted.notes[0].object, "L2Advertisement l2");
        let without = Objects { l2_advertisements: Objects::default().l2_advertisements, ..objects() };
        let mut converted = Converted::default();
        convert(&without, &mut converted);
        assert!(converted.notes[0].message.contains("announces nothing"));
    }
}
