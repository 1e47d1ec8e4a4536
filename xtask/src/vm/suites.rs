//! The suites that run in a guest.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::machine::Machine;
use crate::workspace;

/// The network tests that run on every kernel: ARP, TCP and UDP with local and remote backends,
/// replies, fragments, generic XDP, veths, direct server return, restart and removal. The others
/// run only on the developer's kernel.
const NETWORK: [&str; 29] = [
    "direct_return::pods_here_and_elsewhere_answer_in_the_vips_name",
    "leading::restarting_every_agent_loses_no_request",
    "leading::the_planned_leader_answers_and_the_client_knows_its_mac",
    "own_flows::datagrams_that_a_backend_sends_itself_have_the_nodes_address_and_replies_the_vips",
    "removal::inspect_tells_the_same_while_the_agent_is_down",
    "removal::unload_leaves_no_trace",
    "replies::datagrams_in_fragments_arrive_whole_in_both_directions",
    "replies::every_service_answers_in_spite_of_masquerading_and_of_the_reverse_path_filter",
    "serving::each_port_reaches_its_own_service_which_sees_the_client",
    "serving::generic_xdp_serves_as_well",
    // The build machine's kernel may lack what these need.
    "cards::a_vlan_on_a_bond_is_served_in_generic_mode",
    "direct_return::pods_behind_a_vlan_answer_in_the_vips_name",
    "merged_frames::segments_in_one_piece_go_back_by_a_bond_that_divides_nothing",
    "sctp::associations_reach_every_pod_which_sees_the_client",
    "segments::a_client_in_a_vlan_reaches_pods_on_nodes_outside_of_it_in_generic_mode",
    "segments::a_client_in_a_vlan_reaches_pods_on_nodes_outside_of_it_in_native_mode",
    "segments::frames_of_another_vlan_reach_no_vip_on_a_bond_in_generic_mode",
    "segments::frames_of_another_vlan_reach_no_vip_on_a_team_in_generic_mode",
    "uplinks::a_bond_of_two_cards_answers_a_broadcast_once_whichever_card_it_uses",
    "uplinks::a_bond_of_two_cards_in_generic_mode_answers_a_broadcast_once_whichever_card_it_uses",
    "uplinks::a_bond_whose_mode_changes_is_served_by_its_cards_and_by_itself_again",
    "uplinks::a_bonds_card_stands_for_the_bond",
    "uplinks::a_team_is_served_by_its_cards",
    "uplinks::a_vip_on_a_bond_is_served",
    "uplinks::a_vip_on_a_vlan_is_served_with_its_tag",
    "veths::a_bond_of_plain_veths_is_served_with_the_default_mode",
    "veths::a_vlan_of_a_plain_veth_is_served_with_the_default_mode",
    "veths::native_xdp_whose_frames_are_lost_leads_nothing_and_says_why",
    "vlan_tags::a_node_whose_vlan_tags_others_take_out_leads_nothing_in_vlans_until_they_stop",
];

/// The network tests that run on drivers of real cards, besides [`BY_DEFAULT`]. Those named `native` run only on
/// cards with native XDP, those named `jumbo` only on cards that take jumbo frames.
pub(super) const CARDS: [&str; 11] = [
    "cards::a_cable_that_is_out_takes_the_cards_carrier",
    "cards::a_card_serves_everything_in_native_mode",
    "cards::a_card_serves_everything_in_generic_mode",
    "cards::a_vlan_is_served_after_its_cards_tags_were_turned_on_in_native_mode",
    "cards::a_vlan_is_served_after_its_cards_tags_were_turned_on_in_generic_mode",
    "cards::a_vlan_on_a_bond_is_served_in_native_mode",
    "cards::a_vlan_on_a_bond_is_served_in_generic_mode",
    "paths::jumbo_frames_pass_in_native_mode",
    "paths::jumbo_frames_pass_in_generic_mode",
    "segments::frames_of_another_vlan_reach_no_vip_in_native_mode",
    "segments::frames_of_another_vlan_reach_no_vip_in_generic_mode",
];

/// The test of cards whose driver does not run native XDP in all its configurations.
pub(super) const BY_DEFAULT: &str = "cards::a_card_serves_everything_in_the_default_mode";

/// The test of a card that refuses native XDP because of its host.
pub(super) const REFUSED: &str = "cards::native_xdp_that_the_host_prevents_has_a_remedy";

