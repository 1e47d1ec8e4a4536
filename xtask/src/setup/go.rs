//! Finds or downloads a Go toolchain, for the programs that are built from Go modules.
//!
//! An installed Go is used if it is new enough. Otherwise any installed Go (or Debian's) downloads
//! a newer one, which is published as a version of a module.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use super::apt;
use crate::workspace;

/// The oldest Go (major and minor version) that can build all modules.
const LEAST: (u32, u32) = (1, 26);
/// The Go that is downloaded if none is new enough.
const DOWNLOADED: &str = "1.26.11";
/// The folder into which Go's install instructions unpack its archive.
const USUAL_PLACE: &str = "/usr/local/go/bin/go";

/// A Go that builds modules in a folder, with its caches in the same folder.
pub(super) struct Go {
    binary: PathBuf,
    work: PathBuf,
}

/// A downloaded module.
pub(super) struct Download {
    /// Its files.
    pub(super) folder: PathBuf,
    /// Its go.mod.
    pub(super) go_mod: PathBuf,
}

impl Go {
    /// Finds a Go that is new enough, or downloads one into `work`.
    pub(super) fn install(work: &Path) -> Result<Self> {
        fs::create_dir_all(work).with_context(|| format!("cannot make {}", work.display()))?;
        let with = |binary| Self { binary, work: work.to_owned() };
        let found: Vec<_> = candidates().into_iter().map(with).collect();
        match found.into_iter().map(|go| (go.version(), go)).max_by_key(|(version, _)| *version) {
            Some((Some(version), go)) if version >= LEAST => Ok(go),
            Some((Some(_), go)) => go.download_newer(),
            Some((None, _)) | None => {
                apt::install(&["golang-go".to_owned()], "downloads a Go that can build Kubernetes")?;
                with(super::find_program("go").context("golang-go is installed, but go is not on the path")?)
                    .download_newer()
            }
        }
    }

    /// Returns a command in this folder that uses none of the user's folders, and builds programs
    /// without C libraries.
    pub(super) fn command<const N: usize>(&self, folder: &Path, arguments: [&str; N]) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(arguments).current_dir(folder);
        for (variable, folder) in [("GOPATH", "path"), ("GOMODCACHE", "modules"), ("GOCACHE", "compiled")] {
            command.env(variable, self.work.join(folder));
        }
        // Only the settings of the proxy and of the checksum database stay as the user has them.
        command.env("GOFLAGS", "-mod=mod -modcacherw").env("GOTOOLCHAIN", "local").env("GOWORK", "off");
        command.env("GO111MODULE", "on").env("CGO_ENABLED", "0");
        for variable in ["GOROOT", "GOBIN", "GOOS", "GOARCH", "GOEXPERIMENT", "GOMOD"] {
            command.env_remove(variable);
        }
        command
    }

    /// Downloads a module at a version. Go checks it against the public checksum database.
    pub(super) fn download(&self, folder: &Path, module: &str, version: &str) -> Result<Download> {
        let mut command = self.command(folder, ["mod", "download", "-json"]);
        command.arg(format!("{module}@{version}")).stdin(Stdio::null()).stderr(Stdio::inherit());
        let output = command.output().with_context(|| format!("cannot run `{}`", workspace::command_line(&command)))?;
        let reply = serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap_or_default();
        let path = |field: &str| reply[field].as_str().map(PathBuf::from);
        match (path("Dir"), path("GoMod")) {
            (Some(folder), Some(go_mod)) if output.status.success() => Ok(Download { folder, go_mod }),
            _ => {
                let why = reply["Error"].as_str().unwrap_or("no further message");
                bail!("`{}` failed ({}): {why}", workspace::command_line(&command), output.status)
            }
        }
    }

    /// Downloads a newer Go with this one.
    fn download_newer(&self) -> Result<Self> {
        workspace::progress(&format!("downloading Go {DOWNLOADED} with go: it builds Kubernetes"));
        let version = format!("v0.0.1-go{DOWNLOADED}.{}", platform()?);
        let folder = self.download(&self.work, "golang.org/toolchain", &version)?.folder;
        // Files of a module are never executable.
        for programs in [folder.join("bin"), folder.join("pkg/tool")] {
            make_executable(&programs).with_context(|| format!("cannot make {} executable", programs.display()))?;
        }
        let go = Self { binary: folder.join("bin/go"), work: self.work.clone() };
        if go.version().is_none_or(|version| version < LEAST) {
            bail!("the downloaded Go does not run: {}", go.binary.display());
        }
        Ok(go)
    }

    /// Returns its major and minor version, if it runs.
    fn version(&self) -> Option<(u32, u32)> {
        let output = self.command(&self.work, ["version"]).stdin(Stdio::null()).output().ok()?;
        parse_version(str::from_utf8(&output.stdout).ok()?)
    }
}

fn candidates() -> Vec<PathBuf> {
    let usual = Some(PathBuf::from(USUAL_PLACE)).filter(|path| path.is_file());
    super::find_program("go").into_iter().chain(usual).collect()
}

/// Returns Go's name of this platform.
fn platform() -> Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("linux-amd64"),
        "aarch64" => Ok("linux-arm64"),
        other => bail!("no Go download for {other}: install Go {}.{} or later", LEAST.0, LEAST.1),
    }
}

/// `go version go1.26.8 linux/amd64`
fn parse_version(text: &str) -> Option<(u32, u32)> {
    let version = text.split_whitespace().nth(2)?.strip_prefix("go")?;
    let (major, rest) = version.split_once('.')?;
    let minor = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn make_executable(path: &Path) -> std::io::Result<()> {
    if path.is_dir() {
        return fs::read_dir(path)?.try_for_each(|entry| make_executable(&entry?.path()));
    }
    fs::set_permissions(path, Permissions::from_mode(0o755))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_go_writes_them() {
        assert_eq!(parse_version("go version go1.26.8 linux/amd64\n"), Some((1, 26)));
        assert_eq!(parse_version("go version go1.27rc1 linux/amd64\n"), Some((1, 27)));
        assert_eq!(parse_version("go version go1.19 linux/amd64\n"), Some((1, 19)));
        assert_eq!(parse_version("gccgo (Debian) 12.2.0\n"), None);
        assert_eq!(parse_version("go version devel +0123\n"), None);
    }

    #[test]
    fn the_go_that_is_downloaded_is_new_enough() {
        assert!(parse_version(&format!("go version go{DOWNLOADED} linux/amd64")).unwrap() >= LEAST);
    }
}
