//! Collects changes from the file system, and holds each back until the file is worth reading.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use notify::{
    Event, EventKind,
    event::{AccessKind, AccessMode, CreateKind, ModifyKind, RenameMode},
};

use super::files::{is_hidden, is_manifest};

/// The delay after a file was closed or renamed into place: it is complete. Changes during a read
/// are read together after it.
const CLOSED_DELAY: Duration = Duration::ZERO;
/// The delay after a file was renamed away or got other attributes: editors put another in its
/// place.
const RENAMED_DELAY: Duration = Duration::from_millis(20);
/// The delay after the last file was removed: version control puts others in their place, and
/// whoever removes the whole directory removes its files first.
pub(super) const REMOVED_DELAY: Duration = Duration::from_millis(200);
/// The longest delay while files go on to be removed.
const MAX_REMOVED_DELAY: Duration = Duration::from_secs(2);
/// The delay after a write while the file is still open. Usually it is closed before. A file whose
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
    /// Files or directories that came, changed or went.
    pub(super) paths: Vec<PathBuf>,
    /// A scan of the whole directory.
    pub(super) scan: Option<ScanScope>,
}

impl DueChanges {
    pub(super) fn is_empty(&self) -> bool {
        self.paths.is_empty() && self.scan.is_none()
    }
}

/// Changes with the times at which they are due. It has no clock of its own.
#[derive(Debug)]
pub(super) struct PendingChanges {
    root: PathBuf,
    paths: BTreeMap<PathBuf, PendingChange>,
    scan: Option<(Instant, ScanScope)>,
    /// Files are being removed.
    removal: Option<Removal>,
    /// The last path that was renamed to another, with the tracker that both events have.
    renamed: Option<(usize, PathBuf)>,
}

#[derive(Clone, Copy, Debug)]
struct PendingChange {
    due: Instant,
    /// A process has the file open for writing.
    writing: bool,
    /// The file went: due when the whole removal is over.
    removed: bool,
}

/// Files that are removed one after the other.
#[derive(Clone, Copy, Debug)]
struct Removal {
    since: Instant,
    last: Instant,
}

impl Removal {
    /// Returns when it counts as finished.
    fn end(self) -> Instant {
        (self.last + REMOVED_DELAY).min(self.since + MAX_REMOVED_DELAY)
    }
}

