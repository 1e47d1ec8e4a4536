//! The `vipmux` binary: see [`vipmux::cli`].

use std::process::ExitCode;

use clap::Parser;
use vipmux::cli::Cli;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(message) => {
            // Help and version are asked for; a wrong usage is unusable input, which has exit status 1 everywhere here
            // (clap's own 2 means that a plan does not give everyone what they asked for).
            let code = if message.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
            // Nothing is left to tell it to if this fails.
            let _ = message.print();
            return code;
        }
    };
    match cli.run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("vipmux: {:#}", anyhow::Error::from(error));
            ExitCode::FAILURE
        }
    }
}
