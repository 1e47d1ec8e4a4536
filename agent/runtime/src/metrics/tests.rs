//! Tests the text for Prometheus, and compares it with docs/metrics.md.

use std::{collections::BTreeSet, sync::Arc};

use tokio::sync::watch;

use super::*;
use vipmux_cluster::store::{StoreOperation, StoreOutcome, Survey};
use vipmux_election::{
    Lost,
    membership::{Why, sealing::SealingKeys},
};
use vipmux_model::{health::Findings, reach::SegmentReach, reason::Reason};
use vipmux_telemetry::metrics::{encode, registry};

const PAGE: &str = include_str!("../../../../docs/metrics.md");
const ALERTS: &str = include_str!("../../../../deploy/helm/vipmux/files/alerts.yaml");

/// All metrics of an agent, with a value for each.
fn everything() -> String {
    let meters = Meters::default();
    meters.gained(&Why::First);
    meters.lost(&Lost::Fenced);
    meters.announcement_forged();
    meters.nodes(4);
    meters.segments(&[(2, SegmentReach::Answered)].into(), 0);
    meters.store_evidence(true);
    meters.unstable(true);
    meters.versions([(&"9.9.9".to_owned(), &7)]);
    meters.versions([(&"0.1.0".to_owned(), &2)]);
    meters.repaired("VIPS");
    meters.lease_operation(&StoreOperation::Survey, &Ok(StoreOutcome::Surveyed(Survey::default())));
    meters.services(&ServiceCounts { allocated: 3, withheld: 0, refused: [(Reason::PortConflict, 2)].into() });
    meters.map_usage([("VIPS", 5, 100)]);
    let mut registry = registry();
    meters.register(&mut registry);
    let (_, keys) = watch::channel(SealingKeys::generate([7; 32]));
    registry.register_collector(Box::new(GossipMetrics { counters: Arc::default(), keys }));
    registry.register_collector(Box::new(ProbeMetrics(watch::channel(Findings::new()).1)));
    encode([&registry, &MapMetrics::sample().registry()]).unwrap()
}

/// Names as PromQL has them.
fn names(text: &str) -> BTreeSet<String> {
    let families = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    families
        .map(|(name, kind)| match kind {
            "counter" => format!("{name}_total"),
            "info" => format!("{name}_info"),
            _ => name.to_owned(),
        })
        .collect()
}

