//! Installs what is needed to compile static programs.

use std::{
    env,
    ffi::OsString,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use crate::workspace;

/// Ensures that static programs can be built. Returns the target triple.
pub(crate) fn install() -> Result<&'static str> {
    let (triple, compiler) = match env::consts::ARCH {
        "x86_64" => ("x86_64-unknown-linux-musl", "x86_64-linux-musl-gcc"),
        "aarch64" => ("aarch64-unknown-linux-musl", "aarch64-linux-musl-gcc"),
        other => bail!("cannot build a static binary on {other}: use an x86-64 or arm64 machine"),
    };
    super::programs(&[(compiler, "musl-tools", "the image's binary links musl and contains C code")])?;
    if !has_library(triple) {
        workspace::progress(&format!(
            "installing Rust's library for {triple} with rustup: the image's binary is static"
        ));
        let mut rustup = Command::new("rustup");
        rustup.args(["target", "add", triple]).current_dir(workspace::root());
        workspace::prepare(&mut rustup).with_context(|| format!("no standard library for {triple}"))?;
    }
    Ok(triple)
}

/// Returns whether this rustc has its standard library for a target.
fn has_library(triple: &str) -> bool {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| OsString::from("rustc"));
    let mut command = Command::new(rustc);
    command.args(["--print", "target-libdir", "--target", triple]).stdin(Stdio::null()).current_dir(workspace::root());
    let Ok(output) = command.output() else { return false };
    Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir()
}
