//! Records which Service has which addresses before a migration (`before.json`).

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

use k8s_openapi::{api::core::v1::Service, jiff::Timestamp};
use serde::{Deserialize, Serialize};

use vipmux_allocator::write_result::addresses_owner;
use vipmux_model::{ServiceName, Vip, published_status::PublishedStatus};

/// The version of the file's format.
const VERSION: u32 = 1;

/// The record of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The version of this format.
    version: u32,
    /// The time when the cluster was read.
    pub taken: Timestamp,
    /// The Services of type LoadBalancer.
    pub services: Vec<ServiceRecord>,
}

/// A Service of type LoadBalancer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceRecord {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The addresses that its status shows.
    pub addresses: BTreeSet<Vip>,
    /// Its ports, `80/TCP`.
    pub ports: Vec<String>,
    /// The field manager that wrote the addresses; `None`: not known.
    pub owner: Option<String>,
}

/// The record cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// It cannot be read.
    #[error("cannot read {} (vipmux migrate plan writes it)", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// It is no record.
    #[error("{} is no record of a cluster", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: serde_json::Error,
    },
    /// Another version of vipmux wrote it.
    #[error("{} has version {found}, and this vipmux reads version {VERSION}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
}

impl Snapshot {
    /// Records the Services of type LoadBalancer.
    pub fn of(services: &[Service], taken: Timestamp) -> Self {
        let mut services: Vec<_> = services.iter().filter(|service| is_load_balancer(service)).map(record).collect();
        services.sort_by_key(ServiceRecord::id);
        Self { version: VERSION, taken, services }
    }

    /// Reads the record from a file.
    pub fn read(path: &Path) -> Result<Self, SnapshotError> {
        let text = fs::read_to_string(path).map_err(|source| SnapshotError::Read { path: path.to_owned(), source })?;
        let read: Self =
            serde_json::from_str(&text).map_err(|source| SnapshotError::Parse { path: path.to_owned(), source })?;
        if read.version != VERSION {
            return Err(SnapshotError::Version { path: path.to_owned(), found: read.version });
        }
        Ok(read)
    }

    /// Returns the Services by name.
    pub fn by_name(&self) -> BTreeMap<ServiceName, &ServiceRecord> {
        self.services.iter().map(|record| (record.id(), record)).collect()
    }

    /// Returns all addresses.
    pub fn addresses(&self) -> BTreeSet<Vip> {
        self.services.iter().flat_map(|record| record.addresses.iter().copied()).collect()
    }
}

impl ServiceRecord {
    /// Returns its namespace and name.
    pub fn id(&self) -> ServiceName {
        ServiceName::new(self.namespace.clone(), self.name.clone())
    }
}

fn is_load_balancer(service: &Service) -> bool {
    service.spec.as_ref().and_then(|spec| spec.type_.as_deref()) == Some("LoadBalancer")
}

fn record(service: &Service) -> ServiceRecord {
    let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    ServiceRecord {
        namespace: service.metadata.namespace.clone().unwrap_or_default(),
        name: service.metadata.name.clone().unwrap_or_default(),
        addresses: PublishedStatus::of(service).addresses,
        ports: ports.map(|port| format!("{}/{}", port.port, port.protocol.as_deref().unwrap_or("TCP"))).collect(),
        owner: addresses_owner(service).map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::service;

    #[test]
    fn a_record_names_addresses_and_who_wrote_them() {
        let services = [
            service("shop/web", "192.0.2.10", "controller"),
            service("shop/dns", "", ""),
            serde_json::from_value(serde_json::json!({"metadata": {"name": "x"}, "spec": {"type": "ClusterIP"}}))
                .unwrap(),
        ];
        let snapshot = Snapshot::of(&services, Timestamp::UNIX_EPOCH);
        let shown: Vec<_> =
            snapshot.services.iter().map(|it| (it.name.as_str(), it.addresses.len(), it.owner.as_deref())).collect();
        assert_eq!(shown, [("dns", 0, None), ("web", 1, Some("controller"))]);
        assert_eq!(snapshot.services[1].ports, ["80/TCP"]);
    }

    #[test]
    fn a_record_is_the_same_after_it_was_written_and_another_version_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("before.json");
        let snapshot = Snapshot::of(&[service("shop/web", "192.0.2.10", "controller")], Timestamp::UNIX_EPOCH);
        fs::write(&path, serde_json::to_string(&snapshot).unwrap()).unwrap();
        assert_eq!(Snapshot::read(&path).unwrap(), snapshot);
        fs::write(&path, serde_json::to_string(&Snapshot { version: 2, ..snapshot }).unwrap()).unwrap();
        assert!(
            Snapshot::read(&path).unwrap_err().to_string().ends_with("has version 2, and this vipmux reads version 1")
        );
        fs::write(&path, "{}").unwrap();
        assert!(matches!(Snapshot::read(&path), Err(SnapshotError::Parse { .. })));
    }
}
