//! Tests that the YAML in docs/pools.md has the result that the page shows.

use std::{fs, process::Command};

use anyhow::{Context, Result};

const PAGE: &str = include_str!("../../docs/pools.md");

/// A Service that names neither pool nor address.
const SERVICE: &str = "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, \
                       spec: {type: LoadBalancer, ports: [{port: 80}]}}";

/// Returns the blocks of this language, in the page's order.
fn blocks(language: &str) -> Vec<&'static str> {
    let fence = format!("```{language}\n");
    PAGE.split(fence.as_str()).skip(1).filter_map(|rest| Some(rest.split_once("```")?.0)).collect()
}

#[test]
fn the_page_begins_with_a_pool_that_serves_any_service() -> Result<()> {
    let blocks = blocks("yaml");
    let pool = blocks.first().context("no pool")?;
    assert_eq!(pool.lines().count(), 6, "{pool}");
    let directory = tempfile::tempdir()?;
    fs::write(directory.path().join("pool.yaml"), pool)?;
    fs::write(directory.path().join("service.yaml"), SERVICE)?;
    let plan = ["plan", "-o", "json", "pool.yaml", "service.yaml"];
    let output = Command::new(env!("CARGO_BIN_EXE_vipmux")).args(plan).current_dir(directory.path()).output()?;
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let plan: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let service = &plan["services"][0];
    assert_eq!((service["name"].as_str(), service["addresses"][0].as_str()), (Some("web"), Some("192.0.2.200")));
    Ok(())
}

#[test]
fn the_pages_example_is_planned_as_the_page_shows() -> Result<()> {
    let directory = tempfile::tempdir()?;
    fs::write(directory.path().join("example.yaml"), blocks("yaml").get(1).context("no example")?)?;
    let console = blocks("console");
    let (command, shown) = console.first().context("no console block")?.split_once('\n').context("no output")?;
    let arguments = command.strip_prefix("$ vipmux ").context("no command")?.split_whitespace();
    let output = Command::new(env!("CARGO_BIN_EXE_vipmux")).args(arguments).current_dir(directory.path()).output()?;
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(String::from_utf8_lossy(&output.stdout), shown);
    Ok(())
}
