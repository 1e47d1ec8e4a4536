//! `cargo xtask release`: makes all files of a release, in `target/dist`.

mod crates;
mod deployment;
mod licenses;
mod sbom;
mod source;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use self::{crates::Crates, source::Source};
use crate::{
    archive, image,
    oci::Files,
    program::{self, Profile, Rustc},
    setup::{self, PLATFORMS, Platform},
    toolchain, workspace,
};

/// The scripts for shells, with the names under which the shells look for them.
const COMPLETIONS: [(&str, &str); 3] = [("bash", "vipmux.bash"), ("zsh", "_vipmux"), ("fish", "vipmux.fish")];

/// Makes a release. A draft may be of uncommitted changes, and without a section in the changelog.
pub(crate) fn run(draft: bool) -> Result<()> {
    let source = Source::find(draft)?;
    setup::release()?;
    let crates = Crates::find()?;
    let release = Release::new(source, &workspace::target_folder()?)?;
    let programs = PLATFORMS.into_iter().map(|platform| Ok((platform, release.program(platform)?)));
    let programs = programs.collect::<Result<Vec<_>>>()?;
    workspace::progress("making the archives, the image, the manifests and the chart");
    release.common_files(&programs, &crates)?;
    programs.iter().try_for_each(|(platform, program)| release.archive(*platform, program))?;
    release.image(&programs)?;
    deployment::write(&release.source, &release.dist)?;
    release.documents(&crates)?;
    release.finish(draft)
}

/// A release that is being made.
struct Release {
    source: Source,
    /// The folder with the release's files, and nothing else.
    dist: PathBuf,
    /// A folder for drafts.
    work: PathBuf,
}

impl Release {
    /// Makes empty folders.
    fn new(source: Source, target: &Path) -> Result<Self> {
        let release = Self { source, dist: target.join("dist"), work: target.join("dist-work") };
        for folder in [&release.dist, &release.work] {
            image::remove(folder)?;
            make(folder)?;
        }
        Ok(release)
    }

    /// Compiles the program for a platform, and starts it. Returns its path.
    fn program(&self, platform: Platform) -> Result<PathBuf> {
        workspace::progress(&format!("building vipmux {} for {}", self.source.version, platform.triple));
        let program = program::compile(platform, Profile::Release)?;
        let shown = program::output(platform.emulated(&program).arg("--version"))?;
        if shown != format!("vipmux {}", self.source.version) {
            bail!("{} says {shown:?} instead of its version", program.display());
        }
        Ok(program)
    }

    /// Makes what is the same in the archives of all platforms. This machine's program knows the options.
    fn common_files(&self, programs: &[(Platform, PathBuf)], crates: &Crates) -> Result<()> {
        let common = self.work.join("common");
        let completions = common.join("completions");
        make(&completions)?;
        let host = Platform::host()?;
        let program =
            programs.iter().find(|(platform, _)| *platform == host).context("this platform has no program")?;
        workspace::run(Command::new(&program.1).arg("manual").arg(common.join("man/man1")))?;
        for (shell, name) in COMPLETIONS {
            let script = program::output(Command::new(&program.1).args(["completion", shell]))?;
            write(&completions, name, &(script + "\n"))?;
        }
        write(&common, "THIRD-PARTY-LICENSES", &licenses::text(crates)?)?;
        image::put_licenses(&common)
    }

    /// Makes a platform's archive.
    fn archive(&self, platform: Platform, program: &Path) -> Result<()> {
        let name = format!("vipmux-{}-{}-linux", self.source.version, platform.machine);
        let folder = self.work.join(&name);
        let mut copy = Command::new("cp");
        workspace::run(copy.arg("--recursive").arg(self.work.join("common")).arg(&folder))?;
        image::put(program, &folder.join("vipmux"), 0o755)?;
        let tarball = self.dist.join(format!("{name}.tar"));
        archive::tar(&self.work, &[&name], &self.source.time, &tarball)?;
        archive::gzip(&tarball).map(drop)
    }

