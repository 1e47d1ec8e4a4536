//! The `vipmux` binary: see [`vipmux::cli`].

use std::process::ExitCode;

use vipmux::cli::{Cli, CommandLineError};

fn main() -> ExitCode {
    let cli = match Cli::read() {
        Ok(cli) => cli,
        Err(CommandLineError::File(error)) => return failed(error),
        Err(CommandLineError::Usage(message)) => {
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
        Err(error) => failed(error),
    }
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> ExitCode {
    eprintln!("vipmux: {:#}", anyhow::Error::from(error));
    ExitCode::FAILURE
}
