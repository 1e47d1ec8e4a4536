//! docs/annotations.md against the program.

use std::{
    collections::BTreeSet,
    io::Write,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use vipmux::model::dialects;

const PAGE: &str = include_str!("../../../docs/annotations.md");

/// A fenced block of the page.
struct Block {
    /// The line that it begins on, from 1.
    line: usize,
    language: &'static str,
    text: String,
}

fn blocks() -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut open = false;
    for (index, line) in PAGE.lines().enumerate() {
        match (line.strip_prefix("```"), blocks.last_mut().filter(|_| open)) {
            (Some(_), Some(_)) => open = false,
            (Some(language), None) => {
                blocks.push(Block { line: index + 1, language, text: String::new() });
                open = true;
            }
            (None, Some(block)) => block.text.extend([line, "\n"]),
            (None, None) => {}
        }
    }
    blocks
}

/// `namespace/name addresses reason`, a line for each Service, as `vipmux plan` has it for these manifests.
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
fn every_example_comes_to_what_the_page_says() -> Result<()> {
    let blocks = blocks();
    let (pools, examples) = blocks.split_first().context("no blocks")?;
    ensure!(pools.language == "yaml" && pools.text.contains("kind: IPAddressPool"), "the first block has the pools");
    let examples: Vec<&Block> = examples.iter().filter(|block| ["yaml", "text"].contains(&block.language)).collect();
    for pair in examples.chunks(2) {
        let [example, says] = pair else { anyhow::bail!("line {}: no outcome", pair[0].line) };
        ensure!(
            (example.language, says.language) == ("yaml", "text"),
            "line {}: manifests, then their outcome",
            example.line
        );
        let said: Vec<String> =
            says.text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        let comes_to = outcome(&format!("{}---\n{}", pools.text, example.text))?;
        ensure!(comes_to == said, "line {}: {comes_to:#?}, and the page says {said:#?}", example.line);
    }
    ensure!(examples.len() >= 2 * dialects::ALL.len(), "an example of each dialect");
    Ok(())
}

#[test]
fn every_annotation_of_every_dialect_is_on_the_page() {
    let code: BTreeSet<&str> = PAGE.split('`').skip(1).step_by(2).collect();
    for spelling in dialects::ALL.iter().flat_map(|dialect| dialect.annotations).flat_map(|(spellings, _)| *spellings) {
        assert!(code.contains(spelling), "{spelling} is not in docs/annotations.md");
    }
}
