//! What a release is made from: a commit, and the changelog's section about it.

use std::{ffi::OsStr, fs, process::Command};

use anyhow::{Context, Result, bail};

use crate::{program, workspace};

/// The changelog's section before there is one for the version.
const UNRELEASED: &str = "Unreleased";

/// A commit that becomes a release.
#[derive(Clone, Debug)]
pub(super) struct Source {
    /// The workspace's version.
    pub(super) version: &'static str,
    /// The commit's hash; with `-dirty` behind it if files differ from it.
    pub(super) commit: String,
    /// The commit's time (RFC 3339, UTC). It is the time of everything in the release.
    pub(super) time: String,
    /// The same in seconds since 1970-01-01 UTC, for `SOURCE_DATE_EPOCH`.
    pub(super) epoch: String,
    /// The section of CHANGELOG.md, with its heading.
    pub(super) changelog: String,
}

impl Source {
    /// Looks at the checkout. Refuses one that cannot be released, unless it is for a draft.
    pub(super) fn find(draft: bool) -> Result<Self> {
        let version = env!("CARGO_PKG_VERSION");
        let changes = git(["status", "--porcelain"])?;
        if let (Some(change), false) = (changes.lines().next(), draft) {
            bail!(
                "{} files differ from the commit ({change}): commit them, or use --draft for files that nobody gets",
                changes.lines().count()
            );
        }
        let path = workspace::root().join("CHANGELOG.md");
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let suffix = if changes.is_empty() { "" } else { "-dirty" };
        Ok(Self {
            version,
            commit: git(["rev-parse", "HEAD"])? + suffix,
            time: git(["log", "-1", "--format=%cd", "--date=format-local:%Y-%m-%dT%H:%M:%SZ"])?,
            epoch: git(["log", "-1", "--format=%ct"])?,
            changelog: changelog(&text, version, draft)?.to_owned(),
        })
    }

    #[cfg(test)]
    pub(super) fn fixture(version: &'static str) -> Self {
        let [commit, time, epoch] = ["0a0a", "2026-01-02T03:04:05Z", "1767323045"].map(str::to_owned);
        Self { version, commit, time, epoch, changelog: String::new() }
    }
}

/// Returns the section about a version. A draft may have the one about what is not released.
fn changelog<'a>(text: &'a str, version: &str, draft: bool) -> Result<&'a str> {
    let section = section(text, version).or_else(|| section(text, UNRELEASED).filter(|_| draft));
    let section = section.with_context(|| {
        format!(
            "CHANGELOG.md has no section `## [{version}] - DATE`: rename [{UNRELEASED}] (docs/releasing.md), or use \
             --draft for files that nobody gets"
        )
    })?;
    if section.lines().skip(1).all(|line| line.trim().is_empty()) {
        bail!("CHANGELOG.md says nothing about {version}: `{}` is empty", section.trim_end());
    }
    Ok(section)
}

fn section<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let heading = format!("## [{name}]");
    let mut starts = text.match_indices("\n## [").map(|(at, _)| at + 1);
    let start = starts.find(|start| text[*start..].starts_with(&heading))?;
    let end = starts.next().unwrap_or(text.len());
    Some(&text[start..end])
}

fn git<const N: usize>(arguments: [&str; N]) -> Result<String> {
    let mut git = Command::new("git");
    git.args(arguments.map(OsStr::new)).current_dir(workspace::root()).env("TZ", "UTC");
    program::output(&mut git).context("a release needs a clone with its history")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# Changelog\n\n## [Unreleased]\n\n- New.\n\n## [0.2.0] - 2026-02-01\n\n- Two.\n\n## [0.1.0] - \
                        2026-01-01\n\n- One.\n";

    #[test]
    fn a_version_has_the_section_with_its_heading() {
        assert_eq!(changelog(TEXT, "0.2.0", false).unwrap(), "## [0.2.0] - 2026-02-01\n\n- Two.\n\n");
        assert_eq!(changelog(TEXT, "0.1.0", true).unwrap(), "## [0.1.0] - 2026-01-01\n\n- One.\n");
    }

    #[test]
    fn without_a_section_there_is_only_a_draft() {
        let error = changelog(TEXT, "0.3.0", false).unwrap_err().to_string();
        assert!(error.contains("## [0.3.0]") && error.contains("--draft"), "{error}");
        assert_eq!(changelog(TEXT, "0.3.0", true).unwrap(), "## [Unreleased]\n\n- New.\n\n");
        assert!(
            changelog("# Changelog\n\n## [Unreleased]\n\n", "0.3.0", true).unwrap_err().to_string().contains("empty")
        );
    }
}
