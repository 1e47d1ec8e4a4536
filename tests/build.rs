//! Builds the BPF object that the tests attach to the switch's ports.
#![allow(unreachable_pub, reason = "the modules below are shared with other crates")]

#[path = "../agent/build/object.rs"]
mod object;
#[path = "../agent/build/toolchain.rs"]
mod toolchain;

use std::{path::Path, process::ExitCode};

fn main() -> ExitCode {
    let workspace = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../agent/build");
    match object::build(workspace, "testing") {
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
