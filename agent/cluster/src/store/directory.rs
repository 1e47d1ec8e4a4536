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
//! A writer locks the file, and replaces it atomically. So a reader needs no lock, and an agent that
//! is stopped in the middle of a write blocks one VIP only. Change the files by hand only while no
//! agent runs. A file that is no Lease is never overwritten. An agent that saw the folder does not
//! create it again when it is gone: a missing disk must not make its content forgotten.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, OpenOptions},
    io::{self, Read},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use k8s_openapi::{api::coordination::v1::Lease as Object, jiff::Timestamp};
use tempfile::NamedTempFile;
use tokio::task::spawn_blocking;

use super::{
    Deleted, Lease, LeaseStore, NodeRecord, RecordContent, StoreError, StoreId, StoreOperation, StoreOutcome, Survey,
    Swapped, Version, lease_object, operations::OPERATION_TIMEOUT,
};
use crate::{atomic_file, file_stamp::FileStamp};
use vipmux_model::{NodeName, Vip};

/// How long another agent may hold a lock.
const LOCK_TIMEOUT: Duration = Duration::from_millis(500);
/// The largest file, bytes. A larger one is no Lease.
const MAX_BYTES: u64 = 16 << 10;
/// Leases in the folder, at most. More are a mistake.
const MAX_LEASES: usize = 1 << 16;
/// How often the names are listed. On some file systems a file that is replaced during the listing
/// can be missing in it.
const LISTINGS: usize = 2;
/// A stamp that was the same for so long is of no change that comes later. The clocks of file systems
/// have ticks of up to a second.
const STAMP_SETTLE: Duration = Duration::from_secs(2);

/// A folder of Leases.
#[derive(Clone, Debug)]
pub struct DirectoryStore(Arc<Folder>);

#[derive(Debug)]
struct Folder {
    path: PathBuf,
    /// Its id. The folder existed once.
    id: OnceLock<StoreId>,
    last_survey: Mutex<LastSurvey>,
}

/// The result of the last survey.
#[derive(Debug, Default)]
struct LastSurvey {
    /// The stamp of the folder; `None`: the survey failed.
    folder: Option<StampAge>,
    /// The stamps of the files.
    files: BTreeMap<Vip, StampAge>,
    survey: Survey,
}

/// A stamp, and since when it has been the same.
#[derive(Clone, Copy, Debug)]
struct StampAge {
    stamp: FileStamp,
    since: Instant,
    /// It had been the same for [`STAMP_SETTLE`] before it was read last.
    settled: bool,
}

impl StampAge {
    /// Returns the stamp that was just read, and was requested at `asked`. `before`: the stamp that was read before it.
    fn new(stamp: FileStamp, before: Option<&Self>, asked: Instant) -> Self {
        let since = before.filter(|before| before.stamp == stamp).map_or_else(Instant::now, |before| before.since);
        Self { stamp, since, settled: asked >= since + STAMP_SETTLE }
    }

    /// Returns whether nothing has changed since the stamp `before` was read.
    fn is_unchanged_since(&self, before: Option<&Self>) -> bool {
        before.is_some_and(|before| before.settled && before.stamp == self.stamp)
    }
}

