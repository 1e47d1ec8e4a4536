//! The configuration file: what is said of a bad one, what goes before what, and that the schema and docs/configuration.md are
//! those of the code. `BLESS=1` writes them anew.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use anyhow::{Context as _, Result, ensure};
use vipmux::cli::{Cli, config};

/// Around the table.
const BEGIN: &str = "<!-- options: made from the code by `BLESS=1 cargo test -p vipmux --test configuration` -->\n";
const END: &str = "<!-- end of options -->";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Holds a file to what it should be, or makes it that.
fn hold(path: &str, expected: &str) -> Result<()> {
    let file = root().join(path);
    if std::env::var_os("BLESS").is_some() {
        return fs::write(&file, expected).with_context(|| format!("cannot write {path}"));
    }
    let found = fs::read_to_string(&file).with_context(|| format!("cannot read {path}"))?;
    ensure!(
        found == expected,
        "{path} is not that of the code: run `BLESS=1 cargo test -p vipmux --test configuration`, and look at the difference"
    );
    Ok(())
}

#[test]
fn the_schema_is_that_of_the_code() -> Result<()> {
    hold("deploy/config.schema.json", &(serde_json::to_string_pretty(&config::schema::<Cli>())? + "\n"))
}

#[test]
fn the_page_has_the_options_of_the_code() -> Result<()> {
    let page = fs::read_to_string(root().join("docs/configuration.md"))?;
    let (before, rest) = page.split_once(BEGIN).context("the page has no table of options")?;
    let (_, after) = rest.split_once(END).context("the table has no end")?;
    hold("docs/configuration.md", &format!("{before}{BEGIN}{}{END}{after}", config::table::<Cli>()))
}

/// `vipmux agent` with a file of this text. It never gets further than to the manifests, which are not there.
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

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn all_that_is_wrong_with_a_file_is_told_at_once() -> Result<()> {
    let output = agent("gosipPort: 1\nxdpMode: fast\ninterface: 5\n", &["--node-name", "node-1"], &[])?;
    assert_eq!(output.status.code(), Some(1));
    let page = fs::read_to_string(root().join("docs/configuration.md"))?;
    let (_, shown) =
        page.split_once("$ vipmux agent --node-name node-1 --config config.yaml\n").context("no example")?;
    let (shown, _) = shown.split_once("```").context("the example has no end")?;
    assert_eq!(said(&output), shown, "the page shows something else");
    Ok(())
}

#[test]
fn the_pages_example_is_a_good_one() -> Result<()> {
    let page = fs::read_to_string(root().join("docs/configuration.md"))?;
    let (_, example) = page.split_once("```yaml\n").context("no example")?;
    let (example, _) = example.split_once("```").context("the example has no end")?;
    // One thing alone is wrong with it.
    let output = agent(&(example.to_owned() + "lease: never\n"), &["--node-name", "n"], &[])?;
    let lines = said(&output).lines().count();
    assert!(lines == 2 && said(&output).contains("lease: \"never\" cannot be used"), "{}", said(&output));
    Ok(())
}

/// The environment is between the flags and the file.
#[test]
fn the_environment_goes_before_the_file_and_a_flag_before_it() -> Result<()> {
    // Told of the value that is taken, and of no other.
    let told = |arguments: &[&str], environment: &[(&str, &str)]| -> Result<String> {
        Ok(said(&agent("gossipPort: 7001\nnodeName: of-the-file\n", arguments, environment)?))
    };
    let flag = told(&["--gossip-port", "0"], &[("VIPMUX_GOSSIP_PORT", "x")])?;
    assert!(flag.contains("'0' for '--gossip-port"), "{flag}");
    let environment = told(&[], &[("VIPMUX_GOSSIP_PORT", "70000")])?;
    assert!(environment.contains("'70000' for '--gossip-port"), "{environment}");
    let name = told(&["--node-name", "UPPER"], &[])?;
    assert!(name.contains("'UPPER' for '--node-name"), "{name}");
    Ok(())
}

/// Otherwise it could be named nowhere else.
#[test]
fn the_environment_can_name_the_file() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("config.yaml");
    fs::write(&file, "nonsense: 1\n")?;
    let output = Command::new(env!("CARGO_BIN_EXE_vipmux")).arg("agent").env("VIPMUX_CONFIG", &file).output()?;
    let expected = format!("vipmux: the configuration file {} cannot be used:\n", file.display());
    assert!(said(&output).starts_with(&expected), "{}", said(&output));
    Ok(())
}
