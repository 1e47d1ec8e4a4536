//! Follows a directory of manifests.

use std::{
    collections::BTreeMap,
    fs, io, mem,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::watch::{Receiver, Sender, channel};

use super::{
    change_queue::{ChangeQueue, DueChanges, REMOVED_DELAY, ScanScope},
    files::{self, DirectoryIdentity, DirectoryListing, FileStamps, FileText},
    object_store::ObjectStore,
    parse,
};
use crate::file_stamp::FileStamp;
use vipmux_model::objects::{Objects, Problem};
use vipmux_supervisor::Supervisor;

/// The whole directory is scanned this often even without events: a link's target may be elsewhere,
/// and some file systems send no events. A scan is one `stat` per file.
const FULL_SCAN_INTERVAL: Duration = Duration::from_secs(10);
/// While the directory is gone, it is looked for this often.
const MISSING_SCAN_INTERVAL: Duration = Duration::from_secs(1);
/// A directory that lost its last manifest counts as empty after this time. The removal of the
/// directory itself begins the same way.
const EMPTY_DELAY: Duration = Duration::from_secs(1);

/// A file that became shorter in place is read after this time without a further change: a program may be writing it
/// anew, as a shell's `>` does.
const SHORTENED_DELAY: Duration = if cfg!(test) { Duration::from_secs(2) } else { Duration::from_millis(500) };

/// A file that became shorter while it was read is looked at again after this time.
const CUT_DELAY: Duration = Duration::from_millis(10);

/// A directory cannot be followed. The system may have run out of inotify instances or watches.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} {path:?}")]
pub struct WatchError {
    operation: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// Ends the following when it is dropped, soon but without waiting for it. The receiver's `changed`
/// then fails.
#[derive(Debug)]
#[must_use = "the directory is followed until this is dropped"]
pub struct WatchGuard {
    queue: Arc<ChangeQueue>,
    refreshed: Receiver<u64>,
}

impl WatchGuard {
    /// Requests a scan of the whole directory, without waiting for it. Returns its number.
    pub fn request_refresh(&self) -> u64 {
        self.queue.request_scan()
    }

    /// Returns the number of the last [requested](Self::request_refresh) scan that is done. A
    /// snapshot taken after it has what was in the directory at the request. 0 before the first.
    pub fn refreshed(&self) -> Receiver<u64> {
        self.refreshed.clone()
    }
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        self.queue.stop();
    }
}

/// Follows the manifests in and below a directory, as [`read`](super::read) reads them. The
/// receiver holds the latest snapshot from the start. Objects that did not change are the same
/// [`Arc`]s in the next one.
///
/// A definition that becomes malformed stays in force as it was last good, and is a problem in the
/// snapshot. The same holds for all objects while the directory itself is gone, or an empty one has
/// taken its place. Of two definitions of an object, the one in force stays so. An edited file is
/// read at once when it is closed or renamed into place; if it became shorter in place, after half a
/// second without a further change. It costs its own parsing, however many other files there are.
///
/// Blocks for the first read. The rest happens on a thread of its own, which nothing waits for.
/// Awaiting the receiver's `changed` is cancel-safe, and a slow receiver skips snapshots.
pub fn watch(directory: &Path, supervisor: &Supervisor) -> Result<(Receiver<Arc<Objects>>, WatchGuard), WatchError> {
    let failed = |operation| move |source| WatchError { operation, path: directory.to_owned(), source };
    let unwatched = |error| failed("watch the directory")(io::Error::other(error));
    let root = std::path::absolute(directory).map_err(failed("list the directory"))?;
    let queue = Arc::new(ChangeQueue::new(&root));
    let (events, notes) = (Arc::clone(&queue), supervisor.clone());
    let note = move |event| {
        notes.catch_panic("events of the manifests", || events.note(event));
    };
    let mut watcher = notify::recommended_watcher(note).map_err(unwatched)?;
    // The parent reports if the directory is replaced or comes back.
    if let Some(parent) = root.parent()
        && let Err(error) = watcher.watch(parent, RecursiveMode::NonRecursive)
    {
        tracing::debug!(%error, "cannot watch the parent directory");
    }
    let mut follower = DirectoryFollower {
        queue: Arc::clone(&queue),
        watcher,
        stamps: FileStamps::default(),
        store: ObjectStore::default(),
        adopted: None,
        emptied: None,
        shortened: BTreeMap::new(),
        missing: false,
        watch_failed: None,
        root,
    };
    let listing = follower.list().map_err(failed("list the directory"))?;
    if let Some(error) = follower.watch_failed.take() {
        return Err(unwatched(error));
    }
    follower.adopt(listing, ScanScope::All);
    let (sender, receiver) = channel(Arc::new(follower.store.snapshot()));
    let (done_sender, refreshed) = channel(0);
    supervisor
        .spawn_thread("manifests", move || follower.run(&sender, &done_sender))
        .map_err(failed("start the thread that follows"))?;
    Ok((receiver, WatchGuard { queue, refreshed }))
}

struct DirectoryFollower {
    root: PathBuf,
    queue: Arc<ChangeQueue>,
    watcher: RecommendedWatcher,
    /// The stamps of the files that were read.
    stamps: FileStamps,
    store: ObjectStore,
    /// The directory whose manifests are in force.
    adopted: Option<DirectoryIdentity>,
    /// The time when it was found without manifests.
    emptied: Option<Instant>,
    /// Files that became shorter in place since they were read, as they were seen last, and since when.
    shortened: BTreeMap<PathBuf, (FileStamp, Instant)>,
    /// The directory is gone, or an empty one took its place: what is in force stays so.
    missing: bool,
    /// Why a directory could not be watched in the last scan.
    watch_failed: Option<notify::Error>,
}

impl DirectoryFollower {
    fn run(mut self, sender: &Sender<Arc<Objects>>, done_sender: &Sender<u64>) {
        while let Some(due) = self.queue.wait(if self.missing { MISSING_SCAN_INTERVAL } else { FULL_SCAN_INTERVAL }) {
            let (started, scan) = (Instant::now(), due.scan);
            if self.follow(due) {
                let objects = Arc::new(self.store.snapshot());
                tracing::debug!(services = objects.services.len(), took = ?started.elapsed(), "manifests changed");
                sender.send_replace(objects);
            }
            if let Some((_, requested)) = scan {
                done_sender.send_if_modified(|refreshed| mem::replace(refreshed, requested) != requested);
            }
        }
    }

    /// Reads what is due. Returns whether anything changed.
    fn follow(&mut self, due: DueChanges) -> bool {
        let mut scan = due.scan.map(|(scope, _)| scope);
        if self.missing {
            return self.scan(scan.unwrap_or(ScanScope::Changed));
        }
        let (mut read, mut gone) = (Vec::new(), Vec::new());
        for path in due.paths {
            let manifest = files::is_manifest(&path);
            match fs::metadata(&path).or_else(|_| fs::symlink_metadata(&path)) {
                Ok(metadata) if metadata.is_dir() => scan = scan.max(Some(ScanScope::Changed)),
                Ok(metadata) if manifest && self.stamps.has_room(&path, metadata.len()) => {
                    let stamp = FileStamp::from(&metadata);
                    if self.is_complete(&path, stamp) {
                        self.stamps.insert(path.clone(), stamp);
                        read.push(path);
                    }
                }
                Ok(_) if !manifest => {}
                Err(error) if files::is_gone(&error) => {
                    if self.stamps.get(&path).is_some() {
                        gone.push(path);
                    } else if self.stamps.holds_below(&path) {
                        self.queue.scan_at(Instant::now() + REMOVED_DELAY);
                    }
                }
                Ok(_) | Err(_) => scan = scan.max(Some(ScanScope::Changed)),
            }
        }
        let mut changed = self.put(&read);
        // A scan decides whether the directory went with its files.
        if !gone.is_empty() && (gone.len() == self.store.file_count() || fs::read_dir(&self.root).is_err()) {
            scan = scan.max(Some(ScanScope::Changed));
        } else {
            changed |= self.forget(&gone);
        }
        scan.map_or(changed, |scope| self.scan(scope) || changed)
    }

    /// Forgets files that are gone.
    fn forget(&mut self, gone: &[PathBuf]) -> bool {
        let mut changed = false;
        for file in gone {
            self.stamps.remove(file);
            self.shortened.remove(file);
            changed |= self.store.remove(file);
        }
        changed
    }

    /// Returns whether a file is worth reading: it did not become shorter in place, or long enough ago.
    fn is_complete(&mut self, path: &Path, stamp: FileStamp) -> bool {
        let is_shorter = self.stamps.get(path).is_some_and(|read| read.is_same_file(&stamp) && stamp.size < read.size);
        if !is_shorter {
            self.shortened.remove(path);
            return true;
        }
        let now = Instant::now();
        let (seen, since) = self.shortened.entry(path.to_owned()).or_insert((stamp, now));
        if *seen != stamp {
            (*seen, *since) = (stamp, now);
        }
        let due = *since + SHORTENED_DELAY;
        if now < due {
            self.queue.scan_at(due);
        } else {
            self.shortened.remove(path);
        }
        now >= due
    }

    /// Reads files and stores their content.
    fn put(&mut self, paths: &[PathBuf]) -> bool {
        let mut changed = false;
        let mut texts: Vec<FileText> = Vec::with_capacity(paths.len());
        for path in paths {
            if let Some(text) = files::load(path) {
                if self.was_cut(path, &text) {
                    self.queue.scan_at(Instant::now() + CUT_DELAY);
                } else {
                    texts.push(text);
                }
            } else {
                // It went just now, maybe with the whole directory.
                self.stamps.remove(path);
                self.queue.scan_at(Instant::now() + REMOVED_DELAY);
            }
        }
        for (file, parsed) in parse::all(texts) {
            changed |= self.store.put(&file, parsed);
        }
        changed
    }

    /// Returns whether a file became shorter between the look at it and the end of the reading.
    fn was_cut(&self, path: &Path, text: &FileText) -> bool {
        let (Some(stamp), Ok(text)) = (self.stamps.get(path), &text.text) else { return false };
        let is_shorter = u64::try_from(text.len()).is_ok_and(|size| size < stamp.size);
        // Not every file system tells the right size.
        is_shorter && fs::metadata(path).is_ok_and(|metadata| FileStamp::from(&metadata) != *stamp)
    }

    fn scan(&mut self, scope: ScanScope) -> bool {
        match self.list() {
            Ok(listing) if listing.files.is_empty() && self.store.file_count() > 0 => self.adopt_empty(listing, scope),
            Ok(listing) => self.adopt(listing, scope),
            Err(error) => self.keep(&format!("cannot list the directory: {error}")),
        }
    }

    /// Stores the result of a scan that found no manifest any more, unless there is doubt whether
    /// that was meant.
    fn adopt_empty(&mut self, listing: DirectoryListing, scope: ScanScope) -> bool {
        if listing.root != self.adopted {
            return self.keep("an empty directory has taken its place");
        }
        if self.emptied.get_or_insert_with(Instant::now).elapsed() >= EMPTY_DELAY {
            return self.adopt(listing, scope);
        }
        self.queue.scan_at(Instant::now() + EMPTY_DELAY);
        false
    }

    /// Keeps what is in force. Returns whether `why` is new.
    fn keep(&mut self, why: &str) -> bool {
        self.missing = true;
        let message = format!("{why}; its last good state stays in force");
        self.store.set_general_problems(vec![Problem::of_file(&self.root, message)])
    }

    /// Lists the directory, and watches it and those below.
    fn list(&mut self) -> io::Result<DirectoryListing> {
        self.watch_failed = None;
        let (watcher, failed) = (&mut self.watcher, &mut self.watch_failed);
        files::walk(&self.root, &mut |directory| {
            // Watched again each time: the path may lead to another directory now.
            if let Err(error) = watcher.watch(directory, RecursiveMode::NonRecursive) {
                failed.get_or_insert(error);
            }
        })
    }

    /// Stores the result of a scan.
    fn adopt(&mut self, mut listing: DirectoryListing, scope: ScanScope) -> bool {
        (self.missing, self.emptied, self.adopted) = (false, None, listing.root);
        if let Some(error) = self.watch_failed.take() {
            let message = format!("changes are seen late, every {} s: {error}", FULL_SCAN_INTERVAL.as_secs());
            listing.problems.push(Problem::of_file(&self.root, message));
        }
        let mut changed = self.store.set_general_problems(mem::take(&mut listing.problems));
        let kept =
            |file: &Path| listing.files.contains_key(file) || listing.unlisted.iter().any(|it| file.starts_with(it));
        let gone: Vec<_> = self.store.files().filter(|file| !kept(file)).map(Path::to_owned).collect();
        changed |= self.forget(&gone);
        let mut read = Vec::new();
        for (file, stamp) in listing.files {
            let known = scope == ScanScope::Changed && self.stamps.get(&file) == Some(&stamp);
            if !known && !self.queue.is_writing(&file) && self.is_complete(&file, stamp) {
                self.stamps.insert(file.clone(), stamp);
                read.push(file);
            }
        }
        self.put(&read) || changed
    }
}
