//! Reads the health probes of backends that Azure's annotations request.
//!
//! See
//! <https://cloud-provider-azure.sigs.k8s.io/topics/loadbalancer/#custom-load-balancer-health-probe>.

use std::{collections::BTreeMap, fmt};

use k8s_openapi::api::core::v1 as api;
use serde::Serialize;

use crate::{
    Protocol,
    dialects::{
        Annotations, any_begins,
        azure::{INTERVAL, NO_PROBE, PATH, PORT, PROTOCOL, SettingSpellings, THRESHOLD},
        boolean, invalid, of_port, whole,
    },
    port::{Port, PortNumber},
    reason::{Reason, Refusal},
};

/// The prefixes of the keys of all probe annotations.
const BEGINNINGS: [&str; 2] =
    ["service.beta.kubernetes.io/port_", "service.beta.kubernetes.io/azure-load-balancer-health-probe-"];
/// Each of these annotations asks for a probe.
const ASKING: [SettingSpellings; 5] = [PORT, PROTOCOL, INTERVAL, THRESHOLD, PATH];

/// The time between attempts, seconds: the minimum and the default.
const INTERVAL_SECONDS: u32 = 5;
/// The number of failures in a row: the minimum and the default.
const FAILURES: u32 = 2;
/// The interval times the number of failures must be less than this, seconds.
const TOTAL_SECONDS: u32 = 120;
/// The maximum length of a path, bytes.
const MAX_PATH: usize = 2048;

/// The probes of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Probes {
    /// The probes, by the Service port whose backends they check.
    pub of_ports: BTreeMap<Port, Probe>,
    /// A notice for the Service's owner about settings without effect.
    pub notice: Option<String>,
}

/// The probe that finds out whether a backend is up or down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Probe {
    /// The answer that counts as up.
    #[serde(flatten)]
    pub check: Check,
    /// The backend's port to probe.
    #[serde(rename = "port")]
    pub target: ProbePort,
    /// The time between attempts, seconds.
    #[serde(rename = "interval_s")]
    pub interval: u32,
    /// The number of attempts that fail in a row before it counts as down.
    pub failures: u32,
}

/// The answer that counts as up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "protocol", rename_all = "lowercase")]
pub enum Check {
    /// A TCP connection is established.
    Tcp,
    /// A GET of the path returns status 200.
    Http {
        /// The path.
        path: String,
    },
    /// The same over TLS.
    Https {
        /// The path.
        path: String,
    },
}

/// The port of a backend to probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum ProbePort {
    /// The port of the Service port with this name (empty for one unnamed port), exposed or not.
    /// The EndpointSlices have its number.
    OfService(String),
    /// This port.
    Number(u16),
}

impl ProbePort {
    /// For a Service with every port, endpoints have the ports that clients use. So a port of the
    /// Service has the same number on the endpoint.
    fn untranslated(self, listed: &[api::ServicePort]) -> Self {
        let Self::OfService(name) = &self else { return self };
        let own = listed.iter().find(|entry| entry.name.as_ref().unwrap_or(&String::new()) == name);
        own.and_then(tcp).map_or(self, |port| Self::Number(port.number.into()))
    }
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, path) = match &self.check {
            Check::Tcp => ("tcp", ""),
            Check::Http { path } => ("http", path.as_str()),
            Check::Https { path } => ("https", path.as_str()),
        };
        write!(f, "{name}")?;
        match &self.target {
            ProbePort::OfService(port) if port.is_empty() => {}
            ProbePort::OfService(port) => write!(f, ":{port}")?,
            ProbePort::Number(port) => write!(f, ":{port}")?,
        }
        write!(f, "{path} every {}s, down after {}", self.interval, self.failures)
    }
}

impl Probes {
    /// Reads the probes that annotations ask for, for the TCP ports of a Service. Other ports have
    /// none. The caller has made sure that the ports are valid.
    pub(super) fn read(annotations: &Annotations, ports: &[api::ServicePort]) -> Result<Self, Refusal> {
        let mut probes = Self::default();
        if !BEGINNINGS.iter().any(|beginning| any_begins(annotations, beginning)) {
            return Ok(probes);
        }
        let mut unused = Vec::new();
        for (port, entry) in ports.iter().filter_map(|entry| Some((tcp(entry)?, entry))) {
            let asked = Asked { annotations, number: port.number.into() };
            let left_out = asked.annotation(NO_PROBE).map(|(key, text)| boolean(&key, text)).transpose()?;
            if left_out != Some(true) && ASKING.iter().any(|setting| asked.annotation(setting).is_some()) {
                let probe = asked.probe(entry, ports)?;
                let path = asked.annotation(PATH).filter(|_| probe.check == Check::Tcp);
                unused.extend(path.map(|(key, _)| (port, key)));
                probes.of_ports.insert(port, probe);
            }
        }
        probes.notice = unused.first().map(|(port, key)| {
            let others = if unused.len() > 1 { format!(" and {} more", unused.len() - 1) } else { String::new() };
            let protocol = of_port(PROTOCOL[0], port.number.into());
            format!(
                "{key} has no effect on {port}{others}: a Tcp probe has no path; request Http or Https with {protocol}"
            )
        });
        Ok(probes)
    }

