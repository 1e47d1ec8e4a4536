//! Tests `vipmux check` on a node of a real cluster.

use std::ffi::OsString;

use anyhow::{Context as _, Result, ensure};
use vipmux_model::permissions::AGENT;
use vipmux_tests::{
    agent,
    api_server::{ApiServer, SYSTEM, ServiceAccount},
    lan::{Lan, Options},
    rights,
};

/// Returns the cluster findings of `vipmux check` on the first node, by check.
fn check(lan: &Lan, account: &ServiceAccount, name: &str) -> Result<impl Fn(&str) -> Result<(String, String)> + use<>> {
    let arguments = ["--node-name", name, "--namespace", SYSTEM, "--kubeconfig"].map(OsString::from);
    let arguments = arguments.into_iter().chain([account.kubeconfig.clone().into()]);
    let (status, said) = agent::check(&lan.nodes[0], arguments)?;
    ensure!(matches!(status, 0 | 2), "{status}: {said}");
    Ok(move |check: &str| {
        let mut checks = said["checks"].as_array().context("no checks")?.iter();
        let found = checks.find(|one| one["check"] == check).with_context(|| format!("no {check}: {said:#}"))?;
        let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
        Ok((text("verdict"), text("found")))
    })
}

#[test]
fn missing_objects_and_rights_are_reported_until_they_are_there() -> Result<()> {
    let Some(lan) = Lan::for_test(Options { nodes: 1, clients: 0, ..Options::default() })? else { return Ok(()) };
    let Some(api) = ApiServer::on(&lan)? else { return Ok(()) };
    api.add_namespace(SYSTEM)?;
    api.add_nodes(&lan)?;
    let without: Vec<_> = AGENT.iter().filter(|right| right.resource != "endpointslices").copied().collect();
    rights::grant(&api, "agent", &without)?;
    let account = api.service_account(SYSTEM, "agent")?;

    let of = check(&lan, &account, "node-9")?;
    assert_eq!(of("api")?.0, "pass");
    assert_eq!(of("node")?, ("fail".to_owned(), "there is no Node node-9; present: node-1".to_owned()));
    assert_eq!(of("crds")?.0, "warn");
    let (verdict, found) = of("permissions")?;
    assert_eq!(verdict, "fail");
    assert!(found.contains("vipmux-system:agent\" may not"), "{found}");
    let missing = found.split(" may not ").nth(1).context("nothing is missing")?;
    assert_eq!(missing, "list endpointslices.discovery.k8s.io, watch endpointslices.discovery.k8s.io");

    rights::grant(&api, "agent", &AGENT)?;
    api.add_custom_kinds()?;
    api.add_metallb_kinds()?;
    let of = check(&lan, &account, "node-1")?;
    for name in ["api", "permissions", "crds", "metallb-crds", "leases", "node", "interface"] {
        let (verdict, found) = of(name)?;
        assert_eq!(verdict, "pass", "{name}: {found}");
    }
    assert!(of("metallb-crds")?.1.contains("is served: its pools"));
    assert!(of("node")?.1.contains(&lan.nodes[0].address.to_string()));
    Ok(())
}

#[test]
fn a_check_writes_nothing_but_questions() -> Result<()> {
    let Some(lan) = Lan::for_test(Options { nodes: 1, clients: 0, ..Options::default() })? else { return Ok(()) };
    let Some(api) = ApiServer::on(&lan)? else { return Ok(()) };
    api.add_namespace(SYSTEM)?;
    rights::grant(&api, "agent", &AGENT)?;
    let account = api.service_account(SYSTEM, "agent")?;
    let after = api.mark()?;
    check(&lan, &account, "node-1")?("api")?;
    let asked = api.requests(after)?.into_iter().filter(|request| request.user.ends_with(":agent"));
    let written: Vec<_> =
        asked.filter(vipmux_tests::api_server::Request::is_write).map(|request| request.resource).collect();
    let expected = ["selfsubjectaccessreviews", "selfsubjectreviews"];
    assert!(written.iter().all(|resource| expected.contains(&resource.as_str())), "{written:?}");
    assert_eq!(written.iter().filter(|resource| *resource == expected[0]).count(), AGENT.len());
    Ok(())
}
