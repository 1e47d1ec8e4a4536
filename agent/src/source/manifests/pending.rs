//! What the file system says has changed, held back until it is worth reading.

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

/// After a file was closed or put in its place: it is whole. What changes while one is read is read together after it.
const SETTLE: Duration = Duration::ZERO;
/// After a file went: editors and version control put another in its place.
const GONE: Duration = Duration::from_millis(20);
/// After a write, while the file is still open: closing it is what is awaited; a writer that pauses this long is read.
const WRITING: Duration = Duration::from_millis(100);
/// Paths that are kept apart; beyond, everything is looked at.
const PATHS_MAX: usize = 4_096;

/// How much is to be looked at again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Scope {
    /// Files whose stamp changed, and what came and went.
    Changed,
    /// Every file: events were lost, and a stamp is no finer than the clock's tick.
    All,
}

/// What is due.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Due {
    /// Files that came, changed or went, or directories.
    pub(super) paths: Vec<PathBuf>,
    /// A look at the whole directory.
    pub(super) scan: Option<Scope>,
}

impl Due {
    pub(super) fn is_empty(&self) -> bool {
        self.paths.is_empty() && self.scan.is_none()
    }
}

/// Changes, each with the time at which it is due. No clock of its own.
#[derive(Debug)]
pub(super) struct Pending {
    root: PathBuf,
    paths: BTreeMap<PathBuf, Change>,
    scan: Option<(Instant, Scope)>,
}

#[derive(Clone, Copy, Debug)]
struct Change {
    due: Instant,
    /// Somebody has the file open for writing.
    writing: bool,
}

