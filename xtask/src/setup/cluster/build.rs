//! Builds a module's programs as its main module would: with the versions in its own go.mod.
//!
//! `go install PACKAGE@VERSION` refuses Kubernetes and etcd, because their go.mod replaces modules
//! by folders of the repository. The same modules are published too. So a generated go.mod replaces
//! them by versions.

use std::{
    fs,
    io::{self, BufRead as _, BufReader, IsTerminal as _, Write as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use crate::cluster_programs::{Module, Program};
use crate::{setup::go::Go, workspace};

/// The folder of a main file that is not the module's own.
const MAIN: &str = "main";
/// Packages between two progress lines if stderr is no terminal.
const INTERVAL: usize = 200;

/// A folder with a go.mod that can build a module's programs.
pub(super) struct Tree<'a> {
    go: &'a Go,
    folder: PathBuf,
    module: &'a Module,
}

impl<'a> Tree<'a> {
    /// Downloads the module and resolves the versions of its dependencies. Go checks the module against
    /// the public checksum database, and its dependencies against the checksums that the module has.
    pub(super) fn new(go: &'a Go, work: &Path, module: &'a Module, programs: &[&Program]) -> Result<Self> {
        let folder = work.join(module.name);
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let tree = Self { go, folder, module };
        let path = tree.folder.join("go.mod");
        let write = |text: &str| fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()));
        let is_of_version = |text: &str| text.starts_with(&heading(module));
        if fs::read_to_string(&path).is_ok_and(|text| is_of_version(&text)) {
            return Ok(tree);
        }
        workspace::progress(&format!("downloading {} {} with go", module.path, module.version));
        let download = go.download(&tree.folder, module.path, module.version)?;
        let its_own = fs::read_to_string(&download.go_mod)
            .with_context(|| format!("cannot read {}", download.go_mod.display()))?;
        write(&go_mod(module, &its_own))?;
        // Not every proxy has the database's entries of all dependencies.
        let sums = download.folder.join("go.sum");
        if sums.is_file() {
            fs::copy(&sums, tree.folder.join("go.sum")).with_context(|| format!("cannot copy {}", sums.display()))?;
        }
        if !module.without.is_empty() {
            tree.write_main(&download.folder)?;
            write(&format!(
                "{}{}\nrequire {} {}\n",
                heading(module),
                go_mod(module, &its_own),
                module.path,
                module.version
            ))?;
            return Ok(tree);
        }
        let mut get = tree.command(["get"]);
        if programs.iter().any(|program| program.is_test()) {
            get.arg("-t");
        }
        get.args(programs.iter().map(|program| format!("{}@{}", program.package, module.version)));
        workspace::prepare(&mut get)?;
        // The first line is written last: it marks a complete file, which is not made again.
        let resolved = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        write(&format!("{}{resolved}", heading(module)))?;
        Ok(tree)
    }

    /// Writes the main file of the module's program, without some imports.
    fn write_main(&self, module: &Path) -> Result<()> {
        let (from, folder) = (module.join("main.go"), self.folder.join(MAIN));
        let text = fs::read_to_string(&from).with_context(|| format!("cannot read {}", from.display()))?;
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        fs::write(folder.join("main.go"), reduced(&text, self.module.without))
            .with_context(|| format!("cannot write into {}", folder.display()))
    }

    /// Builds a program and moves it to its place. The place never has a partial file.
    pub(super) fn build(&self, program: &Program, place: &Path) -> Result<()> {
        let draft = self.folder.join(program.name);
        let mut build = self.command([]);
        // With `test`, -v would be an option of the tests, and vet would look at all dependencies.
        build.args(if program.is_test() { &["test", "-c", "-vet=off"][..] } else { &["build", "-v"] });
        build.args(["-trimpath", "-buildvcs=false", "-tags", self.module.tags, "-ldflags"]);
        let package = if self.module.without.is_empty() { program.package.to_owned() } else { format!("./{MAIN}") };
        build.arg(link_flags(self.module)).arg("-o").arg(&draft).arg(package);
        workspace::progress(&workspace::command_line(&build));
        count_packages(&mut build, program.name)?;
        put(&draft, place)
    }

    /// Copies a file of the module to its place.
    pub(super) fn keep(&self, file: &str, place: &Path) -> Result<()> {
        let module = self.go.download(&self.folder, self.module.path, self.module.version)?;
        let (from, draft) = (module.folder.join(file), self.folder.join("draft"));
        fs::copy(&from, &draft).with_context(|| format!("cannot copy {}", from.display()))?;
        put(&draft, place)
    }

    fn command<const N: usize>(&self, arguments: [&str; N]) -> Command {
        self.go.command(&self.folder, arguments)
    }
}

/// Moves a complete file to its place.
fn put(draft: &Path, place: &Path) -> Result<()> {
    let folder = place.parent().context("the file's path has no folder")?;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    fs::rename(draft, place).with_context(|| format!("cannot make {}", place.display()))
}

/// The first line of a complete go.mod. It names the version.
fn heading(module: &Module) -> String {
    format!("// {} {}\n", module.path, module.version)
}

