//! Limits the addresses of a Service and of a namespace (rule 15), so that nobody can use up what
//! others need.

use std::collections::{BTreeMap, BTreeSet};

use super::AllocationRun;
use vipmux_model::{
    Vip,
    reason::{Reason, Refusal},
    service::Service,
};

impl AllocationRun<'_> {
    /// Checks that the Service may get these addresses of its own, and the additional ones. What it
    /// or its namespace holds already is no reason to refuse it.
    pub(super) fn is_within_limits(&self, own: &BTreeSet<Vip>, service: &Service) -> Result<(), Refusal> {
        let limits = self.model.limits;
        let all = own | &service.request.additional;
        if all.len() > limits.of_service {
            let message = format!(
                "it asks for {} addresses, and a Service gets at most {} (--service-addresses)",
                all.len(),
                limits.of_service
            );
            return Err(Refusal::new(Reason::TooManyAddresses, message));
        }
        let namespace = service.name.namespace();
        let there = self.state.of_namespace(namespace);
        let holding = self.holding.get(&service.name);
        let is_new = |vip: &&Vip| {
            there.is_none_or(|there| !there.contains_key(vip)) && holding.is_none_or(|held| !held.contains(vip))
        };
        let (new, held) = (all.iter().filter(is_new).count(), there.map_or(0, BTreeMap::len));
        if new == 0 || held + new <= limits.of_namespace {
            return Ok(());
        }
        let message = format!(
            "namespace {namespace} holds {held} of at most {} addresses (--namespace-addresses), and this Service \
             needs {new} more",
            limits.of_namespace
        );
        Err(Refusal::new(Reason::TooManyAddresses, message))
    }
}
