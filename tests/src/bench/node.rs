//! What a node's own traffic pays for vipmux: TCP throughput and requests of a node without traffic for
//! VIPs, over those of a node without vipmux. And the nanoseconds of the programs for such a packet.
//!
//! All work of both ends is on one CPU, so a rate includes all that a packet costs. Offloads are on,
//! as everywhere: most segments carry tens of kilobytes in pages behind their headers.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, ensure};
use aya::{
    Ebpf, EbpfLoader,
    programs::{ProgramInfo, XdpMode},
    sys::{Stats, enable_stats},
};
use serde::Serialize;
use vipmux_datapath::bpf::pins::{EGRESS_PROGRAM, Pins, XDP_PROGRAM};

use super::statistics::median;
use crate::{
    agent::{self, Agent},
    cleanup::Folder,
    lan::{self, Lan},
    manifests::{Endpoint, Manifests, Service},
    netns::Namespace,
    program::{self, TESTING_OBJECT},
};

/// Bytes of a transfer, and of one write.
const BYTES: usize = 256 << 20;
const CHUNK: usize = 128 << 10;
/// Requests of a round, one after the other on one connection.
const REQUESTS: u32 = 10_000;
const PORT: u16 = 9_000;
/// The time limit of a start, and of one read or write.
const PATIENCE: Duration = Duration::from_mins(1);

/// A rate of a node's own traffic: megabytes, or thousands of requests, per second.
#[derive(Clone, Debug, Serialize)]
pub struct OwnTraffic {
    /// The mode of the XDP program.
    pub mode: &'static str,
    /// The traffic.
    pub case: &'static str,
    /// Without a program.
    pub without: f64,
    /// With an XDP program that passes all frames: the kernel's own cost of XDP.
    pub passing: f64,
    /// With vipmux.
    pub with: f64,
    /// With vipmux over without a program: the median of the rounds' ratios.
    pub ratio: f64,
    /// The same over a program that passes all frames.
    pub ratio_to_passing: f64,
}

/// What a program needs for a packet of a node's own traffic, with all that the kernel's measurement
/// adds.
#[derive(Clone, Debug, Serialize)]
pub struct ProgramTime {
    /// The mode of the XDP program.
    pub mode: &'static str,
    /// The traffic.
    pub case: &'static str,
    /// The program.
    pub program: &'static str,
    /// Nanoseconds per packet.
    pub nanoseconds: f64,
    /// Packets that were measured.
    pub packets: u64,
}

/// A node, a client on its LAN, and perhaps a program on the node's interface.
struct Side {
    mode: &'static str,
    // Dropped in this order: the agent before its network.
    agent: Option<(Agent, Manifests, Folder)>,
    /// Keeps a program attached that passes all frames.
    _passing: Option<Ebpf>,
    lan: Lan,
}

/// The traffic of a round.
#[derive(Clone, Copy)]
enum Traffic {
    Sending,
    Receiving,
    Requests,
}

const CASES: [(&str, Traffic); 3] =
    [("sending", Traffic::Sending), ("receiving", Traffic::Receiving), ("requests", Traffic::Requests)];
const MODES: [&str; 2] = ["generic", "native"];
const PROGRAMS: [&str; 2] = [XDP_PROGRAM, EGRESS_PROGRAM];

/// Measures all cases in turns, on the CPU that the calling thread is pinned to.
pub(super) fn run(repetitions: usize, progress: &mut dyn FnMut(&str)) -> Result<(Vec<OwnTraffic>, Vec<ProgramTime>)> {
    progress("node: nodes");
    let mut sides = vec![Side::without()?];
    for mode in MODES {
        sides.extend([Side::passing(mode)?, Side::with(mode)?]);
    }
    let mut rates = [const { [const { Vec::new() }; 1 + 2 * MODES.len()] }; CASES.len()];
    for round in 0..repetitions {
        progress(&format!("node: round {} of {repetitions}", round + 1));
        for ((_, traffic), rates) in CASES.iter().zip(&mut rates) {
            for turn in 0..sides.len() {
                let index = (turn + round) % sides.len();
                rates[index].push(sides[index].rate(*traffic)?);
            }
        }
    }
    let times = sides.iter().filter(|side| side.agent.is_some()).map(Side::times).collect::<Result<Vec<_>>>()?;
    let ratio = |these: &[f64], those: &[f64]| median(these.iter().zip(those).map(|(a, b)| a / b).collect());
    let rows = CASES.iter().zip(&rates).flat_map(|((case, _), [without, others @ ..])| {
        others.as_chunks::<2>().0.iter().zip(MODES).map(move |([passing, with], mode)| OwnTraffic {
            mode,
            case,
            without: median(without.clone()),
            passing: median(passing.clone()),
            with: median(with.clone()),
            ratio: ratio(with, without),
            ratio_to_passing: ratio(with, passing),
        })
    });
    Ok((rows.collect(), times.into_iter().flatten().collect()))
}

impl Side {
    /// Makes a node with connection tracking, as each node of a cluster has.
    fn without() -> Result<Self> {
        let lan = Lan::new(lan::Options { nodes: 1, offloads: true, ..lan::Options::default() })?;
        lan.nodes[0]
            .namespace()
            .nft("add table inet cni; add chain inet cni out { type nat hook postrouting priority 100; }")?;
        Ok(Self { mode: "none", agent: None, _passing: None, lan })
    }

