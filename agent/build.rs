//! Builds the BPF object and tells the crate where it is, for `include_bytes_aligned!`.

#[path = "build/object.rs"]
mod object;
#[path = "build/toolchain.rs"]
mod toolchain;

use std::{path::Path, process::ExitCode};

fn main() -> ExitCode {
    let workspace = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build");
    match object::build(workspace, "vipmux") {
        Ok(object) => {
            println!("cargo::rustc-env=VIPMUX_BPF_OBJECT={}", object.display());
            ExitCode::SUCCESS
        }
        Err(message) => {
            println!("cargo::error={message}");
            ExitCode::FAILURE
        }
    }
}
