//! Keeps `assignments.yaml`: which Service holds which addresses, if no cluster keeps this in the
//! Services' statuses.
//!
//! The file is in the agent's state directory. All agents that share the directory read it. One at
//! a time writes it, under a lock (`flock(2)` on `assignments.yaml.lock`), atomically, and only
//! when something changed. The version before is kept as `assignments.yaml.old`.
//!
//! ```yaml
//! version: 1
//! services:
//!   shop/web:                    # namespace/name
//!     addresses: [192.0.2.10, "2001:db8::10"] # those that it holds
//!     # The rest is the request that it got them for:
//!     ports: [80/TCP, 443/TCP]   # its port claims; show which of two Services in conflict changed
//!     sharing:                   # its sharing key; left out if it has none
//!       dialect: vipmux
//!       key: web
//!       scope: cluster           # or `namespaces: [a, b]`; left out: the key's own namespace
//!     by-address: explicit       # with whom it shares by address; left out: as `sharing` implies
//!     pool: lan                  # the pool that it names
//!     additional: ["2001:db8::10"] # the addresses that it asks for beside its own
//!     alike: {aviinfrasetting.ako.vmware.com/name: gold} # settings that its group must agree on
//!     label: shop                # the label of its addresses
//!     spill: true                # whether it clashed within its group, and got another address
//! ```
//!
//! To move a Service by hand, stop the agents, change its `addresses` and start them again. The
//! other fields are left out where they do not apply, and may be left out by hand. Without `ports`
//! it is unknown on which terms the Service holds its addresses. A file that cannot be parsed is
//! never overwritten.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Read},
    ops,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize};

use crate::atomic_file::{self, parent_directory};
use vipmux_allocate::{
    previous::{PreviousAssignment, PreviousAssignments},
    request_snapshot::{GroupSettings, RequestSnapshot},
};
use vipmux_model::{
    ServiceName, Vip,
    name::is_label,
    port::Port,
    range::AddressRange,
    request::{ByAddress, Sharing, SharingKey},
};

/// The version of the format.
const VERSION: u32 = 1;
/// The largest file, bytes. A larger one is damaged: 10,000 Services need about 2 MiB.
const MAX_BYTES: u64 = 64 << 20;
/// How long others may hold the lock. Allocating for 10,000 Services takes under a second.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// An error of `assignments.yaml`.
#[derive(Debug, thiserror::Error)]
pub enum AssignmentsError {
    /// The file or the lock beside it cannot be used. The file is as it was.
    #[error("cannot {operation} {}", path.display())]
    File {
        /// The operation.
        operation: &'static str,
        /// The file or its lock.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The file cannot be parsed. It is left as it is.
    #[error(
        "the assignments {} are damaged: {message}; repair the file, put the version before in its place \
         ({}.old), or move it away to start anew", path.display(), path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The position in the file, and the cause.
        message: String,
    },
    /// The file is of another version of vipmux. It is left as it is.
    #[error("the assignments {} have version {found}, and this vipmux knows version {VERSION}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// The version in the file.
        found: u32,
    },
}

fn damaged(path: &Path, message: impl Into<String>) -> AssignmentsError {
    AssignmentsError::Damaged { path: path.to_owned(), message: message.into() }
}

fn failed(operation: &'static str, path: &Path) -> impl Fn(io::Error) -> AssignmentsError {
    move |source| AssignmentsError::File { operation, path: path.to_owned(), source }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AssignmentsFile {
    version: u32,
    services: BTreeMap<String, AssignmentEntry>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[serde(rename_all = "kebab-case")]
struct AssignmentEntry {
    addresses: BTreeSet<Vip>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ports: Option<BTreeSet<Port>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sharing: Option<SharingKey>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    by_address: Option<ByAddress>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pool: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    additional: BTreeSet<Vip>,
    #[serde(default, skip_serializing_if = "GroupSettings::is_empty")]
    alike: GroupSettings,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    label: Option<String>,
    #[serde(default, skip_serializing_if = "ops::Not::not")]
    spill: bool,
}

impl AssignmentEntry {
    fn of(held: &PreviousAssignment) -> Self {
        let snapshot = held.snapshot.clone();
        let ports = snapshot.as_ref().map(|snapshot| snapshot.ports.clone());
        let RequestSnapshot { sharing: Sharing { key, by_address }, pool, additional, alike, label, spill, .. } =
            snapshot.unwrap_or_default();
        let by_address = Some(by_address).filter(|found| ports.is_some() && *found != by_address_with(key.as_ref()));
        let addresses = held.addresses.clone();
        Self { addresses, ports, sharing: key, by_address, pool, additional, alike, label, spill }
    }

    fn held(self) -> PreviousAssignment {
        let Self { addresses, ports, sharing: key, by_address, pool, additional, alike, label, spill } = self;
        let by_address = by_address.unwrap_or_else(|| by_address_with(key.as_ref()));
        let sharing = Sharing { key, by_address };
        PreviousAssignment {
            addresses,
            snapshot: ports.map(|ports| RequestSnapshot { ports, sharing, pool, additional, alike, label, spill }),
        }
    }
}

/// Returns the value that the file leaves out: most Services have a key or no annotation at all.
fn by_address_with(key: Option<&SharingKey>) -> ByAddress {
    if key.is_some() { ByAddress::Never } else { ByAddress::Plain }
}

/// Returns the assignments in the file; `None`: there is no file.
pub fn load(path: &Path) -> Result<Option<PreviousAssignments>, AssignmentsError> {
    let read = failed("read the assignments", path);
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(read(error)),
    };
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(&read)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(damaged(path, format!("more than {MAX_BYTES} bytes")));
    }
    let text = String::from_utf8(bytes).map_err(|error| damaged(path, error.to_string()))?;
    let services = parse(path, &text)?.services.into_iter();
    services.map(|(name, entry)| held(path, &name, entry)).collect::<Result<_, _>>().map(Some)
}

