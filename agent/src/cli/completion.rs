//! Runs `vipmux completion`.

use std::io::{self, Write as _};

use anyhow::Context as _;
use clap::CommandFactory as _;
use clap_complete::Shell;

use super::Cli;
use vipmux_inspect::output::table::ignore_broken_pipe;

/// Arguments of `vipmux completion`.
#[derive(Clone, Copy, Debug, clap::Args)]
#[command(after_help = "For bash: `source <(vipmux completion bash)`, or write the script to \
                        /etc/bash_completion.d/vipmux. For zsh, write it to a file _vipmux in a folder of `fpath`. For \
                        fish: ~/.config/fish/completions/vipmux.fish.")]
pub struct CompletionArgs {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Prints the shell's script.
pub(super) fn run(args: CompletionArgs) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "vipmux", &mut script);
    ignore_broken_pipe(io::stdout().write_all(&script)).context("cannot write the script")
}