impl PendingChanges {
    /// Returns an empty collection for the directory `root`, an absolute path.
    pub(super) fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), paths: BTreeMap::new(), scan: None, removal: None, renamed: None }
    }

    /// Takes in an event. Returns whether anything becomes due by it.
    pub(super) fn note(&mut self, event: &Event, now: Instant) -> bool {
        if event.need_rescan() {
            self.scan(now, ScanScope::All);
            return true;
        }
        self.note_rename(event, now);
        let mut any = false;
        for path in &event.paths {
            any |= self.note_path(event.kind, path, now);
        }
        any
    }

    /// Makes both names of a renamed manifest due together: its objects only moved.
    fn note_rename(&mut self, event: &Event, now: Instant) {
        let (Some(tracker), Some(path)) = (event.tracker(), event.paths.first()) else { return };
        match event.kind {
            EventKind::Modify(ModifyKind::Name(RenameMode::From)) => self.renamed = Some((tracker, path.clone())),
            EventKind::Modify(ModifyKind::Name(RenameMode::To)) if is_manifest(path) => {
                let from = self.renamed.take().filter(|(other, _)| *other == tracker);
                if let Some(change) = from.and_then(|(_, from)| self.paths.get_mut(&from)) {
                    change.due = now + CLOSED_DELAY;
                }
            }
            _ => {}
        }
    }

    fn note_path(&mut self, kind: EventKind, path: &Path, now: Instant) -> bool {
        if *path == self.root {
            return self.note_root(kind, now);
        }
        // The parent directory is watched for the root alone.
        if !path.starts_with(&self.root) {
            return false;
        }
        if is_hidden(path) {
            return self.note_hidden(kind, path, now);
        }
        let removed = matches!(kind, EventKind::Remove(_));
        let change = |after, writing| PendingChange { due: now + after, writing, removed };
        let change = match kind {
            EventKind::Create(CreateKind::Folder) => {
                self.scan(now + CLOSED_DELAY, ScanScope::Changed);
                return true;
            }
            EventKind::Access(AccessKind::Close(AccessMode::Write))
            | EventKind::Modify(ModifyKind::Name(RenameMode::To)) => change(CLOSED_DELAY, false),
            EventKind::Create(_) | EventKind::Modify(ModifyKind::Data(_)) => change(WRITING_DELAY, true),
            // The attributes of a file that is being written change too.
            EventKind::Modify(ModifyKind::Metadata(_)) if self.is_writing(path) => return false,
            EventKind::Remove(_) => change(Duration::ZERO, false),
            EventKind::Modify(ModifyKind::Name(RenameMode::From) | ModifyKind::Metadata(_)) => {
                change(RENAMED_DELAY, false)
            }
            _ => return false,
        };
        // A write to a file that is no manifest means nothing. If it comes or goes, it may be a
        // directory.
        if change.writing && !is_manifest(path) {
            return false;
        }
        if removed {
            self.note_removal(now);
        }
        self.paths.insert(path.to_owned(), change);
        if self.paths.len() > MAX_PATHS {
            self.paths.clear();
            self.scan(now + CLOSED_DELAY, ScanScope::All);
        }
        true
    }

    fn note_removal(&mut self, now: Instant) {
        let going_on = self.removal.filter(|removal| now < removal.end());
        self.removal = Some(Removal { since: going_on.map_or(now, |removal| removal.since), last: now });
    }

    /// Handles the directory itself: replaced by a rename, or removed, created again and then
    /// filled.
    fn note_root(&mut self, kind: EventKind, now: Instant) -> bool {
        let after = match kind {
            EventKind::Create(_) => WRITING_DELAY,
            EventKind::Modify(ModifyKind::Name(RenameMode::To)) => CLOSED_DELAY,
            EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(_)) => RENAMED_DELAY,
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
        self.scan(now + CLOSED_DELAY, ScanScope::Changed);
        true
    }

    /// Makes a path due at this time, unless it changes before.
    pub(super) fn read(&mut self, path: &Path, due: Instant) {
        let change = PendingChange { due, writing: false, removed: false };
        self.paths.entry(path.to_owned()).or_insert(change);
    }

    /// Schedules a scan of the whole directory at `due`, or earlier if one is scheduled already.
    pub(super) fn scan(&mut self, due: Instant, scope: ScanScope) {
        self.scan = Some(self.scan.map_or((due, scope), |(earlier, wider)| (earlier.min(due), wider.max(scope))));
    }

    /// Returns whether a file is being written, so that it is not worth reading yet.
    pub(super) fn is_writing(&self, path: &Path) -> bool {
        self.paths.get(path).is_some_and(|change| change.writing)
    }

    /// Returns when the next change will be due.
    pub(super) fn next(&self) -> Option<Instant> {
        let scan = self.scan.map(|(due, _)| self.after_removal(due));
        self.paths.values().map(|change| self.due(change)).chain(scan).min()
    }

    fn due(&self, change: &PendingChange) -> Instant {
        if change.removed { self.after_removal(change.due) } else { change.due }
    }

    fn after_removal(&self, due: Instant) -> Instant {
        self.removal.map_or(due, |removal| due.max(removal.end()))
    }

    /// Removes and returns the changes that are due.
    pub(super) fn take(&mut self, now: Instant) -> DueChanges {
        let due = self.paths.iter().filter(|(_, change)| self.due(change) <= now);
        let paths: Vec<_> = due.map(|(path, _)| path.clone()).collect();
        for path in &paths {
            self.paths.remove(path);
        }
        let held = self.removal.is_some_and(|removal| now < removal.end());
        DueChanges { paths, scan: self.scan.take_if(|(due, _)| !held && *due <= now).map(|(_, scope)| scope) }
    }
}

#[cfg(test)]
mod tests {
    use notify::event::{DataChange, Flag, MetadataKind, RemoveKind};

    use super::*;

