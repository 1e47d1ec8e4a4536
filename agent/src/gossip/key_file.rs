//! The file with the gossip keys.

use std::{
    fs::{self, File, Permissions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use crate::{
    durable,
    membership::sealing::{Keys, KeysError},
};

/// A larger file is something else.
const MAX_BYTES: u64 = 64 << 10;

/// There are no keys to be had.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// It is not there.
    #[error(
        "there is no gossip key {}: make one by `openssl rand -base64 32`, and give all nodes the same", path.display()
    )]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// It cannot be read.
    #[error("cannot read the gossip key {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It is something else.
    #[error("the gossip key {} is damaged", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where and why.
        #[source]
        source: KeysError,
    },
    /// None can be made.
    #[error("cannot make a gossip key as {}", path.display())]
    Make {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Reads the keys. Warns where others than its owner can, too.
pub fn load(path: &Path) -> Result<Keys, KeyFileError> {
    let read = |source| KeyFileError::Read { path: path.to_owned(), source };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(KeyFileError::Missing { path: path.to_owned() });
        }
        Err(error) => return Err(read(error)),
    };
    let mode = file.metadata().map_err(read)?.mode();
    let mut text = String::new();
    file.take(MAX_BYTES).read_to_string(&mut text).map_err(read)?;
    let keys = Keys::parse(&text).map_err(|source| KeyFileError::Damaged { path: path.to_owned(), source })?;
    if let Some(warning) = exposed(path, mode) {
        tracing::warn!("{warning}");
    }
    Ok(keys)
}

/// Reads the keys; where there is no such file, makes one first, which only its owner can read. Of several agents that
/// do so at once, one makes it, and all have the same.
pub fn load_or_make(path: &Path) -> Result<Keys, KeyFileError> {
    match load(path) {
        Err(KeyFileError::Missing { .. }) => {}
        loaded => return loaded,
    }
    match make(path) {
        Ok(()) => tracing::info!(path = %path.display(), "made a gossip key"),
        // Another agent was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(source) => return Err(KeyFileError::Make { path: path.to_owned(), source }),
    }
    load(path)
}

/// The file is complete on disk before it has its name, and never takes another one's place.
fn make(path: &Path) -> io::Result<()> {
    let mut random = [0; 32];
    getrandom::fill(&mut random)?;
    let directory = durable::directory(path);
    fs::create_dir_all(directory)?;
    let mut file = tempfile::Builder::new()
        .prefix(".gossip-key-")
        .permissions(Permissions::from_mode(0o600))
        .tempfile_in(directory)?;
    file.write_all(Keys::generate(random).file().as_bytes())?;
    file.as_file().sync_all()?;
    file.persist_noclobber(path)?;
    durable::sync_names(directory)
}

fn exposed(path: &Path, mode: u32) -> Option<String> {
    let others = mode & 0o077 != 0;
    others.then(|| {
        format!("the gossip key {} is open to others than its owner: chmod 600, or `defaultMode: 0400`", path.display())
    })
}

#[cfg(test)]
mod tests {
    use std::{sync::Barrier, thread};

    use super::*;

    #[test]
    fn agents_that_start_at_once_make_one_key_that_only_its_owner_can_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state/gossip.key");
        let start = Barrier::new(8);
        let made: Vec<_> = thread::scope(|scope| {
            let agent = || {
                start.wait();
                load_or_make(&path).unwrap()
            };
            let agents: Vec<_> = (0..8).map(|_| scope.spawn(agent)).collect();
            agents.into_iter().map(|agent| agent.join().unwrap()).collect()
        });
        assert!(made.iter().all(|keys| *keys == made[0]));
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(load(&path).unwrap(), made[0]);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing else is left there");
        let elsewhere = directory.path().join("other/gossip.key");
        assert_ne!(load_or_make(&elsewhere).unwrap(), made[0], "each key is another one");
    }

    #[test]
    fn a_file_that_is_missing_or_damaged_is_told_and_never_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("gossip.key");
        assert!(matches!(load(&path), Err(KeyFileError::Missing { .. })));
        for text in ["", "secret\n"] {
            fs::write(&path, text).unwrap();
            assert!(matches!(load_or_make(&path), Err(KeyFileError::Damaged { .. })), "{text:?}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        fs::write(&path, [0xff]).unwrap();
        assert!(matches!(load_or_make(&path), Err(KeyFileError::Read { .. })));
    }

    #[test]
    fn a_file_that_others_can_read_is_worth_a_warning() {
        let path = Path::new("/etc/vipmux/gossip.key");
        for (mode, warned) in [(0o100_600, false), (0o100_400, false), (0o100_644, true), (0o100_640, true)] {
            assert_eq!(exposed(path, mode).is_some(), warned, "{mode:o}");
        }
    }
}
