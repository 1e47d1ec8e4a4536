//! Collects changes from the thread that receives file system events, until they are worth reading by the
//! thread that reads files.
//!
//! A file that was closed or renamed is complete: its path is due at once. That of a file that went is due when
//! the whole removal is over. All other changes are found by a scan of the whole directory.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    path::{Path, PathBuf},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use notify::{
    Event, EventKind,
    event::{AccessKind, AccessMode, CreateKind, ModifyKind, RemoveKind, RenameMode},
};

use super::files::{is_hidden, is_manifest};

/// The delay after the last file was removed or renamed away: editors and version control put others in their
/// place, and whoever removes the whole directory removes its files first.
pub(super) const REMOVED_DELAY: Duration = Duration::from_millis(200);
/// The longest delay while files go on to be removed.
const MAX_REMOVED_DELAY: Duration = Duration::from_secs(2);
/// The delay of the scan after a write while the file is still open. Usually it is closed before. A file whose
/// writer pauses this long is read.
const WRITING_DELAY: Duration = Duration::from_millis(100);
/// Paths that are kept apart. With more, the whole directory is scanned.
const MAX_PATHS: usize = 4_096;

/// The extent of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ScanScope {
    /// Files whose stamp changed, came or went.
    Changed,
    /// Every file: events were lost, and a stamp is no finer than the clock's tick.
    All,
}

/// The changes that are due.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct DueChanges {
    /// Files that are complete, and what went.
    pub(super) paths: BTreeSet<PathBuf>,
    /// A scan of the whole directory, and the number of the last requested one that it includes.
    pub(super) scan: Option<(ScanScope, u64)>,
}

/// The queue between both threads.
#[derive(Debug)]
pub(super) struct ChangeQueue {
    pending: Mutex<PendingChanges>,
    wake: Condvar,
}

