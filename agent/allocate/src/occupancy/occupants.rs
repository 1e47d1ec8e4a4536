//! Records the Services on one address.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{BySharing, Occupant};
use vipmux_model::{
    ServiceName,
    pool::PoolSharing,
    port::{Port, PortNumber},
    request::{Mismatch, Sharer, Sharing},
    service::Service,
};

/// The Services on one address.
#[derive(Debug, Default)]
pub(crate) struct Occupants {
    claims: BTreeMap<Port, Arc<Occupant>>,
    all: BTreeSet<Arc<Occupant>>,
    /// The Services that have a label. All have the same one.
    labeled: BTreeSet<Arc<Occupant>>,
    by_sharing: BySharing,
}

/// A part of an address that another Service owns (rule 1).
#[derive(Clone, Copy, Debug)]
pub(crate) enum Clash<'a> {
    /// A port. The claim of its owner is this port, or every port.
    Port(Port, &'a Occupant),
    /// The label. Its owner carries another one.
    Label(&'a str, &'a Occupant),
}

impl Occupants {
    pub(super) fn add(&mut self, occupant: &Arc<Occupant>) {
        self.claims.extend(occupant.snapshot.ports.iter().map(|port| (*port, Arc::clone(occupant))));
        self.all.insert(Arc::clone(occupant));
        if occupant.snapshot.label.is_some() {
            self.labeled.insert(Arc::clone(occupant));
        }
        self.by_sharing.add(occupant);
    }

    pub(super) fn remove(&mut self, occupant: &Arc<Occupant>) {
        for port in &occupant.snapshot.ports {
            self.claims.remove(port);
        }
        self.all.remove(occupant);
        self.labeled.remove(occupant);
        self.by_sharing.remove(occupant);
    }

    /// Returns all Services on the address.
    pub(crate) fn all(&self) -> &BTreeSet<Arc<Occupant>> {
        &self.all
    }

    /// Returns the sharing settings on the address, each with its first Service in the first
    /// namespace.
    pub(crate) fn sharings(&self) -> impl Iterator<Item = (&Sharing, &Occupant)> {
        self.by_sharing.first_of_each()
    }

    /// Whether the address has a label.
    pub(super) fn is_labeled(&self) -> bool {
        !self.labeled.is_empty()
    }

    /// Whether the port is taken.
    pub(super) fn has(&self, port: Port) -> bool {
        self.holder(port).is_some()
    }

    /// Returns the port or label that the Service wants and another one has.
    pub(crate) fn clash(&self, service: &Service) -> Option<Clash<'_>> {
        let of_another = |(_, occupant): &(Port, &Occupant)| occupant.name != service.name;
        let port = service.claims().find_map(|port| self.holder(port).filter(of_another));
        port.map(|(port, occupant)| Clash::Port(port, occupant)).or_else(|| self.other_label(service))
    }

    /// Whether another Service than this one holds the port.
    pub(crate) fn holds(&self, port: Port, but: &ServiceName) -> bool {
        self.holder(port).is_some_and(|(_, occupant)| occupant.name != *but)
    }

    fn other_label(&self, service: &Service) -> Option<Clash<'_>> {
        let wanted = service.request.label.as_deref()?;
        let owner = self.labeled.iter().find(|occupant| occupant.name != service.name)?;
        let label = owner.snapshot.label.as_deref().filter(|label| *label != wanted)?;
        Some(Clash::Label(label, owner))
    }

    /// Returns the owner of the port and its claim. A Service with every port (which is the
    /// first) shares with nobody.
    fn holder(&self, port: Port) -> Option<(Port, &Occupant)> {
        let first =
            self.claims.first_key_value().filter(|(first, _)| [port.number, first.number].contains(&PortNumber::Every));
        let (claim, occupant) = first.or_else(|| self.claims.get_key_value(&port))?;
        Some((*claim, occupant))
    }

    /// Returns the first Service, the one of this name aside, that may not share with it, and the
    /// reason.
    pub(crate) fn mismatch<'s>(
        &'s self,
        sharer: Sharer<'s>,
        name: &ServiceName,
        pool: PoolSharing,
    ) -> Option<(&'s Occupant, Mismatch<'s>)> {
        self.by_sharing.mismatch(sharer, name, pool)
    }
}
