//! Reads the requested treatment of a Service's packets: the clients that may send them, and the
//! way that they take (docs/annotations.md).

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1 as api;
use serde::Serialize;
use vipmux_common::flow_table::LONGEST_IDLE_SECONDS;

use crate::{
    Family, Protocol,
    dialects::{
        self, Annotations, agreed,
        azure::{AZURE_ALL_PORTS, AZURE_DENY_OTHERS, AZURE_RANGES, AZURE_TAGS, AZURE_TCP_IDLE},
        invalid, listed, spelling, whole,
    },
    prefix::Prefix,
    reason::{Reason, Refusal, quoted},
    tag::{ServiceTags, UnknownTag},
};

/// Kubernetes' own annotation, older than the field.
const SOURCE_RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
const ALL_PORTS: &str = "vipmux.io/all-ports";
const DIRECT: &str = "vipmux.io/direct-server-return";
const FORWARDING: &str = "vipmux.io/forwarding";
const TCP_IDLE: &str = "vipmux.io/tcp-idle-timeout";
const UDP_IDLE: &str = "vipmux.io/udp-idle-timeout";
const SCTP_IDLE: &str = "vipmux.io/sctp-idle-timeout";
/// The default of `sessionAffinityConfig.clientIP.timeoutSeconds`, and its limits (`core/v1`).
const DEFAULT_AFFINITY_SECONDS: u32 = 10_800;
pub(crate) const AFFINITY_SECONDS: std::ops::RangeInclusive<u32> = 1..=86_400;
/// The minimum and maximum of an idle timeout, seconds.
const IDLE_SECONDS: std::ops::RangeInclusive<u32> = 10..=LONGEST_IDLE_SECONDS;
/// The maximum number of service tags of one Service.
const MAX_TAGS: usize = 64;
/// The minimum and maximum of Azure's idle timeout, minutes.
const AZURE_IDLE_MINUTES: std::ops::RangeInclusive<u32> = 4..=30;

/// How a Service's packets are treated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Policy {
    /// The addresses that clients may have; `None`: any.
    #[serde(rename = "source_ranges")]
    pub sources: Option<BTreeSet<Prefix>>,
    /// How long a client without packets is remembered, seconds; `None`: no session affinity.
    #[serde(rename = "affinity_s")]
    pub affinity: Option<u32>,
    /// Whether it has every port of its address, of every protocol, whatever its ports say.
    pub all_ports: bool,
    /// Whether backends get packets with the VIP as their destination.
    pub direct: bool,
    /// Whether packets are left to the node's own stack.
    pub kernel: bool,
}

/// The number of seconds without packets after which a flow is forgotten; `None`: the default for
/// the protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct IdleTimeouts {
    /// For TCP.
    pub tcp: Option<u32>,
    /// For UDP.
    pub udp: Option<u32>,
    /// For SCTP.
    pub sctp: Option<u32>,
}

