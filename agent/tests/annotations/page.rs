//! Compares docs/annotations.md and docs/annotations-azure.md with the program.

use std::{
    collections::BTreeSet,
    io::Write,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use vipmux_model::dialects;

/// A page of docs/ about annotations.
struct Page {
    name: &'static str,
    text: &'static str,
}

/// The page of all dialects except Azure's. It starts with the pools of all examples.
const MAIN: Page = Page { name: "annotations.md", text: include_str!("../../../docs/annotations.md") };
/// The page of Azure's dialect.
const AZURE: Page = Page { name: "annotations-azure.md", text: include_str!("../../../docs/annotations-azure.md") };

/// A fenced block of a page.
struct Block {
    page: &'static str,
    /// Its first line, from 1.
    line: usize,
    language: &'static str,
    text: String,
}

fn blocks(page: &Page) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut open = false;
    for (index, line) in page.text.lines().enumerate() {
        match (line.strip_prefix("```"), blocks.last_mut().filter(|_| open)) {
            (Some(_), Some(_)) => open = false,
            (Some(language), None) => {
                blocks.push(Block { page: page.name, line: index + 1, language, text: String::new() });
                open = true;
            }
            (None, Some(block)) => block.text.extend([line, "\n"]),
            (None, None) => {}
        }
    }
    blocks
}

/// Returns the result of `vipmux plan` for these manifests: a line `namespace/name addresses
/// reason` for each Service.
fn outcome(manifests: &str) -> Result<Vec<String>> {
    let mut plan = Command::new(env!("CARGO_BIN_EXE_vipmux"));
    let plan =
        plan.args(["plan", "-o", "json", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut plan = plan.spawn()?;
    plan.stdin.take().context("stdin")?.write_all(manifests.as_bytes())?;
    let output = plan.wait_with_output()?;
    ensure!([Some(0), Some(2)].contains(&output.status.code()), "{}", String::from_utf8_lossy(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout)?;
    json["services"].as_array().context("services")?.iter().map(line).collect()
}

fn line(service: &Value) -> Result<String> {
    let text = |name: &str| service[name].as_str().with_context(|| format!("{name} of {service}"));
    let addresses: Vec<&str> =
        service["addresses"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let addresses = if addresses.is_empty() { "-".to_owned() } else { addresses.join(",") };
    Ok(format!("{}/{} {addresses} {}", text("namespace")?, text("name")?, text("reason")?))
}

#[test]
fn every_example_has_the_outcome_that_the_page_shows() -> Result<()> {
    let (main, azure) = (blocks(&MAIN), blocks(&AZURE));
    let (pools, examples) = main.split_first().context("no blocks")?;
    ensure!(pools.language == "yaml" && pools.text.contains("kind: IPAddressPool"), "the first block has the pools");
    let of_examples = |block: &&Block| ["yaml", "text"].contains(&block.language);
    let azure: Vec<&Block> = azure.iter().filter(of_examples).collect();
    ensure!(azure.len() >= 2, "an example of Azure's dialect on its own page");
    let examples: Vec<&Block> = examples.iter().filter(of_examples).chain(azure).collect();
    for pair in examples.chunks(2) {
        let at = format!("{} line {}", pair[0].page, pair[0].line);
        let [example, shown] = pair else { anyhow::bail!("{at}: no outcome") };
        ensure!(
            (example.page, example.language, shown.language) == (shown.page, "yaml", "text"),
            "{at}: manifests, then their outcome"
        );
        let expected: Vec<String> =
            shown.text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        let actual = outcome(&format!("{}---\n{}", pools.text, example.text))?;
        ensure!(actual == expected, "{at}: {actual:#?}, and the page shows {expected:#?}");
    }
    ensure!(examples.len() >= 2 * dialects::ALL.len(), "an example of each dialect");
    Ok(())
}

#[test]
fn every_annotation_of_every_dialect_is_on_the_page() {
    for dialect in dialects::ALL {
        let page = if dialect.name == "azure" { AZURE } else { MAIN };
        let code: BTreeSet<&str> = page.text.split('`').skip(1).step_by(2).collect();
        for spelling in dialect.annotations.iter().flat_map(|(spellings, _)| *spellings) {
            assert!(code.contains(spelling), "{spelling} is not in docs/{}", page.name);
        }
    }
}
