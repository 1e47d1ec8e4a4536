//! The cgroups of a node, below those of this process, in hierarchies of version 1 or in the unified one
//! (cgroups(7)).

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use crate::cleanup::{self, Guard, Leftover};

const ROOT: &str = "/sys/fs/cgroup";
/// The controllers that the kubelet and runc need in the unified hierarchy.
const NEEDED: [&str; 4] = ["cpu", "cpuset", "memory", "pids"];

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
                (true, "") => {
                    share_controllers(Path::new(ROOT))?;
                    Path::new(ROOT).to_owned()
                }
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

    /// Returns the files by which a process enters the cgroups when it writes `0`, one on a line.
    pub(super) fn files(&self) -> String {
        let files: Vec<_> =
            self.folders.iter().map(|(_, folder)| folder.join("cgroup.procs").display().to_string()).collect();
        files.join("\n") + "\n"
    }
}

/// Makes the children of a group of the unified hierarchy have all controllers that a node needs. They stay
/// shared: others may use them by then.
fn share_controllers(folder: &Path) -> Result<()> {
    let file = folder.join("cgroup.subtree_control");
    let shared = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    for controller in missing(&shared) {
        fs::write(&file, format!("+{controller}")).with_context(|| {
            format!("cannot share the controller {controller} of {} with nodes (cgroups(7))", folder.display())
        })?;
    }
    Ok(())
}

/// Returns the needed controllers that the content of `cgroup.subtree_control` lacks.
fn missing(shared: &str) -> impl Iterator<Item = &'static str> {
    NEEDED.into_iter().filter(move |needed| !shared.split_whitespace().any(|controller| controller == *needed))
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

    #[test]
    fn controllers_that_are_not_shared_are_missing() {
        assert_eq!(missing("").collect::<Vec<_>>(), NEEDED);
        assert_eq!(missing("cpuset cpu io memory pids\n").count(), 0);
        assert_eq!(missing("memory pids\n").collect::<Vec<_>>(), ["cpu", "cpuset"]);
    }
}
