//! Runs the `vipmux` binary: see [`vipmux::cli`].

use std::process::ExitCode;

use vipmux::cli::{Cli, CommandLineError};

fn main() -> ExitCode {
    let cli = match Cli::read() {
        Ok(cli) => cli,
        Err(CommandLineError::File(error)) => return failed(error),
        Err(CommandLineError::Usage(message)) => {
            // Help and version are no errors. A usage error has exit status 1, like any other
            // unusable input. Clap's 2 would mean that `vipmux plan` found a Service that does not
            // get what it asks for.
            let code = if message.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
            // If this fails, there is nowhere to report it.
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
