//! Files that take the place of others whole: a reader sees the old one or the new one, and so does who comes after a
//! crash.

use std::{
    fs::{self, File, Permissions},
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    path::Path,
};

use tempfile::NamedTempFile;

/// Writes what is to be the file `path`, complete on disk, beside it as `.NAME.new`; it goes if it is dropped. One
/// writer of `path` at a time, under a lock: what one that died has left is taken away.
pub(crate) fn write_beside(path: &Path, contents: &[u8]) -> io::Result<NamedTempFile> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
    let name = format!(".{}.new", name.display());
    let directory = directory(path);
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

/// Puts it in the place of `path`, and that on disk. After an error it may be there or not.
pub(crate) fn put(file: NamedTempFile, path: &Path) -> io::Result<()> {
    file.persist(path)?;
    sync_names(directory(path))
}

/// Brings it to disk which files the directory has.
pub(crate) fn sync_names(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// The directory that a file is in.
pub(crate) fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn until_it_is_put_there_the_old_file_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "old").unwrap();
        let file = write_beside(&path, b"new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        drop(file);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left of one that was dropped");
        put(write_beside(&path, b"new").unwrap(), &path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    }

    #[test]
    fn what_a_dead_writer_left_is_in_nobodys_way() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(folder.path().join(".file.new"), "half").unwrap();
        put(write_beside(&path, b"whole").unwrap(), &path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "whole");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