    const CLOSE: EventKind = EventKind::Access(AccessKind::Close(AccessMode::Write));
    const WRITE: EventKind = EventKind::Modify(ModifyKind::Data(DataChange::Any));
    const CREATE: EventKind = EventKind::Create(CreateKind::File);
    const MKDIR: EventKind = EventKind::Create(CreateKind::Folder);
    const REMOVE: EventKind = EventKind::Remove(RemoveKind::File);
    const CHMOD: EventKind = EventKind::Modify(ModifyKind::Metadata(MetadataKind::Any));
    const OPEN: EventKind = EventKind::Access(AccessKind::Open(AccessMode::Any));
    const FROM: EventKind = EventKind::Modify(ModifyKind::Name(RenameMode::From));
    const TO: EventKind = EventKind::Modify(ModifyKind::Name(RenameMode::To));

    /// Returns the changes of these events, and the delay after the last one.
    fn due(events: &[(EventKind, &str)]) -> (DueChanges, Option<Duration>) {
        let now = Instant::now();
        let mut pending = PendingChanges::new(Path::new("/m"));
        for (kind, path) in events {
            pending.note(&Event::new(*kind).add_path(PathBuf::from(path)), now);
        }
        let after = pending.next().map(|due| due - now);
        (pending.take(now + after.unwrap_or_default()), after)
    }

    #[test]
    fn each_event_is_due_when_it_is_worth_reading() {
        type Case<'a> = (&'a [(EventKind, &'a str)], &'a str, Option<Duration>);
        let table: &[Case<'_>] = &[
            (&[(CLOSE, "/m/a.yaml")], "/m/a.yaml", Some(CLOSED_DELAY)),
            (&[(TO, "/m/a.yaml")], "/m/a.yaml", Some(CLOSED_DELAY)),
            (&[(TO, "/m/sub")], "/m/sub", Some(CLOSED_DELAY)),
            (&[(REMOVE, "/m/a.yaml")], "/m/a.yaml", Some(REMOVED_DELAY)),
            (&[(FROM, "/m/a.yaml")], "/m/a.yaml", Some(RENAMED_DELAY)),
            (&[(CHMOD, "/m/a.yaml")], "/m/a.yaml", Some(RENAMED_DELAY)),
            (&[(CREATE, "/m/a.yaml")], "/m/a.yaml", Some(WRITING_DELAY)),
            (&[(CREATE, "/m/a.yaml"), (WRITE, "/m/a.yaml")], "/m/a.yaml", Some(WRITING_DELAY)),
            (&[(CREATE, "/m/a.yaml"), (WRITE, "/m/a.yaml"), (CHMOD, "/m/a.yaml")], "/m/a.yaml", Some(WRITING_DELAY)),
            (&[(CREATE, "/m/a.yaml"), (WRITE, "/m/a.yaml"), (CLOSE, "/m/a.yaml")], "/m/a.yaml", Some(CLOSED_DELAY)),
            (&[(REMOVE, "/m/a.yaml"), (CREATE, "/m/a.yaml")], "/m/a.yaml", Some(WRITING_DELAY)),
            (&[(OPEN, "/m/a.yaml")], "", None),
            (&[(WRITE, "/m/README.md")], "", None),
            (&[(CLOSE, "/m/.a.yaml.swp"), (CREATE, "/m/.a.yaml.swp"), (REMOVE, "/m/.a.yaml.swp")], "", None),
            (&[(CLOSE, "/elsewhere/a.yaml"), (REMOVE, "/elsewhere")], "", None),
        ];
        for (events, path, after) in table {
            let paths = if path.is_empty() { vec![] } else { vec![PathBuf::from(path)] };
            assert_eq!(due(events), (DueChanges { paths, scan: None }, *after), "{events:?}");
        }
    }

    #[test]
    fn an_event_about_many_files_is_a_scan() {
        for (kind, path, after) in [
            (TO, "/m/..data", CLOSED_DELAY),
            (CREATE, "/m/..data", CLOSED_DELAY),
            (MKDIR, "/m/sub", CLOSED_DELAY),
            (REMOVE, "/m", RENAMED_DELAY),
            (FROM, "/m", RENAMED_DELAY),
            (TO, "/m", CLOSED_DELAY),
            (MKDIR, "/m", WRITING_DELAY),
        ] {
            let scan = Some(ScanScope::Changed);
            assert_eq!(due(&[(kind, path)]), (DueChanges { paths: vec![], scan }, Some(after)), "{kind:?} {path}");
        }
    }

    #[test]
    fn removed_files_are_due_when_the_whole_removal_is_over() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut pending = PendingChanges::new(Path::new("/m"));
        let note = |pending: &mut PendingChanges, kind, path: &str, ms| {
            pending.note(&Event::new(kind).add_path(path.into()), at(ms))
        };
        for ms in 0..50 {
            note(&mut pending, REMOVE, &format!("/m/{ms}.yaml"), ms);
        }
        pending.scan(at(50), ScanScope::Changed);
        assert_eq!(pending.next(), Some(at(49) + REMOVED_DELAY));
        note(&mut pending, CLOSE, "/m/new.yaml", 60);
        assert_eq!(pending.take(at(60)), DueChanges { paths: vec!["/m/new.yaml".into()], scan: None });
        assert_eq!(pending.take(at(248)), DueChanges::default());
        let due = pending.take(at(249));
        assert_eq!((due.paths.len(), due.scan), (50, Some(ScanScope::Changed)));
        // If files are removed all the time, they do not wait for ever.
        let (mut ms, first) = (300, 300);
        while pending.take(at(ms)).is_empty() {
            note(&mut pending, REMOVE, &format!("/m/{ms}.yaml"), ms);
            ms += 100;
        }
        assert_eq!(at(ms), at(first) + MAX_REMOVED_DELAY);
    }

