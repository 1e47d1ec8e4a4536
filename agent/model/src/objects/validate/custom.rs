//! Finds flaws of custom resources that their schemas and rules would refuse (`api::rules`), with
//! the same messages.

use std::net::IpAddr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::{FieldPath, Flaw, Flaws, name, name_path};
use crate::{
    api::{
        IpAddressPool, L2Advertisement, VipPolicy, VipPool,
        rules::{self, LIST_MAX, RANGES_MAX},
    },
    range::AddressRange,
    selector::Selector,
};

/// Returns the flaws of an IPAddressPool's metadata. The model checks its addresses.
pub(in super::super) fn address_pool(pool: &IpAddressPool) -> Vec<Flaw> {
    let mut flaws = Flaws::default();
    flaws.subdomain(name_path(), name(&pool.metadata));
    flaws.namespace(&pool.metadata);
    flaws.0
}

/// Returns the flaws of an L2Advertisement.
pub(in super::super) fn l2_advertisement(advertisement: &L2Advertisement) -> Vec<Flaw> {
    let mut flaws = Flaws::default();
    flaws.subdomain(name_path(), name(&advertisement.metadata));
    flaws.namespace(&advertisement.metadata);
    let spec = &advertisement.spec;
    flaws.selectors("ipAddressPoolSelectors", &spec.ip_address_pool_selectors);
    flaws.selectors("nodeSelectors", &spec.node_selectors);
    let preferred = spec.preferred_node_selectors.iter().map(|it| (it.weight, &it.preference));
    flaws.weights(["preferredNodeSelectors", "preference"], preferred);
    flaws.0
}

/// Returns the flaws of a VipPool.
pub(in super::super) fn vip_pool(pool: &VipPool) -> Vec<Flaw> {
    let mut flaws = Flaws::default();
    flaws.subdomain(name_path(), name(&pool.metadata));
    let spec = &pool.spec;
    if spec.addresses.is_empty() {
        flaws.add(field("addresses"), "required");
    }
    flaws.too_many(field("addresses"), spec.addresses.len(), RANGES_MAX);
    for (i, range) in spec.addresses.iter().enumerate() {
        if let Err(error) = range.parse::<AddressRange>() {
            flaws.add(field("addresses").index(i), error.to_string());
        }
    }
    if let Some(priority) = spec.priority.filter(|priority| *priority < 0) {
        flaws.add(field("priority"), format!("{priority} is less than 0"));
    }
    flaws.names("namespaces", &spec.namespaces);
    flaws.names("aliases", &spec.aliases);
    if spec.aliases.iter().any(|alias| alias == name(&pool.metadata)) {
        flaws.add(field("aliases"), rules::ALIAS_IS_ANOTHER_NAME.1);
    }
    flaws.too_many(field("addressNames"), spec.address_names.len(), LIST_MAX);
    for (name, address) in &spec.address_names {
        if address.parse::<IpAddr>().is_err() {
            flaws.add(field("addressNames").key(name), format!("{address:?}: {}", rules::NAMED_ADDRESSES.1));
        }
    }
    flaws.selectors("namespaceSelectors", &spec.namespace_selectors);
    flaws.selectors("serviceSelectors", &spec.service_selectors);
    flaws.0
}

/// Returns the flaws of a VipPolicy.
pub(in super::super) fn vip_policy(policy: &VipPolicy) -> Vec<Flaw> {
    let mut flaws = Flaws::default();
    flaws.subdomain(name_path(), name(&policy.metadata));
    let spec = &policy.spec;
    flaws.names("pools", &spec.pools);
    flaws.selectors("poolSelectors", &spec.pool_selectors);
    flaws.selectors("nodeSelectors", &spec.node_selectors);
    flaws.too_many(field("interfaces"), spec.interfaces.len(), LIST_MAX);
    for (i, interface) in spec.interfaces.iter().enumerate() {
        if !rules::is_interface(interface) {
            flaws.add(field("interfaces").index(i), format!("{interface:?} is no interface's name"));
        }
    }
    let preferred = spec.preferred_nodes.iter().map(|it| (it.weight, &it.node_selector));
    flaws.weights(["preferredNodes", "nodeSelector"], preferred);
    flaws.0
}

fn field(name: &str) -> FieldPath {
    FieldPath::of(&["spec", name])
}

impl Flaws {
    /// Checks a list of names below `spec`.
    fn names(&mut self, list: &str, names: &[String]) {
        self.too_many(field(list), names.len(), LIST_MAX);
        for (i, name) in names.iter().enumerate() {
            self.subdomain(field(list).index(i), name);
        }
    }

    /// Checks a list of selectors below `spec`.
    fn selectors(&mut self, list: &str, selectors: &[LabelSelector]) {
        self.too_many(field(list), selectors.len(), LIST_MAX);
        for (i, selector) in selectors.iter().enumerate() {
            self.selector(field(list).index(i), selector);
        }
    }

    /// Checks a list of weights below `spec`, each for the nodes that a selector selects.
    fn weights<'a>(
        &mut self,
        [list, selector]: [&str; 2],
        entries: impl ExactSizeIterator<Item = (i32, &'a LabelSelector)>,
    ) {
        self.too_many(field(list), entries.len(), LIST_MAX);
        for (i, (weight, selects)) in entries.enumerate() {
            let path = field(list).index(i);
            if !rules::WEIGHTS.contains(&weight) {
                let (least, most) = (rules::WEIGHTS.start(), rules::WEIGHTS.end());
                self.add(path.clone().key("weight"), format!("{weight} is not within {least} to {most}"));
            }
            self.selector(path.key(selector), selects);
        }
    }

    fn selector(&mut self, path: FieldPath, selector: &LabelSelector) {
        if let Err(error) = Selector::new(selector) {
            self.add(path, error.to_string());
        }
    }
}
