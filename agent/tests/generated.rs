//! Compares the files that `cargo xtask generate` writes with the code.

use std::{env, fs, path::PathBuf};

use anyhow::{Context as _, Result};
use kube::CustomResourceExt as _;
use serde_json::{Value, json};
use vipmux_model::api::{VipPolicy, VipPool};

/// The variable that `cargo xtask generate` sets: then files are written instead of compared.
const SWITCH: &str = "BLESS";
const HEADER: &str = "# Written by `cargo xtask generate` from the types in agent/model/src/api.\n";

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
    for (path, contents) in custom_resources()? {
        let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").join(&path);
        if env::var_os(SWITCH).is_some() {
            fs::write(file, contents).context(path)?;
            continue;
        }
        let found = fs::read_to_string(file).unwrap_or_default();
        assert!(found == contents, "{path} differs from the code: run `cargo xtask generate`");
    }
    Ok(())
}