    /// Makes the archive of the image for all platforms.
    fn image(&self, programs: &[(Platform, PathBuf)]) -> Result<()> {
        let mut roots = Vec::new();
        for (platform, program) in programs {
            let root = self.work.join("image").join(platform.machine);
            image::assemble(program, &root)?;
            let licenses = root.join(image::LICENSE_FOLDER).join("THIRD-PARTY-LICENSES");
            image::put(&self.work.join("common/THIRD-PARTY-LICENSES"), &licenses, 0o644)?;
            roots.push((platform.architecture, root));
        }
        let files: Vec<_> = roots.iter().map(|(architecture, root)| Files { architecture, root }).collect();
        let annotations = [
            ("org.opencontainers.image.title", "vipmux"),
            ("org.opencontainers.image.description", "Many LoadBalancer Services behind one IP address, on bare metal"),
            ("org.opencontainers.image.version", self.source.version),
            ("org.opencontainers.image.revision", &self.source.commit),
            ("org.opencontainers.image.created", &self.source.time),
            ("org.opencontainers.image.licenses", "(MIT OR Apache-2.0) AND (MIT OR GPL-2.0-only)"),
        ];
        let archive = self.dist.join(format!("vipmux-{}-image.tar", self.source.version));
        image::write(&files, &annotations, &self.source.time, self.work.join("layout"), &archive)
    }

    /// Writes the bill of materials, the changelog's section, and what the release was made with.
    fn documents(&self, crates: &Crates) -> Result<()> {
        let (version, rustc) = (self.source.version, Rustc::of_workspace()?);
        let sbom = sbom::document(&self.source, rustc.release()?, crates);
        write(&self.dist, &format!("vipmux-{version}.cdx.json"), &format!("{sbom:#}\n"))?;
        write(&self.dist, &format!("CHANGELOG-{version}.md"), &self.source.changelog)?;
        write(&self.dist, "TOOLCHAIN", &self.toolchain(&rustc)?)
    }

    /// Returns the versions on which the release's bytes depend.
    fn toolchain(&self, rustc: &Rustc) -> Result<String> {
        let (bpf, linker) = toolchain::detect().context("the BPF toolchain is gone")?;
        let ask = |program: &Path, question: &[&str]| program::output(Command::new(program).args(question));
        // cargo names BPF programs' functions by the path of the crate that they share with the agent.
        let place = format!("commit: {}\nfolder: {}\n", self.source.commit, workspace::root().display());
        let mut lines = vec![place, rustc.version.clone() + "\n"];
        lines.extend(["BPF programs:".to_owned(), ask(&bpf.rustc, &["-vV"])?, ask(&linker, &["--version"])? + "\n"]);
        for program in PLATFORMS.map(Platform::c_compiler).into_iter().chain(["tar", "gzip"]) {
            let version = ask(Path::new(program), &["--version"])?;
            lines.push(format!("{program}: {}", version.lines().next().unwrap_or_default()));
        }
        for (program, question) in [("kubectl", ["version", "--client"]), ("helm", ["version", "--short"])] {
            let version = ask(&setup::cluster_program(program)?, &question)?;
            lines.push(format!("{program}: {}", version.replace('\n', ", ")));
        }
        Ok(lines.join("\n") + "\n")
    }

    /// Writes the checksums, and prints what there is.
    fn finish(&self, draft: bool) -> Result<()> {
        let sum = |name: String| Ok(format!("{}  {name}\n", archive::sha256(&self.dist.join(&name))?));
        let sums = names(&self.dist)?.into_iter().map(sum).collect::<Result<String>>()?;
        write(&self.dist, "SHA256SUMS", &sums)?;
        image::remove(&self.work)?;
        print!("{sums}");
        let what = if draft { "draft, not for publication" } else { "release" };
        let Source { version, commit, .. } = &self.source;
        workspace::progress(&format!("{what}: vipmux {version} of {commit} in {}", self.dist.display()));
        Ok(())
    }
}

/// Returns the names of a folder's files, in order.
fn names(folder: &Path) -> Result<Vec<String>> {
    let entries = || fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect();
    let names: std::io::Result<Vec<String>> = entries();
    let mut names = names.with_context(|| format!("cannot read {}", folder.display()))?;
    names.sort_unstable();
    Ok(names)
}

fn make(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))
}

fn write(folder: &Path, name: &str, text: &str) -> Result<()> {
    let path = folder.join(name);
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}
