//! The cgroups of a node, below those of this process, in hierarchies of version 1 or in the unified one
//! (cgroups(7)).

use std::{
    fs,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::cleanup::{self, Guard, Leftover};

const ROOT: &str = "/sys/fs/cgroup";

/// One cgroup for each hierarchy, removed on drop.
#[derive(Debug)]
pub(super) struct Cgroups {
    /// The folders; with version 1, each with the controllers of its hierarchy.
    folders: Vec<(Option<String>, PathBuf)>,
    _guards: Vec<Guard>,
}

impl Cgroups {
    /// Makes the cgroups.
    pub(super) fn make(label: &str) -> Result<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").context("cannot read /proc/self/cgroup")?;
        let unified = Path::new(ROOT).join("cgroup.controllers").exists();
        let (mut folders, mut guards) = (Vec::new(), Vec::new());
        for (controllers, path) in own.lines().filter_map(parse) {
            let folder = match (unified, controllers) {
                (true, "") => Path::new(ROOT).to_owned(),
                (false, controllers) if !controllers.is_empty() => {
                    Path::new(ROOT).join(controllers.trim_start_matches("name=")).join(path.trim_start_matches('/'))
                }
                _ => continue,
            };
            cleanup::sweep_in(&folder, Leftover::Cgroup);
            let folder = folder.join(cleanup::name(label));
            guards.push(Guard::new(Leftover::Cgroup(folder.clone())));
            fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
            let controllers = (!unified).then(|| controllers.trim_start_matches("name=").to_owned());
            folders.push((controllers, folder));
        }
        let made = Self { folders, _guards: guards };
        made.share_processors()?;
        Ok(made)
    }

    /// A new cgroup of the controller cpuset has no processors, with version 1.
    fn share_processors(&self) -> Result<()> {
        for (_, folder) in self.folders.iter().filter(|(name, _)| name.as_deref() == Some("cpuset")) {
            let parent = folder.parent().context("a cgroup has no parent")?;
            for file in ["cpuset.cpus", "cpuset.mems"] {
                let copied = fs::read(parent.join(file)).and_then(|content| fs::write(folder.join(file), content));
                copied.with_context(|| format!("cannot copy {file} to {}", folder.display()))?;
            }
            fs::write(folder.join("cgroup.clone_children"), "1").context("cannot write cgroup.clone_children")?;
        }
        Ok(())
    }

    /// Returns the controllers of version 1, one hierarchy on a line; `None`: there is the unified
    /// hierarchy.
    pub(super) fn controllers(&self) -> Option<String> {
        let names: Option<Vec<_>> = self.folders.iter().map(|(name, _)| name.as_deref()).collect();
        names.map(|names| names.join("\n") + "\n")
    }

    /// Makes a command start in these cgroups.
    pub(super) fn enter(&self, command: &mut Command) {
        let files: Vec<PathBuf> = self.folders.iter().map(|(_, folder)| folder.join("cgroup.procs")).collect();
        let enter = move || files.iter().try_for_each(|file| fs::write(file, "0"));
        // SAFETY: between fork and exec, `enter` allocates the path of a file for each open. No other thread of
        // this process holds glibc's allocator locks then, since fork takes them.
        unsafe { command.pre_exec(enter) };
    }
}

/// Returns controllers and path of a line of `/proc/PID/cgroup`.
fn parse(line: &str) -> Option<(&str, &str)> {
    let (_, rest) = line.split_once(':')?;
    rest.split_once(':')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_controllers_and_paths() {
        assert_eq!(parse("4:memory:/a/b"), Some(("memory", "/a/b")));
        assert_eq!(parse("9:name=systemd:/"), Some(("name=systemd", "/")));
        assert_eq!(parse("0::/user.slice"), Some(("", "/user.slice")));
        assert_eq!(parse("x"), None);
    }
}
