//! What a run leaves on the machine, and its removal: at the end, on failure, on panic, on SIGINT and SIGTERM, and, for
//! a run that was killed, by the next one.
//!
//! Everything is named `vipmux-PID-...`, so that the next run tells what belongs to a process that is no more.

use std::{
    collections::BTreeMap,
    fs,
    os::fd::AsFd,
    path::{Path, PathBuf},
    process,
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicI32, AtomicU64, Ordering},
    },
    thread,
};

use anyhow::{Context as _, Result, anyhow};
use nix::{
    fcntl::{Flock, FlockArg},
    mount::{MntFlags, MsFlags, mount, umount2},
    sys::{
        signal::{Signal, kill},
        statfs::{BPF_FS_MAGIC, fstatfs},
        wait::waitpid,
    },
    unistd::Pid,
};
use tokio::signal::unix::{SignalKind, signal};

/// Where network namespaces are kept by name, as iproute2 does.
pub const NAMESPACES: &str = "/run/netns";
/// Where the BPF file system is mounted.
pub const BPF_FILE_SYSTEM: &str = "/sys/fs/bpf";
const LOCK: &str = "/run/vipmux-tests.lock";

/// Something that has to be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leftover {
    /// A child process that nobody has waited for.
    Process(Pid),
    /// A file that a network namespace is bound to.
    Namespace(PathBuf),
    /// A folder with all it holds: manifests, or pins.
    Folder(PathBuf),
}

impl Leftover {
    /// Best effort: what is gone already is as good as removed, and for the rest the next run tries again.
    fn remove(&self) {
        match self {
            Self::Process(pid) => {
                let _ = kill(*pid, Signal::SIGKILL);
                let _ = waitpid(*pid, None);
            }
            Self::Namespace(path) => {
                let _ = umount2(path, MntFlags::MNT_DETACH);
                let _ = fs::remove_file(path);
            }
            Self::Folder(path) => {
                let _ = fs::remove_dir_all(path);
            }
        }
    }

    /// Processes hold namespaces and maps: they go first.
    fn rank(&self) -> u8 {
        match self {
            Self::Process(_) => 0,
            Self::Namespace(_) => 1,
            Self::Folder(_) => 2,
        }
    }
}

static LEFTOVERS: Mutex<BTreeMap<u64, Leftover>> = Mutex::new(BTreeMap::new());
static NEXT: AtomicU64 = AtomicU64::new(1);
static INTERRUPTED_STATUS: AtomicI32 = AtomicI32::new(130);

fn leftovers() -> MutexGuard<'static, BTreeMap<u64, Leftover>> {
    LEFTOVERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes a [`Leftover`] when it is dropped.
#[derive(Debug)]
pub struct Guard(u64);

impl Guard {
    /// To be called before the thing is made, so that there is no moment when it exists unknown.
    pub fn new(leftover: Leftover) -> Self {
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        leftovers().insert(id, leftover);
        Self(id)
    }

    /// Makes a process and registers it in one go: after an interrupt has begun to remove things, nothing is started.
    pub fn for_process<T>(start: impl FnOnce() -> Result<(Pid, T)>) -> Result<(Self, T)> {
        let mut leftovers = leftovers();
        let (pid, made) = start()?;
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        leftovers.insert(id, Leftover::Process(pid));
        Ok((Self(id), made))
    }

    /// The thing is gone: a process was waited for, and its id may be another's now.
    pub fn forget(&self) {
        leftovers().remove(&self.0);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // The lock is held during the removal, so that an interrupt does not end the process in its midst.
        let mut leftovers = leftovers();
        if let Some(leftover) = leftovers.remove(&self.0) {
            leftover.remove();
        }
    }
}

/// A name for something on this machine: `vipmux-PID-LABEL`.
pub fn name(label: &str) -> String {
    format!("vipmux-{}-{label}", process::id())
}

/// A number that no other caller in this process gets.
pub fn number() -> u64 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The exit status after SIGINT or SIGTERM; 130 unless set. A demo that is held open ends well by Ctrl-C.
pub fn exit_with_on_interrupt(status: i32) {
    INTERRUPTED_STATUS.store(status, Ordering::SeqCst);
}