    #[test]
    fn both_names_of_a_renamed_manifest_are_due_together() {
        for (to, path, due) in [
            ("/m/b.yaml", "/m/a.yaml", &["/m/a.yaml", "/m/b.yaml"][..]),
            ("/m/a.yaml~", "/m/a.yaml", &["/m/a.yaml~"]),
            ("/m/b.yaml", "/elsewhere/a.yaml", &["/m/b.yaml"]),
        ] {
            let now = Instant::now();
            let mut pending = PendingChanges::new(Path::new("/m"));
            for (kind, path) in [(FROM, path), (TO, to)] {
                pending.note(&Event::new(kind).add_path(path.into()).set_tracker(7), now);
            }
            let due: Vec<_> = due.iter().map(PathBuf::from).collect();
            assert_eq!(pending.take(now).paths, due, "{path} to {to}");
        }
    }

    #[test]
    fn lost_events_are_a_scan_of_everything() {
        let now = Instant::now();
        let mut pending = PendingChanges::new(Path::new("/m"));
        pending.note(&Event::new(TO).add_path("/m/..data".into()), now);
        assert!(pending.note(&Event::new(EventKind::Other).set_flag(Flag::Rescan), now));
        assert_eq!(pending.take(now), DueChanges { paths: vec![], scan: Some(ScanScope::All) });
        assert_eq!(pending.next(), None);
    }

    #[test]
    fn a_flood_of_paths_is_a_scan_of_everything() {
        let now = Instant::now();
        let mut pending = PendingChanges::new(Path::new("/m"));
        for i in 0..=MAX_PATHS {
            pending.note(&Event::new(CLOSE).add_path(format!("/m/{i}.yaml").into()), now);
        }
        assert_eq!(pending.take(now + CLOSED_DELAY), DueChanges { paths: vec![], scan: Some(ScanScope::All) });
    }

    #[test]
    fn changes_that_are_not_due_stay() {
        let now = Instant::now();
        let mut pending = PendingChanges::new(Path::new("/m"));
        pending.note(&Event::new(WRITE).add_path("/m/a.yaml".into()), now);
        pending.note(&Event::new(CLOSE).add_path("/m/b.yaml".into()), now);
        assert_eq!(pending.take(now + CLOSED_DELAY).paths, [Path::new("/m/b.yaml")]);
        assert!(pending.is_writing(Path::new("/m/a.yaml")));
        assert_eq!(pending.next(), Some(now + WRITING_DELAY));
    }
}
