//! Reads, makes and follows the file with the gossip keys.

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
    time::{MissedTickBehavior, interval},
};

use vipmux_cluster::atomic_file;
use vipmux_election::membership::sealing::{KeysError, SealingKeys};
use vipmux_supervisor::{Supervisor, run_blocking};

/// A larger file is something else.
const MAX_BYTES: u64 = 64 << 10;
/// The interval at which the file is read.
const INTERVAL: Duration = Duration::from_secs(5);

/// The gossip keys cannot be read or made.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// The file is missing.
    #[error(
        "there is no gossip key {}: make one by `openssl rand -base64 32`, and give all nodes the same", path.display()
    )]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be read or made.
    #[error("cannot {operation} {}", path.display())]
    File {
        /// The operation.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// The file has no valid keys.
    #[error("the gossip key {} is damaged", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The place and the reason.
        #[source]
        source: KeysError,
    },
}

/// Reads the keys.
pub fn load(path: &Path) -> Result<SealingKeys, KeyFileError> {
    read(path).map(|(keys, _)| keys)
}

/// Returns whether others than the owner can read the keys.
pub fn is_exposed(path: &Path) -> Result<bool, KeyFileError> {
    read(path).map(|(_, warning)| warning.is_some())
}

/// Reads the keys. Returns them with a warning about the file, if there is one.
fn read(path: &Path) -> Result<(SealingKeys, Option<String>), KeyFileError> {
    let read = |source| KeyFileError::File { operation: "read the gossip key", path: path.to_owned(), source };
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
    let keys = SealingKeys::parse(&text).map_err(|source| KeyFileError::Damaged { path: path.to_owned(), source })?;
    Ok((keys, exposed(path, mode)))
}

/// Follows the file of these keys: a change or a replacement comes out within seconds. While it has
/// no keys, or too many, the last ones stay. Each problem of the file is logged once.
pub fn follow(path: PathBuf, keys: SealingKeys, supervisor: &Supervisor) -> watch::Receiver<SealingKeys> {
    follow_each(INTERVAL, path, keys, supervisor)
}

/// Follows the file, with this pause between two reads.
pub(super) fn follow_each(
    pause: Duration,
    path: PathBuf,
    keys: SealingKeys,
    supervisor: &Supervisor,
) -> watch::Receiver<SealingKeys> {
    let (sender, receiver) = watch::channel(keys);
    // Follows the file. It ends with the last receiver, or with the runtime; it may be canceled at
    // any point.
    supervisor.spawn("gossip key file", watch_file(pause, path, sender));
    receiver
}

async fn watch_file(pause: Duration, path: PathBuf, keys: watch::Sender<SealingKeys>) {
    let mut ticks = interval(pause);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut logged = None;
    // The keys may come from elsewhere, and the file later.
    let mut seen = false;
    loop {
        select! {
            _ = ticks.tick() => {}
            () = keys.closed() => return,
        }
        let file = path.clone();
        // Reads the file on a thread: the directory may be on a network that does not answer.
        let result = run_blocking(move || read(&file)).await;
        seen |= !matches!(result, Err(KeyFileError::Missing { .. }));
        if !seen {
            continue;
        }
        if let Some(warning) = apply(result, &keys, &mut logged) {
            tracing::warn!(warning, "gossip key problem");
        }
    }
}

/// Passes on the keys, if they are new. Returns the warning, if it is not the one that was `logged`
/// last.
fn apply(
    result: Result<(SealingKeys, Option<String>), KeyFileError>,
    keys: &watch::Sender<SealingKeys>,
    logged: &mut Option<String>,
) -> Option<String> {
    let warning = match result {
        Ok((new, warning)) => {
            keys.send_if_modified(|keys| {
                let changed = *keys != new;
                if changed {
                    tracing::info!(keys = ?new, "gossip keys changed");
                    *keys = new;
                }
                changed
            });
            warning
        }
        Err(error) => Some(format!("{:#}; the previous keys stay in use", anyhow::Error::from(error))),
    };
    let news = warning.clone().filter(|warning| logged.as_ref() != Some(warning));
    *logged = warning;
    news
}

