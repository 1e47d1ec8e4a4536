//! Collects the licenses of what is linked into the program. Most of them ask for that.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context, Result, bail};

use super::crates::{Crate, Crates};

/// How the names of files with licenses begin, in American or British spelling.
const NAMES: [&str; 5] = ["LICEN", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];

/// Text about what no crate brings.
const LIBRARIES: &str = "Rust's standard library, MIT OR Apache-2.0: https://github.com/rust-lang/rust\n\
                         musl, MIT: https://git.musl-libc.org/cgit/musl/tree/COPYRIGHT\n";

/// Returns one text with all licenses. Each text is there once, after the crates that it is for.
pub(super) fn text(crates: &Crates) -> Result<String> {
    let mut texts: BTreeMap<String, BTreeSet<&Crate>> = BTreeMap::new();
    let mut bare = Vec::new();
    for one in crates.all.keys() {
        let found = licenses(&one.folder)?;
        if found.is_empty() {
            bare.push(one);
        }
        for license in found {
            texts.entry(license).or_default().insert(one);
        }
    }
    let unnamed = bare.iter().find(|one| one.license.is_empty());
    if let Some(one) = unnamed {
        bail!("{} {} has neither a license nor a file with one", one.name, one.version);
    }
    let mut sections: Vec<_> = texts.iter().collect();
    sections.sort_by_key(|(_, crates)| *crates);
    let sections = sections.into_iter().map(|(license, crates)| {
        format!("\n{}\n{}\n{}\n", "=".repeat(80), names(crates.iter().copied()), license.trim_end())
    });
    let sections: String = sections.collect();
    Ok(format!("vipmux contains the following software.\n\n{LIBRARIES}{}{sections}", names(bare)))
}

fn names<'a>(crates: impl IntoIterator<Item = &'a Crate>) -> String {
    crates.into_iter().map(name).collect()
}

fn name(one: &Crate) -> String {
    format!("{} {}, {}\n", one.name, one.version, one.license)
}

/// Returns the texts of a crate's licenses. Line ends do not count.
fn licenses(folder: &Path) -> Result<Vec<String>> {
    let read = || {
        let mut found = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().to_uppercase();
            if NAMES.iter().any(|start| name.starts_with(start)) && entry.file_type()?.is_file() {
                found.push(String::from_utf8_lossy(&fs::read(entry.path())?).replace("\r\n", "\n"));
            }
        }
        found.sort_unstable();
        std::io::Result::Ok(found)
    };
    read().with_context(|| format!("cannot read the licenses in {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::release::crates::tests::published;

    #[test]
    fn equal_texts_are_there_once_and_a_crate_without_any_license_is_an_error() {
        let folder = std::env::temp_dir().join(format!("vipmux-xtask-licenses-{}", std::process::id()));
        let [a, b, c] = ["a", "b", "c"].map(|name| folder.join(name));
        for (folder, file, text) in [(&a, "LICENSE-MIT", "one\n"), (&b, "license.txt", "one\r\n"), (&c, "x", "y")] {
            fs::create_dir_all(folder).unwrap();
            fs::write(folder.join(file), text).unwrap();
        }
        let crates = |license| {
            let [a, b, c] = [(&a, "MIT"), (&b, "MIT"), (&c, license)]
                .map(|(folder, license)| published(folder.file_name().unwrap().to_str().unwrap(), license, folder));
            Crates { direct: BTreeSet::new(), all: [a, b, c].map(|one| (one, BTreeSet::new())).into() }
        };
        let collected = text(&crates("ISC")).unwrap();
        assert!(collected.ends_with("\na 1.0.0, MIT\nb 1.0.0, MIT\n\none\n"), "{collected}");
        assert!(collected.contains("\nc 1.0.0, ISC\n"), "{collected}");
        assert!(text(&crates("")).unwrap_err().to_string().contains("c 1.0.0 has neither"));
        fs::remove_dir_all(folder).unwrap();
    }
}
