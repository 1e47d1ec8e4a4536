//! Writes the bill of materials, in CycloneDX 1.6.
//!
//! cargo-cyclonedx writes one file for each crate, into the crates' folders, with this machine's paths in it,
//! and knows only one workspace. Here the BPF programs' crates count too, and the file is reproducible.

use serde_json::{Value, json};

use super::{
    crates::{Crate, Crates},
    source::Source,
};

/// Returns the document. `rust` is the version of Rust's library, which is linked too.
pub(super) fn document(source: &Source, rust: &str, crates: &Crates) -> Value {
    let program = format!("pkg:generic/vipmux@{}", source.version);
    let library = format!("pkg:generic/rust-std@{rust}");
    let mut components: Vec<_> = crates.all.keys().map(component).collect();
    components.push(json!({
        "type": "library", "bom-ref": library, "name": "rust-std", "version": rust, "purl": library,
        "licenses": [{ "expression": "MIT OR Apache-2.0" }],
    }));
    let mut direct: Vec<_> = crates.direct.iter().map(purl).collect();
    direct.push(library.clone());
    let mut dependencies = vec![json!({ "ref": program, "dependsOn": direct })];
    dependencies.extend(
        crates
            .all
            .iter()
            .map(|(one, needed)| json!({ "ref": purl(one), "dependsOn": needed.iter().map(purl).collect::<Vec<_>>() })),
    );
    dependencies.push(json!({ "ref": library }));
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": source.time,
            "component": {
                "type": "application", "bom-ref": program, "name": "vipmux", "version": source.version, "purl": program,
                "licenses": [{ "expression": "(MIT OR Apache-2.0) AND (MIT OR GPL-2.0-only)" }],
                "properties": [{ "name": "vipmux:commit", "value": source.commit }],
            },
        },
        "components": components,
        "dependencies": dependencies,
    })
}

fn component(one: &Crate) -> Value {
    let mut component = json!({
        "type": "library", "bom-ref": purl(one), "name": one.name, "version": one.version, "purl": purl(one),
    });
    if !one.license.is_empty() {
        component["licenses"] = json!([{ "expression": one.license }]);
    }
    component
}

/// Returns a crate's package URL. A plus sign, which begins build metadata, must be encoded there.
fn purl(one: &Crate) -> String {
    format!("pkg:cargo/{}@{}", one.name, one.version.replace('+', "%2B"))
}

#[cfg(test)]
mod tests {
    use std::{
        collections::{BTreeMap, BTreeSet},
        path::Path,
    };

    use super::*;
    use crate::release::crates::tests::published;

    #[test]
    fn each_dependency_is_a_component() {
        let [a, mut b] = ["a", "b"].map(|name| published(name, "MIT", Path::new("/")));
        b.version = "1.0.0+x".to_owned();
        let all = BTreeMap::from([(a.clone(), BTreeSet::from([b.clone()])), (b, BTreeSet::new())]);
        let source = Source::fixture("0.1.0");
        let document = document(&source, "1.95.0", &Crates { direct: [a].into(), all });
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let components = document["components"].as_array().unwrap();
        let known: BTreeSet<_> = components.iter().map(|component| text(&component["bom-ref"])).collect();
        let expected = ["pkg:cargo/a@1.0.0", "pkg:cargo/b@1.0.0%2Bx", "pkg:generic/rust-std@1.95.0"];
        assert_eq!(known, expected.map(str::to_owned).into());
        let dependencies = document["dependencies"].as_array().unwrap();
        assert_eq!(dependencies[0]["dependsOn"], json!(["pkg:cargo/a@1.0.0", "pkg:generic/rust-std@1.95.0"]));
        assert_eq!(dependencies[1]["dependsOn"], json!(["pkg:cargo/b@1.0.0%2Bx"]));
        let named = dependencies.iter().flat_map(|one| one["dependsOn"].as_array().cloned().unwrap_or_default());
        assert!(named.into_iter().all(|name| known.contains(&text(&name))));
        assert_eq!(document["metadata"]["timestamp"], source.time);
    }
}
