//! Tests validation of vipmux's custom kinds by the API server.

use anyhow::{Context as _, Result};
use serde_json::json;
use vipmux_tests::api_server::ApiServer;

const POOL: &str = "
apiVersion: vipmux.io/v1alpha1
kind: VipPool
metadata: { name: edge }
spec:
  addresses: [192.0.2.200-192.0.2.219, 2001:db8::200/120]
";

/// A pool, its flaw, and the API server's message.
const MISTAKES: [(&str, &str, &str); 4] = [
    ("addresses: [192.0.2.200-192.0.2.219", "addresses: [192.0.2.200..192.0.2.219", "must be a CIDR"),
    ("addresses: [192.0.2.200-", "addresses: [2001:db8::1-", "a range of one family"),
    ("spec:", "spec:\n  aliases: [edge]", "must not contain metadata.name"),
    ("spec:", "spec:\n  sharing: sometimes", "Unsupported value: \"sometimes\""),
];

#[test]
fn the_api_server_takes_a_pool_and_shows_it_in_columns() -> Result<()> {
    let Some(api) = ApiServer::alone()? else { return Ok(()) };
    api.add_custom_kinds()?;
    api.apply(POOL)?;
    let pool = json!({"apiVersion": "vipmux.io/v1alpha1", "kind": "VipPool", "metadata": {"name": "edge"}});
    let pool = api.get(&pool)?.context("the pool is not there")?;
    // The default in the schema, which the API server fills in.
    assert_eq!(pool["spec"]["autoAssign"], true, "{pool}");

    let table = api.kubectl(&["get", "vippools"])?;
    let mut lines = table.lines();
    let header: Vec<_> = lines.next().context("kubectl says nothing")?.split("  ").map(str::trim).collect();
    for column in ["NAME", "ADDRESSES", "AUTO-ASSIGN", "PRIORITY", "IPV4 USED", "IPV4", "IPV6 USED", "AGE"] {
        assert!(header.contains(&column), "{table}");
    }
    let row = lines.next().context("no row")?;
    assert!(row.starts_with("edge ") && row.contains("192.0.2.200-192.0.2.219"), "{table}");
    Ok(())
}

#[test]
fn the_api_server_refuses_a_bad_pool_and_says_why() -> Result<()> {
    let Some(api) = ApiServer::alone()? else { return Ok(()) };
    api.add_custom_kinds()?;
    for (right, wrong, why) in MISTAKES {
        assert!(POOL.contains(right), "{right}");
        let error = api.apply(&POOL.replace(right, wrong)).err().with_context(|| format!("{wrong:?} was taken"))?;
        assert!(format!("{error:#}").contains(why), "{wrong:?}: {error:#}");
    }
    assert_eq!(api.kubectl(&["get", "vippools", "-o", "name"])?, "");
    Ok(())
}
