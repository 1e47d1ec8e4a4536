//! `vipmux check`.

use std::{
    io::{self, BufWriter, Write},
    path::PathBuf,
    process::ExitCode,
};

use serde::Serialize;

use super::{
    agent::node_name,
    cluster::AccessArgs,
    config::SharedConfigArgs,
    table::{Cell, Colour, Table, Tone},
};
use crate::{
    cluster::Access,
    datapath::{attach, pins::DEFAULT_PIN_PATH},
    gossip,
    inspect::{Format, InspectError, Report, write},
    link::LinkError,
    model::NodeName,
    preflight::{Finding, Verdict, assess, interface::Mode},
    survey,
};

/// The exit status if something fails.
const FAILS: u8 = 2;

/// Arguments of `vipmux check`: those of `vipmux agent` that it depends on, and how to write.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Nothing is changed on the node; what is made to try something out is removed again. Root sees everything; \
                        with fewer rights some lines say what could not be looked at.\n\nExit status: 0 when nothing fails, \
                        warnings aside; 2 when something does; 1 when the node cannot be looked at."
)]
pub struct Args {
    #[command(flatten)]
    _config: SharedConfigArgs,
    /// Interface to announce VIPs on; repeat for several. Without it: the one whose subnet holds the Node's InternalIP
    #[arg(long = "interface", value_name = "IFACE", env = "VIPMUX_INTERFACE", value_delimiter = ',')]
    interfaces: Vec<String>,
    /// The Node that this is, by `metadata.name`
    #[arg(long, value_name = "NAME", env = "VIPMUX_NODE_NAME", value_parser = node_name)]
    node_name: Option<NodeName>,
    /// Directory of Kubernetes manifests. Without it: the API server
    #[arg(long, value_name = "DIR", env = "VIPMUX_MANIFESTS")]
    manifests: Option<PathBuf>,
    #[command(flatten)]
    access: AccessArgs,
    /// Where maps, programs and links are pinned, on a bpffs
    #[arg(long, value_name = "DIR", env = "VIPMUX_PIN_PATH", default_value = DEFAULT_PIN_PATH)]
    pin_path: PathBuf,
    /// How XDP programs are to run
    #[arg(long, value_enum, env = "VIPMUX_XDP_MODE", default_value_t)]
    xdp_mode: attach::Mode,
    /// The UDP port on which the agents speak to each other
    #[arg(long, value_name = "PORT", env = "VIPMUX_GOSSIP_PORT", default_value_t = gossip::DEFAULT_PORT,
          value_parser = clap::value_parser!(u16).range(1..))]
    gossip_port: u16,
    /// The file with the key that seals what they say
    #[arg(long, value_name = "FILE", env = "VIPMUX_GOSSIP_KEY")]
    gossip_key: Option<PathBuf>,
    /// Where the agent keeps what it must not forget
    #[arg(long, value_name = "DIR", env = "VIPMUX_STATE_DIR", default_value = "/var/lib/vipmux")]
    state_dir: PathBuf,
    /// Print JSON (docs/check.md), on one line
    #[arg(short, long)]
    json: bool,
    /// Print JSON, indented
    #[arg(short, long)]
    pretty: bool,
}

/// The node could not be looked at, or what was found not written.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// Not even the interfaces could be listed.
    #[error("cannot look at this node's interfaces")]
    Links(#[from] LinkError),
    /// The asynchronous runtime cannot be started.
    #[error("cannot start the asynchronous runtime")]
    Runtime(#[source] io::Error),
    /// Writing.
    #[error(transparent)]
    Output(#[from] InspectError),
}

/// Looks at the node, and says by the exit status whether anything fails.
pub fn run(args: Args) -> Result<ExitCode, CheckError> {
    let format = match (args.pretty, args.json) {
        (true, _) => Format::PrettyJson,
        (false, true) => Format::Json,
        (false, false) => Format::Table(Colour::of_stdout()),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CheckError::Runtime)?;
    let observed = runtime.block_on(survey::observe(&args.into()))?;
    let checked = Checked::new(assess(&observed));
    let mut out = BufWriter::new(io::stdout().lock());
    match write(&checked, format, &mut out).and_then(|()| Ok(out.flush()?)) {
        Err(InspectError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {}
        other => other?,
    }
    Ok(if checked.failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(FAILS) })
}

impl From<Args> for survey::Options {
    fn from(args: Args) -> Self {
        let Access { kubeconfig, namespace } = args.access.into();
        Self {
            interfaces: args.interfaces,
            node: args.node_name,
            manifests: args.manifests,
            kubeconfig,
            namespace,
            pin_path: args.pin_path,
            mode: match args.xdp_mode {
                attach::Mode::Auto => Mode::Auto,
                attach::Mode::Native => Mode::Native,
                attach::Mode::Generic => Mode::Generic,
            },
            gossip_port: args.gossip_port,
            gossip_key: args.gossip_key,
            state_dir: args.state_dir,
        }
    }
}

/// All findings, and how many ended how.
#[derive(Debug, Serialize)]
struct Checked {
    passed: usize,
    warned: usize,
    failed: usize,
    checks: Vec<Finding>,
}

impl Checked {
    fn new(checks: Vec<Finding>) -> Self {
        let count = |verdict| checks.iter().filter(|finding| finding.verdict == verdict).count();
        let [passed, warned, failed] = [Verdict::Pass, Verdict::Warn, Verdict::Fail].map(count);
        Self { passed, warned, failed, checks }
    }
}

impl Report for Checked {
    const KIND: &'static str = "check";

    fn print(&self, out: &mut impl Write, colour: Colour) -> io::Result<()> {
        let mut table = Table::new(&["RESULT", "CHECK", "OF", "FOUND -> WHAT TO DO"]);
        for finding in &self.checks {
            let (word, tone) = match finding.verdict {
                Verdict::Pass => ("pass", Tone::Good),
                Verdict::Warn => ("warn", Tone::Warn),
                Verdict::Fail => ("fail", Tone::Bad),
            };
            let text = match &finding.remedy {
                Some(remedy) => format!("{} -> {remedy}", finding.found),
                None => finding.found.clone(),
            };
            let subject = finding.subject.as_deref().unwrap_or_default();
            table.row([Cell::toned(word, tone), finding.check.into(), subject.into(), text.into()]);
        }
        table.print(out, colour)?;
        writeln!(out, "\n{} passed, {} to be looked at, {} failed", self.passed, self.warned, self.failed)
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
        checked().print(&mut out, Colour::Never).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "RESULT  CHECK    OF    FOUND -> WHAT TO DO\n\
             pass    kernel   -     Linux 6.18\n\
             fail    carrier  eth0  eth0 is down -> set it up\n\
             warn    cni      -     unknown -> look\n\n\
             1 passed, 1 to be looked at, 1 failed\n"
        );
    }

    #[test]
    fn json_has_a_version_and_every_field() {
        let mut out = Vec::new();
        write(&checked(), Format::Json, &mut out).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!((&json["version"], &json["kind"]), (&1.into(), &"check".into()));
        assert_eq!([&json["passed"], &json["warned"], &json["failed"]], [1, 1, 1]);
        let expected = serde_json::json!({
            "check": "carrier", "subject": "eth0", "verdict": "fail", "found": "eth0 is down", "remedy": "set it up"
        });
        assert_eq!(json["checks"][1], expected);
    }
}
