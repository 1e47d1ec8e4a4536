//! Makes, enters and removes network namespaces.

use std::{
    fs::{self, File},
    io,
    os::{fd::AsFd, unix::process::CommandExt as _},
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use anyhow::{Context as _, Result};
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, setns, unshare},
};

use crate::{
    cleanup::{self, Guard, Leftover},
    links::Links,
    process,
};

/// A network namespace, bound to a file under `/run/netns` so that `ip netns` and `nsenter` find
/// it.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    path: PathBuf,
    file: File,
    _guard: Guard,
}

impl Namespace {
    /// Makes a namespace with its loopback interface up. The caller makes `label` unique in this
    /// process.
    pub fn new(label: &str) -> Result<Self> {
        cleanup::prepare()?;
        let name = cleanup::name(label);
        let path = Path::new(cleanup::NAMESPACES).join(&name);
        let guard = Guard::new(Leftover::Namespace(path.clone()));
        File::create_new(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let target = path.clone();
        on_thread(&name, move || {
            unshare(CloneFlags::CLONE_NEWNET).context("cannot make a network namespace")?;
            mount(Some("/proc/thread-self/ns/net"), &target, None::<&str>, MsFlags::MS_BIND, None::<&str>)
                .with_context(|| format!("cannot bind the network namespace to {}", target.display()))?;
            Links::open()?.set_up("lo")
        })?;
        let file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
        Ok(Self { name, path, file, _guard: guard })
    }

    /// Returns its name under `/run/netns`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the file that it is bound to.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns its file descriptor, for netlink requests.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Runs `work` on a thread in the namespace and waits for its result. Sockets that it makes
    /// stay in the namespace.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        on_thread(&self.name, || {
            self.enter()?;
            work()
        })
    }

    /// Runs `work` on a thread in the namespace, while the caller continues.
    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<thread::JoinHandle<Result<T>>> {
        let file = self.file.try_clone()?;
        let handle = thread::Builder::new().name(self.name.clone()).spawn(move || {
            setns(file.as_fd(), CloneFlags::CLONE_NEWNET).context("cannot enter the network namespace")?;
            work()
        })?;
        Ok(handle)
    }

    /// Runs netlink requests in the namespace.
    pub fn links<T: Send>(&self, work: impl FnOnce(&Links) -> Result<T> + Send) -> Result<T> {
        self.run(|| work(&Links::open()?)).with_context(|| format!("in network namespace {}", self.name))
    }

    /// Writes a sysctl, as in `("net/ipv4/ip_forward", "1")`.
    pub fn sysctl(&self, name: &str, value: &str) -> Result<()> {
        // The content of /proc/sys/net depends on the thread that opens it.
        self.run(|| {
            let path = Path::new("/proc/sys").join(name);
            fs::write(&path, value).with_context(|| format!("cannot write {value} to {}", path.display()))
        })
    }

    /// Returns a command that will run in this network namespace. Otherwise it sees what its parent
    /// sees: `ip netns exec` would hide /sys/fs/bpf. Terminal signals do not reach it.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Result<Command> {
        let file = self.file.try_clone()?;
        let mut command = Command::new(program);
        command.process_group(0);
        let enter = move || setns(file.as_fd(), CloneFlags::CLONE_NEWNET).map_err(io::Error::from);
        // SAFETY: between fork and exec, `enter` makes one system call on what it owns; it does not
        // allocate, lock or touch memory that another thread may have left in an odd state.
        unsafe { command.pre_exec(enter) };
        Ok(command)
    }

    /// Runs `nft` with these commands in the namespace and returns what it writes.
    pub fn nft(&self, commands: &str) -> Result<String> {
        let mut command = self.command("nft")?;
        command.arg(commands);
        process::run(command).context("nft comes with the package nftables")
    }

    /// Returns the packets of a named counter: table family, table and counter, as in `("inet",
    /// "watch", "arrived")`.
    pub fn nft_packets(&self, (family, table, counter): (&str, &str, &str)) -> Result<u64> {
        let listed = self.nft(&format!("list counter {family} {table} {counter}"))?;
        let mut words = listed.split_whitespace().skip_while(|word| *word != "packets");
        let packets = words.nth(1).with_context(|| format!("no packets in {listed}"))?;
        packets.parse().with_context(|| format!("in {listed}"))
    }

    fn enter(&self) -> Result<()> {
        setns(self.file.as_fd(), CloneFlags::CLONE_NEWNET)
            .with_context(|| format!("cannot enter network namespace {}", self.name))
    }
}

/// Runs `work` on its own thread. The network namespace is a property of a thread, and would stay.
fn on_thread<T: Send>(name: &str, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        let handle = thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, work)?;
        handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
