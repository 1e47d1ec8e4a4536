//! Runs `vipmux inspect`.

use std::{io::Write, net::SocketAddr, path::PathBuf, process::ExitCode};

use clap::{Args, Subcommand, ValueEnum};
use vipmux_common::abi::Mac;

use super::config::SharedConfigArgs;
use vipmux_datapath::bpf::{
    maps::Maps,
    pins::{DEFAULT_PIN_PATH, Pins},
};
use vipmux_inspect::{
    InspectError,
    backends::Backends,
    clock::Clock,
    flows::Flows,
    lookup::{self, FrameSource, LookupPacket},
    members::Members,
    neighbors::NeighborList,
    objects::{MapList, PinnedPrograms},
    output::{self, Format, Report, table::Color},
    services::Services,
    stats::Stats,
    vips::Vips,
};
use vipmux_model::Protocol;
use vipmux_runtime::control::{DEFAULT_SOCKET, Diff};

/// The exit status of `diff` if there is a difference.
const DIFFERS: u8 = 2;

/// Show the kernel's state from the pinned maps; all views but `diff` work without the agent
#[derive(Clone, Debug, Args)]
pub struct Inspect {
    #[command(flatten)]
    _config: SharedConfigArgs,
    /// Directory of the pinned maps
    #[arg(long, value_name = "DIR", default_value = DEFAULT_PIN_PATH, env = "VIPMUX_PIN_PATH", global = true)]
    pin_path: PathBuf,
    /// Print JSON on one line (docs/inspect.md)
    #[arg(short, long, global = true)]
    json: bool,
    /// Print indented JSON
    #[arg(short, long, global = true)]
    pretty: bool,
    #[command(subcommand)]
    command: InspectCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum InspectCommand {
    #[command(flatten)]
    View(InspectView),
    /// Drift: differences between the kernel and the desired state; exit status 2 if there are any
    Diff {
        /// The agent's socket
        #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET, env = "VIPMUX_SOCKET")]
        socket: PathBuf,
    },
}

/// The views that are read from the maps alone.
#[derive(Clone, Debug, Subcommand)]
enum InspectView {
    /// VIPs: their leaders, since when and why, and how long this node still answers for its own
    Vips,
    /// Nodes as known from gossip: which are alive, which may lead, and how many VIPs each leads
    Members,
    /// Service ports: backends and traffic
    Services,
    /// Backends: their nodes and the Services that they serve
    Backends,
    /// Flow records: the backend of each client's packets, and whether the record is still valid
    Flows {
        /// Show at most this many records
        #[arg(long, default_value_t = 1000)]
        limit: usize,
    },
    /// Nodes: how this node reaches them
    Neighbors,
    /// Counters of events and drops since vipmux was loaded
    Stats {
        /// Show counters that are zero too
        #[arg(long)]
        all: bool,
    },
    /// Predict what happens to a packet, step by step
    Lookup(LookupArgs),
    /// The pinned maps
    Maps,
    /// The pinned programs and their interfaces
    Prog,
}

/// A packet
#[derive(Clone, Debug, Args)]
struct LookupArgs {
    /// The client's address and port; IPv6 addresses in brackets
    #[arg(value_name = "CLIENT:PORT")]
    client: SocketAddr,
    /// The VIP and the Service's port
    #[arg(value_name = "VIP:PORT")]
    vip: SocketAddr,
    /// The protocol
    #[arg(value_enum, ignore_case = true, default_value_t = BalancedProtocol::Tcp)]
    protocol: BalancedProtocol,
    /// The packet opens a TCP connection or SCTP association; otherwise it belongs to an
    /// established one
    #[arg(long)]
    syn: bool,
    /// Another node handed the frame over
    #[arg(long, conflicts_with = "source_mac")]
    from_peer: bool,
    /// The frame's source MAC, such as another node's
    #[arg(long, value_name = "MAC")]
    source_mac: Option<Mac>,
    /// The interface where it comes in [default: one where the VIP is announced]
    #[arg(long, value_name = "NAME", value_parser = ifindex)]
    interface: Option<u32>,
    /// Its 802.1Q VLAN; 0: untagged [default: the VIP's]
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u32).range(0..=4094))]
    vlan: Option<u32>,
}

