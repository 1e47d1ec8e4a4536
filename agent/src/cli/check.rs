//! Runs `vipmux check`.

use std::{
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::Context as _;
use serde::Serialize;

use super::{
    agent::node_name,
    cluster::{AccessArgs, AllocationArgs},
    config::SharedConfigArgs,
    current_thread_runtime,
};
use vipmux_datapath::bpf::{
    attach::{TcAttachMode, XdpAttachMode},
    pins::DEFAULT_PIN_PATH,
};
use vipmux_inspect::output::{
    self, Format, Report,
    table::{Cell, Color, Table, Tone},
};
use vipmux_model::NodeName;
use vipmux_preflight::{
    collect,
    findings::{CheckStatus, Finding, assess},
};

/// The exit status if a check fails.
pub(super) const FAILS: u8 = 2;

/// Arguments of `vipmux check`: those of `vipmux agent` and the allocator that matter for it, and the output format.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Changes nothing on the node; whatever a check creates is removed again. Run it as root: with fewer rights \
                        some lines say what could not be checked.\n\nExit status: 0 if no check fails (warnings do not \
                        count), 2 if one fails, 1 if the node cannot be checked."
)]
pub struct CheckArgs {
    #[command(flatten)]
    _config: SharedConfigArgs,
    /// Interface to announce VIPs on; repeat for several. Default: the interface whose subnet has
    /// the Node's InternalIP
    #[arg(long = "interface", value_name = "IFACE", env = "VIPMUX_INTERFACE", value_delimiter = ',')]
    interfaces: Vec<String>,
    /// The name of this Node (`metadata.name`)
    #[arg(long, value_name = "NAME", env = "VIPMUX_NODE_NAME", value_parser = node_name)]
    node_name: Option<NodeName>,
    /// Directory of Kubernetes manifests. Default: the API server
    #[arg(long, value_name = "DIR", env = "VIPMUX_MANIFESTS")]
    manifests: Option<PathBuf>,
    #[command(flatten)]
    access: AccessArgs,
    #[command(flatten)]
    allocation: AllocationArgs,
    /// Directory of the pinned maps, programs and links, on a bpffs
    #[arg(long, value_name = "DIR", env = "VIPMUX_PIN_PATH", default_value = DEFAULT_PIN_PATH)]
    pin_path: PathBuf,
    /// How XDP programs run
    #[arg(long, value_enum, env = "VIPMUX_XDP_MODE", default_value_t)]
    xdp_mode: XdpAttachMode,
    /// How the program that translates replies is attached
    #[arg(long, value_enum, env = "VIPMUX_TC", default_value_t, hide = true)]
    tc: TcAttachMode,
    /// The UDP port of the agents' gossip
    #[arg(long, value_name = "PORT", env = "VIPMUX_GOSSIP_PORT", default_value_t = vipmux_gossip::DEFAULT_PORT,
          value_parser = clap::value_parser!(u16).range(1..))]
    gossip_port: u16,
    /// The file with the key of the agents' gossip
    #[arg(long, value_name = "FILE", env = "VIPMUX_GOSSIP_KEY")]
    gossip_key: Option<PathBuf>,
    /// Directory of the agent's state
    #[arg(long, value_name = "DIR", env = "VIPMUX_STATE_DIR", default_value = "/var/lib/vipmux")]
    state_dir: PathBuf,
    /// Print JSON on one line (docs/check.md)
    #[arg(short, long)]
    json: bool,
    /// Print indented JSON
    #[arg(short, long)]
    pretty: bool,
}

/// Checks the node and prints the findings. Returns the exit status.
pub fn run(args: CheckArgs) -> anyhow::Result<ExitCode> {
    let format = Format::chosen(args.json, args.pretty, Color::of_stdout());
    let observed = current_thread_runtime()?.block_on(collect::observe(&args.into()));
    let checked = Checked::new(assess(&observed.context("cannot list this node's interfaces")?));
    output::print(&checked, format)?;
    Ok(if checked.passes() { ExitCode::SUCCESS } else { ExitCode::from(FAILS) })
}

impl From<CheckArgs> for collect::CheckOptions {
    fn from(args: CheckArgs) -> Self {
        Self {
            interfaces: args.interfaces,
            node: args.node_name,
            manifests: args.manifests,
            access: args.access.of("vipmux-check"),
            allocation: args.allocation.into(),
            pin_path: args.pin_path,
            mode: args.xdp_mode,
            tc: args.tc,
            gossip_port: args.gossip_port,
            gossip_key: args.gossip_key,
            state_dir: args.state_dir,
        }
    }
}

/// All findings, with their numbers by status.
#[derive(Debug, Serialize)]
pub(super) struct Checked {
    passed: usize,
    warned: usize,
    failed: usize,
    checks: Vec<Finding>,
}

impl Checked {
    pub(super) fn new(checks: Vec<Finding>) -> Self {
        let count = |status| checks.iter().filter(|finding| finding.status == status).count();
        let [passed, warned, failed] = [CheckStatus::Pass, CheckStatus::Warn, CheckStatus::Fail].map(count);
        Self { passed, warned, failed, checks }
    }

    /// Whether no check failed.
    pub(super) const fn passes(&self) -> bool {
        self.failed == 0
    }
}

impl Report for Checked {
    const KIND: &'static str = "check";

    fn print(&self, out: &mut impl Write, color: Color) -> io::Result<()> {
        let mut table = Table::new(&["RESULT", "CHECK", "OF", "FOUND -> WHAT TO DO"]);
        for finding in &self.checks {
            let (word, tone) = match finding.status {
                CheckStatus::Pass => ("pass", Tone::Good),
                CheckStatus::Warn => ("warn", Tone::Warn),
                CheckStatus::Fail => ("fail", Tone::Bad),
            };
            let text = match &finding.remedy {
                Some(remedy) => format!("{} -> {remedy}", finding.found),
                None => finding.found.clone(),
            };
            let subject = finding.subject.as_deref().unwrap_or_default();
            table.row([Cell::toned(word, tone), finding.check.into(), subject.into(), text.into()]);
        }
        table.print(out, color)?;
        writeln!(out, "\n{} passed, {} warned, {} failed", self.passed, self.warned, self.failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked() -> Checked {
        let pass = Finding::pass("kernel", "Linux 6.18");
        let fail =
            Finding { subject: Some("eth0".to_owned()), ..Finding::fail("carrier", "eth0 is down", "set it up") };
        Checked::new(vec![pass, fail, Finding::warn("cni", "unknown", "look")])
    }

    #[test]
    fn each_check_has_a_line_with_what_was_found_and_what_to_do() {
        let mut out = Vec::new();
        checked().print(&mut out, Color::Never).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "RESULT  CHECK    OF    FOUND -> WHAT TO DO\n\
             pass    kernel   -     Linux 6.18\n\
             fail    carrier  eth0  eth0 is down -> set it up\n\
             warn    cni      -     unknown -> look\n\n\
             1 passed, 1 warned, 1 failed\n"
        );
    }

    #[test]
    fn json_has_a_version_and_every_field() {
        let mut out = Vec::new();
        output::write(&checked(), Format::Json, &mut out).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!((&json["version"], &json["kind"]), (&1.into(), &"check".into()));
        assert_eq!([&json["passed"], &json["warned"], &json["failed"]], [1, 1, 1]);
        let expected = serde_json::json!({
            "check": "carrier", "subject": "eth0", "verdict": "fail", "found": "eth0 is down", "remedy": "set it up"
        });
        assert_eq!(json["checks"][1], expected);
    }
}
