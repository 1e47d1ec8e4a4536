//! `vipmux inspect`.

use std::{
    io::{self, BufWriter, Write},
    net::SocketAddr,
    path::PathBuf,
    process::ExitCode,
};

use clap::{Args, Subcommand, ValueEnum};
use vipmux_common::abi::Mac;

use super::{config::SharedConfigArgs, table::Colour};
use crate::{
    control::{DEFAULT_SOCKET, Diff},
    datapath::{
        maps::Maps,
        pins::{DEFAULT_PIN_PATH, Pins},
    },
    inspect::{
        Format, InspectError,
        backends::Backends,
        clock::Clock,
        flows::Flows,
        lookup::{self, Request, Source},
        members::Members,
        neighbors::Neighbors,
        objects::{MapList, Programs},
        services::Services,
        stats::Stats,
        vips::Vips,
        write,
    },
    model::Protocol,
};

/// The exit status of `diff` if something differs.
const DIFFERS: u8 = 2;

/// Show what the kernel holds, from the pinned maps alone; all but `diff` work while the agent is down
#[derive(Clone, Debug, Args)]
pub struct Inspect {
    #[command(flatten)]
    _config: SharedConfigArgs,
    /// Where the maps are pinned
    #[arg(long, value_name = "DIR", default_value = DEFAULT_PIN_PATH, env = "VIPMUX_PIN_PATH", global = true)]
    pin_path: PathBuf,
    /// Print JSON (docs/inspect.md), on one line
    #[arg(short, long, global = true)]
    json: bool,
    /// Print JSON, indented
    #[arg(short, long, global = true)]
    pretty: bool,
    #[command(subcommand)]
    what: What,
}

#[derive(Clone, Debug, Subcommand)]
enum What {
    #[command(flatten)]
    View(View),
    /// What the kernel holds otherwise than the agent wants it; exit status 2 if there is anything
    Diff {
        /// Where the agent listens
        #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET, env = "VIPMUX_SOCKET")]
        socket: PathBuf,
    },
}

/// What is read from the maps alone.
#[derive(Clone, Debug, Subcommand)]
enum View {
    /// VIPs: who leads them, since when and why, and until when this node answers for those that it leads
    Vips,
    /// Nodes as the agents' gossip has them: which are alive, may lead, and how many VIPs each leads
    Members,
    /// Service ports: their backends and traffic
    Services,
    /// Backends: where they are, and which Services they serve
    Backends,
    /// Flow records: which backend each client's packets go to, and whether the record still decides
    Flows {
        /// Show at most this many
        #[arg(long, default_value_t = 1000)]
        limit: usize,
    },
    /// Nodes, as they are reached from this one
    Neighbors,
    /// What happened and what was dropped, since vipmux was loaded
    Stats {
        /// Show counters that are zero, too
        #[arg(long)]
        all: bool,
    },
    /// What would happen to a packet, step by step
    Lookup(LookupArgs),
    /// The maps themselves
    Maps,
    /// The programs themselves, and where they are attached
    Prog,
}

/// A packet
#[derive(Clone, Debug, Args)]
struct LookupArgs {
    /// The client's address and port; an IPv6 address in brackets
    #[arg(value_name = "CLIENT:PORT")]
    client: SocketAddr,
    /// The VIP and the Service's port
    #[arg(value_name = "VIP:PORT")]
    vip: SocketAddr,
    /// The protocol
    #[arg(value_enum, ignore_case = true, default_value_t = Balanced::Tcp)]
    protocol: Balanced,
    /// The first packet of a TCP connection or SCTP association, rather than one of an established one
    #[arg(long)]
    syn: bool,
    /// A frame that another node handed over
    #[arg(long, conflicts_with = "source_mac")]
    from_peer: bool,
    /// The frame's source MAC; another node's, for instance
    #[arg(long, value_name = "MAC", value_parser = lookup::parse_mac)]
    source_mac: Option<Mac>,
    /// The interface it comes in by [default: one that the VIP is announced on]
    #[arg(long, value_name = "NAME", value_parser = ifindex)]
    interface: Option<u32>,
    /// Its 802.1Q VLAN, 0 for untagged [default: the VIP's]
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u32).range(0..=4094))]
    vlan: Option<u32>,
}

/// The protocols that are balanced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Balanced {
    Tcp,
    Udp,
    Sctp,
}

fn ifindex(name: &str) -> Result<u32, String> {
    nix::net::if_::if_nametoindex(name).map_err(|error| format!("there is no such interface here: {error}"))
}

impl LookupArgs {
    fn request(&self) -> Result<Request, InspectError> {
        if self.client.is_ipv4() != self.vip.is_ipv4() {
            return Err(InspectError::Families { client: self.client.ip(), vip: self.vip.ip() });
        }
        Ok(Request {
            client: self.client,
            vip: self.vip,
            protocol: match self.protocol {
                Balanced::Tcp => Protocol::Tcp,
                Balanced::Udp => Protocol::Udp,
                Balanced::Sctp => Protocol::Sctp,
            },
            syn: self.syn,
            source: match self.source_mac {
                Some(mac) => Source::Mac(mac),
                None if self.from_peer => Source::Peer,
                None => Source::Client,
            },
            ifindex: self.interface,
            vlan: self.vlan,
        })
    }
}