/// A protocol that vipmux balances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum BalancedProtocol {
    Tcp,
    Udp,
    Sctp,
}

fn ifindex(name: &str) -> Result<u32, String> {
    nix::net::if_::if_nametoindex(name).map_err(|error| format!("there is no such interface here: {error}"))
}

impl LookupArgs {
    fn packet(&self) -> Result<LookupPacket, InspectError> {
        if self.client.is_ipv4() != self.vip.is_ipv4() {
            return Err(InspectError::Families { client: self.client.ip(), vip: self.vip.ip() });
        }
        Ok(LookupPacket {
            client: self.client,
            vip: self.vip,
            protocol: match self.protocol {
                BalancedProtocol::Tcp => Protocol::Tcp,
                BalancedProtocol::Udp => Protocol::Udp,
                BalancedProtocol::Sctp => Protocol::Sctp,
            },
            syn: self.syn,
            source: match self.source_mac {
                Some(mac) => FrameSource::Mac(mac),
                None if self.from_peer => FrameSource::Peer,
                None => FrameSource::Client,
            },
            ifindex: self.interface,
            vlan: self.vlan,
        })
    }
}

impl Inspect {
    /// Reads what is asked for and writes it to standard output.
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        let format = self.format(Color::of_stdout());
        match &self.command {
            InspectCommand::View(view) => {
                self.write(view, format, &mut output::stdout())?;
                Ok(ExitCode::SUCCESS)
            }
            InspectCommand::Diff { socket } => {
                let diff = Diff::read(socket)?;
                output::print(&diff, format)?;
                Ok(if diff.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(DIFFERS) })
            }
        }
    }

    fn format(&self, color: Color) -> Format {
        Format::chosen(self.json, self.pretty, color)
    }

    fn write(&self, view: &InspectView, format: Format, out: &mut impl Write) -> Result<(), InspectError> {
        fn write<R: Report>(report: &R, format: Format, out: &mut impl Write) -> Result<(), InspectError> {
            Ok(output::write(report, format, out)?)
        }
        let pins = Pins::new(&self.pin_path);
        // First in any case: its error says best what is wrong with the pins.
        let maps = Maps::open(pins.root())?;
        let clock = Clock::now(maps.read_config()?.hz)?;
        match view {
            InspectView::Vips => write(&Vips::read(&maps, &clock)?, format, out),
            InspectView::Members => write(&Members::read(&maps, &clock)?, format, out),
            InspectView::Services => write(&Services::read(&maps, &clock)?, format, out),
            InspectView::Backends => write(&Backends::read(&maps)?, format, out),
            InspectView::Flows { limit } => write(&Flows::read(&maps, &clock, *limit)?, format, out),
            InspectView::Neighbors => write(&NeighborList::read(&maps)?, format, out),
            InspectView::Stats { all } => write(&Stats::read(&maps, *all)?, format, out),
            InspectView::Lookup(args) => write(&lookup::walk(&maps, &clock, &args.packet()?)?, format, out),
            InspectView::Maps => write(&MapList::read(&pins)?, format, out),
            InspectView::Prog => write(&PinnedPrograms::read(&pins, &maps)?, format, out),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser;

    use super::*;
    use vipmux_datapath::fixture::Fixture;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        inspect: Inspect,
    }

    fn parse(arguments: &str) -> Result<Inspect, clap::Error> {
        let arguments = std::iter::once("inspect").chain(arguments.split_whitespace());
        Command::try_parse_from(arguments).map(|command| command.inspect)
    }

    #[test]
    fn options_stand_before_or_after_the_view() {
        for arguments in ["--json --pin-path /p vips", "vips --json --pin-path /p", "-j vips --pin-path /p"] {
            let inspect = parse(arguments).unwrap();
            assert_eq!(inspect.pin_path, Path::new("/p"));
            assert_eq!(inspect.format(Color::Never), Format::Json);
        }
        assert_eq!(parse("vips -jp").unwrap().format(Color::Never), Format::PrettyJson);
        assert_eq!(parse("vips").unwrap().pin_path, Path::new(DEFAULT_PIN_PATH));
    }

    #[test]
    fn a_lookup_takes_a_packet() {
        let request = |arguments: &str| match parse(&format!("lookup {arguments}")).map(|inspect| inspect.command) {
            Ok(InspectCommand::View(InspectView::Lookup(packet))) => Ok(packet.packet().unwrap()),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error),
        };
        let plain = request("198.51.100.7:4000 192.0.2.10:80").unwrap();
        assert_eq!((plain.client.port(), plain.vip.port(), plain.protocol), (4000, 80, Protocol::Tcp));
        assert_eq!((plain.source, plain.syn, plain.vlan, plain.ifindex), (FrameSource::Client, false, None, None));
        let peer = request("198.51.100.7:4000 192.0.2.10:53 UDP --from-peer --vlan 7 --interface lo").unwrap();
        assert_eq!((peer.protocol, peer.source), (Protocol::Udp, FrameSource::Peer));
        assert_eq!((peer.vlan, peer.ifindex), (Some(7), Some(1)));
        let node = request("198.51.100.7:4000 192.0.2.10:80 --syn --source-mac 02:00:00:00:00:0b").unwrap();
        assert_eq!((node.source, node.syn), (FrameSource::Mac(Mac::new([2, 0, 0, 0, 0, 11])), true));
        for bad in [
            "198.51.100.7 192.0.2.10:80",
            "198.51.100.7:1 192.0.2.10:80 icmp",
            "198.51.100.7:1 192.0.2.10:80 --vlan 4095",
            "198.51.100.7:1 192.0.2.10:80 --interface no-such-if0",
            "198.51.100.7:1 192.0.2.10:80 --from-peer --source-mac 02:00:00:00:00:0b",
        ] {
            assert!(request(bad).is_err(), "{bad}");
        }
        let v6 = request("[2001:db8:f::7]:4000 [2001:db8::10]:80 sctp").unwrap();
        assert_eq!((v6.client.to_string().as_str(), v6.protocol), ("[2001:db8:f::7]:4000", Protocol::Sctp));
        let mixed = parse("lookup [2001:db8::1]:1 192.0.2.10:80").map(|inspect| inspect.command);
        let Ok(InspectCommand::View(InspectView::Lookup(mixed))) = mixed else { panic!("both are addresses") };
        assert!(matches!(mixed.packet(), Err(InspectError::Families { .. })));
    }

    #[test]
    fn every_view_is_shown_of_empty_maps_both_ways() {
        let Some(fixture) = Fixture::new() else { return };
        for view in ["vips", "members", "services", "backends", "flows", "neighbors", "stats", "maps", "prog"]
            .into_iter()
            .chain(["lookup 198.51.100.7:1 192.0.2.10:80"])
        {
            let run = |options: &str| {
                let mut out = Vec::new();
                let arguments = format!("{view} {options} --pin-path {}", fixture.pins.root().display());
                let inspect = parse(&arguments).unwrap();
                let InspectCommand::View(view) = &inspect.command else { panic!("{arguments}") };
                inspect.write(view, inspect.format(Color::Never), &mut out).unwrap();
                String::from_utf8(out).unwrap()
            };
            let kind = view.split(' ').next().unwrap();
            assert!(run("--json").starts_with(&format!(r#"{{"version":1,"kind":"{kind}","#)), "{view}");
            assert!(run("").lines().next().unwrap().chars().all(|letter| !letter.is_lowercase()), "{view}");
        }
    }
}
