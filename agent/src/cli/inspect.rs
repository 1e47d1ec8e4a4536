//! `vipmux inspect`.

use std::{
    io::{self, BufWriter, Write},
    net::SocketAddr,
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand, ValueEnum};
use vipmux_common::abi::Mac;

use super::table::Colour;
use crate::{
    datapath::{
        maps::Maps,
        pins::{DEFAULT_PIN_PATH, Pins},
    },
    inspect::{
        Format, InspectError,
        backends::Backends,
        clock::Clock,
        flows::Flows,
        lookup::{self, BadMac, Request, Source},
        neighbors::Neighbors,
        objects::{MapList, Programs},
        services::Services,
        stats::Stats,
        vips::Vips,
        write,
    },
    model::Protocol,
};

/// Show what the kernel holds, from the pinned maps alone; works while the agent is down
#[derive(Clone, Debug, Args)]
pub struct Inspect {
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
    /// VIPs: who leads them, and until when this node answers for those that it leads
    Vips,
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
    /// The client's address and port
    #[arg(value_name = "CLIENT:PORT")]
    client: SocketAddr,
    /// The VIP and the Service's port
    #[arg(value_name = "VIP:PORT")]
    vip: SocketAddr,
    /// The protocol
    #[arg(value_enum, ignore_case = true, default_value_t = Balanced::Tcp)]
    protocol: Balanced,
    /// The first packet of a TCP connection, rather than one of an established connection
    #[arg(long)]
    syn: bool,
    /// A frame that another node handed over
    #[arg(long, conflicts_with = "source_mac")]
    from_peer: bool,
    /// The frame's source MAC; another node's, for instance
    #[arg(long, value_name = "MAC", value_parser = parse_mac)]
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
}

fn parse_mac(text: &str) -> Result<Mac, BadMac> {
    lookup::parse_mac(text)
}

fn ifindex(name: &str) -> Result<u32, String> {
    nix::net::if_::if_nametoindex(name).map_err(|error| format!("there is no such interface here: {error}"))
}

impl LookupArgs {
    fn request(&self) -> Request {
        Request {
            client: self.client,
            vip: self.vip,
            protocol: match self.protocol {
                Balanced::Tcp => Protocol::Tcp,
                Balanced::Udp => Protocol::Udp,
            },
            syn: self.syn,
            source: match self.source_mac {
                Some(mac) => Source::Mac(mac),
                None if self.from_peer => Source::Peer,
                None => Source::Client,
            },
            ifindex: self.interface,
            vlan: self.vlan,
        }
    }
}

impl Inspect {
    /// Reads the maps and writes to standard output; a reader who has read enough is no error.
    pub fn run(&self) -> Result<(), InspectError> {
        let mut out = BufWriter::new(io::stdout().lock());
        let written = self.write(&mut out, Colour::of_stdout()).and_then(|()| Ok(out.flush()?));
        match written {
            Err(InspectError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            other => other,
        }
    }

    fn format(&self, colour: Colour) -> Format {
        match (self.pretty, self.json) {
            (true, _) => Format::PrettyJson,
            (false, true) => Format::Json,
            (false, false) => Format::Table(colour),
        }
    }

    fn write(&self, out: &mut impl Write, colour: Colour) -> Result<(), InspectError> {
        let pin_path: &Path = &self.pin_path;
        // First in any case: it tells best what is wrong with the pins.
        let maps = Maps::open(pin_path)?;
        let clock = Clock::now(maps.read_config()?.hz)?;
        let format = self.format(colour);
        match &self.what {
            What::Vips => write(&Vips::read(&maps, &clock)?, format, out),
            What::Services => write(&Services::read(&maps)?, format, out),
            What::Backends => write(&Backends::read(&maps)?, format, out),
            What::Flows { limit } => write(&Flows::read(&maps, &clock, *limit)?, format, out),
            What::Neighbors => write(&Neighbors::read(&maps)?, format, out),
            What::Stats { all } => write(&Stats::read(&maps, *all)?, format, out),
            What::Lookup(packet) => write(&lookup::walk(&maps, &clock, &packet.request())?, format, out),
            What::Maps => write(&MapList::read(&Pins::new(pin_path))?, format, out),
            What::Prog => write(&Programs::read(&Pins::new(pin_path))?, format, out),
        }
    }
}