impl Pending {
    /// Nothing, for the directory `root`: an absolute path.
    pub(super) fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), paths: BTreeMap::new(), scan: None }
    }

    /// Takes an event in. Says whether anything becomes due by it.
    pub(super) fn note(&mut self, event: &Event, now: Instant) -> bool {
        if event.need_rescan() {
            self.scan(now, Scope::All);
            return true;
        }
        let mut any = false;
        for path in &event.paths {
            any |= self.note_path(event.kind, path, now);
        }
        any
    }

    fn note_path(&mut self, kind: EventKind, path: &Path, now: Instant) -> bool {
        if *path == self.root {
            return self.note_root(kind, now);
        }
        // The parent is watched for the root's sake only.
        if !path.starts_with(&self.root) {
            return false;
        }
        if is_hidden(path) {
            return self.note_hidden(kind, path, now);
        }
        let change = |after, writing| Change { due: now + after, writing };
        let change = match kind {
            EventKind::Create(CreateKind::Folder) => {
                self.scan(now + SETTLE, Scope::Changed);
                return true;
            }
            EventKind::Access(AccessKind::Close(AccessMode::Write))
            | EventKind::Modify(ModifyKind::Name(RenameMode::To)) => change(SETTLE, false),
            EventKind::Create(_) | EventKind::Modify(ModifyKind::Data(_)) => change(WRITING, true),
            // The attributes of a file that is being written change too.
            EventKind::Modify(ModifyKind::Metadata(_)) if self.is_writing(path) => return false,
            EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(RenameMode::From) | ModifyKind::Metadata(_)) => {
                change(GONE, false)
            }
            _ => return false,
        };
        // A write to what is no manifest is nothing; its coming and going may be a directory's.
        if change.writing && !is_manifest(path) {
            return false;
        }
        self.paths.insert(path.to_owned(), change);
        if self.paths.len() > PATHS_MAX {
            self.paths.clear();
            self.scan(now + SETTLE, Scope::All);
        }
        true
    }

    /// The directory itself: replaced by a rename, or removed and made again, and then filled.
    fn note_root(&mut self, kind: EventKind, now: Instant) -> bool {
        let after = match kind {
            EventKind::Create(_) => WRITING,
            EventKind::Modify(ModifyKind::Name(RenameMode::To)) => SETTLE,
            EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(_)) => GONE,
            _ => return false,
        };
        self.scan(now + after, Scope::Changed);
        true
    }

    /// What is hidden is not read, but visible links may lead through it: `..data` of a ConfigMap volume is renamed into
    /// place, and other tools replace such a link in two steps.
    fn note_hidden(&mut self, kind: EventKind, path: &Path, now: Instant) -> bool {
        let link = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".."));
        match kind {
            EventKind::Modify(ModifyKind::Name(RenameMode::To)) => {}
            EventKind::Create(CreateKind::File) if link => {}
            _ => return false,
        }
        self.scan(now + SETTLE, Scope::Changed);
        true
    }

    /// Asks for a look at the whole directory at `due`, or earlier where one is asked for already.
    pub(super) fn scan(&mut self, due: Instant, scope: Scope) {
        self.scan = Some(self.scan.map_or((due, scope), |(earlier, wider)| (earlier.min(due), wider.max(scope))));
    }

    /// Whether a file is being written: it is not worth reading yet.
    pub(super) fn is_writing(&self, path: &Path) -> bool {
        self.paths.get(path).is_some_and(|change| change.writing)
    }

    /// When something will be due.
    pub(super) fn next(&self) -> Option<Instant> {
        let scan = self.scan.map(|(due, _)| due);
        self.paths.values().map(|change| change.due).chain(scan).min()
    }

    /// Takes out what is due.
    pub(super) fn take(&mut self, now: Instant) -> Due {
        let paths: Vec<_> =
            self.paths.iter().filter(|(_, change)| change.due <= now).map(|(path, _)| path.clone()).collect();
        for path in &paths {
            self.paths.remove(path);
        }
        Due { paths, scan: self.scan.take_if(|(due, _)| *due <= now).map(|(_, scope)| scope) }
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

    /// What these events come to, and how long after the last one.
    fn due(events: &[(EventKind, &str)]) -> (Due, Option<Duration>) {
        let now = Instant::now();
        let mut pending = Pending::new(Path::new("/m"));
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
            (&[(CLOSE, "/m/a.yaml")], "/m/a.yaml", Some(SETTLE)),
            (&[(TO, "/m/a.yaml")], "/m/a.yaml", Some(SETTLE)),
            (&[(TO, "/m/sub")], "/m/sub", Some(SETTLE)),
            (&[(REMOVE, "/m/a.yaml")], "/m/a.yaml", Some(GONE)),
            (&[(FROM, "/m/a.yaml")], "/m/a.yaml", Some(GONE)),
            (&[(CHMOD, "/m/a.yaml")], "/m/a.yaml", Some(GONE)),
            (&[(CREATE, "/m/a.yaml")], "/m/a.yaml", Some(WRITING)),
            (&[(CREATE, "/m/a.yaml"), (WRITE, "/m/a.yaml")], "/m/a.yaml", Some(WRITING)),
            (&[(CREATE, "/m/a.yaml"), (WRITE, "/m/a.yaml"), (CHMOD, "/m/a.yaml")], "/m/a.yaml", Some(WRITING)),
            (&[(CREATE, "/m/a.yaml"), (WRITE, "/m/a.yaml"), (CLOSE, "/m/a.yaml")], "/m/a.yaml", Some(SETTLE)),
            (&[(REMOVE, "/m/a.yaml"), (CREATE, "/m/a.yaml")], "/m/a.yaml", Some(WRITING)),
            (&[(OPEN, "/m/a.yaml")], "", None),
            (&[(WRITE, "/m/README.md")], "", None),
            (&[(CLOSE, "/m/.a.yaml.swp"), (CREATE, "/m/.a.yaml.swp"), (REMOVE, "/m/.a.yaml.swp")], "", None),
            (&[(CLOSE, "/elsewhere/a.yaml"), (REMOVE, "/elsewhere")], "", None),
        ];
        for (events, path, after) in table {
            let paths = if path.is_empty() { vec![] } else { vec![PathBuf::from(path)] };
            assert_eq!(due(events), (Due { paths, scan: None }, *after), "{events:?}");
        }
    }

    #[test]
    fn what_changes_many_files_at_once_is_a_scan() {
        for (kind, path, after) in [
            (TO, "/m/..data", SETTLE),
            (CREATE, "/m/..data", SETTLE),
            (MKDIR, "/m/sub", SETTLE),
            (REMOVE, "/m", GONE),
            (FROM, "/m", GONE),
            (TO, "/m", SETTLE),
            (MKDIR, "/m", WRITING),
        ] {
            let scan = Some(Scope::Changed);
            assert_eq!(due(&[(kind, path)]), (Due { paths: vec![], scan }, Some(after)), "{kind:?} {path}");
        }
    }

    #[test]
    fn lost_events_are_a_scan_of_everything() {
        let now = Instant::now();
        let mut pending = Pending::new(Path::new("/m"));
        pending.note(&Event::new(TO).add_path("/m/..data".into()), now);
        assert!(pending.note(&Event::new(EventKind::Other).set_flag(Flag::Rescan), now));
        assert_eq!(pending.take(now), Due { paths: vec![], scan: Some(Scope::All) });
        assert_eq!(pending.next(), None);
    }

    #[test]
    fn a_flood_of_paths_is_a_scan_of_everything() {
        let now = Instant::now();
        let mut pending = Pending::new(Path::new("/m"));
        for i in 0..=PATHS_MAX {
            pending.note(&Event::new(CLOSE).add_path(format!("/m/{i}.yaml").into()), now);
        }
        assert_eq!(pending.take(now + SETTLE), Due { paths: vec![], scan: Some(Scope::All) });
    }

    #[test]
    fn what_is_not_due_stays() {
        let now = Instant::now();
        let mut pending = Pending::new(Path::new("/m"));
        pending.note(&Event::new(WRITE).add_path("/m/a.yaml".into()), now);
        pending.note(&Event::new(CLOSE).add_path("/m/b.yaml".into()), now);
        assert_eq!(pending.take(now + SETTLE).paths, [Path::new("/m/b.yaml")]);
        assert!(pending.is_writing(Path::new("/m/a.yaml")));
        assert_eq!(pending.next(), Some(now + WRITING));
    }
}
