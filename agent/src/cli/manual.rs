//! Runs `vipmux manual`, with which a release makes its man pages.
//!
//! Only the program itself knows its options. A program of its own would compile everything a second time.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use clap::CommandFactory as _;

use super::Cli;

/// Arguments of `vipmux manual`.
#[derive(Clone, Debug, clap::Args)]
pub struct ManualArgs {
    /// The folder for the pages. It is made if it does not exist
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// Writes a page for each command: vipmux.1, vipmux-agent.1, vipmux-inspect-vips.1 and so on.
pub(super) fn run(args: &ManualArgs) -> anyhow::Result<()> {
    write(&args.folder).with_context(|| format!("cannot write man pages into {}", args.folder.display()))
}

fn write(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    // `vipmux help` has no page of its own.
    clap_mangen::generate_to(Cli::command().disable_help_subcommand(true), folder)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_command_that_help_lists_has_a_page_and_the_others_have_none() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path()).unwrap();
        let pages: BTreeSet<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        let pages: BTreeSet<_> = pages.iter().map(|name| name.to_str().unwrap().trim_end_matches(".1")).collect();
        let command = Cli::command();
        let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
        for name in shown.map(|command| format!("vipmux-{}", command.get_name())) {
            assert!(pages.contains(name.as_str()), "no {name} in {pages:?}");
        }
        assert!(pages.contains("vipmux") && pages.contains("vipmux-inspect-vips"), "{pages:?}");
        assert!(!pages.iter().any(|page| page.contains("help") || page.contains("manual")), "{pages:?}");
        let agent = fs::read_to_string(folder.path().join("vipmux-agent.1")).unwrap();
        assert!(agent.contains("gossip\\-key") && agent.contains("VIPMUX_GOSSIP_KEY"), "{agent}");
    }

    #[test]
    fn the_error_names_the_folder() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = run(&ManualArgs { folder: file.path().to_owned() }).unwrap_err();
        assert!(error.to_string().contains(file.path().to_str().unwrap()), "{error}");
    }
}