/// Reads the keys. If there is no file, makes one first, which only its owner can read. Of several
/// agents that do so at once, one makes it, and all have the same.
pub fn load_or_make(path: &Path) -> Result<SealingKeys, KeyFileError> {
    match load(path) {
        Err(KeyFileError::Missing { .. }) => {}
        loaded => return loaded,
    }
    match make(path) {
        Ok(()) => tracing::info!(path = %path.display(), "made a gossip key"),
        // Another agent was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(source) => {
            return Err(KeyFileError::File { operation: "make a gossip key as", path: path.to_owned(), source });
        }
    }
    load(path)
}

/// Makes the file. It is complete on disk before it has its name, and never replaces another one.
fn make(path: &Path) -> io::Result<()> {
    let mut random = [0; 32];
    getrandom::fill(&mut random)?;
    let directory = atomic_file::parent_directory(path);
    fs::create_dir_all(directory)?;
    let mut file = tempfile::Builder::new()
        .prefix(".gossip-key-")
        .permissions(Permissions::from_mode(0o600))
        .tempfile_in(directory)?;
    file.write_all(SealingKeys::generate(random).file().as_bytes())?;
    file.as_file().sync_all()?;
    file.persist_noclobber(path)?;
    atomic_file::sync_directory(directory)
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
    fn a_file_that_is_missing_or_damaged_is_an_error_and_none_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("gossip.key");
        assert!(matches!(load(&path), Err(KeyFileError::Missing { .. })));
        for text in ["", "secret\n"] {
            fs::write(&path, text).unwrap();
            assert!(matches!(load_or_make(&path), Err(KeyFileError::Damaged { .. })), "{text:?}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        fs::write(&path, [0xff]).unwrap();
        assert!(matches!(load_or_make(&path), Err(KeyFileError::File { .. })));
    }

    #[test]
    fn a_problem_of_the_file_leaves_the_keys_and_is_reported_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("gossip.key");
        let [first, second] = [1, 2].map(|byte| SealingKeys::generate([byte; 32]));
        let (sender, receiver) = watch::channel(first.clone());
        let mut logged = None;
        let mut read_again = |mode| {
            if path.exists() {
                fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            }
            apply(read(&path), &sender, &mut logged)
        };
        for (text, keys, expected) in [
            (Some(first.file()), &first, None),
            (Some("secret".to_owned()), &first, Some("line 1 is not a key")),
            (Some(String::new()), &first, Some("it has no key")),
            (None, &first, Some("there is no gossip key")),
            (Some(second.file()), &second, None),
            (Some("secret".to_owned()), &second, Some("line 1 is not a key")),
        ] {
            match &text {
                Some(text) => fs::write(&path, text).unwrap(),
                None => fs::remove_file(&path).unwrap(),
            }
            let warning = read_again(0o600);
            assert_eq!(*receiver.borrow(), *keys, "{text:?}");
            assert_eq!(warning.is_some(), expected.is_some(), "{text:?}: {warning:?}");
            assert!(warning.is_none_or(|warning| warning.contains(expected.unwrap()) && !warning.contains("secret")));
            assert_eq!(read_again(0o600), None, "{text:?}: reported again");
        }
        fs::write(&path, second.file()).unwrap();
        assert!(read_again(0o644).unwrap().contains("open to others"));
        assert_eq!(read_again(0o644), None);
    }

    #[test]
    fn a_file_that_others_can_read_is_worth_a_warning() {
        let path = Path::new("/etc/vipmux/gossip.key");
        for (mode, warned) in [(0o100_600, false), (0o100_400, false), (0o100_644, true), (0o100_640, true)] {
            assert_eq!(exposed(path, mode).is_some(), warned, "{mode:o}");
        }
    }
}
