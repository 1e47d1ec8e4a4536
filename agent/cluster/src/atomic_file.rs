//! Replaces files atomically: a reader sees the old file or the new one, also after a crash. Locks them for
//! writers.

use std::{
    fs::{self, File, Permissions, TryLockError},
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

use tempfile::NamedTempFile;

/// The time between two attempts to lock.
const LOCK_RETRY: Duration = Duration::from_millis(2);

/// Writes the new content of the file `path` beside it, as `.NAME.new`, and brings it to disk. The
/// temporary file goes if it is dropped.
///
/// Only one writer of `path` at a time, under a lock: the file of a writer that died is removed.
pub(crate) fn write_temporary(path: &Path, contents: &[u8]) -> io::Result<NamedTempFile> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
    let name = format!(".{}.new", name.display());
    match fs::remove_file(parent_directory(path).join(&name)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    write(tempfile::Builder::new().prefix(&name).rand_bytes(0), path, contents)
}

/// Writes the content of a new file `path` beside it, and brings it to disk. The temporary file has a name of its own
/// and goes if it is dropped, so there may be several writers.
pub(crate) fn write_first(path: &Path, contents: &[u8]) -> io::Result<NamedTempFile> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
    write(tempfile::Builder::new().prefix(&format!(".{}.new-", name.display())), path, contents)
}

fn write(names: &mut tempfile::Builder<'_, '_>, path: &Path, contents: &[u8]) -> io::Result<NamedTempFile> {
    let mut file = names.permissions(Permissions::from_mode(0o644)).tempfile_in(parent_directory(path))?;
    file.write_all(contents)?;
    file.as_file().sync_all()?;
    Ok(file)
}

/// Puts the temporary file to `path`, also on disk, if there is no file. Returns whether there was none.
pub(crate) fn create(file: NamedTempFile, path: &Path) -> io::Result<bool> {
    match file.persist_noclobber(path) {
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
        persisted => persisted?,
    };
    sync_directory(parent_directory(path))?;
    Ok(true)
}

/// Replaces the file `path` by the temporary file, also on disk. After an error the new file may be
/// in place or not.
pub(crate) fn replace(file: NamedTempFile, path: &Path) -> io::Result<()> {
    file.persist(path)?;
    sync_directory(parent_directory(path))
}

/// Locks a file for its only writer. Fails with the kind `TimedOut` if another process has the lock for
/// so long.
pub(crate) fn lock(file: &File, patience: Duration) -> io::Result<()> {
    let deadline = Instant::now() + patience;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => sleep(LOCK_RETRY),
            Err(TryLockError::WouldBlock) => {
                let why = "another agent has the lock all the time: is one stopped?";
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
        }
    }
}

/// Brings the directory's entries to disk.
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Returns the directory of a file.
pub fn parent_directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_old_file_stays_until_it_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "old").unwrap();
        let file = write_temporary(&path, b"new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        drop(file);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left of one that was dropped");
        replace(write_temporary(&path, b"new").unwrap(), &path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    }

    #[test]
    fn the_file_of_a_dead_writer_blocks_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(folder.path().join(".file.new"), "half").unwrap();
        replace(write_temporary(&path, b"whole").unwrap(), &path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "whole");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
