//! Compares the files that `cargo xtask generate` writes with the code.

use std::{env, fs, path::PathBuf};

use anyhow::{Context as _, Result};
use kube::CustomResourceExt as _;
use serde_json::{Value, json};
use vipmux_model::api::{VipPolicy, VipPool};

/// The variable that `cargo xtask generate` sets: then files are written instead of compared.
const SWITCH: &str = "BLESS";
const HEADER: &str = "# Written by `cargo xtask generate` from the types in agent/model/src/api.\n";

/// The other files that name the version. The workspace's Cargo.toml decides it.
const VERSIONED: [&str; 6] = [
    "deploy/Dockerfile",
    "deploy/helm/vipmux/Chart.yaml",
    "deploy/helm/vipmux/README.md",
    "deploy/kustomize/kustomization.yaml",
    "docs/install.md",
    "docs/releasing.md",
];
/// What precedes the version there.
const MARKERS: [&str; 7] = ["version: ", "appVersion: ", "newTag: ", "vipmux:", "vipmux-", "checkout v", "annotate v"];

/// A file's path in the repository, and its content.
type Generated = (String, String);

/// Returns the custom resources, for `kubectl apply` and for the chart. Helm keeps objects with its
/// annotation; otherwise the pools would disappear with the release.
fn custom_resources() -> Result<Vec<Generated>> {
    let crds = [("vippools", VipPool::crd()), ("vippolicies", VipPolicy::crd())];
    let mut files = Vec::new();
    for (name, crd) in crds {
        files.push((format!("deploy/crds/{name}.yaml"), yaml(&crd)?));
        let mut kept = crd;
        kept.metadata.annotations = Some([("helm.sh/resource-policy".to_owned(), "keep".to_owned())].into());
        files.push((format!("deploy/helm/vipmux/files/crds/{name}.yaml"), yaml(&kept)?));
    }
    Ok(files)
}

fn versioned_files() -> Result<Vec<Generated>> {
    let file = |path: &str| {
        let text = fs::read_to_string(in_repository(path)).with_context(|| path.to_owned())?;
        Ok((path.to_owned(), with_version(&text, env!("CARGO_PKG_VERSION"))))
    };
    VERSIONED.into_iter().map(file).collect()
}

/// Replaces each version that follows a marker.
fn with_version(text: &str, version: &str) -> String {
    MARKERS.iter().fold(text.to_owned(), |text, marker| {
        let mut parts = text.split(marker);
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |text, part| match version_length(part) {
            Some(length) => text + marker + version + &part[length..],
            None => text + marker + part,
        })
    })
}

/// Returns the length of the version with which a text begins: `1.2.3` or `1.2.3-rc.4`.
fn version_length(text: &str) -> Option<usize> {
    let digits = |text: &str| Some(text.bytes().take_while(u8::is_ascii_digit).count()).filter(|count| *count > 0);
    let mut length = digits(text)?;
    for _ in 0..2 {
        length += 1 + digits(text[length..].strip_prefix('.')?)?;
    }
    let candidate = text[length..].strip_prefix("-rc.").and_then(digits);
    Some(length + candidate.map_or(0, |count| "-rc.".len() + count))
}

fn in_repository(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

fn yaml(object: &impl serde::Serialize) -> Result<String> {
    let value = whole_numbers(serde_json::to_value(object)?);
    Ok(HEADER.to_owned() + &serde_saphyr::to_string(&value)?)
}

/// Turns floating-point numbers into whole ones where possible: a schema's bounds are floats in its
/// type.
fn whole_numbers(value: Value) -> Value {
    match value {
        #[allow(clippy::cast_possible_truncation, reason = "it is compared with the original")]
        Value::Number(number) => {
            let whole = number.as_f64().map(|float| (float, float as i64));
            let whole = whole.filter(|(float, whole)| number.is_f64() && json!(*whole).as_f64() == Some(*float));
            whole.map_or(Value::Number(number), |(_, whole)| json!(whole))
        }
        Value::Array(list) => list.into_iter().map(whole_numbers).collect(),
        Value::Object(map) => map.into_iter().map(|(key, value)| (key, whole_numbers(value))).collect(),
        other => other,
    }
}

#[test]
fn the_files_are_current() -> Result<()> {
    for (path, contents) in [custom_resources()?, versioned_files()?].concat() {
        let file = in_repository(&path);
        if env::var_os(SWITCH).is_some() {
            fs::write(file, contents).context(path)?;
            continue;
        }
        let found = fs::read_to_string(file).unwrap_or_default();
        assert!(found == contents, "{path} differs from the code: run `cargo xtask generate`");
    }
    Ok(())
}

#[test]
fn a_version_is_replaced_where_something_marks_it() {
    let text = "version: 0.1.0\nkubeVersion: \">= 1.31.0-0\"\nimage: vipmux:0.1.0-rc.1, file: vipmux-0.1.0.tar\nvipmux-agent: \
                0.1.0\n";
    let expected = "version: 1.0.0\nkubeVersion: \">= 1.31.0-0\"\nimage: vipmux:1.0.0, file: vipmux-1.0.0.tar\nvipmux-agent: \
                    0.1.0\n";
    assert_eq!(with_version(text, "1.0.0"), expected);
    assert_eq!(with_version("newTag: 1.0\n", "1.0.1"), "newTag: 1.0\n");
}