/// The programs that a guest runs.
pub(super) struct Executables {
    /// The agent, the packet suite, the network suite and its pods.
    pub(super) programs: Vec<(&'static str, PathBuf)>,
    /// The network suite's tests.
    tests: BTreeSet<String>,
}

/// Builds the programs for a machine, and checks that every selected test exists. For another machine
/// than this one they are static.
pub(super) fn build(machine: &Machine) -> Result<Executables> {
    let Machine { platform, .. } = *machine;
    workspace::progress(&format!("building the agent and the suites for {}", platform.architecture));
    let mut folder = workspace::target_folder()?;
    if !platform.is_host() {
        platform.install()?;
        platform.install_emulator()?;
        folder.push(platform.triple);
    }
    let cargo = |arguments: &[&str]| {
        let mut cargo = workspace::cargo(arguments);
        if !platform.is_host() {
            platform.configure(&mut cargo);
        }
        cargo.args(workspace::locked());
        cargo
    };
    workspace::prepare(&mut cargo(&["build", "-p", "vipmux", "--bin", "vipmux"]))?;
    let mut suites = cargo(&["test", "--no-run", "-p", "vipmux-tests", "--test", "packet", "--test", "network"]);
    suites.arg("--message-format=json-render-diagnostics").stderr(Stdio::inherit());
    let messages = output(&mut suites)?;
    let folder = folder.join("debug");
    let (packet, network) = (executable(&messages, "packet")?, executable(&messages, "network")?);
    let listed = output(platform.emulated(&network).args(["--list", "--format", "terse"]))?;
    let programs =
        vec![("vipmux", folder.join("vipmux")), ("pod", folder.join("pod")), ("packet", packet), ("network", network)];
    let executables = Executables { programs, tests: tests(&listed) };
    check(&executables, NETWORK.into_iter().chain(CARDS).chain([BY_DEFAULT, REFUSED]))?;
    Ok(executables)
}

/// Returns the tests that an executable has listed.
fn tests(listed: &str) -> BTreeSet<String> {
    listed.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

/// The script of a guest of another kernel: one line per suite, or these tests of the network suite.
pub(super) fn commands(tests: &[String]) -> String {
    if tests.is_empty() {
        return format!("suite packet\n{}", network(&NETWORK));
    }
    network(&tests.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Returns the script's line for tests of the network suite. One runs at a time: an emulated CPU is slow.
pub(super) fn network(tests: &[&str]) -> String {
    format!("suite network --test-threads=1 --nocapture --exact {}\n", tests.join(" "))
}

/// Fails if a selected test is not there: the suite would pass without it.
pub(super) fn check<'a>(executables: &Executables, selected: impl Iterator<Item = &'a str>) -> Result<()> {
    let missing: Vec<_> = selected.filter(|name| !executables.tests.contains(*name)).collect();
    if !missing.is_empty() {
        bail!("the network suite has no test {}", missing.join(", "));
    }
    Ok(())
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run `{}`", workspace::command_line(command)))?;
    if !output.status.success() {
        bail!("`{}` failed ({})", workspace::command_line(command), output.status);
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Returns the executable of a test from cargo's messages.
fn executable(messages: &str, name: &str) -> Result<PathBuf> {
    let path = messages.lines().find_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        let is_it = message["target"]["name"] == name && message["target"]["kind"][0] == "test";
        is_it.then(|| message["executable"].as_str().map(PathBuf::from))?
    });
    path.with_context(|| format!("cargo reports no executable for the test {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tests_executable_is_found_among_cargos_messages() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","target":{"kind":["lib"],"name":"packet"},"executable":null}"#,
            "\nnot JSON\n",
            r#"{"reason":"compiler-artifact","target":{"kind":["test"],"name":"packet"},"executable":"/t/packet-1"}"#,
        );
        assert_eq!(executable(messages, "packet").ok(), Some(PathBuf::from("/t/packet-1")));
        assert!(executable(messages, "network").is_err());
    }

    #[test]
    fn a_selected_test_that_is_not_there_is_an_error() {
        let executables =
            Executables { programs: Vec::new(), tests: tests("serving::one: test\nserving::two: test\n") };
        assert!(check(&executables, ["serving::one", "serving::two"].into_iter()).is_ok());
        assert!(check(&executables, ["serving::one", "serving::three"].into_iter()).is_err());
    }
}
