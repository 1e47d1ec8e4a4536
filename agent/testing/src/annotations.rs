//! Checks the rules that hold for any annotations. The property test and the fuzz target
//! (`tests/fuzz`) use it.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use vipmux_model::{
    address_names::AddressNames,
    dialects::{self, Meaning},
    reason::{Reason, Refusal},
    service::Service,
    tag::ServiceTags,
};

use crate::names::service_name;

/// The greatest length in bytes of a message about one annotation: values are cut, lists are
/// bounded.
const LONGEST: usize = 8 << 10;
/// The greatest number of notices about one Service: sixteen annotations, the number of others, a
/// family that is left out, and a path without a probe.
const MOST_NOTICES: usize = 19;
/// The greatest number of addresses in one annotation.
const MOST_ADDRESSES: usize = 64;

/// A Service's annotations and its `spec.loadBalancerIP`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// The annotations.
    pub annotations: BTreeMap<String, String>,
    /// `spec.loadBalancerIP`.
    pub field: Option<String>,
}

impl Asked {
    /// Parses lines such as `vipmux.io/pool=lan`. A line that starts with `=` has the field.
    pub fn parse(text: &str) -> Self {
        let mut asked = Self::default();
        for (key, value) in text.lines().filter_map(|line| line.split_once('=')) {
            match key {
                "" => asked.field = Some(value.to_owned()),
                key => drop(asked.annotations.insert(key.to_owned(), value.to_owned())),
            }
        }
        asked
    }

    fn with(&self, key: &str, value: &str) -> Self {
        let mut asked = self.clone();
        asked.annotations.entry(key.to_owned()).or_insert_with(|| value.to_owned());
        asked
    }

    fn ingest(&self) -> Result<Result<Service, Refusal>> {
        let name = service_name("web");
        let service = serde_json::json!({
            "metadata": {"annotations": self.annotations},
            "spec": {"type": "LoadBalancer", "loadBalancerIP": self.field, "ports": [{"port": 80}]},
        });
        Ok(Service::ingest(&name, &serde_json::from_value(service)?, &AddressNames::default(), &ServiceTags::default()))
    }
}

/// Checks the rules. Returns the reason of a refusal.
pub fn holds(asked: &Asked) -> Result<Option<Reason>> {
    let outcome = asked.ingest()?;
    ensure!(outcome == asked.ingest()?, "the same annotations have the same result");
    let (unrelated, empty) = (asked.with("example.org/unrelated", "x"), asked.with("vipmux.io/pool", ""));
    ensure!(outcome == unrelated.ingest()?, "an unknown annotation changes nothing");
    ensure!(outcome == empty.ingest()?, "an empty value counts as absent");
    let fault = match &outcome {
        Ok(service) => {
            bounded(service)?;
            service.fault.as_ref()
        }
        Err(refusal) => Some(refusal),
    };
    if let Some(refusal) = fault {
        ensure!(refusal.message.len() <= LONGEST, "a refusal of {} bytes", refusal.message.len());
        names_its_cause(asked, refusal)?;
    }
    Ok(fault.map(|refusal| refusal.reason))
}

fn bounded(service: &Service) -> Result<()> {
    let request = &service.request;
    ensure!(request.addresses.len() <= 2 * MOST_ADDRESSES && request.additional.len() <= 4 * MOST_ADDRESSES);
    ensure!(request.addresses.iter().chain(&request.additional).all(|vip| !vip.address().is_unspecified()));
    ensure!(service.notices.len() <= MOST_NOTICES, "{} notices", service.notices.len());
    let longest = service.notices.iter().map(String::len).max().unwrap_or_default();
    ensure!(longest <= LONGEST, "a notice of {longest} bytes");
    Ok(())
}

/// Checks that a refusal names an annotation or a field.
fn names_its_cause(asked: &Asked, refusal: &Refusal) -> Result<()> {
    let message = &refusal.message;
    let named = asked.annotations.keys().any(|key| message.contains(key.as_str())) || message.contains("spec.");
    named.then_some(()).with_context(|| format!("{message} names no annotation"))
}

/// Returns annotations of each dialect, with values that it understands or refuses.
pub fn seeds() -> Vec<String> {
    let values = |meaning: Meaning| match meaning {
        Meaning::SharingKey | Meaning::Alike | Meaning::Label | Meaning::AddressName => &["web", "Web 1", "*"][..],
        Meaning::Namespaces => &["*", "shop,web", "a,,b"],
        Meaning::Addresses | Meaning::Address(_) | Meaning::Additional => {
            &["192.0.2.10", "192.0.2.10, 2001:db8::10", "0.0.0.0", "192.0.2.300", "::ffff:192.0.2.10"]
        }
        Meaning::Pool | Meaning::PoolPath | Meaning::PoolMode | Meaning::PoolInstead => {
            &["lan", "/a/b/lan", "__auto__", "Lan 1"]
        }
        Meaning::PoolIfTrue(_) | Meaning::Treatment => {
            &["true", "False", "5", "90s", "80", "kernel", "192.0.2.0/24", "Internet"]
        }
        Meaning::Probe => &["true", "5", "http", "/healthz", "15021"],
        Meaning::Marker | Meaning::WithoutEffect(_) | Meaning::EitherWithoutEffect(_) | Meaning::Unsupported { .. } => {
            &["true", "no", "x"]
        }
    };
    let rows = dialects::ALL.iter().flat_map(|dialect| dialect.annotations);
    let lines = rows.flat_map(|(spellings, meaning)| {
        spellings.iter().flat_map(move |one| values(*meaning).iter().map(move |value| format!("{one}={value}")))
    });
    lines.map(|line| line.replace("{port}", "80")).collect()
}
