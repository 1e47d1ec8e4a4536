//! Downloads kernels from Debian's archive.
//!
//! apt does the work, with a private configuration of only one suite. It checks the archive's
//! signature, then the index, then every package.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use super::{machine::Machine, root};
use crate::workspace;

/// Programs of a guest that cannot run those of this machine.
const PROGRAMS: [&str; 4] = ["busybox-static", "kmod", "libteam-utils", "nftables"];

/// Prefixes of a kernel's packages. From 7.x on, the image depends on two others that hold its
/// parts.
const PARTS: [&str; 3] = ["linux-image-", "linux-binary-", "linux-modules-"];

/// Debian's archive is signed with these keys (package debian-archive-keyring).
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Folders below `lib/modules/RELEASE/kernel` that the suites may need, besides
/// [`Machine::modules`]. The others would fill the guest's memory.
const MODULES: [&str; 4] = ["net", "drivers/net", "lib", "crypto"];

/// Folders that drivers of cards need besides these.
const CARD_MODULES: [&str; 6] =
    ["drivers/virtio", "drivers/usb", "drivers/dca", "drivers/i2c/algos", "drivers/ptp", "drivers/pps"];

/// Folders below these that no guest needs.
const UNUSED: [&str; 1] = ["drivers/net/wireless"];

/// The suite with a newer QEMU than Debian 12's, and the suite that it adds to. Only QEMU 8.0 and later
/// have igb.
const EMULATOR_SUITES: [&str; 2] = ["bookworm-backports", "bookworm"];

/// Debian's kernel packages differ in their modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flavor {
    /// For virtual machines in clouds: the smallest one.
    Cloud,
    /// With the drivers of all cards.
    Full,
}

impl Flavor {
    /// The package that depends on a suite's newest kernel.
    fn package(self, architecture: &str) -> String {
        match self {
            Self::Cloud => format!("linux-image-cloud-{architecture}"),
            Self::Full => format!("linux-image-{architecture}"),
        }
    }

    /// What the cache folder of its kernel has in its name.
    const fn suffix(self) -> &'static str {
        match self {
            Self::Cloud => "",
            Self::Full => "-full",
        }
    }

    /// The folders with its modules.
    fn modules(self, machine: &Machine) -> Vec<&'static str> {
        let cards: &[_] = if self == Self::Full { &CARD_MODULES } else { &[] };
        [&MODULES, cards, &[machine.modules]].concat()
    }
}

/// A kernel that can boot.
pub(super) struct Image {
    /// The output of `uname -r`.
    pub(super) release: String,
    /// The bootable image.
    pub(super) vmlinuz: PathBuf,
    /// An initramfs archive with the modules, and with the programs if the guest cannot run this
    /// machine's.
    pub(super) modules: PathBuf,
}

/// Returns the kernel of a suite for a machine: the cached one, or the newest in the archive if none
/// is cached or with `update`.
pub(super) fn kernel(machine: &Machine, cache: &Path, (suite, flavor): (&str, Flavor), update: bool) -> Result<Image> {
    let _lock = workspace::lock(cache)?;
    let mut name = format!("{suite}{}", flavor.suffix());
    if !machine.platform.is_host() {
        name = format!("{name}-{}", machine.platform.architecture);
    }
    let folder = cache.join(&name);
    if let Some(image) = cached(&folder).filter(|_| !update) {
        return Ok(image);
    }
    replace(&folder, |new| fetch(machine, new, (suite, flavor)).and_then(|()| prepare(machine, new, flavor)))?;
    cached(&folder).with_context(|| format!("no kernel in {}", folder.display()))
}

/// Returns the folder of a QEMU that is newer than Debian 12's, beside this machine's packages: its packages
/// and all libraries, unpacked.
pub(super) fn emulator(cache: &Path, update: bool) -> Result<PathBuf> {
    let _lock = workspace::lock(cache)?;
    let folder = cache.join("qemu");
    if update || !folder.exists() {
        replace(&folder, fetch_emulator)?;
    }
    Ok(folder)
}

/// Makes a folder's contents anew. The folder is there only if they are complete.
fn replace(folder: &Path, make: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let new = folder.with_extension("new");
    root::remove(&new)?;
    fs::create_dir_all(&new).with_context(|| format!("cannot make {}", new.display()))?;
    if let Err(error) = make(&new) {
        root::remove(&new)?;
        return Err(error);
    }
    root::remove(folder)?;
    fs::rename(&new, folder).with_context(|| format!("cannot make {}", folder.display()))
}

/// Unpacks QEMU, and what it depends on, into a folder.
fn fetch_emulator(folder: &Path) -> Result<()> {
    let [suite, _] = EMULATOR_SUITES;
    workspace::progress(&format!("downloading QEMU and its libraries from {suite}, to unpack them in the cache"));
    let apt = Apt::new(folder, &EMULATOR_SUITES, "amd64")?;
    workspace::prepare(apt.command("apt-get").arg("update"))?;
    apt.download(&["--target-release", suite, "qemu-system-x86"])?;
    extract(&apt.downloads(), folder)?;
    root::remove(&apt.folder)
}

