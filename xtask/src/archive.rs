//! Archives that are the same wherever they are made: names are sorted, everything is root's, and all times
//! are one.

use std::{
    fmt::Write as _,
    fs::File,
    io,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use sha2::{Digest as _, Sha256};

/// Writes a tar archive of `entries`, which are names in `folder`, all with this time (RFC 3339). Of the
/// rights only the one to execute counts.
pub fn tar(folder: &Path, entries: &[&str], time: &str, archive: &Path) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.env_remove("TAR_OPTIONS");
    tar.args(["--create", "--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mode=u=rwX,go=rX"]);
    tar.arg(format!("--mtime={time}")).arg("--file").arg(archive).arg("--directory").arg(folder).args(entries);
    run(&mut tar)
}

/// Compresses a file, which gets the suffix `.gz`. Returns its new path.
pub fn gzip(file: &Path) -> Result<PathBuf> {
    run(Command::new("gzip").env_remove("GZIP").args(["--force", "--no-name"]).arg(file))?;
    let mut compressed = file.as_os_str().to_owned();
    compressed.push(".gz");
    Ok(compressed.into())
}

/// Returns a file's SHA-256 in hexadecimal digits.
pub fn sha256(file: &Path) -> Result<String> {
    let mut digest = Sha256::new();
    let copied = File::open(file).and_then(|mut file| io::copy(&mut file, &mut Hashing(&mut digest)));
    copied.with_context(|| format!("cannot read {}", file.display()))?;
    Ok(digits(&digest.finalize()))
}

/// Returns the SHA-256 of bytes in hexadecimal digits.
pub fn sha256_of(content: &[u8]) -> String {
    digits(&Sha256::digest(content))
}

fn digits(digest: &[u8]) -> String {
    digest.iter().fold(String::new(), |mut digits, byte| {
        let _ = write!(digits, "{byte:02x}");
        digits
    })
}

/// Hashes what is written to it.
struct Hashing<'a>(&'a mut Sha256);

impl io::Write for Hashing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().display().to_string();
    let status = command.status().with_context(|| format!("cannot run {program}"))?;
    if !status.success() {
        bail!("{program} failed ({status})");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{
        env, fs,
        os::unix::fs::{PermissionsExt as _, symlink},
    };

    use super::*;

    /// Makes an archive of the same files, with other times, rights and order.
    fn archive(label: &str, names: [&str; 2], mode: u32) -> Vec<u8> {
        let folder = env::temp_dir().join(format!("vipmux-xtask-archive-{}-{label}", std::process::id()));
        let root = folder.join("root");
        fs::create_dir_all(root.join("empty")).unwrap();
        for name in names {
            fs::write(root.join(name), "content").unwrap();
            fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        symlink("a", root.join("link")).unwrap();
        let tarball = folder.join("root.tar");
        tar(&folder, &["root"], "2026-01-02T03:04:05Z", &tarball).unwrap();
        let content = fs::read(gzip(&tarball).unwrap()).unwrap();
        fs::remove_dir_all(folder).unwrap();
        content
    }

    #[test]
    fn an_archive_depends_on_names_contents_and_the_right_to_execute_alone() {
        let first = archive("1", ["a", "b"], 0o600);
        assert_eq!(first, archive("2", ["b", "a"], 0o664));
        assert_ne!(first, archive("3", ["a", "b"], 0o755));
        assert_ne!(first, archive("4", ["a", "c"], 0o600));
    }

    #[test]
    fn digests_are_those_of_sha256sum() {
        let path = env::temp_dir().join(format!("vipmux-xtask-digest-{}", std::process::id()));
        fs::write(&path, "abc").unwrap();
        let digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256(&path).unwrap(), digest);
        assert_eq!(sha256_of(b"abc"), digest);
        fs::remove_file(&path).unwrap();
        assert!(format!("{:#}", sha256(&path).unwrap_err()).contains("No such file"));
    }
}
