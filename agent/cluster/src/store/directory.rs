//! Keeps the Leases without a cluster: in the folder `leases` of the state directory, one file per
//! VIP.
//!
//! ```yaml
//! apiVersion: coordination.k8s.io/v1
//! kind: Lease
//! metadata:
//!   annotations:
//!     vipmux.io/address: "192.0.2.10"
//!   name: vip-c000020a             # the address in hex, as in the file's name, vip-c000020a.yaml
//!   resourceVersion: "1795102800000002" # changes with every write
//! spec:
//!   acquireTime: "2026-11-20T15:30:00.000000Z" # by the writing node's clock; for people
//!   holderIdentity: n1             # the Node that leads the VIP
//!   leaseTransitions: 1            # how often the leader changed
//! ```
//!
//! Files are replaced atomically, under a lock for a few VIPs (see [`seqlock`]). Change them by
//! hand only while no agent runs. A file that is no Lease is never overwritten. An agent that saw
//! the folder does not create it again when it is gone: a missing disk must not make its content
//! forgotten.

mod seqlock;

use std::{
    collections::BTreeSet,
    fs::{self, File, Permissions},
    io::{self, Read, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use k8s_openapi::{api::coordination::v1::Lease as Object, jiff::Timestamp};
use tokio::task::spawn_blocking;

use self::seqlock::{MAX_NUMBER, RecordIndex, RecordLock, SequenceNumbers, VersionFile};
use super::{
    Deleted, Lease, LeaseStore, NodeRecord, RecordContent, StoreError, StoreId, StoreOperation, StoreOutcome, Survey,
    Swapped, Version, lease_object, operations::OPERATION_TIMEOUT,
};
use crate::atomic_file;
use vipmux_model::{NodeName, Vip};

/// How long another agent may hold a lock.
const LOCK_TIMEOUT: Duration = Duration::from_millis(500);
/// The largest file, bytes. A larger one is no Lease.
const MAX_BYTES: u64 = 16 << 10;
/// Leases in the folder, at most. More are a mistake.
const MAX_LEASES: usize = 1 << 16;
/// How often the names are listed, at most, until nothing is written in between.
const MAX_LISTINGS: usize = 3;

/// A folder of Leases.
#[derive(Clone, Debug)]
pub struct DirectoryStore(Arc<Folder>);

#[derive(Debug)]
struct Folder {
    path: PathBuf,
    versions: VersionFile,
    /// Its id. The folder existed once.
    id: OnceLock<StoreId>,
    last_survey: Mutex<LastSurvey>,
}

/// The result of the last survey.
#[derive(Debug, Default)]
struct LastSurvey {
    /// The numbers before the Leases were read.
    numbers: SequenceNumbers,
    survey: Survey,
}

impl DirectoryStore {
    /// Returns the store in the folder `leases` of this state directory. The folder is created at
    /// first use.
    pub fn new(state: &Path) -> Self {
        let path = state.join("leases");
        let versions = VersionFile::of(&path);
        Self(Arc::new(Folder { path, versions, id: OnceLock::new(), last_survey: Mutex::default() }))
    }

    /// Returns the id of the folder, which it keeps in the file `.id`; `None`: no operation has succeeded yet.
    pub fn id(&self) -> Option<StoreId> {
        self.0.id.get().copied()
    }
}

impl LeaseStore for DirectoryStore {
    async fn run(&self, operation: StoreOperation) -> Result<StoreOutcome, StoreError> {
        let (folder, deadline) = (Arc::clone(&self.0), Instant::now() + OPERATION_TIMEOUT);
        let work = spawn_blocking(move || folder.prepare().and_then(|()| folder.run(operation, deadline)));
        work.await.unwrap_or_else(|error| Err(unavailable("finish an operation")(error.into())))
    }
}

fn unavailable(operation: impl Into<String>) -> impl FnOnce(io::Error) -> StoreError {
    let operation = operation.into();
    |source| StoreError::Unavailable { operation, source }
}

impl Folder {
    fn file(&self, vip: Vip) -> PathBuf {
        self.path.join(lease_object::lease_name(vip) + ".yaml")
    }

    /// Creates the folder with its id and its version file, unless this agent has seen them before.
    fn prepare(&self) -> Result<(), StoreError> {
        if self.id.get().is_some() {
            return Ok(());
        }
        let make = || {
            if !self.path.is_dir() {
                fs::create_dir_all(&self.path)?;
                atomic_file::sync_directory(atomic_file::parent_directory(&self.path))?;
            }
            self.versions.create()?;
            self.read_id()
        };
        let id = make().map_err(unavailable(format!("create {}", self.path.display())))?;
        self.id.get_or_init(|| id);
        Ok(())
    }

    /// Returns the id of the folder. The first agent draws it.
    fn read_id(&self) -> io::Result<StoreId> {
        let path = self.path.join(".id");
        if !fs::exists(&path)? {
            let permissions = Permissions::from_mode(0o644);
            let mut file = tempfile::Builder::new().prefix(".id-").permissions(permissions).tempfile_in(&self.path)?;
            writeln!(file, "{:016x}", getrandom::u64().map_err(io::Error::other)?)?;
            file.as_file().sync_all()?;
            match file.persist_noclobber(&path) {
                Err(error) if error.error.kind() != io::ErrorKind::AlreadyExists => return Err(error.error),
                _ => {}
            }
        }
        let text = fs::read_to_string(&path)?;
        let id = u64::from_str_radix(text.trim_end(), 16);
        id.map(StoreId).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, format!("{text:?} in .id is no id")))
    }

    fn record_file(&self, node: &NodeName) -> PathBuf {
        self.path.join(lease_object::record_name(node) + ".yaml")
    }

    fn run(&self, operation: StoreOperation, deadline: Instant) -> Result<StoreOutcome, StoreError> {
        match operation {
            StoreOperation::ReadRecord { node, .. } => self.read_record(&node).map(StoreOutcome::Record),
            StoreOperation::SwapRecord { node, expected, content, .. } => {
                self.swap_record(&node, expected.as_ref(), &content, deadline).map(StoreOutcome::Swapped)
            }
            StoreOperation::Read(vip) => self.read(vip).map(StoreOutcome::Read),
            StoreOperation::Swap { vip, expected, holder, epoch } => {
                self.swap(vip, expected.as_ref(), &holder, epoch, deadline).map(StoreOutcome::Swapped)
            }
            StoreOperation::Delete { vip, version } => self.delete(vip, &version).map(StoreOutcome::Deleted),
            StoreOperation::Survey => self.survey().map(StoreOutcome::Surveyed),
        }
    }

    fn read(&self, vip: Vip) -> Result<Option<Lease>, StoreError> {
        self.read_file(&self.file(vip), |object| lease_object::from_object(vip, object), |lease| &lease.version)
    }

    fn read_record(&self, node: &NodeName) -> Result<Option<NodeRecord>, StoreError> {
        let convert = |object| lease_object::record_from_object(node, object);
        self.read_file(&self.record_file(node), convert, |record| &record.version)
    }

    fn read_file<T>(
        &self,
        path: &Path,
        convert: impl FnOnce(Object) -> Result<T, String>,
        version: impl FnOnce(&T) -> &Version,
    ) -> Result<Option<T>, StoreError> {
        let read = || unavailable(format!("read {}", path.display()));
        let mut bytes = Vec::new();
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::metadata(&self.path).map_err(read())?;
                return Ok(None);
            }
            Err(error) => return Err(read()(error)),
        };
        file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(read())?;
        let malformed = |message| StoreError::Malformed { lease: path.display().to_string(), message };
        parse(bytes, convert, version).map(Some).map_err(malformed)
    }

    fn swap_record(
        &self,
        node: &NodeName,
        expected: Option<&Version>,
        content: &RecordContent,
        deadline: Instant,
    ) -> Result<Swapped, StoreError> {
        let change = |number: u64| {
            let version = Version::new(number.to_string());
            let object = lease_object::record_to_object(node, Some(version.clone()), content, Timestamp::now());
            write(&self.record_file(node), &object, deadline)?;
            Ok(version)
        };
        let present = || Ok(self.read_record(node)?.map(|record| record.version));
        Ok(self.change(node.into(), present, expected, change)?.map_or(Swapped::Conflict, Swapped::Done))
    }

    fn version(&self, vip: Vip) -> Result<Option<Version>, StoreError> {
        Ok(self.read(vip)?.map(|lease| lease.version))
    }

    fn swap(
        &self,
        vip: Vip,
        expected: Option<&Version>,
        holder: &NodeName,
        epoch: u64,
        deadline: Instant,
    ) -> Result<Swapped, StoreError> {
        let change = |number: u64| {
            let version = Version::new(number.to_string());
            let object = lease_object::to_object(vip, Some(version.clone()), holder, epoch, Timestamp::now())?;
            write(&self.file(vip), &object, deadline)?;
            Ok(version)
        };
        let present = || self.version(vip);
        Ok(self.change(vip.into(), present, expected, change)?.map_or(Swapped::Conflict, Swapped::Done))
    }

    fn delete(&self, vip: Vip, version: &Version) -> Result<Deleted, StoreError> {
        let path = self.file(vip);
        let remove = || fs::remove_file(&path).and_then(|()| atomic_file::sync_directory(&self.path));
        let change = |_| remove().map_err(unavailable(format!("delete {}", path.display())));
        Ok(match self.change(vip.into(), || self.version(vip), Some(version), change)? {
            None if self.read(vip)?.is_some() => Deleted::Conflict,
            _ => Deleted::Done,
        })
    }

    /// Calls `change` under the lock if the file has the expected version. `present` reads its version.
    /// `change` gets the number of the next version.
    fn change<T>(
        &self,
        index: RecordIndex,
        present: impl Fn() -> Result<Option<Version>, StoreError>,
        expected: Option<&Version>,
        change: impl FnOnce(u64) -> Result<T, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        // A caller that is too late need not wait for the lock.
        if present()?.as_ref() != expected {
            return Ok(None);
        }
        let record = self.lock(index)?;
        if present()?.as_ref() != expected {
            return Ok(None);
        }
        // A version file that lost its newest numbers in a crash must not give them again.
        let above = expected.and_then(number).unwrap_or_default();
        let next = record.begin(above).map_err(unavailable(format!("write {}", self.versions.path().display())))?;
        let changed = change(next);
        // A number that stays odd costs readers time. The next writer makes it even.
        let _ = record.end(next);
        changed.map(Some)
    }

    fn lock(&self, index: RecordIndex) -> Result<RecordLock, StoreError> {
        let locked = self.versions.lock(index, Instant::now() + LOCK_TIMEOUT);
        locked.map_err(unavailable(format!("lock a record of {}", self.versions.path().display())))
    }

    /// Reads the Leases that may have changed since the last survey.
    fn survey(&self) -> Result<Survey, StoreError> {
        let mut last = self.last_survey.lock().unwrap_or_else(PoisonError::into_inner);
        let numbers = self.numbers()?;
        if numbers == last.numbers && numbers.all_even() && last.survey.faults.is_empty() {
            return Ok(last.survey.clone());
        }
        let listed = self.listed(&numbers)?;
        let LastSurvey { numbers: before, survey: Survey { leases: old, .. } } = &*last;
        let unlisted = old.keys().filter(|vip| !listed.contains(vip));
        let kept = |vip: &Vip| listed.contains(vip) && old.contains_key(vip) && numbers.unchanged_since(before, *vip);
        let (mut leases, mut faults) = (old.clone(), imbl::OrdMap::new());
        for vip in listed.iter().chain(unlisted).copied().filter(|vip| !kept(vip)) {
            match self.read(vip) {
                Ok(Some(lease)) if old.get(&vip) == Some(&lease) => {}
                Ok(Some(lease)) => {
                    leases.insert(vip, lease);
                }
                Ok(None) => {
                    leases.remove(&vip);
                }
                Err(error) => {
                    leases.remove(&vip);
                    faults.insert(vip, Arc::new(error));
                }
            }
        }
        *last = LastSurvey { numbers, survey: Survey { leases, faults } };
        Ok(last.survey.clone())
    }

    fn numbers(&self) -> Result<SequenceNumbers, StoreError> {
        self.versions.numbers().map_err(unavailable(format!("read {}", self.versions.path().display())))
    }

    /// Returns the VIPs that have files. On some file systems a file that is replaced during the
    /// listing can be missing in it. So the listing is repeated if one was replaced.
    fn listed(&self, numbers: &SequenceNumbers) -> Result<BTreeSet<Vip>, StoreError> {
        let (mut listed, mut before) = (BTreeSet::new(), numbers.clone());
        for _ in 0..MAX_LISTINGS {
            self.list(&mut listed).map_err(unavailable(format!("list {}", self.path.display())))?;
            let after = self.numbers()?;
            if after == before && after.all_even() {
                break;
            }
            before = after;
        }
        Ok(listed)
    }

    fn list(&self, listed: &mut BTreeSet<Vip>) -> io::Result<()> {
        for entry in fs::read_dir(&self.path)? {
            let name = entry?.file_name();
            let vip = name.to_str().and_then(|name| lease_object::vip_of(name.strip_suffix(".yaml")?));
            listed.extend(vip);
            if listed.len() > MAX_LEASES {
                return Err(io::Error::other(format!("there are more than {MAX_LEASES} Leases")));
            }
        }
        Ok(())
    }
}

