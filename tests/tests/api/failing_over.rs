//! Tests failovers and outages of the API server, which has the agents' Leases.

use std::{thread, time::Duration};

use anyhow::Result;
use nix::sys::signal::Signal;
use vipmux_tests::failover::{FailoverCluster, LAN, ObservedFailover};

/// The time that the API server is away.
const OUTAGE: Duration = Duration::from_mins(1);

fn failover() -> Result<Option<ObservedFailover>> {
    FailoverCluster::in_kubernetes(LAN)?.map(ObservedFailover::of).transpose()
}

#[test]
fn a_killed_agents_address_is_taken_over() -> Result<()> {
    let Some(mut failover) = failover()? else { return Ok(()) };
    failover.setup.signal(&failover.node, Signal::SIGKILL)?;
    let other = failover.await_another()?;
    failover.setup.start_agent(&failover.node)?;
    failover.await_return(other)?;
    failover.stays_with(other)?.check_nothing_lost_by_who_knows_the_mac()
}

#[test]
fn an_api_server_that_is_away_for_a_minute_changes_nothing() -> Result<()> {
    let Some(mut failover) = failover()? else { return Ok(()) };
    failover.setup.break_store()?;
    thread::sleep(OUTAGE);
    failover.go_on()?;
    failover.setup.restore_store()?;
    failover.go_on()?;
    failover.check_sessions()?;
    failover.undisturbed()?.check_nothing_lost()
}

#[test]
fn a_majority_takes_over_while_the_api_server_is_away() -> Result<()> {
    let Some(mut failover) = failover()? else { return Ok(()) };
    failover.setup.break_store()?;
    failover.setup.signal(&failover.node, Signal::SIGKILL)?;
    let other = failover.await_another()?;
    failover.setup.restore_store()?;
    failover.stays_with(other)?.check_nothing_lost_by_who_knows_the_mac()
}

#[test]
fn a_rolling_update_of_the_agents_loses_nothing() -> Result<()> {
    failover()?.map_or(Ok(()), ObservedFailover::outlives_a_rolling_restart)
}
