//! Makes image archives that container runtimes load, from programs on this machine.

use std::{
    fmt::Write as _,
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::process;

/// An image of one layer.
#[derive(Debug)]
pub(super) struct Image<'a> {
    /// Its full names, with a tag.
    pub(super) names: Vec<String>,
    /// The command line of its containers.
    pub(super) entrypoint: &'a [&'a str],
}

impl Image<'_> {
    /// Writes an archive (Docker image specification v1.2) of the files below `root`, as root's.
    pub(super) fn write(&self, root: &Path, archive: &Path) -> Result<()> {
        let folder = archive.with_extension("layout");
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let layer = folder.join("layer.tar");
        tar(root, &layer, &["."])?;
        let config = json!({
            "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
            "os": "linux",
            "config": { "Entrypoint": self.entrypoint, "Env": ["PATH=/usr/bin:/bin:/usr/sbin:/sbin"] },
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", digest(&layer)?)] },
        });
        let manifest = json!([{ "Config": "config.json", "RepoTags": self.names, "Layers": ["layer.tar"] }]);
        for (file, content) in [("config.json", config), ("manifest.json", manifest)] {
            fs::write(folder.join(file), content.to_string()).with_context(|| format!("cannot write {file}"))?;
        }
        tar(&folder, archive, &["manifest.json", "config.json", "layer.tar"])?;
        fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))
    }
}

/// Puts programs into the folder of an image's files, by their paths in the image.
pub(super) fn install(root: &Path, programs: &[(&Path, &str)]) -> Result<()> {
    for (program, place) in programs {
        let target = root.join(place);
        let copy = || {
            target.parent().map_or(Ok(()), fs::create_dir_all)?;
            fs::copy(program, &target)?;
            fs::set_permissions(&target, Permissions::from_mode(0o755))
        };
        copy().with_context(|| format!("cannot copy {} to {}", program.display(), target.display()))?;
    }
    // Pods mount into it.
    fs::create_dir_all(root.join("tmp")).with_context(|| format!("cannot make {}/tmp", root.display()))
}

/// Puts programs of this machine into such a folder, with the libraries that they load, by their paths here.
pub(super) fn install_with_libraries(root: &Path, programs: &[&Path]) -> Result<()> {
    for program in programs {
        let mut ldd = Command::new("ldd");
        ldd.arg(program);
        let listed = process::run(ldd)?;
        // A library's path is the first word that is absolute; the kernel's own library has none.
        let libraries = listed.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
        for file in libraries.map(Path::new).chain([*program]) {
            let place = file.strip_prefix("/")?.to_str().context("a path is no text")?;
            install(root, &[(file, place)])?;
        }
    }
    Ok(())
}

/// Makes links to a program with many names.
pub(super) fn link(root: &Path, target: &str, names: &[&str]) -> Result<()> {
    fs::create_dir_all(root.join("bin")).with_context(|| format!("cannot make {}/bin", root.display()))?;
    for name in names {
        let link: PathBuf = root.join("bin").join(name);
        symlink(target, &link).with_context(|| format!("cannot make {}", link.display()))?;
    }
    Ok(())
}

fn tar(folder: &Path, archive: &Path, entries: &[&str]) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.args(["--create", "--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@0", "--file"]);
    tar.arg(archive).arg("--directory").arg(folder).args(entries);
    process::run(tar).map(drop)
}

fn digest(file: &Path) -> Result<String> {
    let content = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let mut digest = String::new();
    for byte in Sha256::digest(content) {
        write!(digest, "{byte:02x}")?;
    }
    Ok(digest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cleanup::Folder;

    #[test]
    fn an_archive_has_the_layer_that_its_configuration_names() {
        let folder = Folder::temporary("image").unwrap();
        let (root, archive, out) = (folder.path().join("root"), folder.path().join("x.tar"), folder.path().join("out"));
        install(&root, &[(Path::new("/bin/true"), "bin/true")]).unwrap();
        link(&root, "true", &["yes"]).unwrap();
        Image { names: vec!["localhost/x:1".to_owned()], entrypoint: &["/bin/true"] }.write(&root, &archive).unwrap();
        fs::create_dir_all(out.join("layer")).unwrap();
        for (archive, place) in [(archive, out.clone()), (out.join("layer.tar"), out.join("layer"))] {
            let mut tar = Command::new("tar");
            tar.arg("--extract").arg("--file").arg(archive).arg("--directory").arg(place);
            process::run(tar).unwrap();
        }
        let config: serde_json::Value = serde_json::from_slice(&fs::read(out.join("config.json")).unwrap()).unwrap();
        assert_eq!(config["rootfs"]["diff_ids"][0], format!("sha256:{}", digest(&out.join("layer.tar")).unwrap()));
        assert!(fs::read_link(out.join("layer/bin/yes")).unwrap().ends_with("true"));
        assert_eq!(fs::metadata(out.join("layer/bin/true")).unwrap().permissions().mode() & 0o777, 0o755);
    }
}
