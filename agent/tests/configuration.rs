//! Tests the configuration file: its errors, its precedence, and that the schema and
//! docs/configuration.md match the code. `BLESS=1` writes them again.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use anyhow::{Context as _, Result, ensure};
use vipmux::cli::{Cli, config};

/// The lines around the table.
const BEGIN: &str = "<!-- options: made from the code by `BLESS=1 cargo test -p vipmux --test configuration` -->\n";
const END: &str = "<!-- end of options -->";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Compares a file with its expected content, or writes it.
fn compare(path: &str, expected: &str) -> Result<()> {
    let file = root().join(path);
    if std::env::var_os("BLESS").is_some() {
        return fs::write(&file, expected).with_context(|| format!("cannot write {path}"));
    }
    let found = fs::read_to_string(&file).with_context(|| format!("cannot read {path}"))?;
    ensure!(
        found == expected,
        "{path} differs from the code: run `BLESS=1 cargo test -p vipmux --test configuration`, and check the difference"
    );
    Ok(())
}

#[test]
fn the_schema_is_that_of_the_code() -> Result<()> {
    compare("deploy/config.schema.json", &(serde_json::to_string_pretty(&config::schema::<Cli>())? + "\n"))
}

#[test]
fn the_page_has_the_options_of_the_code() -> Result<()> {
    let page = fs::read_to_string(root().join("docs/configuration.md"))?;
    let (before, rest) = page.split_once(BEGIN).context("the page has no table of options")?;
    let (_, after) = rest.split_once(END).context("the table has no end")?;
    compare("docs/configuration.md", &format!("{before}{BEGIN}{}{END}{after}", config::table::<Cli>()))
}

/// Runs `vipmux agent` with a file of this text. It never gets further than the manifests, which do
/// not exist.
fn agent(text: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Result<Output> {
    let folder = tempfile::tempdir()?;
    fs::write(folder.path().join("config.yaml"), text)?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_vipmux"));
    command.args(["agent", "--config", "config.yaml"]).args(arguments).current_dir(folder.path());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("VIPMUX_") || name == "RUST_LOG") {
        command.env_remove(name);
    }
    Ok(command.envs(environment.iter().copied()).output()?)
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn all_errors_of_a_file_are_reported_at_once() -> Result<()> {
    let output = agent("gosipPort: 1\nxdpMode: fast\ninterface: 5\n", &["--node-name", "node-1"], &[])?;
    assert_eq!(output.status.code(), Some(1));
    let page = fs::read_to_string(root().join("docs/configuration.md"))?;
    let (_, shown) =
        page.split_once("$ vipmux agent --node-name node-1 --config config.yaml\n").context("no example")?;
    let (shown, _) = shown.split_once("```").context("the example has no end")?;
    assert_eq!(stderr(&output), shown, "the page shows something else");
    Ok(())
}

#[test]
fn the_pages_example_is_valid() -> Result<()> {
    let page = fs::read_to_string(root().join("docs/configuration.md"))?;
    let (_, example) = page.split_once("```yaml\n").context("no example")?;
    let (example, _) = example.split_once("```").context("the example has no end")?;
    // It has only this mistake.
    let output = agent(&(example.to_owned() + "lease: never\n"), &["--node-name", "n"], &[])?;
    let lines = stderr(&output).lines().count();
    assert!(lines == 2 && stderr(&output).contains("lease: \"never\" cannot be used"), "{}", stderr(&output));
    Ok(())
}

/// The environment takes precedence over the file, and flags over both.
#[test]
fn the_environment_overrides_the_file_and_a_flag_overrides_both() -> Result<()> {
    // The error names the value that is used.
    let error_of = |arguments: &[&str], environment: &[(&str, &str)]| -> Result<String> {
        Ok(stderr(&agent("gossipPort: 7001\nnodeName: of-the-file\n", arguments, environment)?))
    };
    let flag = error_of(&["--gossip-port", "0"], &[("VIPMUX_GOSSIP_PORT", "x")])?;
    assert!(flag.contains("'0' for '--gossip-port"), "{flag}");
    let environment = error_of(&[], &[("VIPMUX_GOSSIP_PORT", "70000")])?;
    assert!(environment.contains("'70000' for '--gossip-port"), "{environment}");
    let name = error_of(&["--node-name", "UPPER"], &[])?;
    assert!(name.contains("'UPPER' for '--node-name"), "{name}");
    Ok(())
}

/// A container may have no other place for it.
#[test]
fn the_environment_can_name_the_file() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("config.yaml");
    fs::write(&file, "nonsense: 1\n")?;
    let output = Command::new(env!("CARGO_BIN_EXE_vipmux")).arg("agent").env("VIPMUX_CONFIG", &file).output()?;
    let expected = format!("vipmux: the configuration file {} cannot be used:\n", file.display());
    assert!(stderr(&output).starts_with(&expected), "{}", stderr(&output));
    Ok(())
}
