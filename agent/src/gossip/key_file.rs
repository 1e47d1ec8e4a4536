//! The file with the gossip keys.

use std::{
    fs::{self, File, Permissions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::{
    select,
    sync::watch,
    task::spawn_blocking,
    time::{MissedTickBehavior, interval},
};

use crate::{
    durable,
    membership::sealing::{Keys, KeysError},
};

/// A larger file is something else.
const MAX_BYTES: u64 = 64 << 10;
/// How often it is looked at.
const LOOK: Duration = Duration::from_secs(5);

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

/// Reads the keys.
pub fn load(path: &Path) -> Result<Keys, KeyFileError> {
    read(path).map(|(keys, _)| keys)
}

/// Whether the keys can be read, and whether others than their owner can read them.
pub fn is_exposed(path: &Path) -> Result<bool, KeyFileError> {
    read(path).map(|(_, complaint)| complaint.is_some())
}

/// The keys, and what is to be said about the file.
fn read(path: &Path) -> Result<(Keys, Option<String>), KeyFileError> {
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
    Ok((keys, exposed(path, mode)))
}

/// Follows the file that these keys are from: what is written there, or put in its place, comes out within seconds. While
/// there are no keys in it, or too many, those before stay. What is wrong with it is told once.
pub fn follow(path: PathBuf, keys: Keys) -> watch::Receiver<Keys> {
    follow_each(LOOK, path, keys)
}

/// With so long from one look to the next.
pub(super) fn follow_each(pause: Duration, path: PathBuf, keys: Keys) -> watch::Receiver<Keys> {
    let (sender, receiver) = watch::channel(keys);
    tokio::spawn(look(pause, path, sender));
    receiver
}

/// Ends with the last receiver, or the runtime.
async fn look(pause: Duration, path: PathBuf, keys: watch::Sender<Keys>) {
    let mut looks = interval(pause);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told = None;
    loop {
        select! {
            _ = looks.tick() => {}
            () = keys.closed() => return,
        }
        let file = path.clone();
        // The directory may be on a network that does not answer.
        let Ok(looked) = spawn_blocking(move || read(&file)).await else { return };
        if let Some(complaint) = heed(looked, &keys, &mut told) {
            tracing::warn!("{complaint}");
        }
    }
}

/// Passes on what was read, if it is new. What is to be said about it, if that was not `told` last.
fn heed(
    looked: Result<(Keys, Option<String>), KeyFileError>,
    keys: &watch::Sender<Keys>,
    told: &mut Option<String>,
) -> Option<String> {
    let complaint = match looked {
        Ok((new, complaint)) => {
            keys.send_if_modified(|keys| {
                let changed = *keys != new;
                if changed {
                    tracing::info!(keys = ?new, "the gossip's keys are others now");
                    *keys = new;
                }
                changed
            });
            complaint
        }
        Err(error) => Some(format!("{:#}; the keys from before stay in use", anyhow::Error::from(error))),
    };
    let news = complaint.clone().filter(|complaint| told.as_ref() != Some(complaint));
    *told = complaint;
    news
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
    fn what_is_wrong_with_the_file_leaves_the_keys_and_is_told_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("gossip.key");
        let [first, second] = [1, 2].map(|byte| Keys::generate([byte; 32]));
        let (sender, receiver) = watch::channel(first.clone());
        let mut told = None;
        let mut look = |mode| {
            if path.exists() {
                fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            }
            heed(read(&path), &sender, &mut told)
        };
        for (text, keys, word) in [
            (Some(first.file()), &first, None),
            (Some("secret".to_owned()), &first, Some("line 1 is no key")),
            (Some(String::new()), &first, Some("no key in it")),
            (None, &first, Some("there is no gossip key")),
            (Some(second.file()), &second, None),
            (Some("secret".to_owned()), &second, Some("line 1 is no key")),
        ] {
            match &text {
                Some(text) => fs::write(&path, text).unwrap(),
                None => fs::remove_file(&path).unwrap(),
            }
            let complaint = look(0o600);
            assert_eq!(*receiver.borrow(), *keys, "{text:?}");
            assert_eq!(complaint.is_some(), word.is_some(), "{text:?}: {complaint:?}");
            assert!(
                complaint.is_none_or(|complaint| complaint.contains(word.unwrap()) && !complaint.contains("secret"))
            );
            assert_eq!(look(0o600), None, "{text:?}: told again");
        }
        fs::write(&path, second.file()).unwrap();
        assert!(look(0o644).unwrap().contains("open to others"));
        assert_eq!(look(0o644), None);
    }

    #[test]
    fn a_file_that_others_can_read_is_worth_a_warning() {
        let path = Path::new("/etc/vipmux/gossip.key");
        for (mode, warned) in [(0o100_600, false), (0o100_400, false), (0o100_644, true), (0o100_640, true)] {
            assert_eq!(exposed(path, mode).is_some(), warned, "{mode:o}");
        }
    }
}