impl ChangeQueue {
    /// Returns an empty queue for the directory `root`, an absolute path.
    pub(super) fn new(root: &Path) -> Self {
        Self { pending: Mutex::new(PendingChanges::new(root)), wake: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, PendingChanges> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in an event or an error of the watcher.
    pub(super) fn note(&self, event: notify::Result<Event>) {
        let now = Instant::now();
        let mut pending = self.lock();
        let due = match event {
            Ok(event) => pending.note(&event, now),
            Err(error) => {
                tracing::warn!(%error, "events of the manifests directory lost, scanning all files");
                pending.scan(now, ScanScope::All);
                true
            }
        };
        if due {
            self.wake.notify_one();
        }
    }

    /// Requests a scan of the whole directory. Returns its number, from 1 on.
    pub(super) fn request_scan(&self) -> u64 {
        let mut pending = self.lock();
        pending.scan(Instant::now(), ScanScope::Changed);
        pending.requested += 1;
        self.wake.notify_one();
        pending.requested
    }

    /// Schedules a scan of the whole directory at this time.
    pub(super) fn scan_at(&self, due: Instant) {
        self.lock().scan(due, ScanScope::Changed);
    }

    /// Returns whether a file is being written.
    pub(super) fn is_writing(&self, path: &Path) -> bool {
        self.lock().writing.contains_key(path)
    }

    /// Makes [`Self::wait`] return `None` from now on.
    pub(super) fn stop(&self) {
        self.lock().stop = true;
        self.wake.notify_all();
    }

    /// Waits until something is due. After `patience` it asks for a scan anyway. `None`: stop.
    pub(super) fn wait(&self, patience: Duration) -> Option<DueChanges> {
        let mut end = Instant::now() + patience;
        let mut pending = self.lock();
        while !pending.stop {
            let now = Instant::now();
            if now >= end {
                pending.scan(now, ScanScope::Changed);
                end = now + patience;
            }
            let due = pending.take(now);
            if due != DueChanges::default() {
                return Some(due);
            }
            let until = pending.next().map_or(end, |due| due.min(end));
            (pending, _) = self.wake.wait_timeout(pending, until - now).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }
}

/// Changes with the times at which they are due. It has no clock of its own.
#[derive(Debug)]
struct PendingChanges {
    root: PathBuf,
    /// Paths that are due at once.
    paths: BTreeSet<PathBuf>,
    /// Manifests that processes have open for writing, with the time of the last write.
    writing: BTreeMap<PathBuf, Instant>,
    scan: Option<(Instant, ScanScope)>,
    /// Files are being removed, since the first time and until the second one so far. Scans wait for the end.
    removal: Option<(Instant, Instant)>,
    /// The manifests among them.
    removed: BTreeSet<PathBuf>,
    /// The last manifest that was renamed, with the tracker that both of its events have.
    renamed: Option<(usize, PathBuf)>,
    /// The number of scans that were requested so far.
    requested: u64,
    stop: bool,
}

impl PendingChanges {
    fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            paths: BTreeSet::new(),
            writing: BTreeMap::new(),
            scan: None,
            removal: None,
            removed: BTreeSet::new(),
            renamed: None,
            requested: 0,
            stop: false,
        }
    }

    /// Takes in an event. Returns whether anything becomes due by it.
    fn note(&mut self, event: &Event, now: Instant) -> bool {
        if event.need_rescan() {
            self.scan(now, ScanScope::All);
            return true;
        }
        let mut any = false;
        for path in &event.paths {
            any |= self.note_path(event, path, now);
        }
        any
    }

    fn note_path(&mut self, event: &Event, path: &Path, now: Instant) -> bool {
        if *path == self.root {
            return self.note_root(event.kind, now);
        }
        // The parent directory is watched for the root alone.
        if !path.starts_with(&self.root) {
            return false;
        }
        if is_hidden(path) {
            return self.note_hidden(event.kind, path, now);
        }
        // A write to a file that is no manifest means nothing. If it comes or goes, it may be a directory.
        let manifest = is_manifest(path);
        match event.kind {
            EventKind::Create(CreateKind::Folder) => self.scan(now, ScanScope::Changed),
            EventKind::Create(_) | EventKind::Modify(ModifyKind::Data(_)) if manifest => {
                self.paths.remove(path);
                self.removed.remove(path);
                self.writing.insert(path.to_owned(), now);
            }
            EventKind::Remove(RemoveKind::Folder) => {
                self.note_removal(now);
                self.scan(now, ScanScope::Changed);
            }
            EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(RenameMode::From)) if manifest => {
                self.renamed = event.tracker().map(|tracker| (tracker, path.to_owned()));
                self.writing.remove(path);
                self.removed.insert(path.to_owned());
                self.note_removal(now);
            }
            EventKind::Access(AccessKind::Close(AccessMode::Write)) if !manifest => return false,
            // The attributes of a file that is being written change too.
            EventKind::Modify(ModifyKind::Metadata(_)) if self.writing.contains_key(path) => return false,
            EventKind::Access(AccessKind::Close(AccessMode::Write))
            | EventKind::Remove(_)
            | EventKind::Modify(ModifyKind::Metadata(_) | ModifyKind::Name(RenameMode::From | RenameMode::To)) => {
                // Both names of a renamed manifest are due together: its objects only moved.
                if let Some((_, from)) =
                    self.renamed.take_if(|(tracker, _)| manifest && event.tracker() == Some(*tracker))
                    && self.removed.remove(&from)
                {
                    self.paths.insert(from);
                }
                self.writing.remove(path);
                self.removed.remove(path);
                self.paths.insert(path.to_owned());
            }
            _ => return false,
        }
        if self.paths.len() + self.writing.len() + self.removed.len() > MAX_PATHS {
            self.paths.clear();
            self.writing.clear();
            self.removed.clear();
            self.scan(now, ScanScope::All);
        }
        true
    }

    fn note_removal(&mut self, now: Instant) {
        let since = self.removal.map_or(now, |(since, _)| since);
        self.removal = Some((since, (now + REMOVED_DELAY).min(since + MAX_REMOVED_DELAY)));
    }

    /// Handles the directory itself: replaced by a rename, or removed, created again and then
    /// filled.
    fn note_root(&mut self, kind: EventKind, now: Instant) -> bool {
        let after = match kind {
            EventKind::Create(_) => WRITING_DELAY,
            EventKind::Modify(ModifyKind::Name(RenameMode::To)) => Duration::ZERO,
            EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(_)) => REMOVED_DELAY,
            _ => return false,
        };
        self.scan(now + after, ScanScope::Changed);
        true
    }

    /// Handles a hidden path. It is not read, but visible links may lead through it: `..data` of a
    /// ConfigMap volume is renamed into place, and other tools replace such a link in two steps.
    fn note_hidden(&mut self, kind: EventKind, path: &Path, now: Instant) -> bool {
        let link = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".."));
        match kind {
            EventKind::Modify(ModifyKind::Name(RenameMode::To)) => {}
            EventKind::Create(CreateKind::File) if link => {}
            _ => return false,
        }
        self.scan(now, ScanScope::Changed);
        true
    }

    /// Schedules a scan of the whole directory at `due`, or earlier if one is scheduled already.
    fn scan(&mut self, due: Instant, scope: ScanScope) {
        self.scan = Some(self.scan.map_or((due, scope), |(earlier, wider)| (earlier.min(due), wider.max(scope))));
    }

    /// Returns when a scan or the end of a removal is due.
    fn next(&self) -> Option<Instant> {
        let written = self.writing.values().min().map(|last| *last + WRITING_DELAY);
        let scan = self.scan.map(|(due, _)| due).into_iter().chain(written).min();
        self.removal.map(|(_, end)| end).or(scan)
    }

    /// Removes and returns the changes that are due.
    fn take(&mut self, now: Instant) -> DueChanges {
        let mut paths = mem::take(&mut self.paths);
        if self.removal.take_if(|(_, end)| *end <= now).is_some() {
            paths.append(&mut self.removed);
        }
        let is_due = self.removal.is_none() && self.next().is_some_and(|due| due <= now);
        let scan = is_due.then(|| {
            self.writing.retain(|_, last| now < *last + WRITING_DELAY);
            let scope = self.scan.take().map_or(ScanScope::Changed, |(_, scope)| scope);
            (scope, self.requested)
        });
        DueChanges { paths, scan }
    }
}

