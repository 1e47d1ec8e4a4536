//! Builds the BPF object that the tests attach to the switch's ports.
#![allow(unreachable_pub, reason = "the modules below are shared with other crates")]

#[path = "../agent/datapath/build/object.rs"]
mod object;
#[path = "../agent/datapath/build/toolchain.rs"]
mod toolchain;

use std::{env, path::PathBuf, process::ExitCode};

fn main() -> ExitCode {
    // Read at run time, not at compile time: the folder may be a copy.
    let workspace = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from).unwrap_or_default().join("..");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../agent/datapath/build");
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
