//! The workspace's folders, and functions that run commands.

use std::{
    env,
    ffi::OsStr,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail};
use nix::fcntl::{Flock, FlockArg};

/// Returns the workspace's root folder.
pub(crate) fn root() -> PathBuf {
    // `cargo run` sets the variable. The compiled-in path is for a binary that is started directly.
    let manifest = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&manifest).parent().map_or_else(PathBuf::new, Path::to_path_buf)
}

/// Returns cargo's target folder: the one in which this binary was built.
pub(crate) fn target_folder() -> Result<PathBuf> {
    let executable = env::current_exe().context("cannot find this executable")?;
    let folder = executable.parent().and_then(Path::parent);
    Ok(folder.context("this executable is not in a target folder")?.to_path_buf())
}

/// Returns a cargo command in the workspace's root, with the cargo that runs this one.
pub(crate) fn cargo<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(arguments).current_dir(root());
    cargo
}

/// Returns `--locked` in CI, where nobody could commit a changed lock file.
pub(crate) fn locked() -> &'static [&'static str] {
    if in_ci() { &["--locked"] } else { &[] }
}

/// Returns whether automation runs this (`CI=true`). Then a suite that cannot run is a failure.
pub(crate) fn in_ci() -> bool {
    env::var_os("CI").is_some_and(|value| value == "true" || value == "1")
}

/// Runs a command with this process's streams. The error names the command and its status.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    succeeded(started(command.status(), command)?, command)
}

/// Returns what the start of a command has returned. The error names the command.
pub(crate) fn started<T>(result: io::Result<T>, command: &Command) -> Result<T> {
    result.with_context(|| format!("cannot run `{}`", command_line(command)))
}

/// Returns an error if a command has failed.
pub(crate) fn succeeded(status: ExitStatus, command: &Command) -> Result<()> {
    if !status.success() {
        bail!("`{}` failed ({status})", command_line(command));
    }
    Ok(())
}

/// Like [`run`], for preparations: their output goes to stderr, so that only the main command
/// writes to stdout.
pub(crate) fn prepare(command: &mut Command) -> Result<()> {
    run(command.stdin(Stdio::null()).stdout(io::stderr()))
}

/// Returns whether a command runs and succeeds. Its output is discarded.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// Returns the command as one would type it.
pub(crate) fn command_line(command: &Command) -> String {
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
    progress(&format!("waiting for another run that works in {}", folder.display()));
    Flock::lock(file, FlockArg::LockExclusive)
        .map_err(|(_, errno)| anyhow!(errno).context(format!("cannot lock {}", folder.display())))
}

/// Prints a progress line to stderr.
pub(crate) fn progress(text: &str) {
    eprintln!("==> {text}");
}

/// Formats seconds for the summaries.
pub(crate) fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
