//! Builds the BPF object that the tests attach to the switch's ports.

use std::{env, path::PathBuf, process::ExitCode};

fn main() -> ExitCode {
    // Read at run time, not at compile time: the folder may be a copy.
    let workspace = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from).unwrap_or_default().join("..");
    println!("cargo::rerun-if-changed=build.rs");
    match vipmux_bpf_build::build(&workspace, "testing") {
        Ok(object) => {
            println!("cargo::rustc-env=VIPMUX_TESTING_OBJECT={}", object.display());
            ExitCode::SUCCESS
        }
        Err(message) => {
            println!("cargo::error={message}");
            ExitCode::FAILURE
        }
    }
}
