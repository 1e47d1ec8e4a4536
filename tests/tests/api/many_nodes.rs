//! Tests what many nodes ask of an API server when half of them are gone. The figures are printed, and no
//! assertion depends on them.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Result, ensure};
use vipmux_cluster::access::ClusterAccess;
use vipmux_tests::{
    api_server::{ADMIN, ApiServer, Request, SYSTEM},
    fleet::Fleet,
};

const NODES: u16 = 200;
const VIPS: u16 = 200;
/// Longer than the default: 200 nodes in one process are slow.
const LEASE: Duration = Duration::from_secs(2);
/// The time for which the rest is observed.
const OBSERVED: Duration = Duration::from_secs(10);

fn counted<'a>(requests: impl Iterator<Item = &'a Request>) -> BTreeMap<&'a str, usize> {
    let mut counts = BTreeMap::new();
    for request in requests.filter(|request| request.resource == "leases") {
        *counts.entry(request.verb.as_str()).or_default() += 1;
    }
    counts
}

#[test]
fn half_of_two_hundred_nodes_take_over_and_read_one_record_a_second_each() -> Result<()> {
    let Some(api) = ApiServer::alone()? else { return Ok(()) };
    api.add_namespace(SYSTEM)?;
    let access = ClusterAccess {
        kubeconfig: Some(api.kubeconfig(ADMIN)?),
        namespace: Some(SYSTEM.to_owned()),
        ..ClusterAccess::default()
    };
    let (began, taken, observed, fleet) = api.block_on(async {
        let mut fleet = Fleet::new(&access, NODES, VIPS, LEASE).await?;
        fleet.run_until_answered().await?;
        fleet.run(LEASE * 2).await;
        let began = api.mark()?;
        fleet.kill_half();
        fleet.run(LEASE).await;
        let took = fleet.run_until_answered().await?;
        // All have written their promise by then.
        fleet.run(LEASE * 2).await;
        let observed = api.mark()?;
        let lapses = fleet.lapses();
        fleet.run(OBSERVED).await;
        println!("{NODES} nodes, half of them killed: all {VIPS} VIPs answered after {:?}", LEASE + took);
        println!("deadlines that passed: {lapses} until then, {} later", fleet.lapses() - lapses);
        let taken = api.requests(began)?;
        Ok((taken.len(), taken, api.requests(observed)?, fleet))
    })?;
    let (all, rest) = (counted(taken.iter()), counted(observed.iter()));
    println!("{began} requests; for Leases: {all:?}; {OBSERVED:?} of these later: {rest:?}");
    ensure!(fleet.overlaps.is_empty(), "two nodes answered for a VIP: {:#?}", fleet.overlaps);
    ensure!(!all.contains_key("list"), "{all:?}");
    ensure!(!rest.contains_key("patch") && !rest.contains_key("update"), "{rest:?}");
    // Each living node leads something, and reads its record at twice the rate of its promise.
    let reads = rest.get("get").copied().unwrap_or_default();
    let most = usize::from(NODES / 2) * usize::try_from(OBSERVED.as_secs() + 2)?;
    ensure!((1..=most).contains(&reads), "{reads} reads, {most} at most");
    Ok(())
}
