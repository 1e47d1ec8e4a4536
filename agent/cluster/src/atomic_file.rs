//! Replaces files atomically: a reader sees the old file or the new one, also after a crash.

use std::{
    fs::{self, File, Permissions},
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    path::Path,
};

use tempfile::NamedTempFile;

/// Writes the new content of the file `path` beside it, as `.NAME.new`, and brings it to disk. The
/// temporary file goes if it is dropped.
///
/// Only one writer of `path` at a time, under a lock: the file of a writer that died is removed.
pub(crate) fn write_temporary(path: &Path, contents: &[u8]) -> io::Result<NamedTempFile> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
    let name = format!(".{}.new", name.display());
    let directory = parent_directory(path);
    match fs::remove_file(directory.join(&name)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = tempfile::Builder::new()
        .prefix(&name)
        .rand_bytes(0)
        .permissions(Permissions::from_mode(0o644))
        .tempfile_in(directory)?;
    file.write_all(contents)?;
    file.as_file().sync_all()?;
    Ok(file)
}

/// Replaces the file `path` by the temporary file, also on disk. After an error the new file may be
/// in place or not.
pub(crate) fn replace(file: NamedTempFile, path: &Path) -> io::Result<()> {
    file.persist(path)?;
    sync_directory(parent_directory(path))
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
