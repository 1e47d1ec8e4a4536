//! Removes what a run leaves on the machine: at its end, on failure, on panic, and on SIGINT,
//! SIGTERM and SIGHUP. The next run removes what a killed run left.
//!
//! Everything is named `vipmux-PID-...`, so the next run knows which processes are gone.

use std::{
    collections::BTreeMap,
    fs, io,
    os::fd::AsFd,
    path::{Path, PathBuf},
    process,
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicI32, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
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

/// The folder of named network namespaces, as in iproute2.
pub const NAMESPACES: &str = "/run/netns";
/// The mount point of the BPF file system.
pub const BPF_FILE_SYSTEM: &str = "/sys/fs/bpf";
const LOCK: &str = "/run/vipmux-tests.lock";

/// Something that must be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leftover {
    /// A child process that was not waited for.
    Process(Pid),
    /// A file that a network namespace is bound to.
    Namespace(PathBuf),
    /// A cgroup with those below it.
    Cgroup(PathBuf),
    /// A folder with its content: manifests or pins.
    Folder(PathBuf),
}

/// The time limit for the end of a cgroup's processes.
const END: Duration = Duration::from_secs(10);

impl Leftover {
    /// Removes it, best effort: it may be gone already, and the next run tries again.
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
            Self::Cgroup(path) => {
                let begin = Instant::now();
                while path.exists() && remove_cgroup(path).is_err() && begin.elapsed() < END {
                    thread::sleep(Duration::from_millis(50));
                }
            }
            Self::Folder(path) => {
                let _ = fs::remove_dir_all(path);
            }
        }
    }

    /// Processes first: they hold namespaces and maps.
    fn rank(&self) -> u8 {
        match self {
            Self::Process(_) => 0,
            Self::Namespace(_) => 1,
            // Its processes have ended by then, which may use folders.
            Self::Cgroup(_) => 2,
            Self::Folder(_) => 3,
        }
    }
}

/// Removes a cgroup and those below it. The kernel refuses while processes are in them.
fn remove_cgroup(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)?.flatten() {
        if entry.file_type()?.is_dir() {
            remove_cgroup(&entry.path())?;
        }
    }
    fs::remove_dir(folder)
}

static LEFTOVERS: Mutex<BTreeMap<u64, Leftover>> = Mutex::new(BTreeMap::new());
static NEXT: AtomicU64 = AtomicU64::new(1);
static INTERRUPTED_STATUS: AtomicI32 = AtomicI32::new(130);

fn leftovers() -> MutexGuard<'static, BTreeMap<u64, Leftover>> {
    LEFTOVERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes a [`Leftover`] on drop.
#[derive(Debug)]
pub struct Guard(u64);

impl Guard {
    /// Registers something. Call this before it is made, so it is never unregistered.
    pub fn new(leftover: Leftover) -> Self {
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        leftovers().insert(id, leftover);
        Self(id)
    }

    /// Starts a process and registers it atomically. Nothing is started once the removal after a
    /// signal has begun.
    pub fn for_process<T>(start: impl FnOnce() -> Result<(Pid, T)>) -> Result<(Self, T)> {
        let mut leftovers = leftovers();
        let (pid, made) = start()?;
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        leftovers.insert(id, Leftover::Process(pid));
        Ok((Self(id), made))
    }

    /// Forgets it: the process was waited for, and another process may get its id.
    pub fn forget(&self) {
        leftovers().remove(&self.0);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // The lock is held during the removal, so that a signal does not end the process in
        // between.
        let mut leftovers = leftovers();
        if let Some(leftover) = leftovers.remove(&self.0) {
            leftover.remove();
        }
    }
}

/// Returns a name for something on this machine: `vipmux-PID-LABEL`.
pub fn name(label: &str) -> String {
    format!("vipmux-{}-{label}", process::id())
}

/// Returns a number that is unique in this process.
pub fn number() -> u64 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Sets the exit status after such a signal; the default is 130. For a demo with `--hold`, Ctrl-C
/// is success.
pub fn exit_with_on_interrupt(status: i32) {
    INTERRUPTED_STATUS.store(status, Ordering::SeqCst);
}

/// Prepares the machine, once in a process. Removes what killed runs left, mounts the BPF file
/// system if it is missing, and removes everything on SIGINT, SIGTERM and SIGHUP.
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

/// Removes what dead processes have left.
fn sweep() {
    let temporary = std::env::temp_dir();
    for place in [Path::new(NAMESPACES), Path::new(BPF_FILE_SYSTEM), &temporary] {
        sweep_in(place, |path| if path.is_dir() { Leftover::Folder(path) } else { Leftover::Namespace(path) });
    }
}

/// Removes what dead processes have left in a folder.
pub(crate) fn sweep_in(place: &Path, leftover: impl Fn(PathBuf) -> Leftover) {
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        let owner = entry.file_name().to_str().and_then(owner);
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            leftover(entry.path()).remove();
        }
    }
}

/// Returns the process id in a name that [`name`] made.
fn owner(name: &str) -> Option<u32> {
    name.strip_prefix("vipmux-")?.split_once('-')?.0.parse().ok()
}

fn remove_on_signals() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut interrupt, mut terminate, mut hangup) = {
        let _context = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, signal(SignalKind::hangup())?)
    };
    thread::Builder::new().name("cleanup".to_owned()).spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
            }
        });
        remove_all_and_exit();
    })?;
    Ok(())
}

fn remove_all_and_exit() -> ! {
    // Held until the end: from now on nothing else is made or removed.
    let leftovers = leftovers();
    let mut all: Vec<_> = leftovers.values().collect();
    all.sort_by_key(|leftover| leftover.rank());
    eprintln!("\ninterrupted: removing {} things", all.len());
    for leftover in all {
        leftover.remove();
    }
    process::exit(INTERRUPTED_STATUS.load(Ordering::SeqCst))
}

/// A temporary folder, removed on drop.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    _guard: Guard,
}

impl Folder {
    /// Makes an empty folder with `label` in its name.
    pub fn temporary(label: &str) -> Result<Self> {
        let path = std::env::temp_dir().join(name(&format!("{}-{label}", number())));
        let guard = Guard::new(Leftover::Folder(path.clone()));
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self { path, _guard: guard })
    }

    /// Returns a path below the BPF file system for an agent's pins. On drop they are removed.
    pub fn of_pins(label: &str) -> Self {
        let path = Path::new(BPF_FILE_SYSTEM).join(name(&format!("{}-{label}", number())));
        let guard = Guard::new(Leftover::Folder(path.clone()));
        Self { path, _guard: guard }
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_the_process_id_of_its_owner() {
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