#[cfg(test)]
mod tests {
    use notify::event::{DataChange, Flag, MetadataKind};

    use super::*;

    const CLOSE: EventKind = EventKind::Access(AccessKind::Close(AccessMode::Write));
    const WRITE: EventKind = EventKind::Modify(ModifyKind::Data(DataChange::Any));
    const CREATE: EventKind = EventKind::Create(CreateKind::File);
    const MKDIR: EventKind = EventKind::Create(CreateKind::Folder);
    const REMOVE: EventKind = EventKind::Remove(RemoveKind::File);
    const RMDIR: EventKind = EventKind::Remove(RemoveKind::Folder);
    const CHMOD: EventKind = EventKind::Modify(ModifyKind::Metadata(MetadataKind::Any));
    const OPEN: EventKind = EventKind::Access(AccessKind::Open(AccessMode::Any));
    const FROM: EventKind = EventKind::Modify(ModifyKind::Name(RenameMode::From));
    const TO: EventKind = EventKind::Modify(ModifyKind::Name(RenameMode::To));

    fn pending() -> PendingChanges {
        PendingChanges::new(Path::new("/m"))
    }

    fn note(pending: &mut PendingChanges, kind: EventKind, path: &str, now: Instant) -> bool {
        let event = Event::new(kind).add_path(path.into());
        pending.note(&if [FROM, TO].contains(&kind) { event.set_tracker(7) } else { event }, now)
    }