/// Returns a go.mod to build a module's programs with, based on the module's own: the same Go and
/// the same replacements, but by versions.
fn go_mod(module: &Module, its_own: &str) -> String {
    let go = its_own.lines().find(|line| line.starts_with("go ")).unwrap_or_default();
    let replaced = its_own.lines().filter_map(sibling).map(|sibling| {
        let version = module.siblings;
        format!("replace {sibling} => {sibling} {version}\n")
    });
    format!("module tests\n\n{go}\n\n{}", replaced.collect::<String>())
}

/// Returns a main file without the lines that import these packages only for what they register.
fn reduced(text: &str, without: &[&str]) -> String {
    let is_left_out =
        |line: &str| line.trim().starts_with("_ \"") && without.iter().any(|end| line.ends_with(&format!("{end}\"")));
    text.split_inclusive('\n').filter(|line| !is_left_out(line.trim_end())).collect()
}

/// Returns the module that a line of a go.mod replaces by a folder of the repository. etcd also
/// replaces modules by nothing, to guard against its own mistakes; these lines do not count.
fn sibling(line: &str) -> Option<&str> {
    let (module, target) = line.trim().trim_start_matches("replace ").split_once(" => ")?;
    let is_folder = target.starts_with("./staging/") || target.starts_with("../");
    is_folder.then_some(module.trim())
}

fn link_flags(module: &Module) -> String {
    let stamps = module.stamps.iter().map(|(variable, value)| format!(" -X {variable}={value}"));
    format!("-s -w{}", stamps.collect::<String>())
}

/// Runs a `go build -v`, which names each package that it compiles. Counts them, and prints
/// everything else.
fn count_packages(build: &mut Command, program: &str) -> Result<()> {
    let mut child = build
        .stdin(Stdio::null())
        .stdout(io::stderr())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run `{}`", workspace::command_line(build)))?;
    let mut count = 0;
    let terminal = io::stderr().is_terminal();
    for line in child.stderr.take().map(BufReader::new).into_iter().flat_map(|pipe| pipe.split(b'\n')) {
        let line = line.with_context(|| format!("cannot read the output of `{}`", workspace::command_line(build)))?;
        let line = String::from_utf8_lossy(&line);
        if !is_package(&line) {
            eprintln!("{line}");
            continue;
        }
        count += 1;
        if terminal {
            let _ = write!(io::stderr(), "\r    {program}: {count} packages compiled");
        } else if count % INTERVAL == 0 {
            eprintln!("    {program}: {count} packages compiled");
        }
    }
    if terminal && count > 0 {
        eprintln!("\r    {program}: {count} packages compiled and linked");
    }
    let status = child.wait().with_context(|| format!("cannot wait for `{}`", workspace::command_line(build)))?;
    if !status.success() {
        bail!("`{}` failed ({status})", workspace::command_line(build));
    }
    Ok(())
}

/// Returns whether a line names a package and is no message.
fn is_package(line: &str) -> bool {
    !line.is_empty() && !line.contains([' ', '\t', ':', '#'])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster_programs::MODULES;

    #[test]
    fn folders_of_the_repository_are_replaced_by_published_modules() {
        let kubernetes = "module k8s.io/kubernetes\n\ngo 1.26.0\n\ngodebug default=go1.26\n\nreplace (\n\
                          \tk8s.io/api => ./staging/src/k8s.io/api\n)\n\nrequire k8s.io/api v0.0.0\n";
        let expected = "module tests\n\ngo 1.26.0\n\nreplace k8s.io/api => k8s.io/api v0.37.1\n";
        assert_eq!(go_mod(&MODULES[0], kubernetes), expected);

        let etcd = "go 1.26.0\n\nreplace (\n\tgo.etcd.io/etcd/client/v3 => ../client/v3\n)\n\n\
                    replace go.etcd.io/etcd => ./FORBIDDEN_DEPENDENCY\nreplace go.etcd.io/etcd/pkg/v3 => ../pkg\n";
        let expected = "module tests\n\ngo 1.26.0\n\n\
                        replace go.etcd.io/etcd/client/v3 => go.etcd.io/etcd/client/v3 v3.7.3\n\
                        replace go.etcd.io/etcd/pkg/v3 => go.etcd.io/etcd/pkg/v3 v3.7.3\n";
        assert_eq!(go_mod(&MODULES[1], etcd), expected);
    }

    #[test]
    fn a_main_file_loses_the_imports_that_are_left_out() {
        let text = "import (\n\t_ \"x/backend/udp\"\n\t_ \"x/backend/vxlan\"\n\t\"x/backend/udp\"\n)\n";
        assert_eq!(reduced(text, &["/backend/udp"]), "import (\n\t_ \"x/backend/vxlan\"\n\t\"x/backend/udp\"\n)\n");
        assert_eq!(reduced(text, &[]), text);
    }

    #[test]
    fn packages_differ_from_messages() {
        assert!(is_package("k8s.io/kubernetes/cmd/kube-proxy"));
        assert!(is_package("internal/goarch"));
        for message in ["", "go: downloading k8s.io/api v0.37.1", "# k8s.io/api/core/v1", "core.go:7: undefined: x"] {
            assert!(!is_package(message), "{message}");
        }
    }

    #[test]
    fn a_failed_build_is_an_error_that_names_it() {
        let mut false_command = Command::new("false");
        assert!(count_packages(&mut false_command, "x").unwrap_err().to_string().contains("`false` failed"));
    }
}
