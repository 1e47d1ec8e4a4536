//! Files and directories: which there are, and their text.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs::{self, File, Metadata, OpenOptions},
    io::{self, Read},
    ops::Bound,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::source::Problem;

/// The size of a file, bytes.
pub(super) const FILE_MAX: u64 = 32 << 20;
/// The size of all files together, bytes.
pub(super) const TOTAL_MAX: u64 = 256 << 20;
/// The number of files.
pub(super) const FILES_MAX: usize = 65_536;
/// The number of directories, each as often as it is met: links to links multiply.
const DIRECTORIES_MAX: usize = 16_384;
/// Directories below the given one.
const DEPTH_MAX: usize = 8;

/// What changes when a file does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    device: u64,
    inode: u64,
    /// Bytes.
    pub(super) size: u64,
    /// Seconds and nanoseconds of the last change of the contents and of the inode.
    modified: (i64, i64),
    changed: (i64, i64),
}

impl From<&Metadata> for Stamp {
    fn from(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// Files that were read, and how large they are together.
#[derive(Debug, Default)]
pub(super) struct Stamps {
    files: BTreeMap<PathBuf, Stamp>,
    /// Bytes, each file's up to [`FILE_MAX`].
    total: u64,
}

impl Stamps {
    pub(super) fn insert(&mut self, file: PathBuf, stamp: Stamp) {
        self.remove(&file);
        self.total += stamp.size.min(FILE_MAX);
        self.files.insert(file, stamp);
    }

    pub(super) fn remove(&mut self, file: &Path) {
        if let Some(stamp) = self.files.remove(file) {
            self.total -= stamp.size.min(FILE_MAX);
        }
    }

    pub(super) fn get(&self, file: &Path) -> Option<&Stamp> {
        self.files.get(file)
    }

    /// Whether `path` was a directory with files.
    pub(super) fn holds_below(&self, path: &Path) -> bool {
        let mut after = self.files.range::<Path, _>((Bound::Excluded(path), Bound::Unbounded));
        after.next().is_some_and(|(file, _)| file.starts_with(path))
    }

    /// Whether a file of this size, bytes, fits the limits beside the others.
    pub(super) fn has_room(&self, file: &Path, size: u64) -> bool {
        let own = self.files.get(file);
        let others = self.files.len() - usize::from(own.is_some());
        let total = self.total - own.map_or(0, |stamp| stamp.size.min(FILE_MAX));
        others < FILES_MAX && total.saturating_add(size) <= TOTAL_MAX
    }
}

/// What a directory holds.
#[derive(Debug, Default)]
pub(super) struct Tree {
    /// Manifests.
    pub(super) files: BTreeMap<PathBuf, Stamp>,
    /// Directories below it that could not be listed: what is in them is not known to be gone.
    pub(super) unlisted: Vec<PathBuf>,
    /// Why.
    pub(super) problems: Vec<Problem>,
}

/// Whether a name is a manifest's: what `kubectl apply -f DIRECTORY` reads.
pub(super) fn is_manifest(path: &Path) -> bool {
    let extensions = ["yaml", "yml", "json"].map(OsStr::new);
    !is_hidden(path) && path.extension().is_some_and(|extension| extensions.contains(&extension))
}

/// Whether a name begins with a dot, as the directories behind a ConfigMap volume's files do.
pub(super) fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

/// Lists the manifests in and below `root`, through symbolic links, leaving out what is hidden. `enter` is called with each
/// directory before it is listed, so that whoever watches it misses nothing.
pub(super) fn walk(root: &Path, enter: &mut dyn FnMut(&Path)) -> io::Result<Tree> {
    let mut walker = Walker { tree: Tree::default(), enter, total: 0, directories: 0, ancestors: Vec::new() };
    walker.list(root)?;
    Ok(walker.tree)
}

struct Walker<'a> {
    tree: Tree,
    enter: &'a mut dyn FnMut(&Path),
    /// Bytes of the files so far.
    total: u64,
    /// Directories so far.
    directories: usize,
    /// Device and inode of the directories on the way here: a link to one of them is a loop.
    ancestors: Vec<(u64, u64)>,
}

impl Walker<'_> {
    fn list(&mut self, directory: &Path) -> io::Result<()> {
        self.directories += 1;
        (self.enter)(directory);
        let metadata = fs::metadata(directory)?;
        let identity = (metadata.dev(), metadata.ino());
        let mut paths = fs::read_dir(directory)?
            .map(|entry| entry.map(|entry| entry.path()))
            .filter(|path| path.as_ref().map_or(true, |path| !is_hidden(path)))
            .collect::<io::Result<Vec<_>>>()?;
        // Where a limit cuts off, it cuts off the same each time.
        paths.sort_unstable();
        self.ancestors.push(identity);
        for path in paths {
            self.entry(path);
        }
        self.ancestors.pop();
        Ok(())
    }

