//! Where things are in this workspace, and how its commands run others.

use std::{
    env,
    ffi::OsStr,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail};
use nix::fcntl::{Flock, FlockArg};

/// The workspace's root folder.
pub(crate) fn root() -> PathBuf {
    // Set by `cargo run`; the other one is for a binary that is started by itself.
    let manifest = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&manifest).parent().map_or_else(PathBuf::new, Path::to_path_buf)
}

/// Cargo's target folder: the one that this very binary was built into, whatever set it.
pub(crate) fn target_folder() -> Result<PathBuf> {
    let executable = env::current_exe().context("cannot find this executable")?;
    let folder = executable.parent().and_then(Path::parent);
    Ok(folder.context("this executable is not in a target folder")?.to_path_buf())
}

/// A cargo command in the workspace's root, by the cargo that runs this one.
pub(crate) fn cargo<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(arguments).current_dir(root());
    cargo
}

/// `--locked` where nobody is there to commit a changed lock file.
pub(crate) fn locked() -> &'static [&'static str] {
    if in_ci() { &["--locked"] } else { &[] }
}

/// Automation runs this (`CI=true`): what cannot be tested is a failure.
pub(crate) fn in_ci() -> bool {
    env::var_os("CI").is_some_and(|value| value == "true" || value == "1")
}

/// Runs a command to its end with this process's streams; an error tells the command and its status.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot run `{}`", shown(command)))?;
    if !status.success() {
        bail!("`{}` failed ({status})", shown(command));
    }
    Ok(())
}

/// As [`run`], for preparations: their output goes to stderr, so that stdout is the main command's alone.
pub(crate) fn prepare(command: &mut Command) -> Result<()> {
    run(command.stdin(Stdio::null()).stdout(io::stderr()))
}

/// Whether a command runs and succeeds; it is not seen.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// The command as one would type it.
pub(crate) fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words = [program].into_iter().chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Makes a folder, and waits until no other run works in it.
pub(crate) fn lock(folder: &Path) -> Result<Flock<File>> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let file = File::open(folder).with_context(|| format!("cannot open {}", folder.display()))?;
    let file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => return Ok(lock),
        Err((file, _)) => file,
    };
    say(&format!("waiting for another run that works in {}", folder.display()));
    Flock::lock(file, FlockArg::LockExclusive)
        .map_err(|(_, errno)| anyhow!(errno).context(format!("cannot lock {}", folder.display())))
}

/// Tells the user what comes next, on stderr.
pub(crate) fn say(text: &str) {
    eprintln!("==> {text}");
}

/// Seconds, as the summaries show them.
pub(crate) fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