/// Returns the kernel in a folder, if it is complete.
fn cached(folder: &Path) -> Option<Image> {
    let release = fs::read_to_string(folder.join("release")).ok()?;
    Some(Image { release, vmlinuz: folder.join("vmlinuz"), modules: folder.join("modules.cpio") })
}

/// Downloads the packages of a suite's kernel, and unpacks them into the folder `tree` below `folder`.
/// If the machine cannot run this one's programs, their packages come into the folder `root`.
fn fetch(machine: &Machine, folder: &Path, (suite, flavor): (&str, Flavor)) -> Result<()> {
    let architecture = machine.platform.architecture;
    let apt = Apt::new(folder, &[suite], architecture)?;
    workspace::progress(&format!("searching Debian's kernel for {architecture} in {suite}"));
    workspace::prepare(apt.command("apt-get").arg("update"))?;
    let packages = parts(&flavor.package(architecture), |package| {
        let output = apt.command("apt-cache").args(["depends", "--important", package]).output();
        let output = output.context("cannot run apt-cache")?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    })?;
    workspace::progress(&format!("downloading {}", packages.join(", ")));
    let downloads = folder.join("packages");
    fs::create_dir(&downloads).context("cannot make a folder for the packages")?;
    workspace::prepare(apt.command("apt-get").arg("download").args(&packages).current_dir(&downloads))?;
    extract(&downloads, &folder.join("tree"))?;
    if !machine.platform.is_host() {
        workspace::progress(&format!("downloading {} for {architecture}", PROGRAMS.join(", ")));
        apt.download(&PROGRAMS)?;
        extract(&apt.downloads(), &folder.join("root"))?;
    }
    root::remove(&downloads)
}

/// Unpacks the packages in a folder.
fn extract(packages: &Path, target: &Path) -> Result<()> {
    for package in entries(packages)?.iter().filter(|path| path.extension().is_some_and(|extension| extension == "deb"))
    {
        workspace::prepare(Command::new("dpkg-deb").arg("--extract").arg(package).arg(target))?;
    }
    Ok(())
}

/// Returns the packages of a kernel. It follows the dependencies that `apt-cache depends` prints.
fn parts(first: &str, depends: impl Fn(&str) -> Result<String>) -> Result<Vec<String>> {
    let mut found = BTreeSet::new();
    let mut queue = vec![first.to_owned()];
    while let Some(package) = queue.pop() {
        for line in depends(&package)?.lines() {
            let name = line.trim().trim_start_matches('|').strip_prefix("Depends: ").unwrap_or_default();
            if PARTS.iter().any(|part| name.starts_with(part)) && found.insert(name.to_owned()) {
                queue.push(name.to_owned());
            }
        }
    }
    if found.is_empty() {
        bail!("the package {first} depends on no kernel");
    }
    Ok(found.into_iter().collect())
}

/// Turns the unpacked packages into bootable files. The file with the release is written last.
fn prepare(machine: &Machine, folder: &Path, flavor: Flavor) -> Result<()> {
    let (tree, root) = (&folder.join("tree"), folder.join("root"));
    let modules =
        find(tree, &|path| path.ends_with("kernel") && path.is_dir())?.context("the packages hold no modules")?;
    let modules = modules.parent().context("the modules' path has no folder")?;
    let release = modules.file_name().and_then(|name| name.to_str()).context("the modules' folder has no name")?;
    let is_kernel = |path: &Path| {
        path.is_file() && path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz"))
    };
    let vmlinuz = find(tree, &is_kernel)?.context("the packages hold no kernel")?;
    fs::copy(&vmlinuz, folder.join("vmlinuz")).context("cannot copy the kernel")?;

    UNUSED.into_iter().try_for_each(|part| root::remove(&modules.join("kernel").join(part)))?;
    let target = root.join("lib/modules").join(release);
    for part in flavor.modules(machine).into_iter().map(|part| Path::new("kernel").join(part)) {
        let (from, to) = (modules.join(&part), target.join(&part));
        if from.exists() {
            fs::create_dir_all(to.parent().unwrap_or(&to)).context("cannot make a folder for the modules")?;
            fs::rename(&from, &to).with_context(|| format!("cannot move {}", from.display()))?;
        }
    }
    let mut depmod = Command::new("depmod");
    // Discard stderr: not every release's packages have the lists of built-in modules.
    depmod.arg("--basedir").arg(&root).arg(release).stderr(std::process::Stdio::null());
    workspace::run(&mut depmod)?;
    root::archive(&root, &folder.join("modules.cpio"))?;
    for rest in [&root, tree, &folder.join("apt")] {
        root::remove(rest)?;
    }
    fs::write(folder.join("release"), release).context("cannot write the kernel's release")
}