impl Policy {
    /// Returns a word for each setting that differs from the default.
    pub fn particulars(&self, idle: IdleTimeouts) -> Vec<String> {
        let seconds = |name: &str, seconds: Option<u32>| seconds.map(|seconds| format!("{name}={seconds}s"));
        [
            self.kernel.then(|| "kernel".to_owned()),
            self.direct.then(|| "direct".to_owned()),
            self.all_ports.then(|| "all-ports".to_owned()),
            seconds("affinity", self.affinity),
            seconds("tcp-idle", idle.tcp),
            seconds("udp-idle", idle.udp),
            seconds("sctp-idle", idle.sctp),
            self.sources.as_ref().map(|sources| format!("ranges={}", sources.len())),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// Reads the policy from annotations and fields. A setting that cannot be understood refuses
    /// the whole Service, since it may be meant to keep clients out.
    pub fn read(annotations: &Annotations, spec: &api::ServiceSpec, tags: &ServiceTags) -> Result<Self, Refusal> {
        let all_ports =
            [(ALL_PORTS, boolean(annotations, ALL_PORTS)?), (AZURE_ALL_PORTS, boolean(annotations, AZURE_ALL_PORTS)?)];
        let all_ports = all_ports.into_iter().filter_map(|(name, said)| Some((name, said?))).collect();
        let policy = Self {
            sources: sources(annotations, spec, tags)?,
            affinity: affinity(spec)?,
            all_ports: agreed(all_ports, ToString::to_string)?.unwrap_or(false),
            direct: boolean(annotations, DIRECT)?.unwrap_or(false),
            kernel: match spelling(annotations, &[FORWARDING])? {
                None => false,
                Some((_, "kernel")) => true,
                Some((name, other)) => return Err(invalid(name, other, "kernel, or to leave it out")),
            },
        };
        if policy.direct && policy.kernel {
            let message = format!("{DIRECT} (true) and {FORWARDING} (kernel) contradict each other: use one of them");
            return Err(Refusal::new(Reason::AmbiguousRequest, message));
        }
        Ok(policy)
    }

    /// Returns the source ranges for clients of one family; `None`: all clients. A list with ranges
    /// of only the other family lets in no client of this one.
    pub fn sources_of(&self, family: Family) -> Option<BTreeSet<Prefix>> {
        let of_family: BTreeSet<Prefix> =
            self.sources.iter().flatten().filter(|prefix| Family::of(prefix.address()) == family).copied().collect();
        let open = self.sources.is_none() || of_family.iter().any(|prefix| prefix.length() == 0);
        (!open).then_some(of_family)
    }
}

impl IdleTimeouts {
    /// Reads the timeouts from annotations.
    pub fn read(annotations: &Annotations) -> Result<Self, Refusal> {
        let own = |name| spelling(annotations, &[name])?.map(|(name, text)| idle(name, text)).transpose();
        let azure = spelling(annotations, &[AZURE_TCP_IDLE])?.map(|(_, text)| azure_idle(text)).transpose()?;
        let tcp = [own(TCP_IDLE)?.map(|seconds| (TCP_IDLE, seconds)), azure.map(|seconds| (AZURE_TCP_IDLE, seconds))];
        let shown = |seconds: &u32| format!("{seconds} s");
        Ok(Self {
            tcp: agreed(tcp.into_iter().flatten().collect(), shown)?,
            udp: own(UDP_IDLE)?,
            sctp: own(SCTP_IDLE)?,
        })
    }

    /// Returns the time for a protocol.
    pub const fn of(self, protocol: Protocol) -> Option<u32> {
        match protocol {
            Protocol::Tcp => self.tcp,
            Protocol::Udp => self.udp,
            Protocol::Sctp => self.sctp,
        }
    }
}

fn boolean(annotations: &Annotations, name: &'static str) -> Result<Option<bool>, Refusal> {
    spelling(annotations, &[name])?.map(|(name, text)| dialects::boolean(name, text)).transpose()
}

/// Parses `90s`, `15m` or `2h` into seconds.
fn idle(name: &'static str, text: &str) -> Result<u32, Refusal> {
    let parse = || {
        let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
        let unit = match unit {
            "s" => 1,
            "m" => 60,
            "h" => 3600,
            _ => return None,
        };
        whole(number)?.checked_mul(unit).filter(|seconds| IDLE_SECONDS.contains(seconds))
    };
    parse()
        .ok_or_else(|| invalid(name, text, "10s to 24h: a whole number of seconds (90s), minutes (15m) or hours (2h)"))
}

fn azure_idle(text: &str) -> Result<u32, Refusal> {
    let minutes = whole(text.trim()).filter(|minutes| AZURE_IDLE_MINUTES.contains(minutes));
    minutes.map(|minutes| minutes * 60).ok_or_else(|| invalid(AZURE_TCP_IDLE, text, "4 to 30, whole minutes"))
}

/// Returns the ranges of the field, or of the annotations if the field is empty, plus those of the
/// service tags.
fn sources(
    annotations: &Annotations,
    spec: &api::ServiceSpec,
    tags: &ServiceTags,
) -> Result<Option<BTreeSet<Prefix>>, Refusal> {
    boolean(annotations, AZURE_DENY_OTHERS)?;
    let listed = spec.load_balancer_source_ranges.as_deref().unwrap_or_default();
    let azure = ranges(annotations, AZURE_RANGES)?;
    if !listed.is_empty() && azure.is_some() {
        let message = format!("{AZURE_RANGES} and spec.loadBalancerSourceRanges are both set: use one of them");
        return Err(Refusal::new(Reason::AmbiguousRequest, message));
    }
    let own = if listed.is_empty() { ranges(annotations, SOURCE_RANGES)? } else { Some(field(listed)?) };
    let sets = [own, azure, tagged(annotations, tags)?];
    Ok(sets.into_iter().flatten().reduce(|a, b| a.into_iter().chain(b).collect()))
}

fn field(listed: &[String]) -> Result<BTreeSet<Prefix>, Refusal> {
    let prefix = |(i, text): (usize, &String)| {
        let message = |error| format!("spec.loadBalancerSourceRanges[{i}]: {error}");
        text.parse().map_err(|error: crate::prefix::NotAPrefix| Refusal::new(Reason::InvalidService, message(error)))
    };
    listed.iter().enumerate().map(prefix).collect()
}

/// Reads the ranges of an annotation that lists them.
fn ranges(annotations: &Annotations, name: &'static str) -> Result<Option<BTreeSet<Prefix>>, Refusal> {
    let Some((name, text)) = spelling(annotations, &[name])?.filter(|(_, text)| !text.trim().is_empty()) else {
        return Ok(None);
    };
    let prefix = |item: &str| {
        let allowed = "CIDRs, separated by commas, such as 192.0.2.0/24,2001:db8::/32";
        item.parse().map_err(|_| invalid(name, listed(item, text), allowed))
    };
    text.split(',').map(prefix).collect::<Result<_, _>>().map(Some)
}

/// Reads the ranges of the service tags.
fn tagged(annotations: &Annotations, tags: &ServiceTags) -> Result<Option<BTreeSet<Prefix>>, Refusal> {
    let Some((name, text)) = spelling(annotations, &[AZURE_TAGS])?.filter(|(_, text)| !text.trim().is_empty()) else {
        return Ok(None);
    };
    let named: Vec<&str> = text.split(',').map(str::trim).take(MAX_TAGS + 1).collect();
    if named.len() > MAX_TAGS || named.contains(&"") {
        return Err(invalid(name, text, &format!("at most {MAX_TAGS} service tags, separated by commas")));
    }
    tags.ranges(named.into_iter()).map(Some).map_err(|UnknownTag(tag)| {
        let message = format!(
            "{name}: no service tag is called {}; known: {} (--service-tag NAME=CIDR,... adds one)",
            quoted(tag),
            tags.known()
        );
        Refusal::new(Reason::InvalidAnnotation, message)
    })
}

fn affinity(spec: &api::ServiceSpec) -> Result<Option<u32>, Refusal> {
    let refuse = |message| Err(Refusal::new(Reason::InvalidService, message));
    match spec.session_affinity.as_deref() {
        None | Some("" | "None") => return Ok(None),
        Some("ClientIP") => {}
        Some(other) => return refuse(format!("spec.sessionAffinity: {} is neither None nor ClientIP", quoted(other))),
    }
    let config = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
    let Some(seconds) = config.and_then(|config| config.timeout_seconds) else {
        return Ok(Some(DEFAULT_AFFINITY_SECONDS));
    };
    match u32::try_from(seconds).ok().filter(|seconds| AFFINITY_SECONDS.contains(seconds)) {
        Some(seconds) => Ok(Some(seconds)),
        None => refuse(format!(
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds: {seconds} is not within 1 to {}",
            AFFINITY_SECONDS.end()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn annotations(listed: &[(&str, &str)]) -> Annotations {
        listed.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn read(listed: &[(&str, &str)], spec: &serde_json::Value) -> Result<Policy, (Reason, String)> {
        let spec = serde_json::from_value(spec.clone()).unwrap();
        let tags = ["office=203.0.113.0/24,2001:db8:1::/48".parse().unwrap()].into_iter().collect();
        Policy::read(&annotations(listed), &spec, &tags).map_err(|refusal| (refusal.reason, refusal.message))
    }

    fn nothing() -> serde_json::Value {
        serde_json::json!({})
    }

    fn shown(prefixes: Option<BTreeSet<Prefix>>) -> Option<String> {
        prefixes.map(|prefixes| prefixes.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn a_service_that_says_nothing_is_treated_as_ever() {
        assert_eq!(read(&[], &nothing()), Ok(Policy::default()));
        let empty = [SOURCE_RANGES, ALL_PORTS, DIRECT, FORWARDING].map(|name| (name, ""));
        let spec = serde_json::json!({"sessionAffinity": "None", "loadBalancerSourceRanges": []});
        assert_eq!(read(&empty, &spec), Ok(Policy::default()));
        assert_eq!(IdleTimeouts::read(&annotations(&[(TCP_IDLE, "")])), Ok(IdleTimeouts::default()));
    }

    #[test]
    fn source_ranges_of_the_field_go_before_the_annotation() {
        let list = serde_json::json!({"loadBalancerSourceRanges": [" 192.0.2.7/24 ", "2001:db8::/32"]});
        let sources = |listed: &[(&str, &str)], spec: &serde_json::Value| shown(read(listed, spec).unwrap().sources);
        let annotation = [(SOURCE_RANGES, "10.0.0.0/8, 172.16.0.0/12")];
        assert_eq!(sources(&annotation, &list).unwrap(), "192.0.2.0/24 2001:db8::/32");
        assert_eq!(sources(&annotation, &nothing()).unwrap(), "10.0.0.0/8 172.16.0.0/12");
        assert_eq!(sources(&[(SOURCE_RANGES, "  ")], &nothing()), None);
    }

    #[test]
    fn a_malformed_source_range_is_never_open_to_everybody() {
        let list = serde_json::json!({"loadBalancerSourceRanges": ["10.0.0.0/8", "10.0.0.0/33"]});
        let message =
            "spec.loadBalancerSourceRanges[1]: \"10.0.0.0/33\" is no CIDR such as 192.0.2.0/24 or 2001:db8::/32";
        assert_eq!(read(&[], &list), Err((Reason::InvalidService, message.to_owned())));
        for text in ["10.0.0.0", "10.0.0.0/8,", "10.0.0.0/8;10.1.0.0/8"] {
            let (reason, message) = read(&[(SOURCE_RANGES, text)], &nothing()).unwrap_err();
            assert_eq!(reason, Reason::InvalidAnnotation);
            assert!(message.starts_with(SOURCE_RANGES) && message.contains("allowed: CIDRs"), "{message}");
        }
    }

    #[test]
    fn ranges_and_service_tags_of_azure_are_merged_with_the_others() {
        let field = serde_json::json!({"loadBalancerSourceRanges": ["192.0.2.0/24"]});
        let sources = |listed: &[(&str, &str)], spec: &serde_json::Value| shown(read(listed, spec).unwrap().sources);
        let office = (AZURE_TAGS, "Office");
        assert_eq!(sources(&[office], &nothing()).unwrap(), "203.0.113.0/24 2001:db8:1::/48");
        assert_eq!(sources(&[office], &field).unwrap(), "192.0.2.0/24 203.0.113.0/24 2001:db8:1::/48");
        let annotated = [(SOURCE_RANGES, "10.0.0.0/8"), (AZURE_RANGES, "172.16.0.0/12, 2001:db8::/32")];
        assert_eq!(sources(&annotated, &nothing()).unwrap(), "10.0.0.0/8 172.16.0.0/12 2001:db8::/32");
        assert_eq!(sources(&[(AZURE_TAGS, " "), (AZURE_RANGES, "")], &nothing()), None);
        let everyone = read(&[(AZURE_TAGS, "office, internet")], &field).unwrap();
        assert_eq!(Family::ALL.map(|family| everyone.sources_of(family)), [None, None], "Internet lets everyone in");
        for deny in ["true", "False"] {
            assert_eq!(read(&[(AZURE_DENY_OTHERS, deny)], &field), read(&[], &field), "nobody else gets in anyway");
            assert_eq!(read(&[(AZURE_DENY_OTHERS, deny)], &nothing()), Ok(Policy::default()));
        }
    }

    #[test]
    fn an_azure_restriction_that_is_not_understood_is_refused() {
        let field = serde_json::json!({"loadBalancerSourceRanges": ["192.0.2.0/24"]});
        let message = format!("{AZURE_RANGES} and spec.loadBalancerSourceRanges are both set: use one of them");
        assert_eq!(read(&[(AZURE_RANGES, "10.0.0.0/8")], &field), Err((Reason::AmbiguousRequest, message)));
        for (name, text, expected) in [
            (AZURE_RANGES, "10.0.0.0", "\"10.0.0.0\" is malformed; allowed: CIDRs"),
            (AZURE_DENY_OTHERS, "yes", "\"yes\" is malformed; allowed: true or false"),
            (AZURE_TAGS, "Storage", "no service tag is called \"Storage\"; known: Internet, office (--service-tag"),
            (AZURE_TAGS, "office,", "\"office,\" is malformed; allowed: at most 64 service tags"),
            (AZURE_RANGES, "10.0.0.0/8,", "\"10.0.0.0/8,\" is malformed; allowed: CIDRs"),
            (AZURE_TAGS, &vec!["office"; MAX_TAGS + 1].join(","), "allowed: at most 64 service tags"),
        ] {
            let (reason, message) = read(&[(name, text)], &nothing()).unwrap_err();
            assert_eq!(reason, Reason::InvalidAnnotation);
            assert!(message.starts_with(name) && message.contains(expected), "{message}");
        }
        assert!(read(&[(AZURE_TAGS, &vec!["office"; MAX_TAGS].join(","))], &nothing()).is_ok());
    }

    #[test]
    fn a_list_with_one_family_alone_lets_nobody_of_the_other_in() {
        let of = |ranges: &[&str], family| {
            let spec = serde_json::json!({ "loadBalancerSourceRanges": ranges });
            shown(read(&[], &spec).unwrap().sources_of(family))
        };
        assert_eq!(of(&["2001:db8::/32"], Family::V4).as_deref(), Some(""));
        assert_eq!(of(&["2001:db8::/32"], Family::V6).as_deref(), Some("2001:db8::/32"));
        assert_eq!(of(&["::/0", "10.0.0.0/8"], Family::V4).as_deref(), Some("10.0.0.0/8"));
        assert_eq!(of(&["::/0", "10.0.0.0/8"], Family::V6), None, "all of a family is no restriction of it");
        assert_eq!(of(&[], Family::V4), None);
    }

    #[test]
    fn affinity_is_remembered_for_three_hours_or_as_long_as_is_said() {
        let affinity = |config: serde_json::Value| {
            let spec = serde_json::json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": config});
            read(&[], &spec).map(|policy| policy.affinity)
        };
        let timeout = |seconds: i64| serde_json::json!({"clientIP": {"timeoutSeconds": seconds}});
        assert_eq!(affinity(serde_json::json!(null)), Ok(Some(10_800)));
        assert_eq!(affinity(serde_json::json!({"clientIP": {}})), Ok(Some(10_800)));
        assert_eq!((affinity(timeout(1)), affinity(timeout(86_400))), (Ok(Some(1)), Ok(Some(86_400))));
        for seconds in [0, -1, 86_401] {
            let message =
                format!("spec.sessionAffinityConfig.clientIP.timeoutSeconds: {seconds} is not within 1 to 86400");
            assert_eq!(affinity(timeout(seconds)), Err((Reason::InvalidService, message)));
        }
        let (_, message) = read(&[], &serde_json::json!({"sessionAffinity": "Cookie"})).unwrap_err();
        assert_eq!(message, "spec.sessionAffinity: \"Cookie\" is neither None nor ClientIP");
    }

    #[test]
    fn idle_timeouts_have_a_unit_and_bounds() {
        let read = |name, text: &str| IdleTimeouts::read(&annotations(&[(name, text)]));
        for (text, seconds) in [("10s", 10), ("90s", 90), ("15m", 900), ("2h", 7_200), ("24h", 86_400)] {
            for (name, protocol) in [(TCP_IDLE, Protocol::Tcp), (UDP_IDLE, Protocol::Udp), (SCTP_IDLE, Protocol::Sctp)]
            {
                let timeouts = read(name, text).unwrap();
                for other in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
                    assert_eq!(timeouts.of(other), (other == protocol).then_some(seconds), "{name}={text}");
                }
            }
        }
        for text in ["9s", "25h", "90", "s", "1d", "+90s", "1h30m", "90 s", "99999999999h", "9ä"] {
            let refusal = read(UDP_IDLE, text).unwrap_err();
            assert_eq!(refusal.reason, Reason::InvalidAnnotation);
            let expected = format!("{UDP_IDLE}: {text:?} is malformed; allowed: 10s to 24h: ");
            assert!(refusal.message.starts_with(&expected), "{}", refusal.message);
        }
        for (text, seconds) in [("4", 240), (" 30 ", 1_800)] {
            assert_eq!(
                read(AZURE_TCP_IDLE, text).unwrap(),
                IdleTimeouts { tcp: Some(seconds), ..IdleTimeouts::default() }
            );
        }
        for text in ["3", "31", "4.5", "4m", "-4"] {
            let message = read(AZURE_TCP_IDLE, text).unwrap_err().message;
            assert!(message.ends_with("allowed: 4 to 30, whole minutes"), "{message}");
        }
    }

    #[test]
    fn two_annotations_for_one_thing_must_agree() {
        let idle = |own| IdleTimeouts::read(&annotations(&[(TCP_IDLE, own), (AZURE_TCP_IDLE, "5")]));
        assert_eq!(idle("5m").unwrap().tcp, Some(300));
        assert_eq!(idle("6m").unwrap_err().reason, Reason::AmbiguousRequest);
        let all_ports = |own| read(&[(ALL_PORTS, own), (AZURE_ALL_PORTS, "true")], &nothing());
        assert!(all_ports("true").unwrap().all_ports);
        assert_eq!(all_ports("false").unwrap_err().0, Reason::AmbiguousRequest);
        let (reason, message) = read(&[(DIRECT, "true"), (FORWARDING, "kernel")], &nothing()).unwrap_err();
        assert_eq!(reason, Reason::AmbiguousRequest);
        assert!(message.contains(DIRECT) && message.contains(FORWARDING), "{message}");
    }

    #[test]
    fn values_other_than_true_and_false_are_refused() {
        for name in [ALL_PORTS, AZURE_ALL_PORTS, DIRECT] {
            let (reason, message) = read(&[(name, "yes")], &nothing()).unwrap_err();
            let expected = format!("{name}: \"yes\" is malformed; allowed: true or false");
            assert_eq!((reason, message), (Reason::InvalidAnnotation, expected));
            assert_eq!(read(&[(name, "false")], &nothing()), Ok(Policy::default()));
        }
        let (_, message) = read(&[(FORWARDING, "iptables")], &nothing()).unwrap_err();
        assert!(message.ends_with("allowed: kernel, or to leave it out"), "{message}");
        assert!(read(&[(FORWARDING, "kernel")], &nothing()).unwrap().kernel);
    }
}
