//! Builds the BPF object that the tests attach to the switch's ports.
#![allow(unreachable_pub, reason = "the modules below are shared with other crates")]

#[path = "../agent/build/object.rs"]
mod object;
#[path = "../agent/build/toolchain.rs"]
mod toolchain;

use std::{env, path::PathBuf, process::ExitCode};

fn main() -> ExitCode {
    // Asked for now, not when this was built: the folder may be a copy.
    let workspace = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from).unwrap_or_default().join("..");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../agent/build");
    match object::build(&workspace, "testing") {
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
