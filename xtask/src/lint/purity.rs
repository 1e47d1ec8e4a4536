//! The check that the pure modules stay pure: they decide, and others act.
//!
//! It reads tokens, not text, so comments and strings may say what they like, and it leaves out what is compiled for
//! tests alone (`#[cfg(test)]`, in the file or as a file of its own).

mod lexer;
mod rules;
mod test_code;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

/// The agent's modules that know no clock, I/O, runtime, randomness or hash order; with all that is below them.
const PURE: [&str; 9] =
    ["model", "allocate", "election", "membership", "hashing", "plan", "preflight", "permissions", "status"];

/// Something that a pure module must not mention.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Violation {
    line: u32,
    what: String,
    why: &'static str,
}

/// Checks the agent's pure modules under the workspace `root`; prints each violation with its file and line.
pub(super) fn check(root: &Path) -> Result<()> {
    let source = root.join("agent/src");
    let mut count = 0;
    for module in PURE {
        for (file, text) in module_files(&source, module)? {
            for violation in violations(&text) {
                count += 1;
                let shown = file.strip_prefix(root).unwrap_or(&file).display();
                eprintln!("{shown}:{}: `{}` in a pure module: {}", violation.line, violation.what, violation.why);
            }
        }
    }
    if count > 0 {
        bail!("{count} violations in the pure modules ({})", PURE.join(", "));
    }
    Ok(())
}

fn violations(text: &str) -> Vec<Violation> {
    let tokens = lexer::tokens(text);
    rules::violations(&test_code::without(&tokens))
}

/// The files of `module`: `module.rs`, and what its `mod` items lead to, less those for tests.
fn module_files(source: &Path, module: &str) -> Result<Vec<(PathBuf, String)>> {
    let file = source.join(module).with_extension("rs");
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let for_tests = test_code::modules(&lexer::tokens(&text));
    let folder = source.join(module);
    let mut files = vec![(file, text)];
    for child in children(&folder)?.difference(&for_tests) {
        files.extend(module_files(&folder, child)?);
    }
    Ok(files)
}

/// The names of the `.rs` files in a module's folder; none if it has no folder.
fn children(folder: &Path) -> Result<BTreeSet<String>> {
    if !folder.is_dir() {
        return Ok(BTreeSet::new());
    }
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry.with_context(|| format!("cannot read {}", folder.display()))?.path();
        if let (Some("rs"), Some(stem)) =
            (path.extension().and_then(|text| text.to_str()), path.file_stem().and_then(|text| text.to_str()))
        {
            names.insert(stem.to_owned());
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(u32, String)> {
        violations(text).into_iter().map(|violation| (violation.line, violation.what)).collect()
    }

    #[test]
    fn a_runtime_a_clock_and_hash_order_are_found_with_their_lines() {
        let text = "use tokio::sync::mpsc;\nuse std::time::{Duration, Instant};\n\nfn f() -> HashMap<u8, u8> {}\n";
        let expected = [(1, "tokio".to_owned()), (2, "Instant".to_owned()), (4, "HashMap".to_owned())];
        assert_eq!(found(text), expected);
    }

    #[test]
    fn io_is_found_however_it_is_imported() {
        for text in [
            "use std::fs;",
            "use std::{collections::BTreeMap, fs};",
            "use std::{net::{IpAddr, UdpSocket}};",
            "use std::{io::{self, Write}, fmt};",
            "fn f() { std::process::exit(1) }",
            "fn f() { ::std::env::var(\"X\"); }",
            "use crate::{model::Vip, datapath};",
            "fn f() { crate::runtime::run() }",
            "use crate::control;",
            "use futures_util::StreamExt;",
            "fn f() { println!(\"x\") }",
            "fn f() { let t = Timestamp::now(); }",
        ] {
            assert_eq!(found(text).len(), 1, "{text}");
        }
    }

    #[test]
    fn pure_code_passes() {
        let text = r##"
            //! No `tokio`, no HashMap. /* not even */
            use std::{collections::BTreeMap, fmt::{self, Write}, net::IpAddr, time::Duration};
            use crate::{api::VipPool, model::Vip, source::Objects};
            /* std::fs /* nested Instant */ */
            fn due<'a>(now: Duration, notify: &'a str) -> char {
                let text = r#"use std::fs; "HashSet" "#;
                let other = "std::io \" Instant";
                self.notify::<u8>(now);
                if notify == text { '"' } else { '\'' }
            }
        "##;
        assert_eq!(found(text), []);
    }

    #[test]
    fn test_code_may_do_what_it_likes() {
        let text = "
            #[cfg(test)]
            use std::collections::HashMap;
            #[cfg(test)]
            #[allow(dead_code)]
            mod tests { use std::fs; fn f() { { let x = Instant::now(); } } }
            #[cfg(all(test, unix))]
            fn g() { std::thread::yield_now() }
            #[cfg(not(test))]
            use std::env;
        ";
        assert_eq!(found(text), [(10, "std::env".to_owned())]);
    }

    #[test]
    fn files_of_test_modules_are_left_out() {
        let root = std::env::temp_dir().join(format!("vipmux-purity-{}", std::process::id()));
        let source = root.join("agent/src");
        let write = |path: &str, text: &str| {
            let path = source.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for module in PURE {
            write(&format!("{module}.rs"), "pub fn f() {}");
        }
        write("plan.rs", "mod arena;\n#[cfg(test)]\nmod tests;");
        write("plan/arena.rs", "pub fn f() {}");
        write("plan/tests.rs", "mod kernel;\nuse std::fs;");
        write("plan/tests/kernel.rs", "use std::fs;");
        let clean = check(&root);
        write("plan/arena.rs", "use rand::Rng;");
        let dirty = check(&root);
        fs::remove_dir_all(&root).unwrap();
        assert!(clean.is_ok() && dirty.is_err());
    }
}