    fn entry(&mut self, path: PathBuf) {
        match fs::metadata(&path) {
            Ok(metadata) if metadata.is_dir() => self.directory(path, &metadata),
            Ok(metadata) if is_manifest(&path) => self.file(path, Stamp::from(&metadata)),
            // A link to nothing is listed, and told when it is read; what went since it was listed is not there.
            Err(_) if is_manifest(&path) => {
                if let Ok(link) = fs::symlink_metadata(&path) {
                    self.file(path, Stamp::from(&link));
                }
            }
            Ok(_) | Err(_) => {}
        }
    }

    fn directory(&mut self, path: PathBuf, metadata: &Metadata) {
        if self.directories >= DIRECTORIES_MAX {
            self.leave_out(&path, &format!("more than {DIRECTORIES_MAX} directories"));
            return self.tree.unlisted.push(path);
        }
        let looped = self.ancestors.contains(&(metadata.dev(), metadata.ino()));
        let listed = match () {
            () if looped => Err("the directory leads back to one that it is in".to_owned()),
            () if self.ancestors.len() > DEPTH_MAX => Err(format!("more than {DEPTH_MAX} directories deep")),
            () => match self.list(&path) {
                // It went since its parent was listed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                listed => listed.map_err(|error| format!("cannot list the directory: {error}")),
            },
        };
        if let Err(message) = listed {
            self.tree.problems.push(Problem::of_file(&path, message));
            self.tree.unlisted.push(path);
        }
    }

    fn file(&mut self, path: PathBuf, stamp: Stamp) {
        let total = self.total.saturating_add(stamp.size.min(FILE_MAX));
        let what = match () {
            () if self.tree.files.len() >= FILES_MAX => format!("more than {FILES_MAX} files"),
            () if total > TOTAL_MAX => format!("more than {} MiB in all files together", TOTAL_MAX >> 20),
            () => {
                self.total = total;
                self.tree.files.insert(path, stamp);
                return;
            }
        };
        self.leave_out(&path, &what);
    }

    /// Tells what is beyond a limit; one such path is enough to say so.
    fn leave_out(&mut self, path: &Path, what: &str) {
        let message = format!("left out: {what}");
        if !self.tree.problems.iter().any(|problem| problem.message == message) {
            self.tree.problems.push(Problem::of_file(path, message));
        }
    }
}

/// A file that was read, or why it could not be used.
pub(super) struct Text {
    pub(super) file: Arc<Path>,
    pub(super) text: Result<String, Problem>,
}

/// Reads a manifest that a directory holds; `None` if it is gone.
pub(super) fn load(path: &Path) -> Option<Text> {
    let failed = |error: io::Error| Text {
        file: Arc::from(path),
        text: Err(Problem::of_file(path, format!("cannot read the file: {error}"))),
    };
    match open(path) {
        Ok(file) => Some(text(path, file).unwrap_or_else(failed)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let dangling = fs::symlink_metadata(path).is_ok();
            dangling.then(|| failed(io::Error::new(error.kind(), "a symbolic link to nothing")))
        }
        Err(error) => Some(failed(error)),
    }
}

/// Opens a regular file, without waiting on one that is a pipe or a device.
fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("no regular file")) }
}

/// Reads all of `input`, which `path` names in problems.
pub(super) fn text(path: &Path, input: impl Read) -> io::Result<Text> {
    let mut bytes = Vec::new();
    input.take(FILE_MAX + 1).read_to_end(&mut bytes)?;
    let text = if bytes.len() as u64 > FILE_MAX {
        Err(Problem::of_file(path, format!("larger than {} MiB", FILE_MAX >> 20)))
    } else {
        String::from_utf8(bytes).map_err(|error| {
            let valid = error.utf8_error().valid_up_to();
            let line = error.as_bytes()[..valid].split(|byte| *byte == b'\n').count();
            Problem { line: Some(line), ..Problem::of_file(path, "not UTF-8".to_owned()) }
        })
    };
    Ok(Text { file: Arc::from(path), text })
}