    #[test]
    fn each_event_makes_a_path_due_or_a_scan() {
        /// The paths that are due at once, and the delay of what is due later.
        type Due<'a> = (&'a [&'a str], Option<Duration>);
        let (a, none) = (&["/m/a.yaml"][..], &[][..]);
        let table: &[(&[(EventKind, &str)], Due<'_>)] = &[
            (&[(CLOSE, "/m/a.yaml")], (a, None)),
            (&[(TO, "/m/a.yaml")], (a, None)),
            (&[(TO, "/m/sub")], (&["/m/sub"], None)),
            (&[(FROM, "/m/a.yaml")], (none, Some(REMOVED_DELAY))),
            (&[(FROM, "/m/sub")], (&["/m/sub"], None)),
            (&[(CHMOD, "/m/a.yaml")], (a, None)),
            (&[(CHMOD, "/m/sub")], (&["/m/sub"], None)),
            (&[(REMOVE, "/m/a.yaml")], (none, Some(REMOVED_DELAY))),
            (&[(RMDIR, "/m/sub")], (none, Some(REMOVED_DELAY))),
            (&[(CREATE, "/m/a.yaml")], (none, Some(WRITING_DELAY))),
            (&[(CREATE, "/m/a.yaml"), (WRITE, "/m/a.yaml"), (CHMOD, "/m/a.yaml")], (none, Some(WRITING_DELAY))),
            (&[(CREATE, "/m/a.yaml"), (WRITE, "/m/a.yaml"), (CLOSE, "/m/a.yaml")], (a, None)),
            (&[(CLOSE, "/m/a.yaml"), (WRITE, "/m/a.yaml")], (none, Some(WRITING_DELAY))),
            (&[(TO, "/m/..data")], (none, Some(Duration::ZERO))),
            (&[(CREATE, "/m/..data")], (none, Some(Duration::ZERO))),
            (&[(MKDIR, "/m/sub")], (none, Some(Duration::ZERO))),
            (&[(REMOVE, "/m")], (none, Some(REMOVED_DELAY))),
            (&[(FROM, "/m")], (none, Some(REMOVED_DELAY))),
            (&[(TO, "/m")], (none, Some(Duration::ZERO))),
            (&[(MKDIR, "/m")], (none, Some(WRITING_DELAY))),
            (&[(OPEN, "/m/a.yaml")], (none, None)),
            (&[(REMOVE, "/m/link")], (&["/m/link"], None)),
            (&[(WRITE, "/m/README.md"), (CLOSE, "/m/README.md")], (none, None)),
            (&[(CLOSE, "/m/.a.yaml.swp"), (CREATE, "/m/.a.yaml.swp"), (REMOVE, "/m/.a.yaml.swp")], (none, None)),
            (&[(CLOSE, "/elsewhere/a.yaml"), (REMOVE, "/elsewhere")], (none, None)),
        ];
        for (events, (paths, scan)) in table {
            let (mut pending, now) = (pending(), Instant::now());
            let any = events.iter().fold(false, |any, (kind, path)| note(&mut pending, *kind, path, now) || any);
            assert_eq!(any, !paths.is_empty() || scan.is_some(), "{events:?}");
            assert_eq!(pending.next().map(|due| due - now), *scan, "{events:?}");
            assert_eq!(pending.take(now).paths, paths.iter().map(PathBuf::from).collect(), "{events:?}");
        }
    }

    #[test]
    fn removed_files_and_scans_wait_until_the_whole_removal_is_over() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut pending = pending();
        for ms in 0..50 {
            note(&mut pending, REMOVE, &format!("/m/{ms}.yaml"), at(ms));
        }
        pending.scan(at(50), ScanScope::Changed);
        pending.requested += 1;
        for path in ["/m/new.yaml", "/m/7.yaml"] {
            note(&mut pending, CLOSE, path, at(60));
        }
        let paths = ["/m/new.yaml", "/m/7.yaml"].map(PathBuf::from).into();
        assert_eq!(pending.take(at(60)), DueChanges { paths, scan: None });
        assert_eq!(pending.take(at(248)), DueChanges::default());
        let due = pending.take(at(249));
        assert_eq!((due.paths.len(), due.scan), (49, Some((ScanScope::Changed, 1))));
        assert_eq!(pending.next(), None);
        // If files are removed all the time, they do not wait for ever.
        let (mut ms, first) = (300, 300);
        while pending.take(at(ms)).paths.is_empty() {
            note(&mut pending, REMOVE, &format!("/m/{ms}.yaml"), at(ms));
            ms += 100;
        }
        assert_eq!(at(ms), at(first) + MAX_REMOVED_DELAY);
    }

    #[test]
    fn both_names_of_a_renamed_manifest_are_due_together() {
        for (from, to, due) in [
            ("/m/a.yaml", "/m/b.yaml", &["/m/a.yaml", "/m/b.yaml"][..]),
            ("/m/a.yaml", "/m/a.yaml~", &["/m/a.yaml~"]),
            ("/m/.a.yaml", "/m/a.yaml", &["/m/a.yaml"]),
            ("/elsewhere/a.yaml", "/m/b.yaml", &["/m/b.yaml"]),
        ] {
            let (mut pending, now) = (pending(), Instant::now());
            note(&mut pending, FROM, from, now);
            note(&mut pending, TO, to, now);
            let paths = due.iter().map(PathBuf::from).collect();
            assert_eq!(pending.take(now), DueChanges { paths, scan: None }, "{from} to {to}");
        }
    }

    #[test]
    fn lost_events_and_a_flood_of_paths_are_a_scan_of_everything() {
        let now = Instant::now();
        let everything = DueChanges { paths: BTreeSet::new(), scan: Some((ScanScope::All, 0)) };
        let mut lost = pending();
        note(&mut lost, TO, "/m/..data", now);
        assert!(lost.note(&Event::new(EventKind::Other).set_flag(Flag::Rescan), now));
        assert_eq!(lost.take(now), everything);
        for kind in [CLOSE, WRITE, REMOVE] {
            let mut flood = pending();
            for i in 0..=MAX_PATHS {
                note(&mut flood, kind, &format!("/m/{i}.yaml"), now);
            }
            assert_eq!(flood.take(now + REMOVED_DELAY), everything);
        }
    }

    #[test]
    fn a_scan_leaves_out_what_is_being_written() {
        let now = Instant::now();
        let mut pending = pending();
        note(&mut pending, WRITE, "/m/a.yaml", now);
        note(&mut pending, WRITE, "/m/b.yaml", now + WRITING_DELAY / 2);
        let scan = Some((ScanScope::Changed, 0));
        assert_eq!(pending.take(now + WRITING_DELAY), DueChanges { paths: BTreeSet::new(), scan });
        assert_eq!(pending.writing.keys().collect::<Vec<_>>(), [Path::new("/m/b.yaml")]);
        assert_eq!(pending.next(), Some(now + WRITING_DELAY / 2 + WRITING_DELAY));
    }
}
