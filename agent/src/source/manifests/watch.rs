//! Following a directory.

use std::{
    fs, io, mem,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::watch::{Receiver, Sender, channel};

use super::{
    files::{self, Stamp, Stamps, Text, Tree},
    parse,
    pending::{Due, Scope},
    queue::Queue,
    store::Store,
};
use crate::source::{Objects, Problem};

/// How often the whole directory is looked at though nothing was heard: a link's target elsewhere, and file systems that
/// send no events. A look is a `stat` per file.
const PATROL: Duration = Duration::from_secs(10);
/// How often it is looked for while it is gone.
const SEARCH: Duration = Duration::from_secs(1);

/// A directory that cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// It is absent, no directory, or may not be listed.
    #[error("cannot list the directory {path:?}")]
    List {
        /// The directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Its events cannot be had; the system may have run out of inotify instances or watches.
    #[error("cannot watch the directory {path:?}")]
    Events {
        /// The directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: notify::Error,
    },
    /// The thread that follows it cannot be started.
    #[error("cannot start the thread that follows {path:?}")]
    Thread {
        /// The directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Ends the following when dropped, soon but without waiting for it; the receiver's `changed` then fails.
#[derive(Debug)]
#[must_use = "the directory is followed until this is dropped"]
pub struct WatchGuard {
    queue: Arc<Queue>,
    looked: Receiver<u64>,
}

impl WatchGuard {
    /// Asks for a look at the whole directory, without waiting for it; its number.
    pub fn look(&self) -> u64 {
        self.queue.ask()
    }

    /// The number of the last look that was [asked](Self::look) for and is done: a snapshot taken after it holds what
    /// was in the directory when it was asked for. 0 before the first.
    pub fn looked(&self) -> Receiver<u64> {
        self.looked.clone()
    }
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        self.queue.stop();
    }
}

/// Follows the manifests in and below a directory, as [`read`](super::read) reads them. The receiver holds the latest
/// snapshot, from the start; objects that did not change are the very same [`Arc`]s in the next one.
///
/// A definition that becomes malformed, and everything while the directory itself is gone, stays in force as it was last
/// good, and is a problem in the snapshot. An edited file is read at once when it is closed or renamed into place,
/// and costs its own parsing, however many others there are.
///
/// Blocks for the first read. The rest happens on a thread of its own, which nothing waits for: awaiting the receiver's
/// `changed` is cancel-safe, and a slow receiver skips snapshots.
pub fn watch(directory: &Path) -> Result<(Receiver<Arc<Objects>>, WatchGuard), WatchError> {
    let path = || directory.to_owned();
    let root = std::path::absolute(directory).map_err(|source| WatchError::List { path: path(), source })?;
    let queue = Arc::new(Queue::new(&root));
    let events = Arc::clone(&queue);
    let mut watcher = notify::recommended_watcher(move |event| events.note(event))
        .map_err(|source| WatchError::Events { path: path(), source })?;
    // Heard through its parent, should it be replaced or come back.
    if let Some(parent) = root.parent()
        && let Err(error) = watcher.watch(parent, RecursiveMode::NonRecursive)
    {
        tracing::debug!(%error, "cannot watch the directory's parent");
    }
    let mut follower = Follower {
        queue: Arc::clone(&queue),
        watcher,
        stamps: Stamps::default(),
        store: Store::default(),
        missing: false,
        watch_failed: None,
        root,
    };
    let tree = follower.list().map_err(|source| WatchError::List { path: path(), source })?;
    if let Some(source) = follower.watch_failed.take() {
        return Err(WatchError::Events { path: path(), source });
    }
    follower.adopt(tree, Scope::All);
    let (sender, receiver) = channel(Arc::new(follower.store.snapshot()));
    let (looks, looked) = channel(0);
    thread::Builder::new()
        .name("manifests".to_owned())
        .spawn(move || follower.run(&sender, &looks))
        .map_err(|source| WatchError::Thread { path: path(), source })?;
    Ok((receiver, WatchGuard { queue, looked }))
}

/// What a path asks for.
enum Look {
    Read(Stamp),
    Gone,
    Nothing,
    /// It is or was a directory, or is one file too many.
    Scan,
}

struct Follower {
    root: PathBuf,
    queue: Arc<Queue>,
    watcher: RecommendedWatcher,
    /// Of the files that were read.
    stamps: Stamps,
    store: Store,
    /// The directory could not be listed.
    missing: bool,
    /// Why a directory could not be watched in the last scan.
    watch_failed: Option<notify::Error>,
}

impl Follower {
    fn run(mut self, sender: &Sender<Arc<Objects>>, looks: &Sender<u64>) {
        while let Some((due, asked)) = self.queue.wait(if self.missing { SEARCH } else { PATROL }) {
            let started = Instant::now();
            if self.follow(due) {
                let objects = Arc::new(self.store.snapshot());
                tracing::debug!(services = objects.services.len(), took = ?started.elapsed(), "manifests changed");
                sender.send_replace(objects);
            }
            looks.send_if_modified(|looked| mem::replace(looked, asked) != asked);
        }
    }

    /// Looks at what is due. Says whether anything changed.
    fn follow(&mut self, due: Due) -> bool {
        let mut scan = due.scan;
        let mut read = Vec::new();
        let mut changed = false;
        for path in due.paths {
            match self.look(&path) {
                Look::Read(stamp) => {
                    self.stamps.insert(path.clone(), stamp);
                    read.push(path);
                }
                Look::Gone => {
                    self.stamps.remove(&path);
                    changed |= self.store.remove(&path);
                }
                Look::Nothing => {}
                Look::Scan => scan = scan.max(Some(Scope::Changed)),
            }
        }
        changed |= self.put(&read);
        scan.map_or(changed, |scope| self.scan(scope) || changed)
    }

    /// What to do about a path that something happened to.
    fn look(&self, path: &Path) -> Look {
        let manifest = files::is_manifest(path);
        match fs::metadata(path).or_else(|_| fs::symlink_metadata(path)) {
            Ok(metadata) if metadata.is_dir() => Look::Scan,
            Ok(metadata) if manifest && self.stamps.has_room(path, metadata.len()) => {
                Look::Read(Stamp::from(&metadata))
            }
            Ok(_) if manifest => Look::Scan,
            Err(_) if self.stamps.get(path).is_some() => Look::Gone,
            Err(_) if self.stamps.holds_below(path) => Look::Scan,
            Ok(_) | Err(_) => Look::Nothing,
        }
    }

    /// Reads files and takes them over.
    fn put(&mut self, paths: &[PathBuf]) -> bool {
        let mut changed = false;
        let mut texts: Vec<Text> = Vec::with_capacity(paths.len());
        for path in paths {
            if let Some(text) = files::load(path) {
                texts.push(text);
            } else {
                self.stamps.remove(path);
                changed |= self.store.remove(path);
            }
        }
        for (file, parsed) in parse::all(texts) {
            changed |= self.store.put(&file, parsed);
        }
        changed
    }

    fn scan(&mut self, scope: Scope) -> bool {
        match self.list() {
            Ok(tree) => {
                self.missing = false;
                self.adopt(tree, scope)
            }
            Err(error) => {
                self.missing = true;
                let message = format!("cannot list the directory: {error}; its last good state stays in force");
                self.store.notice(vec![Problem::of_file(&self.root, message)])
            }
        }
    }

    /// Lists the directory, and watches it and those below.
    fn list(&mut self) -> io::Result<Tree> {
        self.watch_failed = None;
        let (watcher, failed) = (&mut self.watcher, &mut self.watch_failed);
        files::walk(&self.root, &mut |directory| {
            // Again each time: the path may lead to another directory now.
            if let Err(error) = watcher.watch(directory, RecursiveMode::NonRecursive) {
                failed.get_or_insert(error);
            }
        })
    }

    /// Takes over what a look at the directory found.
    fn adopt(&mut self, mut tree: Tree, scope: Scope) -> bool {
        if let Some(error) = self.watch_failed.take() {
            let message = format!("changes are seen late, every {} s: {error}", PATROL.as_secs());
            tree.problems.push(Problem::of_file(&self.root, message));
        }
        let mut changed = self.store.notice(mem::take(&mut tree.problems));
        let kept = |file: &Path| tree.files.contains_key(file) || tree.unlisted.iter().any(|it| file.starts_with(it));
        let gone: Vec<_> = self.store.files().filter(|file| !kept(file)).map(Path::to_owned).collect();
        for file in &gone {
            self.stamps.remove(file);
            changed |= self.store.remove(file);
        }
        let mut read = Vec::new();
        for (file, stamp) in tree.files {
            let known = scope == Scope::Changed && self.stamps.get(&file) == Some(&stamp);
            if !known && !self.queue.is_writing(&file) {
                self.stamps.insert(file.clone(), stamp);
                read.push(file);
            }
        }
        self.put(&read) || changed
    }
}