    /// Makes a node with a program that passes all frames.
    fn passing(mode: &'static str) -> Result<Self> {
        let side = Self::without()?;
        let mut ebpf = EbpfLoader::new().load(TESTING_OBJECT).context("loading the testing object")?;
        let program = program::xdp_mut(&mut ebpf, "pass")?;
        program.load()?;
        let xdp_mode = if mode == "native" { XdpMode::Driver } else { XdpMode::Skb };
        side.lan.nodes[0].namespace().run(|| Ok(program.attach("eth0", xdp_mode)?))?;
        Ok(Self { mode, _passing: Some(ebpf), ..side })
    }

    /// Makes a node that leads the VIP of a Service with a pod of its own.
    fn with(mode: &'static str) -> Result<Self> {
        let side = Self::without()?;
        let lan = &side.lan;
        let node = &lan.nodes[0];
        let manifests = Manifests::for_lan(lan)?;
        let endpoint = Endpoint::new(Ipv4Addr::new(10, 0, 0, 1), &node.name);
        manifests.write_service(&Service::sharing("bench/s", 80, "TCP", 8_080).with([endpoint]))?;
        let state = Folder::temporary("state")?;
        let options = agent::Options { xdp_mode: mode, ..agent::Options::new(manifests.path(), state.path()) };
        let agent = Agent::start(node, &options)?;
        agent.wait_ready(PATIENCE)?;
        Ok(Self { mode, agent: Some((agent, manifests, state)), ..side })
    }

    /// Returns megabytes, or thousands of requests, per second.
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    fn rate(&self, traffic: Traffic) -> Result<f64> {
        let (node, client) = (&self.lan.nodes[0], self.lan.client()?);
        let (from, to, address) = match traffic {
            Traffic::Receiving => (client.namespace(), node.namespace(), node.address),
            Traffic::Sending | Traffic::Requests => (node.namespace(), client.namespace(), client.address),
        };
        let work = match traffic {
            Traffic::Requests => ask,
            Traffic::Sending | Traffic::Receiving => transfer,
        };
        let elapsed = exchange(from, to, (address, PORT).into(), work)?.as_secs_f64();
        Ok(match traffic {
            Traffic::Requests => f64::from(REQUESTS) / elapsed / 1e3,
            Traffic::Sending | Traffic::Receiving => BYTES as f64 / elapsed / 1e6,
        })
    }

    /// Returns what each program needs in each case. The kernel measures only meanwhile, since that has
    /// a cost of its own.
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    fn times(&self) -> Result<Vec<ProgramTime>> {
        let (agent, ..) = self.agent.as_ref().context("no agent")?;
        let _measuring = enable_stats(Stats::RunTime).context("letting the kernel measure programs")?;
        let pins = Pins::new(agent.pins());
        let counted = |name| ProgramInfo::from_pin(pins.program(name)).map(|info| (info.run_time(), info.run_count()));
        let mut rows = Vec::new();
        for (case, traffic) in CASES {
            let before = PROGRAMS.map(counted);
            self.rate(traffic)?;
            for (program, before) in PROGRAMS.into_iter().zip(before) {
                let ((then, earlier), (time, packets)) = (before?, counted(program)?);
                let packets = packets - earlier;
                let nanoseconds = time.saturating_sub(then).as_secs_f64() * 1e9 / packets as f64;
                rows.push(ProgramTime { mode: self.mode, case, program, nanoseconds, packets });
            }
        }
        Ok(rows)
    }
}

/// Connects, and returns how long `work` took at both ends.
fn exchange(
    from: &Namespace,
    to: &Namespace,
    address: SocketAddr,
    work: fn(TcpStream, bool) -> Result<()>,
) -> Result<Duration> {
    let listener = to.run(|| Ok(TcpListener::bind(address)?))?;
    let server = to.spawn(move || work(limited(listener.accept()?.0)?, false))?;
    let client = from.run(|| limited(TcpStream::connect_timeout(&address, PATIENCE)?))?;
    let begin = Instant::now();
    let worked = work(client, true);
    server.join().map_err(|_| anyhow!("the server panicked"))?.context("the server")?;
    worked.context("the client")?;
    Ok(begin.elapsed())
}

fn limited(stream: TcpStream) -> Result<TcpStream> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// The client sends, and the server reads all of it.
fn transfer(mut stream: TcpStream, is_client: bool) -> Result<()> {
    let mut chunk = vec![7; CHUNK];
    if is_client {
        return (0..BYTES / CHUNK).try_for_each(|_| Ok(stream.write_all(&chunk)?));
    }
    let mut all = 0;
    loop {
        match stream.read(&mut chunk)? {
            0 => break,
            read => all += read,
        }
    }
    ensure!(all == BYTES, "{all} of {BYTES} bytes arrived");
    Ok(())
}

/// The client sends bytes, one after the other, and gets each of them back.
fn ask(mut stream: TcpStream, is_client: bool) -> Result<()> {
    let mut byte = [7];
    for _ in 0..REQUESTS {
        if is_client {
            stream.write_all(&byte)?;
        }
        stream.read_exact(&mut byte)?;
        if !is_client {
            stream.write_all(&byte)?;
        }
    }
    Ok(())
}
