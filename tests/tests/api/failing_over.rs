//! What happens to the node that leads, and to the API server, while clients ask: the agents keep their Leases there.

use std::{thread, time::Duration};

use anyhow::Result;
use nix::sys::signal::Signal;
use vipmux_tests::failover::{LAN, Scene, Stage};

/// How long the API server is away.
const OUTAGE: Duration = Duration::from_mins(1);

fn scene() -> Result<Option<Scene>> {
    Stage::in_kubernetes(LAN)?.map(Scene::of).transpose()
}

#[test]
fn a_killed_agents_address_is_taken_over() -> Result<()> {
    let Some(mut scene) = scene()? else { return Ok(()) };
    scene.stage.signal(&scene.node, Signal::SIGKILL)?;
    let other = scene.await_another()?;
    scene.stage.start_agent(&scene.node)?;
    scene.await_return(other)?;
    scene.stays_with(other)?.check_nothing_lost_by_who_knows_the_mac()
}

#[test]
fn an_api_server_that_is_away_for_a_minute_changes_nothing() -> Result<()> {
    let Some(mut scene) = scene()? else { return Ok(()) };
    scene.stage.take_store_away()?;
    thread::sleep(OUTAGE);
    scene.go_on()?;
    scene.stage.bring_store_back()?;
    scene.go_on()?;
    scene.check_sessions()?;
    scene.undisturbed()?.check_nothing_lost()
}

#[test]
fn a_majority_takes_over_while_the_api_server_is_away() -> Result<()> {
    let Some(mut scene) = scene()? else { return Ok(()) };
    scene.stage.take_store_away()?;
    scene.stage.signal(&scene.node, Signal::SIGKILL)?;
    let other = scene.await_another()?;
    scene.stage.bring_store_back()?;
    scene.stays_with(other)?.check_nothing_lost_by_who_knows_the_mac()
}

#[test]
fn a_rolling_update_of_the_agents_loses_nothing() -> Result<()> {
    scene()?.map_or(Ok(()), Scene::outlives_a_rolling_restart)
}
