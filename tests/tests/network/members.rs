//! Tests `vipmux inspect members` on live agents.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use vipmux_tests::{
    cluster::{Cluster, PATIENCE},
    lan::Options,
    manifests::VIP,
    wait,
};

use crate::services;

/// Waits until a member fulfills a condition.
fn await_member(cluster: &Cluster, by: &str, node: &str, is: impl Fn(&Value) -> bool) -> Result<Value> {
    wait::until(&format!("how {by} has {node}"), PATIENCE, || {
        let member = cluster.member(by, node)?;
        ensure!(is(&member), "{member}");
        Ok(member)
    })
    .with_context(|| cluster.last_outputs())
}

/// Returns a node's row of the table, by column. Empty cells are `-`.
fn row(cluster: &Cluster, by: &str, node: &str) -> Result<Vec<(String, String)>> {
    let table = cluster.agent(by)?.inspect(cluster.lan.node(by)?, &["members"])?;
    // Columns are two spaces apart.
    let cells =
        |line: &str| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect();
    let header: Vec<String> = cells(table.lines().next().context("no header")?);
    let row = table.lines().find(|line| line.starts_with(node)).with_context(|| format!("no {node} in {table}"))?;
    let row: Vec<String> = cells(row);
    ensure!(row.len() == header.len(), "{table}");
    Ok(header.into_iter().zip(row).collect())
}

/// Waits until the table has a node with these cells.
fn await_row(cluster: &Cluster, by: &str, node: &str, expected: &[(&str, &str)]) -> Result<()> {
    wait::until(&format!("the row of {node} on {by}"), PATIENCE, || {
        let row = row(cluster, by, node)?;
        let has = |(column, cell): &(&str, &str)| row.iter().any(|(name, value)| name == column && value == cell);
        ensure!(expected.iter().all(has), "{row:?}, and not {expected:?}");
        Ok(())
    })
    .with_context(|| cluster.last_outputs())
}

#[test]
fn members_are_shown_as_they_are_and_as_they_come_and_go() -> Result<()> {
    let Some(mut cluster) = services::served(Options::default())? else { return Ok(()) };
    for by in &cluster.lan.nodes {
        for node in &cluster.lan.nodes {
            let (standing, word) = if node.name == by.name { ("this_node", "this node") } else { ("alive", "alive") };
            let (name, mac) = (node.name.as_str(), node.mac.to_string());
            let own = node.name == by.name;
            let is = |member: &Value| {
                member["standing"] == standing && member["mac"] == mac && member["heard_ms"].is_null() == own
            };
            let member = await_member(&cluster, &by.name, name, is)?;
            assert_eq!(member["draining"], false, "{member}");
            await_row(&cluster, &by.name, name, &[("STANDING", word), ("READY", "hold-down"), ("MAC", &mac)])?;
        }
    }

    let first = cluster.await_leader(VIP)?.name.clone();
    let by = if first == "node-1" { "node-2" } else { "node-1" };
    for by in [by, &first] {
        await_member(&cluster, by, &first, |member| member["vips"] == 1)?;
    }
    cluster.agent_mut(&first)?.process_mut().kill()?;
    await_member(&cluster, by, &first, |member| member["standing"] == "down" && member["vips"] == 0)?;
    await_row(&cluster, by, &first, &[("STANDING", "down"), ("READY", "-"), ("VIPS", "0")])?;
    let second = wait::until("another leader", PATIENCE, || {
        let leader = cluster.await_leader(VIP)?.name.clone();
        ensure!(leader != first, "{first} still answers");
        Ok(leader)
    })?;
    cluster.restart_agent(&first)?;
    cluster.await_standing(by, &first, "alive")?;
    await_member(&cluster, &first, &second, |member| member["vips"] == 1)?;
    let (code, said, error) = cluster.agent(&second)?.drain(cluster.lan.node(&second)?, &[])?;
    ensure!(code == 0, "{said}{error}");
    for by in [&first, &second] {
        let standing = if *by == second { "this_node" } else { "alive" };
        await_member(&cluster, by, &second, |member| {
            member["draining"] == true && member["vips"] == 0 && member["standing"] == standing
        })?;
        await_row(&cluster, by, &second, &[("READY", "draining"), ("VIPS", "0")])?;
    }
    cluster.restart_agent(&second)?;
    await_member(&cluster, &first, &second, |member| member["standing"] == "alive" && member["draining"] == false)?;

    cluster.agent_mut(&second)?.stop()?;
    cluster.await_standing(&first, &second, "left")?;
    await_row(&cluster, &first, &second, &[("STANDING", "left"), ("READY", "-")])?;

    // Only this node's hold-down ends, so it gets what the others lead.
    cluster.agent_mut(&second)?.options_mut().hold_down = "1s";
    cluster.restart_agent(&second)?;
    await_row(&cluster, &first, &second, &[("STANDING", "alive"), ("READY", "yes"), ("VIPS", "1")])
}
