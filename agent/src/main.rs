//! Runs the `vipmux` binary: see [`vipmux::cli`].

use std::{env, ffi::OsString, process::ExitCode};

use vipmux_supervisor::Supervisor;

fn main() -> ExitCode {
    vipmux::cli::run(&env::args_os().collect::<Vec<OsString>>(), &Supervisor::default())
}