#[test]
fn values_have_the_right_names_and_labels() {
    let text = everything();
    let service = r#"{namespace="shop",service="web",vip="192.0.2.10",port="80",protocol="TCP"}"#;
    for line in [
        &format!("vipmux_service_packets_total{service} 3"),
        &format!("vipmux_service_bytes_total{service} 180"),
        &format!("vipmux_service_flows_total{service} 2"),
        r#"vipmux_refused_frames_total{interface="eth0",action="redirect",error="EMSGSIZE"} 7"#,
        r#"vipmux_vip_leading{vip="192.0.2.10"} 1.0"#,
        r#"vipmux_vip_leading{vip="192.0.2.12"} 0.0"#,
        r#"vipmux_vips{role="following"} 1.0"#,
        "vipmux_vips_without_leader 1.0",
        r#"vipmux_members{standing="down"} 0.0"#,
        "vipmux_fence_remaining_seconds -1.5",
        r#"vipmux_flow_records{state="half_open"} 2.0"#,
        "vipmux_flow_capacity_records 16384.0",
        r#"vipmux_leaderships_gained_total{why="first"} 1"#,
        "vipmux_forged_announcements_total 1",
        r#"vipmux_leaderships_gained_total{why="down"} 0"#,
        r#"vipmux_services_refused{reason="PortConflict"} 2"#,
        r#"vipmux_services_refused{reason="PoolExhausted"} 0"#,
        r#"vipmux_services{state="refused"} 2"#,
        r#"vipmux_map_capacity_entries{map="VIPS"} 100"#,
        r#"vipmux_lease_operations_total{operation="survey",result="done"} 1"#,
        r#"vipmux_lease_operations_total{operation="swap",result="failed"} 0"#,
        "vipmux_nodes 4",
        "vipmux_store_evidence 1",
        "vipmux_unstable 1",
        r#"vipmux_agent_versions{version="0.1.0"} 2"#,
        "vipmux_gossip_keys 1.0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    assert!(!text.contains(r#"vip="192.0.2.11""#), "a VIP in which this node has no part has series");
    assert!(!text.contains("9.9.9"), "a version that no agent runs any more has a series");
    assert!(text.ends_with("# EOF\n"));
}

/// OpenMetrics 1.0, "Metric naming" and "ABNF": names are unique, and each line is a sample or a
/// comment.
#[test]
fn the_text_is_well_formed() {
    let text = everything();
    let kinds = text.lines().filter(|line| line.starts_with("# TYPE "));
    assert_eq!(kinds.count(), names(&text).len(), "a name is there twice");
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (series, value) = line.rsplit_once(' ').unwrap();
        assert!(value.parse::<f64>().is_ok(), "{line}");
        let name = series.split('{').next().unwrap();
        assert!(name.starts_with("vipmux_") || name.starts_with("process_"), "{line}");
        assert!(name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'), "{line}");
    }
    assert!(text.contains(r#"service="a\"b""#), "a quote is not escaped");
}

fn alerts() -> Vec<serde_json::Value> {
    let file: serde_json::Value = serde_saphyr::from_str(ALERTS).unwrap();
    file["groups"][0]["rules"].as_array().unwrap().clone()
}

#[test]
fn the_page_has_each_alert_with_its_severity_and_no_other() {
    let begin = "| alert | severity | what happens |\n| --- | --- | --- |\n";
    let table = PAGE.split(begin).nth(1).unwrap().split("\n\n").next().unwrap();
    let cells =
        |row: &str| row.split(" | ").take(2).map(|cell| cell.trim_matches(['|', ' ', '`']).to_owned()).collect();
    let listed: Vec<Vec<String>> = table.lines().map(cells).collect();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let existing: Vec<_> =
        alerts().iter().map(|rule| vec![text(&rule["alert"]), text(&rule["labels"]["severity"])]).collect();
    assert_eq!(listed, existing);
}

/// The rules are what users load into Prometheus. A name that no metric has is no error there: the alert
/// is silent for ever.
#[test]
fn the_alerts_name_metrics_and_label_values_that_exist() {
    let rules = alerts();
    assert!(rules.len() > 10, "{rules:?}");
    let (exported, documented) = (everything(), documented());
    for rule in rules {
        let (alert, expression) = (rule["alert"].as_str().unwrap(), rule["expr"].as_str().unwrap());
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let words = expression.split(|c| !is_name(c)).filter(|word| word.starts_with("vipmux_"));
        let words: Vec<_> = words.collect();
        assert!(!words.is_empty(), "{alert}: {expression}");
        for name in words {
            assert!(documented.contains(name), "{alert}: {name}");
        }
        // The matchers: `{operation="swap",result=~"failed|conflict"}`.
        for matchers in expression.split('{').skip(1).map(|rest| rest.split('}').next().unwrap()) {
            for matcher in matchers.split("\",") {
                let (label, values) = matcher.split_once('=').unwrap();
                for value in values.trim_matches(['~', '"']).split('|') {
                    assert!(exported.contains(&format!("{label}=\"{value}\"")), "{alert}: {label}={value}");
                }
            }
        }
        let pause = rule["for"].as_str().unwrap_or("0m");
        assert!(pause.ends_with(['m', 'h']) && pause[..pause.len() - 1].parse::<u32>().is_ok(), "{alert}: {pause}");
    }
}

#[test]
fn the_page_has_each_metric_and_no_other() {
    // The event loop's own are registered where it runs.
    let of_the_loop = ["vipmux_event_loop_silent_seconds", "vipmux_ready"].map(str::to_owned);
    let mut expected = names(&everything());
    expected.extend(of_the_loop);
    // The allocator's metrics have a test there.
    let documented: BTreeSet<_> =
        documented().into_iter().filter(|name| !name.starts_with("vipmux_allocator_")).collect();
    assert_eq!(documented, expected);
}

/// Returns the metrics that the page describes.
fn documented() -> BTreeSet<String> {
    let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let names = rows.map(|(name, _)| name.to_owned());
    names.filter(|name| name.starts_with("vipmux_") || name.starts_with("process_")).collect()
}
