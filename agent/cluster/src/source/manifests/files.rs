//! Lists and reads manifest files, within limits.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs::{self, File, Metadata, OpenOptions},
    io::{self, Read},
    ops::Bound,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use crate::file_stamp::{FileStamp, ModificationTime};
use vipmux_model::objects::Problem;

/// The largest file, bytes.
pub(super) const MAX_FILE_SIZE: u64 = 32 << 20;
/// The largest sum of all files, bytes.
pub(super) const MAX_TOTAL_SIZE: u64 = 256 << 20;
/// The largest number of files.
pub(super) const MAX_FILES: usize = 65_536;
/// The largest number of directories. Each counts as often as it is visited: links to links
/// multiply.
const MAX_DIRECTORIES: usize = 16_384;
/// The largest depth below the given directory.
const MAX_DEPTH: usize = 8;

/// Files that were read, and their total size.
#[derive(Debug, Default)]
pub(super) struct FileStamps {
    files: BTreeMap<PathBuf, FileStamp>,
    /// Bytes. Each file counts up to [`MAX_FILE_SIZE`].
    total: u64,
}

impl FileStamps {
    pub(super) fn insert(&mut self, file: PathBuf, stamp: FileStamp) {
        self.remove(&file);
        self.total += stamp.size.min(MAX_FILE_SIZE);
        self.files.insert(file, stamp);
    }

    pub(super) fn remove(&mut self, file: &Path) {
        if let Some(stamp) = self.files.remove(file) {
            self.total -= stamp.size.min(MAX_FILE_SIZE);
        }
    }

    pub(super) fn get(&self, file: &Path) -> Option<&FileStamp> {
        self.files.get(file)
    }

    /// Returns whether `path` was a directory with files.
    pub(super) fn holds_below(&self, path: &Path) -> bool {
        let mut after = self.files.range::<Path, _>((Bound::Excluded(path), Bound::Unbounded));
        after.next().is_some_and(|(file, _)| file.starts_with(path))
    }

    /// Returns whether a file of this size, bytes, fits the limits beside the others.
    pub(super) fn has_room(&self, file: &Path, size: u64) -> bool {
        let own = self.files.get(file);
        let others = self.files.len() - usize::from(own.is_some());
        let total = self.total - own.map_or(0, |stamp| stamp.size.min(MAX_FILE_SIZE));
        others < MAX_FILES && total.saturating_add(size) <= MAX_TOTAL_SIZE
    }
}

/// A directory, wherever its path leads later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DirectoryIdentity {
    device: u64,
    inode: u64,
    /// A removed directory's inode number is soon used again. Some file systems do not have it.
    created: Option<SystemTime>,
}

impl From<&Metadata> for DirectoryIdentity {
    fn from(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino(), created: metadata.created().ok() }
    }
}

/// The manifests below a directory.
#[derive(Debug, Default)]
pub(super) struct DirectoryListing {
    /// The directory.
    pub(super) root: Option<DirectoryIdentity>,
    /// Manifests.
    pub(super) files: BTreeMap<PathBuf, FileStamp>,
    /// Directories that could not be listed. Their files are not known to be gone.
    pub(super) unlisted: Vec<PathBuf>,
    /// The reasons.
    pub(super) problems: Vec<Problem>,
}

/// Returns whether an error means that there is nothing at a path. Any other says nothing about it.
pub(super) fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Returns whether a name is a manifest's: one that `kubectl apply -f DIRECTORY` reads.
pub(super) fn is_manifest(path: &Path) -> bool {
    let extensions = ["yaml", "yml", "json"].map(OsStr::new);
    !is_hidden(path) && path.extension().is_some_and(|extension| extensions.contains(&extension))
}

/// Returns whether a name starts with a dot, as those of the directories behind a ConfigMap
/// volume's files do.
pub(super) fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

/// Lists the manifests in and below `root`, through symbolic links, without what is hidden. Calls
/// `enter` with each directory before it is listed, so that a caller that watches it misses
/// nothing.
pub(super) fn walk(root: &Path, enter: &mut dyn FnMut(&Path)) -> io::Result<DirectoryListing> {
    let mut walker = DirectoryWalker {
        listing: DirectoryListing::default(),
        enter,
        total: 0,
        directories: 0,
        ancestors: Vec::new(),
    };
    walker.list(root)?;
    Ok(walker.listing)
}

struct DirectoryWalker<'a> {
    listing: DirectoryListing,
    enter: &'a mut dyn FnMut(&Path),
    /// Bytes of the files so far.
    total: u64,
    /// Directories so far.
    directories: usize,
    /// Device and inode of the directories on the way here. A link to one of them is a loop.
    ancestors: Vec<(u64, u64)>,
}

