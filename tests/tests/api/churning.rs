//! Tests that changes leave nothing behind. `cargo xtask churn` does the same for an hour.

use std::time::Duration;

use anyhow::{Context as _, Result};
use vipmux_tests::churn::{Churn, Plan};

#[test]
fn after_services_agents_and_leaders_have_changed_everything_is_as_before() -> Result<()> {
    let plan = Plan { time: Duration::ZERO, services: 38 };
    let Some(mut churn) = Churn::start(&plan)? else { return Ok(()) };
    let samples = churn.run(plan.time, &mut |_, _| {})?;
    churn.await_counts_of(samples.first().context("no sample")?)?;
    churn.stop()?.check_none_by_others("staying/s0")
}