/// Lets `decide` choose new holders from the present ones (none if there is no file), and writes
/// them if they differ.
///
/// Unchanged holders need no lock. Otherwise `decide` is called again under the lock, with the
/// file's content by then, and its last answer counts. So it may be called twice, and agents that
/// share the file agree. Blocks while another agent holds the lock, for two seconds at most.
pub fn update<T>(
    path: &Path,
    mut decide: impl FnMut(&PreviousAssignments) -> (PreviousAssignments, T),
) -> Result<T, AssignmentsError> {
    let present = load(path)?.unwrap_or_default();
    let (chosen, outcome) = decide(&present);
    if chosen == present {
        return Ok(outcome);
    }
    let _lock = lock(path)?;
    let present = load(path)?.unwrap_or_default();
    let (chosen, outcome) = decide(&present);
    if chosen != present {
        write(path, &chosen).map_err(failed("write the assignments", path))?;
    }
    Ok(outcome)
}

/// Replaces the file by these holders if its version is still `seen`. Returns the new version;
/// `None`: it is another file by now, and was left as it is.
pub fn replace(
    path: &Path,
    seen: Option<FileVersion>,
    holders: &PreviousAssignments,
) -> Result<Option<FileVersion>, AssignmentsError> {
    let _lock = lock(path)?;
    if file_version(path) != seen {
        return Ok(None);
    }
    write(path, holders).map_err(failed("write the assignments", path))?;
    Ok(file_version(path))
}

/// Identifies a version of the file: its inode, which every write replaces, and its time of
/// modification.
pub type FileVersion = (u64, SystemTime);

/// Returns the file's version; `None`: there is no file.
pub fn file_version(path: &Path) -> Option<FileVersion> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.ino(), metadata.modified().ok()?))
}

fn parse(path: &Path, text: &str) -> Result<AssignmentsFile, AssignmentsError> {
    /// The only field that is read from a file that may have another version.
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    // The file's size is bounded. Nothing in it can refer to anything else in it.
    let options = || {
        serde_saphyr::options! {
            budget: serde_saphyr::budget! {
                max_events: usize::MAX, max_nodes: usize::MAX, max_total_scalar_bytes: usize::MAX,
                max_aliases: 0, max_anchors: 0,
            },
            with_snippet: false,
        }
    };
    let other_version = |found| AssignmentsError::Version { path: path.to_owned(), found };
    match serde_saphyr::from_str_with_options::<AssignmentsFile>(text, options()) {
        Ok(document) if document.version == VERSION => Ok(document),
        Ok(document) => Err(other_version(document.version)),
        Err(error) => match serde_saphyr::from_str_with_options::<Versioned>(text, options()) {
            Ok(other) if other.version != VERSION => Err(other_version(other.version)),
            _ => Err(damaged(path, error.to_string())),
        },
    }
}

fn held(
    path: &Path,
    name: &str,
    entry: AssignmentEntry,
) -> Result<(ServiceName, PreviousAssignment), AssignmentsError> {
    let split = name.split_once('/').filter(|(namespace, name)| is_label(namespace) && is_label(name));
    let (namespace, service) =
        split.ok_or_else(|| damaged(path, format!("services: {name:?} is no namespace/name")))?;
    if entry.addresses.is_empty() {
        return Err(damaged(path, format!("services: {name} holds no addresses")));
    }
    for vip in &entry.addresses {
        AddressRange::single(vip.address())
            .map_err(|block| damaged(path, format!("services: {name} holds {vip}, which is in {block}")))?;
    }
    let name = ServiceName::new(namespace, service);
    Ok((name, entry.held()))
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// Waits for the lock, which is kept until the file is dropped. It is a file of its own, since the assignments' file is
/// another one after each write.
fn lock(path: &Path) -> Result<File, AssignmentsError> {
    let lock_path = beside(path, ".lock");
    let failed = failed("lock", &lock_path);
    fs::create_dir_all(parent_directory(path)).map_err(&failed)?;
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&lock_path).map_err(&failed)?;
    atomic_file::lock(&file, LOCK_TIMEOUT).map_err(&failed)?;
    Ok(file)
}

/// Writes the file. The new one is complete on disk before it takes the old one's place.
fn write(path: &Path, holders: &PreviousAssignments) -> io::Result<()> {
    let services = holders.iter().map(|(name, held)| (name.to_string(), AssignmentEntry::of(held))).collect();
    let text = serde_saphyr::to_string(&AssignmentsFile { version: VERSION, services }).map_err(io::Error::other)?;
    let file = atomic_file::write_temporary(path, text.as_bytes())?;
    if path.exists() {
        fs::copy(path, beside(path, ".old"))?;
    }
    atomic_file::replace(file, path)
}

#[cfg(test)]
mod tests;
