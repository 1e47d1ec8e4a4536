//! Tests two connections of a client from one port to two ports of a VIP that end at the same port
//! of a pod. There they would be the same connection, and replies would be ambiguous.

use anyhow::{Context as _, Result, ensure};
use vipmux_tests::{
    client::Session,
    cluster::{PATIENCE, SILENCE, TIMEOUT},
    lan::Options,
    manifests::Service,
    wait,
};

use crate::policies::{VIPS, WEB, await_web, endpoints, prepared, started, web};

/// The other port of the VIP.
const AGAIN: u16 = 444;
/// The first of the client's ports, outside of the kernel's ephemeral range.
const FIRST_PORT: u16 = 20_000;

#[test]
fn the_second_connection_has_to_wait_for_the_end_of_the_first_which_goes_on() -> Result<()> {
    let Some(cluster) = prepared(Options::HOSTILE, &["node-1"])? else { return Ok(()) };
    let again = Service::sharing("shop/again", AGAIN, "TCP", WEB.1).dual_stack();
    let services = [web(&cluster, &["web-1"])?, again.with(endpoints(&cluster, &["web-1"])?)];
    let cluster = started(cluster, &services)?;
    let client = cluster.lan.client()?;
    await_web(client)?;
    for (vip, port) in VIPS.into_iter().zip(FIRST_PORT..) {
        let connect =
            |server, timeout| client.namespace().run(|| Session::connect_from(port, (vip, server).into(), timeout));
        let mut first = connect(WEB.0, TIMEOUT)?;
        first.echo("one")?;
        let before = cluster.counted("drops", "tuple_collision")?;
        ensure!(connect(AGAIN, SILENCE).is_err(), "{vip}: a connection was made that nobody can tell from the first");
        ensure!(cluster.counted("drops", "tuple_collision")? > before, "{vip}: nothing was counted");
        first.echo("two").with_context(|| format!("{vip}, the first connection after the second was refused"))?;
        first.close()?;
        let mut second = wait::until("the second connection", PATIENCE, || connect(AGAIN, TIMEOUT))?;
        second.echo("three").with_context(|| format!("{vip}, the second connection"))?;
    }
    Ok(())
}

#[test]
fn with_another_pod_the_second_connection_goes_there() -> Result<()> {
    let Some(cluster) = prepared(Options::HOSTILE, &["node-1", "node-1"])? else { return Ok(()) };
    let pods = ["web-1", "web-2"];
    let again = Service::sharing("shop/again", AGAIN, "TCP", WEB.1).dual_stack();
    let services = [web(&cluster, &pods)?, again.with(endpoints(&cluster, &pods)?)];
    let cluster = started(cluster, &services)?;
    let client = cluster.lan.client()?;
    await_web(client)?;
    for port in FIRST_PORT..FIRST_PORT + 20 {
        for vip in VIPS {
            let connect =
                |server| client.namespace().run(|| Session::connect_from(port, (vip, server).into(), TIMEOUT));
            let (mut first, mut second) = (connect(WEB.0)?, connect(AGAIN)?);
            let [one, other] = [first.echo("one")?.pod, second.echo("two")?.pod];
            ensure!(one != other, "{vip}, port {port}: both go to {one}");
            first.close()?;
            second.close()?;
        }
    }
    Ok(())
}
