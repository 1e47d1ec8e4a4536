//! Tests SCTP through a VIP. Its checksum covers the ports, so a Service's port is that of its
//! pods.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use vipmux_tests::{
    client::{Kind, Request, Session},
    cluster::{Cluster, TIMEOUT},
    conntrack,
    lan::Options,
    manifests::Service,
    pod::Listener,
    requirement,
};

use crate::policies::{VIPS, endpoints, prepared, started};

/// The port of S1AP.
const PORT: u16 = 36_412;
/// With 40 associations, the chance that one of two equal backends gets none is below 10^-11.
const ASSOCIATIONS: usize = 40;

#[test]
fn associations_reach_every_pod_which_sees_the_client() -> Result<()> {
    let Some(cluster) = with_sctp()? else { return Ok(()) };
    let client = cluster.lan.client()?;
    for vip in VIPS {
        let mut pods = BTreeSet::new();
        for _ in 0..ASSOCIATIONS {
            let mut session = client.namespace().run(|| Session::associate((vip, PORT).into(), TIMEOUT))?;
            for length in [1, 1_000, 4_000] {
                let answer = session.echo(&"x".repeat(length))?;
                assert_eq!((answer.service.as_str(), answer.client), ("core/mme", session.local_address()?));
                pods.insert(answer.pod);
            }
        }
        ensure!(pods.len() == 2, "{vip}: {pods:?}");
    }
    Ok(())
}

#[test]
fn an_association_goes_on_when_every_node_forgets_its_connections() -> Result<()> {
    let Some(cluster) = with_sctp()? else { return Ok(()) };
    let client = cluster.lan.client()?;
    for vip in VIPS {
        let mut session = client.namespace().run(|| Session::associate((vip, PORT).into(), TIMEOUT))?;
        for line in ["one", "two", "three"] {
            assert_eq!(session.echo(line)?.service, "core/mme");
            cluster.lan.nodes.iter().try_for_each(|node| node.namespace().run(conntrack::flush))?;
        }
        assert_eq!(session.echo("four")?.service, "core/mme");
    }
    Ok(())
}

/// Makes `core/mme` with pods on two nodes, in dual stack; `None` if the test is skipped.
fn with_sctp() -> Result<Option<Cluster>> {
    if !requirement::sctp()? {
        return Ok(None);
    }
    let Some(mut cluster) = prepared(Options::HOSTILE, &[])? else { return Ok(None) };
    let pods = ["mme-1", "mme-2"];
    for (node, pod) in ["node-1", "node-2"].into_iter().zip(pods) {
        cluster.add_pod(node, pod, 50, &[Listener::new(Kind::Sctp, PORT, "core/mme")])?;
    }
    let service = Service::sharing("core/mme", PORT, "SCTP", PORT).dual_stack().with(endpoints(&cluster, &pods)?);
    let cluster = started(cluster, &[service])?;
    for vip in VIPS {
        cluster.await_service(Request::new(Kind::Sctp, vip, PORT), "core/mme")?;
    }
    Ok(Some(cluster))
}