/// Returns the first file or folder below `folder` that matches.
fn find(folder: &Path, wanted: &dyn Fn(&Path) -> bool) -> Result<Option<PathBuf>> {
    let paths = entries(folder)?;
    if let Some(path) = paths.iter().find(|path| wanted(path)) {
        return Ok(Some(path.clone()));
    }
    for path in paths.iter().filter(|path| path.is_dir() && !path.is_symlink()) {
        if let Some(found) = find(path, wanted)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let read = || fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>();
    let mut paths = read().with_context(|| format!("cannot read {}", folder.display()))?;
    paths.sort_unstable();
    Ok(paths)
}

/// apt with its own lists and caches, independent of this machine's packages and settings.
struct Apt {
    folder: PathBuf,
    architecture: &'static str,
}

impl Apt {
    fn new(folder: &Path, suites: &[&str], architecture: &'static str) -> Result<Self> {
        let folder = folder.join("apt");
        for part in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(folder.join(part)).context("cannot make folders for apt")?;
        }
        let mirror = mirror()?;
        let source = |suite| format!("deb [signed-by={KEYRING}] {mirror} {suite} main\n");
        let sources = suites.iter().map(source).collect::<Vec<_>>().concat();
        fs::write(folder.join("sources.list"), sources).context("cannot write apt's sources")?;
        fs::write(folder.join("status"), "").context("cannot write apt's status")?;
        Ok(Self { folder, architecture })
    }

    /// Downloads packages with all that they depend on.
    fn download(&self, packages: &[&str]) -> Result<()> {
        let mut install = self.command("apt-get");
        install.args(["install", "--yes", "--download-only", "--no-install-recommends"]).args(packages);
        workspace::prepare(&mut install)
    }

    /// Returns the folder of downloaded packages.
    fn downloads(&self) -> PathBuf {
        self.folder.join("cache/archives")
    }

    fn command(&self, program: &str) -> Command {
        let at = |name: &str| self.folder.join(name).display().to_string();
        let options = [
            ("Dir::Etc::SourceList", at("sources.list")),
            ("Dir::Etc::SourceParts", "/dev/null".to_owned()),
            ("Dir::Etc::Preferences", "/dev/null".to_owned()),
            ("Dir::Etc::PreferencesParts", "/dev/null".to_owned()),
            ("Dir::State", at("")),
            ("Dir::State::Lists", at("lists")),
            ("Dir::State::status", at("status")),
            ("Dir::Cache", at("cache")),
            ("Acquire::Languages", "none".to_owned()),
            ("Acquire::IndexTargets::deb::DEP-11::DefaultEnabled", "false".to_owned()),
            ("Acquire::Retries", "3".to_owned()),
            ("APT::Sandbox::User", String::new()),
            ("APT::Architecture", self.architecture.to_owned()),
            ("APT::Architectures::", self.architecture.to_owned()),
        ];
        let mut command = Command::new(program);
        command.env("LC_ALL", "C").args(["-q"]);
        for (name, value) in options {
            command.args(["-o", &format!("{name}={value}")]);
        }
        command
    }
}

/// Returns the mirror of Debian's archive that this machine uses.
fn mirror() -> Result<String> {
    let mut command = Command::new("apt-get");
    command.args(["indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages"]);
    let output = command.output().context("cannot run apt-get")?;
    let mirror = main_archive(&String::from_utf8_lossy(&output.stdout)).map(str::to_owned);
    mirror.context("apt's sources name no Debian archive: add one to /etc/apt/sources.list")
}

/// Returns the first archive of a release itself, not of its updates.
fn main_archive(targets: &str) -> Option<&str> {
    let mut targets = targets.lines().filter_map(|line| line.split_once(' '));
    targets.find(|(_, release)| !release.contains(['-', '/'])).map(|(uri, _)| uri)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_kernel_are_found_through_the_package_that_names_the_newest() {
        let depends = |package: &str| {
            Ok(match package {
                "linux-image-cloud-amd64" => "linux-image-cloud-amd64\n  Depends: linux-image-7.2-cloud-amd64\n",
                "linux-image-7.2-cloud-amd64" => {
                    "linux-image-7.2-cloud-amd64\n  Depends: linux-binary-7.2-cloud-amd64\n \
                     |Depends: linux-modules-7.2-cloud-amd64\n  Depends: kmod\n  Depends: linux-base\n"
                }
                _ => "",
            }
            .to_owned())
        };
        let expected = ["linux-binary-7.2-cloud-amd64", "linux-image-7.2-cloud-amd64", "linux-modules-7.2-cloud-amd64"];
        assert_eq!(parts("linux-image-cloud-amd64", depends).ok(), Some(expected.map(str::to_owned).to_vec()));
        assert!(parts("linux-base", depends).is_err());
    }

    #[test]
    fn the_mirror_is_that_of_a_release_and_not_of_its_security_updates() {
        let targets = "https://example.org/debian-security/ trixie-security\nhttps://example.org/debian/ trixie\n";
        assert_eq!(main_archive(targets), Some("https://example.org/debian/"));
        assert_eq!(main_archive(""), None);
    }
}