impl DirectoryStore {
    /// Returns the store in the folder `leases` of this state directory. The folder is created at
    /// first use.
    pub fn new(state: &Path) -> Self {
        let path = state.join("leases");
        Self(Arc::new(Folder { path, id: OnceLock::new(), last_survey: Mutex::default() }))
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

    /// Creates the folder with its id, unless this agent has seen both before.
    fn prepare(&self) -> Result<(), StoreError> {
        if self.id.get().is_some() {
            return Ok(());
        }
        let make = || {
            if !self.path.is_dir() {
                fs::create_dir_all(&self.path)?;
                atomic_file::sync_directory(atomic_file::parent_directory(&self.path))?;
            }
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
            let id = getrandom::u64().map_err(io::Error::other)?;
            atomic_file::create(atomic_file::write_first(&path, format!("{id:016x}\n").as_bytes())?, &path)?;
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
        let (path, convert) = (self.file(vip), |object| lease_object::from_object(vip, object));
        Ok(self.open(&path, File::options().read(true), convert)?.map(|(_, lease)| lease))
    }

    fn read_record(&self, node: &NodeName) -> Result<Option<NodeRecord>, StoreError> {
        let (path, convert) = (self.record_file(node), |object| lease_object::record_from_object(node, object));
        Ok(self.open(&path, File::options().read(true), convert)?.map(|(_, record)| record))
    }

    /// Opens and reads a file; `None`: there is none.
    fn open<T>(
        &self,
        path: &Path,
        options: &OpenOptions,
        convert: impl FnOnce(Object) -> Result<T, String>,
    ) -> Result<Option<(File, T)>, StoreError> {
        let read = || unavailable(format!("read {}", path.display()));
        let file = match options.open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::metadata(&self.path).map_err(read())?;
                return Ok(None);
            }
            Err(error) => return Err(read()(error)),
        };
        let mut bytes = Vec::new();
        (&file).take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(read())?;
        let malformed = |message| StoreError::Malformed { lease: path.display().to_string(), message };
        let content = parse(bytes, convert).map_err(malformed)?;
        Ok(Some((file, content)))
    }

    fn swap_record(
        &self,
        node: &NodeName,
        expected: Option<&Version>,
        content: &RecordContent,
        deadline: Instant,
    ) -> Result<Swapped, StoreError> {
        let convert = |object| lease_object::record_from_object(node, object).map(|record| record.version);
        let object = |version| Ok(lease_object::record_to_object(node, Some(version), content, Timestamp::now()));
        self.swap_file(&self.record_file(node), expected, convert, object, deadline)
    }

    fn swap(
        &self,
        vip: Vip,
        expected: Option<&Version>,
        holder: &NodeName,
        epoch: u64,
        deadline: Instant,
    ) -> Result<Swapped, StoreError> {
        let object = |version| lease_object::to_object(vip, Some(version), holder, epoch, Timestamp::now());
        self.swap_file(&self.file(vip), expected, version_of(vip), object, deadline)
    }

    /// Writes the object with the next version, if the file has the expected version. `convert` returns the version of
    /// an object.
    fn swap_file(
        &self,
        path: &Path,
        expected: Option<&Version>,
        convert: impl Fn(Object) -> Result<Version, String>,
        object: impl FnOnce(Version) -> Result<Object, StoreError>,
        deadline: Instant,
    ) -> Result<Swapped, StoreError> {
        let failed = || unavailable(format!("write {}", path.display()));
        let version = Version::new(getrandom::u64().map_err(io::Error::other).map_err(failed())?.to_string());
        let text = serde_saphyr::to_string(&object(version.clone())?).map_err(io::Error::other).map_err(failed())?;
        let done = if let Some(expected) = expected {
            let Some(_lock) = self.lock(path, expected, convert)? else { return Ok(Swapped::Conflict) };
            let written = atomic_file::write_temporary(path, text.as_bytes()).and_then(|file| in_time(file, deadline));
            written.and_then(|file| atomic_file::replace(file, path)).map(|()| true)
        } else {
            if self.open(path, File::options().read(true), convert)?.is_some() {
                return Ok(Swapped::Conflict);
            }
            let written = atomic_file::write_first(path, text.as_bytes()).and_then(|file| in_time(file, deadline));
            written.and_then(|file| atomic_file::create(file, path))
        };
        Ok(if done.map_err(failed())? { Swapped::Done(version) } else { Swapped::Conflict })
    }

    fn delete(&self, vip: Vip, version: &Version) -> Result<Deleted, StoreError> {
        let path = self.file(vip);
        let Some(_lock) = self.lock(&path, version, version_of(vip))? else {
            return Ok(if self.read(vip)?.is_some() { Deleted::Conflict } else { Deleted::Done });
        };
        let removed = fs::remove_file(&path).and_then(|()| atomic_file::sync_directory(&self.path));
        removed.map(|()| Deleted::Done).map_err(unavailable(format!("delete {}", path.display())))
    }