impl DirectoryWalker<'_> {
    fn list(&mut self, directory: &Path) -> io::Result<()> {
        self.directories += 1;
        let metadata = fs::metadata(directory)?;
        (self.enter)(directory);
        self.listing.root.get_or_insert_with(|| DirectoryIdentity::from(&metadata));
        let identity = (metadata.dev(), metadata.ino());
        let mut paths = fs::read_dir(directory)?
            .map(|entry| entry.map(|entry| entry.path()))
            .filter(|path| path.as_ref().map_or(true, |path| !is_hidden(path)))
            .collect::<io::Result<Vec<_>>>()?;
        // Sorted, so that a limit cuts off the same files each time.
        paths.sort_unstable();
        self.ancestors.push(identity);
        let entered = paths.into_iter().try_for_each(|path| self.entry(path));
        self.ancestors.pop();
        entered
    }

    /// Takes in what a directory has. Fails if that cannot be seen, so that it is not known to be
    /// gone.
    fn entry(&mut self, path: PathBuf) -> io::Result<()> {
        match (fs::metadata(&path), fs::symlink_metadata(&path)) {
            (Ok(metadata), _) if metadata.is_dir() => self.directory(path, &metadata),
            // A link to nothing is listed, and is a problem when it is read.
            (Ok(metadata), _) | (Err(_), Ok(metadata)) if is_manifest(&path) => {
                self.file(path, FileStamp::from(&metadata));
            }
            (Err(error), Ok(_)) if !is_gone(&error) => {
                self.leave_unlisted(path, format!("cannot follow the link: {error}"));
            }
            (Err(_), Err(error)) if !is_gone(&error) => return Err(error),
            // It is no manifest, or it went since the listing.
            (Ok(_) | Err(_), _) => {}
        }
        Ok(())
    }

    fn directory(&mut self, path: PathBuf, metadata: &Metadata) {
        if self.directories >= MAX_DIRECTORIES {
            self.leave_out(&path, &format!("more than {MAX_DIRECTORIES} directories"));
            return self.listing.unlisted.push(path);
        }
        let looped = self.ancestors.contains(&(metadata.dev(), metadata.ino()));
        if looped {
            return self.leave_unlisted(path, "the directory leads back to one that it is in".to_owned());
        }
        if self.ancestors.len() > MAX_DEPTH {
            return self.leave_unlisted(path, format!("more than {MAX_DEPTH} directories deep"));
        }
        // A directory may go after its parent was listed.
        if let Err(error) = self.list(&path)
            && !is_gone(&error)
        {
            self.leave_unlisted(path, format!("cannot list the directory: {error}"));
        }
    }

    fn leave_unlisted(&mut self, path: PathBuf, message: String) {
        self.listing.problems.push(Problem::of_file(&path, message));
        self.listing.unlisted.push(path);
    }

    fn file(&mut self, path: PathBuf, stamp: FileStamp) {
        let total = self.total.saturating_add(stamp.size.min(MAX_FILE_SIZE));
        if self.listing.files.len() >= MAX_FILES {
            self.leave_out(&path, &format!("more than {MAX_FILES} files"));
        } else if total > MAX_TOTAL_SIZE {
            self.leave_out(&path, &format!("more than {} MiB in all files together", MAX_TOTAL_SIZE >> 20));
        } else {
            self.total = total;
            self.listing.files.insert(path, stamp);
        }
    }

    /// Reports a path beyond a limit. One path per limit is enough.
    fn leave_out(&mut self, path: &Path, what: &str) {
        let message = format!("left out: {what}");
        if !self.listing.problems.iter().any(|problem| problem.message == message) {
            self.listing.problems.push(Problem::of_file(path, message));
        }
    }
}

/// A file that was read, or the reason why it cannot be used.
pub(super) struct FileText {
    pub(super) file: Arc<Path>,
    pub(super) modified: ModificationTime,
    pub(super) text: Result<String, Problem>,
}

/// Reads a manifest of a directory; `None`: it is gone.
pub(super) fn load(path: &Path) -> Option<FileText> {
    let failed = |error: io::Error| FileText {
        file: Arc::from(path),
        modified: ModificationTime::default(),
        text: Err(Problem::of_file(path, format!("cannot read the file: {error}"))),
    };
    match open(path) {
        Ok(file) => Some(of_file(path, file).unwrap_or_else(failed)),
        Err(error) if is_gone(&error) => {
            let dangling = fs::symlink_metadata(path).is_ok();
            dangling.then(|| failed(io::Error::new(error.kind(), "a symbolic link to nothing")))
        }
        Err(error) => Some(failed(error)),
    }
}

/// Opens a regular file. Does not block on a pipe or a device.
fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("no regular file")) }
}

/// Reads an open file. Problems name it by `path`.
pub(super) fn of_file(path: &Path, file: File) -> io::Result<FileText> {
    let modified = FileStamp::from(&file.metadata()?).modified;
    Ok(FileText { modified, ..text(path, file)? })
}

/// Reads all of `input`. Problems name it by `path`.
pub(super) fn text(path: &Path, input: impl Read) -> io::Result<FileText> {
    let mut bytes = Vec::new();
    input.take(MAX_FILE_SIZE + 1).read_to_end(&mut bytes)?;
    let text = if bytes.len() as u64 > MAX_FILE_SIZE {
        Err(Problem::of_file(path, format!("larger than {} MiB", MAX_FILE_SIZE >> 20)))
    } else {
        String::from_utf8(bytes).map_err(|error| {
            let valid = error.utf8_error().valid_up_to();
            let line = error.as_bytes()[..valid].split(|byte| *byte == b'\n').count();
            Problem { line: Some(line), ..Problem::of_file(path, "not UTF-8".to_owned()) }
        })
    };
    Ok(FileText { file: Arc::from(path), modified: ModificationTime::default(), text })
}