    /// Returns the probes without those of ports that are not exposed. A Service with every port
    /// has the probe of its first port for all ports.
    pub(super) fn of_exposed<'a>(
        mut self,
        exposed: impl Iterator<Item = &'a Port>,
        listed: &[api::ServicePort],
    ) -> Self {
        let first = listed.iter().find_map(|entry| self.of_ports.get(&tcp(entry)?)).cloned();
        let first = first.map(|probe| Probe { target: probe.target.untranslated(listed), ..probe });
        let of = |port: &Port| {
            let own = self.of_ports.get(port).or(first.as_ref().filter(|_| port.number == PortNumber::Every));
            Some((*port, own?.clone()))
        };
        self.of_ports = exposed.filter_map(of).collect();
        self
    }
}

/// Returns the port, if it is a TCP port.
fn tcp(entry: &api::ServicePort) -> Option<Port> {
    let protocol = entry.protocol.as_deref().map_or(Some(Protocol::default()), |text| text.parse().ok())?;
    let number = u16::try_from(entry.port).ok()?.into();
    (protocol == Protocol::Tcp).then_some(Port { number, protocol })
}

/// The settings for one port.
struct Asked<'a> {
    annotations: &'a Annotations,
    number: u16,
}

impl<'a> Asked<'a> {
    /// Returns the annotation that has the setting, and its value. An empty value counts as absent.
    fn annotation(&self, spellings: &[&str]) -> Option<(String, &'a str)> {
        spellings.iter().find_map(|spelling| {
            let key = of_port(spelling, self.number);
            let text = self.annotations.get(&key)?.trim();
            (!text.is_empty()).then_some((key, text))
        })
    }

    fn probe(&self, entry: &api::ServicePort, ports: &[api::ServicePort]) -> Result<Probe, Refusal> {
        let interval = self.count(INTERVAL, INTERVAL_SECONDS, "seconds")?;
        let failures = self.count(THRESHOLD, FAILURES, "failures")?;
        if interval.saturating_mul(failures) >= TOTAL_SECONDS {
            let found = [INTERVAL, THRESHOLD].iter().find_map(|setting| self.annotation(setting));
            let message = format!(
                "{}: {failures} failures in a row, {interval} s apart, take {} s to be detected; allowed: less than \
                 {TOTAL_SECONDS} s together",
                found.map_or_else(String::new, |(key, _)| key),
                interval.saturating_mul(failures)
            );
            return Err(Refusal::new(Reason::InvalidAnnotation, message));
        }
        Ok(Probe { check: self.check(entry)?, target: self.target(entry, ports)?, interval, failures })
    }

    /// Returns the setting, a whole number of at least `least`; `least` if it is left out.
    fn count(&self, setting: SettingSpellings, least: u32, what: &str) -> Result<u32, Refusal> {
        let Some((key, text)) = self.annotation(setting) else { return Ok(least) };
        let number = whole(text).filter(|number| *number >= least);
        number.ok_or_else(|| invalid(&key, text, &format!("a whole number of {what}, {least} at least")))
    }

    /// Returns the check. The setting for the port goes first, then its `appProtocol`, then the
    /// setting for all ports.
    fn check(&self, entry: &api::ServicePort) -> Result<Check, Refusal> {
        let (of_one, of_all) = PROTOCOL.split_at(1);
        let application = entry.app_protocol.as_deref().filter(|text| !text.is_empty());
        let check = match (self.annotation(of_one), application, self.annotation(of_all)) {
            (Some((key, text)), ..) | (None, None, Some((key, text))) => {
                named(text).ok_or_else(|| invalid(&key, text, "Tcp, Http or Https"))?
            }
            (None, application, _) => application.and_then(named).unwrap_or(TCP),
        };
        Ok(check(self.path()?))
    }

    fn path(&self) -> Result<String, Refusal> {
        let Some((key, text)) = self.annotation(PATH) else { return Ok("/".to_owned()) };
        let sound = text.starts_with('/') && text.len() <= MAX_PATH && text.bytes().all(is_of_path);
        let allowed = format!(
            "a path of at most {MAX_PATH} bytes, such as /healthz or /up?deep=1, with other characters percent-encoded"
        );
        sound.then(|| text.to_owned()).ok_or_else(|| invalid(&key, text, &allowed))
    }

    fn target(&self, entry: &api::ServicePort, ports: &[api::ServicePort]) -> Result<ProbePort, Refusal> {
        let name = |entry: &api::ServicePort| entry.name.clone().unwrap_or_default();
        let Some((key, text)) = self.annotation(PORT) else { return Ok(ProbePort::OfService(name(entry))) };
        let mut of_tcp = ports.iter().filter_map(|entry| Some((u16::from(tcp(entry)?.number), name(entry))));
        let number = whole(text).and_then(|number| u16::try_from(number).ok()).filter(|number| *number != 0);
        let of_service = of_tcp.find(|(own, name)| name.eq_ignore_ascii_case(text) || Some(*own) == number);
        let allowed = "a port, 1 to 65535, or the name of a TCP port of the Service";
        match of_service {
            Some((_, name)) => Ok(ProbePort::OfService(name)),
            None => number.map(ProbePort::Number).ok_or_else(|| invalid(&key, text, allowed)),
        }
    }
}

/// Whether the byte may be in a path or query unescaped (RFC 3986, 3.3 and 3.4).
fn is_of_path(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@%/?".contains(&byte)
}

/// Makes a check from a path. Not all checks use the path.
type MakeCheck = fn(String) -> Check;

const TCP: MakeCheck = |_| Check::Tcp;

/// Returns the check for a protocol's name, in any case.
fn named(text: &str) -> Option<MakeCheck> {
    match text.to_ascii_lowercase().as_str() {
        "tcp" => Some(TCP),
        "http" => Some(|path| Check::Http { path }),
        "https" => Some(|path| Check::Https { path }),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