fn write(path: &Path, object: &Object, deadline: Instant) -> Result<(), StoreError> {
    let write = || {
        let text = serde_saphyr::to_string(object).map_err(io::Error::other)?;
        let file = atomic_file::write_temporary(path, text.as_bytes())?;
        // The caller knows by then that the write failed. So it does not happen, as far as
        // possible.
        if Instant::now() >= deadline {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "it took too long"));
        }
        atomic_file::replace(file, path)
    };
    write().map_err(unavailable(format!("write {}", path.display())))
}

/// Returns the content of a file, or its defect.
fn parse<T>(
    bytes: Vec<u8>,
    convert: impl FnOnce(Object) -> Result<T, String>,
    version: impl FnOnce(&T) -> &Version,
) -> Result<T, String> {
    if bytes.len() as u64 > MAX_BYTES {
        return Err(format!("it has more than {MAX_BYTES} bytes"));
    }
    let text = String::from_utf8(bytes).map_err(|error| error.to_string())?;
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_aliases: 0, max_anchors: 0 },
        with_snippet: false,
    };
    let object: Object = serde_saphyr::from_str_with_options(&text, options).map_err(|error| error.to_string())?;
    let content = convert(object)?;
    let version = version(&content);
    if number(version).is_none() {
        return Err(format!("metadata.resourceVersion is {version}, and no number up to {MAX_NUMBER}"));
    }
    Ok(content)
}

fn number(version: &Version) -> Option<u64> {
    version.as_str().parse().ok().filter(|number| *number <= MAX_NUMBER)
}

#[cfg(test)]
mod tests;
