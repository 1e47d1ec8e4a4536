//! Tests the harness itself, without vipmux.

use std::{
    io::Read as _,
    net::{Ipv4Addr, SocketAddr, TcpStream},
};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, api::ListParams};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use vipmux_model::permissions::{Right, RightScope};
use vipmux_tests::{
    api_server::{self, ADMIN, ApiServer, Mark, SYSTEM},
    cluster::TIMEOUT,
    failover::await_stopped,
    lan::{Lan, Options},
    rights,
};

fn config_map(value: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "namespace": "default", "name": "note" },
        "data": { "text": value },
    })
}

#[test]
fn objects_outlive_the_api_server() -> Result<()> {
    let Some(mut api) = ApiServer::alone()? else { return Ok(()) };
    api.apply_all(&[config_map("before")])?;
    api.stop()?;
    assert!(api.get(&config_map("")).is_err(), "something answers for the API server that was stopped");
    api.start()?;
    let found = api.get(&config_map(""))?.context("it is gone")?;
    assert_eq!(found["data"]["text"], "before");
    api.delete_all(&[config_map("")])?;
    assert_eq!(api.get(&config_map(""))?, None);
    Ok(())
}

#[test]
fn a_service_account_has_the_rights_of_its_roles_and_its_requests_have_its_name() -> Result<()> {
    let Some(api) = ApiServer::alone()? else { return Ok(()) };
    api.add_namespace(SYSTEM)?;
    let list = Right { group: "", resource: "configmaps", verb: "list", scope: RightScope::Namespace, name: None };
    rights::grant(&api, "reader", &[list])?;
    let account = api.service_account(SYSTEM, "reader")?;
    let after = api.mark()?;
    let (allowed, forbidden) = api.block_on(async {
        let client = api_server::connect(account.kubeconfig).await?;
        let all = ListParams::default();
        let allowed = Api::<ConfigMap>::namespaced(client.clone(), SYSTEM).list(&all).await;
        Ok((allowed, Api::<ConfigMap>::namespaced(client, "default").list(&all).await))
    })?;
    allowed.context("what the role allows is refused")?;
    let forbidden = forbidden.err().context("what no role allows is done")?;
    assert!(forbidden.to_string().contains("configmaps is forbidden"), "{forbidden}");

    let name = format!("system:serviceaccount:{SYSTEM}:reader");
    let requests = api.requests(after)?;
    let reported: Vec<_> = requests
        .iter()
        .filter(|request| request.user == name)
        .map(|request| (request.verb.as_str(), request.resource.as_str(), request.namespace.as_str(), request.code))
        .collect();
    assert_eq!(reported, [("list", "configmaps", SYSTEM, 200), ("list", "configmaps", "default", 403)]);
    Ok(())
}

#[test]
fn writes_are_distinguished_from_reads() -> Result<()> {
    let Some(api) = ApiServer::alone()? else { return Ok(()) };
    let writes = |after| -> Result<Vec<String>> {
        let requests = api.requests(after)?.into_iter().filter(|request| request.user == ADMIN && request.is_write());
        Ok(requests.map(|request| format!("{} {} {}", request.verb, request.resource, request.name)).collect())
    };
    assert_eq!(writes(Mark::default())?, Vec::<String>::new());
    let after = api.mark()?;
    api.apply_all(&[config_map("a")])?;
    api.get(&config_map(""))?;
    assert_eq!(writes(after)?, ["patch configmaps note"]);
    Ok(())
}

#[test]
fn nodes_reach_the_api_server_on_the_lan_and_kubectl_shows_them() -> Result<()> {
    let Some(lan) = Lan::for_test(Options::default())? else { return Ok(()) };
    let Some(api) = ApiServer::on(&lan)? else { return Ok(()) };
    api.add_nodes(&lan)?;
    for address in [api.machine().address.into(), api.machine().address_v6.into()] {
        let server = SocketAddr::new(address, 6443);
        lan.nodes[0].namespace().run(|| Ok(TcpStream::connect_timeout(&server, TIMEOUT).map(drop)?))?;
    }
    let wide = api.kubectl(&["get", "nodes", "-o", "wide"])?;
    ensure!(wide.lines().count() == lan.nodes.len() + 1, "{wide}");
    for (node, row) in lan.nodes.iter().zip(wide.lines().skip(1)) {
        let words: Vec<_> = row.split_whitespace().collect();
        assert_eq!(words[..2], [node.name.as_str(), "Ready"], "{wide}");
        assert!(words.contains(&node.address.to_string().as_str()), "{wide}");
    }
    Ok(())
}

#[test]
fn an_api_server_that_hangs_answers_nobody_until_it_goes_on() -> Result<()> {
    let Some(api) = ApiServer::alone()? else { return Ok(()) };
    api.process().signal(Signal::SIGSTOP)?;
    await_stopped(api.process().id())?;
    let server = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 6443);
    let silent = api.machine().namespace.run(|| {
        // The kernel still accepts connections for it.
        let mut stream = TcpStream::connect_timeout(&server, TIMEOUT)?;
        stream.set_read_timeout(Some(std::time::Duration::from_millis(300)))?;
        std::io::Write::write_all(&mut stream, b"GET / HTTP/1.0\r\n\r\n")?;
        Ok(stream.read(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock))
    })?;
    assert!(silent, "it answers while it is stopped");
    api.process().signal(Signal::SIGCONT)?;
    api.apply_all(&[config_map("a")])?;
    Ok(())
}