    /// Locks a file for its only writer, until the result is dropped; `None`: it has another version than expected.
    fn lock(
        &self,
        path: &Path,
        expected: &Version,
        convert: impl FnOnce(Object) -> Result<Version, String>,
    ) -> Result<Option<File>, StoreError> {
        let opened = self.open(path, File::options().read(true).write(true), convert)?;
        let Some((file, _)) = opened.filter(|(_, version)| version == expected) else { return Ok(None) };
        let locked = atomic_file::lock(&file, LOCK_TIMEOUT).and_then(|()| is_at(&file, path));
        // A lock on a file that was replaced in between keeps nobody out.
        Ok(locked.map_err(unavailable(format!("lock {}", path.display())))?.then_some(file))
    }

    /// Reads the Leases that may have changed since the last survey.
    fn survey(&self) -> Result<Survey, StoreError> {
        let listing = || unavailable(format!("list {}", self.path.display()));
        let mut last = self.last_survey.lock().unwrap_or_else(PoisonError::into_inner);
        let (before, asked) = (last.folder.take(), Instant::now());
        // Network file systems ask for the present metadata when it is opened.
        let metadata = File::open(&self.path).and_then(|folder| folder.metadata()).map_err(listing())?;
        let folder = StampAge::new(FileStamp::from(&metadata), before.as_ref(), asked);
        if folder.is_unchanged_since(before.as_ref()) && last.survey.faults.is_empty() {
            last.folder = Some(folder);
            return Ok(last.survey.clone());
        }
        let mut vips: BTreeSet<Vip> = last.survey.leases.keys().copied().collect();
        for _ in 0..LISTINGS {
            self.list(&mut vips).map_err(listing())?;
        }
        let (mut leases, mut faults, mut files) = (last.survey.leases.clone(), imbl::OrdMap::new(), BTreeMap::new());
        for vip in vips {
            let (before, asked) = (last.files.get(&vip), Instant::now());
            if let Ok(metadata) = fs::metadata(self.file(vip)) {
                let file = StampAge::new(FileStamp::from(&metadata), before, asked);
                files.insert(vip, file);
                if file.is_unchanged_since(before) && leases.contains_key(&vip) {
                    continue;
                }
            }
            match self.read(vip) {
                Ok(Some(lease)) if leases.get(&vip) == Some(&lease) => {}
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
        *last = LastSurvey { folder: Some(folder), files, survey: Survey { leases, faults } };
        Ok(last.survey.clone())
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

/// Fails if it is too late. The caller knows by then that the write failed. So it does not happen, as far as possible.
fn in_time(file: NamedTempFile, deadline: Instant) -> io::Result<NamedTempFile> {
    if Instant::now() < deadline { Ok(file) } else { Err(io::Error::new(io::ErrorKind::TimedOut, "it took too long")) }
}

/// Returns whether a path still leads to this file.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    // Network file systems ask for the present file when it is opened.
    let present = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        present => FileStamp::from(&present?.metadata()?),
    };
    Ok(present.is_same_file(&FileStamp::from(&file.metadata()?)))
}

fn version_of(vip: Vip) -> impl Fn(Object) -> Result<Version, String> {
    move |object| lease_object::from_object(vip, object).map(|lease| lease.version)
}

/// Returns the content of a file, or its defect.
fn parse<T>(bytes: Vec<u8>, convert: impl FnOnce(Object) -> Result<T, String>) -> Result<T, String> {
    if bytes.len() as u64 > MAX_BYTES {
        return Err(format!("it has more than {MAX_BYTES} bytes"));
    }
    let text = String::from_utf8(bytes).map_err(|error| error.to_string())?;
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_aliases: 0, max_anchors: 0 },
        with_snippet: false,
    };
    convert(serde_saphyr::from_str_with_options(&text, options).map_err(|error| error.to_string())?)
}

#[cfg(test)]
mod tests;
