//! Who is on one address.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{Parties, Tenant};
use crate::model::{
    ServiceName,
    name::Port,
    pool::PoolSharing,
    request::{Mismatch, Party, Sharing},
    service::Service,
};

/// Who is on one address.
#[derive(Debug, Default)]
pub(in crate::allocate) struct Tenancy {
    claims: BTreeMap<Port, Arc<Tenant>>,
    tenants: BTreeSet<Arc<Tenant>>,
    /// Those of them that carry a label: all the same one.
    labelled: BTreeSet<Arc<Tenant>>,
    parties: Parties,
}

/// What of an address is another's (rule 1).
#[derive(Clone, Copy, Debug)]
pub(in crate::allocate) enum Clash<'a> {
    /// A port, by this claim of its owner: its own, or that of every port.
    Port(Port, &'a Tenant),
    /// The label: its owner carries another one.
    Label(&'a str, &'a Tenant),
}

impl Tenancy {
    pub(super) fn add(&mut self, tenant: &Arc<Tenant>) {
        self.claims.extend(tenant.terms.ports.iter().map(|port| (*port, Arc::clone(tenant))));
        self.tenants.insert(Arc::clone(tenant));
        if tenant.terms.label.is_some() {
            self.labelled.insert(Arc::clone(tenant));
        }
        self.parties.add(tenant);
    }

    pub(super) fn remove(&mut self, tenant: &Arc<Tenant>) {
        for port in &tenant.terms.ports {
            self.claims.remove(port);
        }
        self.tenants.remove(tenant);
        self.labelled.remove(tenant);
        self.parties.remove(tenant);
    }

    /// Who is on it.
    pub(in crate::allocate) fn tenants(&self) -> &BTreeSet<Arc<Tenant>> {
        &self.tenants
    }

    /// What its tenants say about sharing, each with the first who says so in the first namespace where that is said.
    pub(in crate::allocate) fn sharings(&self) -> impl Iterator<Item = (&Sharing, &Tenant)> {
        self.parties.first_of_each()
    }

    /// Whether it carries a label.
    pub(super) fn is_labelled(&self) -> bool {
        !self.labelled.is_empty()
    }

    /// Whether the port is taken.
    pub(super) fn has(&self, port: Port) -> bool {
        self.holder(port).is_some()
    }

    /// What the Service wants there and another one has.
    pub(in crate::allocate) fn clash(&self, service: &Service) -> Option<Clash<'_>> {
        let of_another = |(_, tenant): &(Port, &Tenant)| tenant.name != service.name;
        let port = service.claims().find_map(|port| self.holder(port).filter(of_another));
        port.map(|(port, tenant)| Clash::Port(port, tenant)).or_else(|| self.other_label(service))
    }

    fn other_label(&self, service: &Service) -> Option<Clash<'_>> {
        let wanted = service.request.label.as_deref()?;
        let owner = self.labelled.iter().find(|tenant| tenant.name != service.name)?;
        let label = owner.terms.label.as_deref().filter(|label| *label != wanted)?;
        Some(Clash::Label(label, owner))
    }

    /// Who has the port, and by which claim: one with every port (number 0, so the first) shares with nobody.
    fn holder(&self, port: Port) -> Option<(Port, &Tenant)> {
        let first = self.claims.first_key_value().filter(|(first, _)| port.number == 0 || first.number == 0);
        let (claim, tenant) = first.or_else(|| self.claims.get_key_value(&port))?;
        Some((*claim, tenant))
    }

    /// The first tenant, the party itself aside, that may not share with the party of this name, and why.
    pub(in crate::allocate) fn mismatch<'s>(
        &'s self,
        party: Party<'s>,
        name: &ServiceName,
        pool: PoolSharing,
    ) -> Option<(&'s Tenant, Mismatch<'s>)> {
        self.parties.mismatch(party, name, pool)
    }
}