impl Inspect {
    /// Reads what is asked for and writes to standard output; a reader who has read enough is no error.
    pub fn run(&self) -> Result<ExitCode, InspectError> {
        let (mut out, format) = (BufWriter::new(io::stdout().lock()), self.format(Colour::of_stdout()));
        let mut code = ExitCode::SUCCESS;
        let written = match &self.what {
            What::View(view) => self.write(view, format, &mut out),
            What::Diff { socket } => {
                let diff = Diff::read(socket)?;
                if !diff.is_empty() {
                    code = ExitCode::from(DIFFERS);
                }
                write(&diff, format, &mut out)
            }
        };
        match written.and_then(|()| Ok(out.flush()?)) {
            Err(InspectError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(code),
            other => other.map(|()| code),
        }
    }

    fn format(&self, colour: Colour) -> Format {
        match (self.pretty, self.json) {
            (true, _) => Format::PrettyJson,
            (false, true) => Format::Json,
            (false, false) => Format::Table(colour),
        }
    }

    fn write(&self, view: &View, format: Format, out: &mut impl Write) -> Result<(), InspectError> {
        let pins = Pins::new(&self.pin_path);
        // First in any case: it tells best what is wrong with the pins.
        let maps = Maps::open(pins.root())?;
        let clock = Clock::now(maps.read_config()?.hz)?;
        match view {
            View::Vips => write(&Vips::read(&maps, &clock)?, format, out),
            View::Members => write(&Members::read(&maps, &clock)?, format, out),
            View::Services => write(&Services::read(&maps, &clock)?, format, out),
            View::Backends => write(&Backends::read(&maps)?, format, out),
            View::Flows { limit } => write(&Flows::read(&maps, &clock, *limit)?, format, out),
            View::Neighbors => write(&Neighbors::read(&maps)?, format, out),
            View::Stats { all } => write(&Stats::read(&maps, *all)?, format, out),
            View::Lookup(packet) => write(&lookup::walk(&maps, &clock, &packet.request()?)?, format, out),
            View::Maps => write(&MapList::read(&pins)?, format, out),
            View::Prog => write(&Programs::read(&pins, &maps)?, format, out),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser;

    use super::*;
    use crate::datapath::maps::fixture::Fixture;

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
            assert_eq!(inspect.format(Colour::Never), Format::Json);
        }
        assert_eq!(parse("vips -jp").unwrap().format(Colour::Never), Format::PrettyJson);
        assert_eq!(parse("vips").unwrap().pin_path, Path::new(DEFAULT_PIN_PATH));
    }

    #[test]
    fn a_lookup_takes_a_packet() {
        let request = |arguments: &str| match parse(&format!("lookup {arguments}")).map(|inspect| inspect.what) {
            Ok(What::View(View::Lookup(packet))) => Ok(packet.request().unwrap()),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error),
        };
        let plain = request("198.51.100.7:4000 192.0.2.10:80").unwrap();
        assert_eq!((plain.client.port(), plain.vip.port(), plain.protocol), (4000, 80, Protocol::Tcp));
        assert_eq!((plain.source, plain.syn, plain.vlan, plain.ifindex), (Source::Client, false, None, None));
        let peer = request("198.51.100.7:4000 192.0.2.10:53 UDP --from-peer --vlan 7 --interface lo").unwrap();
        assert_eq!((peer.protocol, peer.source), (Protocol::Udp, Source::Peer));
        assert_eq!((peer.vlan, peer.ifindex), (Some(7), Some(1)));
        let node = request("198.51.100.7:4000 192.0.2.10:80 --syn --source-mac 02:00:00:00:00:0b").unwrap();
        assert_eq!((node.source, node.syn), (Source::Mac(Mac::new([2, 0, 0, 0, 0, 11])), true));
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
        let mixed = parse("lookup [2001:db8::1]:1 192.0.2.10:80").map(|inspect| inspect.what);
        let Ok(What::View(View::Lookup(mixed))) = mixed else { panic!("both are addresses") };
        assert!(matches!(mixed.request(), Err(InspectError::Families { .. })));
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
                let What::View(view) = &inspect.what else { panic!("{arguments}") };
                inspect.write(view, inspect.format(Colour::Never), &mut out).unwrap();
                String::from_utf8(out).unwrap()
            };
            let kind = view.split(' ').next().unwrap();
            assert!(run("--json").starts_with(&format!(r#"{{"version":1,"kind":"{kind}","#)), "{view}");
            assert!(run("").lines().next().unwrap().chars().all(|letter| !letter.is_lowercase()), "{view}");
        }
    }
}