/// Prepares the machine, once in a process: removes what killed runs left, mounts the BPF file system where it is
/// missing, and sees to it that SIGINT and SIGTERM remove everything.
pub fn prepare() -> Result<()> {
    static PREPARED: OnceLock<Result<(), String>> = OnceLock::new();
    PREPARED
        .get_or_init(|| prepare_once().map_err(|error| format!("{error:#}")))
        .clone()
        .map_err(|message| anyhow!("cannot prepare the machine for network namespaces: {message}"))
}

fn prepare_once() -> Result<()> {
    let file = fs::File::options().create(true).append(true).open(LOCK).context(LOCK)?;
    let _lock = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| error).context(LOCK)?;
    fs::create_dir_all(NAMESPACES).context(NAMESPACES)?;
    mount_bpf_file_system()?;
    sweep();
    remove_on_signals()
}

fn mount_bpf_file_system() -> Result<()> {
    let folder = fs::File::open(BPF_FILE_SYSTEM).context(BPF_FILE_SYSTEM)?;
    if fstatfs(folder.as_fd())?.filesystem_type() == BPF_FS_MAGIC {
        return Ok(());
    }
    mount(Some("bpf"), BPF_FILE_SYSTEM, Some("bpf"), MsFlags::empty(), None::<&str>)
        .with_context(|| format!("cannot mount {BPF_FILE_SYSTEM}"))
}

/// Removes what processes that are no more have left.
fn sweep() {
    let temporary = std::env::temp_dir();
    for place in [Path::new(NAMESPACES), Path::new(BPF_FILE_SYSTEM), &temporary] {
        for entry in fs::read_dir(place).into_iter().flatten().flatten() {
            let owner = entry.file_name().to_str().and_then(owner);
            if owner.is_none_or(|pid| Path::new("/proc").join(pid.to_string()).exists()) {
                continue;
            }
            let path = entry.path();
            if path.is_dir() { Leftover::Folder(path) } else { Leftover::Namespace(path) }.remove();
        }
    }
}

/// The process id in a name that [`name`] made.
fn owner(name: &str) -> Option<u32> {
    name.strip_prefix("vipmux-")?.split_once('-')?.0.parse().ok()
}

fn remove_on_signals() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut interrupt, mut terminate) = {
        let _context = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    thread::Builder::new().name("cleanup".to_owned()).spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        });
        remove_all_and_exit();
    })?;
    Ok(())
}

fn remove_all_and_exit() -> ! {
    // Held until the end: from here on nothing is made or removed by anyone else.
    let leftovers = leftovers();
    let mut all: Vec<_> = leftovers.values().collect();
    all.sort_by_key(|leftover| leftover.rank());
    eprintln!("\ninterrupted: removing {} things", all.len());
    for leftover in all {
        leftover.remove();
    }
    process::exit(INTERRUPTED_STATUS.load(Ordering::SeqCst))
}

/// A folder under the system's temporary one, removed when dropped.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    _guard: Guard,
}

impl Folder {
    /// Makes an empty folder named after `label`.
    pub fn temporary(label: &str) -> Result<Self> {
        let path = std::env::temp_dir().join(name(&format!("{}-{label}", number())));
        let guard = Guard::new(Leftover::Folder(path.clone()));
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self { path, _guard: guard })
    }

    /// A path below the BPF file system that the agent may make, removed with all its pins when this is dropped.
    pub fn of_pins(label: &str) -> Self {
        let path = Path::new(BPF_FILE_SYSTEM).join(name(&format!("{}-{label}", number())));
        let guard = Guard::new(Leftover::Folder(path.clone()));
        Self { path, _guard: guard }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_its_owner() {
        assert_eq!(owner(&name("switch")), Some(process::id()));
        assert_eq!(owner("vipmux"), None);
        assert_eq!(owner("vipmux-x-1"), None);
        assert_eq!(owner("cni-12-3"), None);
    }

    #[test]
    fn a_folder_goes_with_its_guard() {
        let folder = Folder::temporary("test").unwrap();
        let path = folder.path().to_owned();
        fs::write(path.join("file"), "content").unwrap();
        drop(folder);
        assert!(!path.exists());
    }
}
