//! One node between a generator and a sink, each in a network namespace of its own.
//!
//! ```text
//!  generator out ---- in node out ---- in sink
//!        198.18.0.2      .0.1 198.18.1.1    198.18.1.2
//! ```

use std::{
    fs,
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use aya::{
    Ebpf, EbpfLoader,
    maps::{Array, PerCpuArray},
    programs::{TestRun, TestRunAttrs, TestRunOptions, XdpMode},
};
use pnet::util::MacAddr;
use vipmux_common::abi::{Interface, Mac};

use super::{
    super::{
        workload::{self, CLIENT, SELF_MAC},
        wrapper::{BACKENDS, LENGTH, Template, Variation, template},
    },
    rules,
};
use crate::{
    cleanup::{self, Folder},
    conntrack,
    links::End,
    netns::Namespace,
    offload, process,
    program::{self, Program, State, TESTING_OBJECT},
};

/// The clients' network, and the generator's address for all of them.
const CLIENTS: (Ipv4Addr, u8) = (CLIENT, 9);
const GENERATOR: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
/// The backends' network, and the sink's address for all of them.
const PODS: (Ipv4Addr, u8) = (Ipv4Addr::new(BACKENDS, 0, 0, 0), 9);
const SINK: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 2);
const SINK_MAC: MacAddr = MacAddr(2, 0, 0, 0, 1, 2);
/// Frames in flight, an eighth of a veth's ring.
const BATCH: u32 = 32;

/// The kind of the node under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Equipment {
    /// The data plane, on the interface towards the generator.
    pub(super) data_plane: bool,
    /// kube-proxy's rules, with connection tracking.
    pub(super) rules: bool,
}

/// The three namespaces, removed on drop.
pub(super) struct Lane {
    // Dropped before the namespaces.
    program: Option<Program>,
    sink: Ebpf,
    generator: Namespace,
    node: Namespace,
    _beyond: Namespace,
    rules: bool,
}

/// The packets of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Run {
    /// Elapsed time.
    pub(super) elapsed: Duration,
    /// Packets that arrived with a backend's address as destination.
    pub(super) translated: u64,
    /// Packets that arrived with the VIP as destination.
    pub(super) untouched: u64,
}

/// A generator's frames: a template and how it varies.
pub(super) struct Generator {
    ebpf: Ebpf,
    frame: [u8; LENGTH],
}

impl Lane {
    /// Makes a node that has the state's Services.
    pub(super) fn new(state: &State, equipment: Equipment, capacity: u32) -> Result<Self> {
        let name = cleanup::number();
        let generator = Namespace::new(&format!("{name}-generator"))?;
        let node = Namespace::new(&format!("{name}-node"))?;
        let beyond = Namespace::new(&format!("{name}-sink"))?;
        wire(&generator, &node, &beyond)?;
        let sink = beyond.run(|| {
            let mut sink = EbpfLoader::new().load(TESTING_OBJECT).context("loading the sink")?;
            let program = program::xdp_mut(&mut sink, "sink")?;
            program.load()?;
            program.attach("in", XdpMode::Driver).context("attaching the sink")?;
            Ok(sink)
        })?;
        let mut lane = Self { program: None, sink, generator, node, _beyond: beyond, rules: equipment.rules };
        if equipment.rules {
            lane.add_rules(state)?;
        }
        if equipment.data_plane {
            lane.attach(state, capacity)?;
        }
        Ok(lane)
    }

    fn add_rules(&self, state: &State) -> Result<()> {
        // A card has verified checksums before; a veth has not.
        self.node.sysctl("net/netfilter/nf_conntrack_checksum", "0")?;
        let folder = Folder::temporary("rules")?;
        let file = folder.path().join("rules.nft");
        fs::write(&file, rules::ruleset(state)?).with_context(|| format!("cannot write {}", file.display()))?;
        let mut command = self.node.command("nft")?;
        command.arg("-f").arg(&file);
        process::run(command).map(drop).context("nft comes with the package nftables")
    }

    fn attach(&mut self, state: &State, capacity: u32) -> Result<()> {
        let (inward, outward) = self.node.links(|links| Ok((links.index("in")?, links.index("out")?)))?;
        let mut state = state.clone();
        state.interfaces = vec![Interface::default(); usize::try_from(inward)? + 1];
        state.interfaces[usize::try_from(inward)?] = Interface { mac: Mac::new(SELF_MAC), bit: 1, flags: 0 };
        for node in &mut state.nodes {
            node.ifindex = outward;
        }
        let mut program = Program::load(&state, capacity)?;
        self.node.run(|| program.attach("in"))?;
        self.program = Some(program);
        Ok(())
    }

    /// Returns the data plane, if the node has it.
    pub(super) fn program(&self) -> Option<&Program> {
        self.program.as_ref()
    }

    /// Returns how many connections the node tracks; `None` if nothing makes it track them.
    pub(super) fn connections(&self) -> Result<Option<u64>> {
        const COUNT: &str = "/proc/sys/net/netfilter/nf_conntrack_count";
        let count = || {
            let text = fs::read_to_string(COUNT).with_context(|| format!("reading {COUNT}"))?;
            Ok(text.trim().parse()?)
        };
        if self.rules { self.node.run(count).map(Some) } else { Ok(None) }
    }

    /// Makes the node forget all tracked connections.
    pub(super) fn forget(&self) -> Result<()> {
        if self.rules { self.node.run(conntrack::flush) } else { Ok(()) }
    }

    /// Returns a generator of datagrams to the first Service on `to` and those after it.
    pub(super) fn generator(&self, from: Ipv4Addr, to: Ipv4Addr, variation: Variation) -> Result<Generator> {
        let datagram = workload::datagram(from, to);
        let frame: [u8; LENGTH] = datagram.as_slice().try_into().context("a frame of another length")?;
        let ifindex = self.generator.links(|links| links.index("out"))?;
        let mut ebpf = EbpfLoader::new().load(TESTING_OBJECT).context("loading the generator")?;
        program::xdp_mut(&mut ebpf, "generate")?.load()?;
        let mut templates: Array<_, Template> = ebpf.map_mut("TEMPLATE").context("no map TEMPLATE")?.try_into()?;
        templates.set(0, Template { ifindex, ..template(&frame, Some(variation)) }, 0)?;
        Ok(Generator { ebpf, frame })
    }

    /// Sends this many packets. With `answered`, the sink answers each.
    pub(super) fn send(&mut self, generator: &Generator, packets: u32, answered: bool) -> Result<Run> {
        let mut answer: Array<_, u32> = self.sink.map_mut("ANSWER").context("no map ANSWER")?.try_into()?;
        answer.set(0, u32::from(answered), 0)?;
        let before = self.arrived()?;
        let elapsed = self.generator.run(|| {
            first_in_line()?;
            let program = program::xdp(&generator.ebpf, "generate")?;
            let start = Instant::now();
            program.test_run(TestRunOptions {
                data_in: Some(&generator.frame),
                repeat: packets,
                attrs: TestRunAttrs::new().xdp_live_frames(BATCH),
                ..Default::default()
            })?;
            Ok(start.elapsed())
        })?;
        let after = self.arrived()?;
        Ok(Run { elapsed, translated: after[0] - before[0], untouched: after[1] - before[1] })
    }

    fn arrived(&self) -> Result<[u64; 2]> {
        let map = self.sink.map("ARRIVED").context("no map ARRIVED")?;
        let counts: PerCpuArray<_, u64> = map.try_into()?;
        Ok([counts.get(&0, 0)?.iter().sum(), counts.get(&1, 0)?.iter().sum()])
    }
}

/// Sets up the veths, with addresses, routes and neighbors, so that nothing is resolved during a
/// run.
fn wire(generator: &Namespace, node: &Namespace, beyond: &Namespace) -> Result<()> {
    let own = End { name: "in", mac: Some(SELF_MAC.into()) };
    node.links(|links| {
        links.add_veth(own, End::named("out"), generator)?;
        links.add_veth(End::named("out"), End { name: "in", mac: Some(SINK_MAC) }, beyond)?;
        links.add_address("in", Ipv4Addr::new(198, 18, 0, 1), 24)?;
        links.add_address("out", Ipv4Addr::new(198, 18, 1, 1), 24)
    })?;
    let client = generator.links(|links| links.mac("out"))?;
    node.links(|links| {
        links.add_neighbor("in", GENERATOR, client)?;
        links.add_neighbor("out", SINK, SINK_MAC)?;
        links.add_route("in", CLIENTS, Some(GENERATOR))?;
        links.add_route("out", PODS, Some(SINK))
    })?;
    for (sysctl, value) in [
        ("net/ipv4/ip_forward", "1"),
        ("net/ipv4/conf/all/rp_filter", "0"),
        ("net/ipv4/conf/in/rp_filter", "0"),
        ("net/ipv4/conf/out/rp_filter", "0"),
    ] {
        node.sysctl(sysctl, value)?;
    }
    node.run(|| {
        offload::enable_gro("in")?;
        offload::enable_gro("out")
    })
}

/// Gives the calling thread the highest nice priority.
fn first_in_line() -> Result<()> {
    // SAFETY: a system call with plain arguments; on Linux, 0 is the calling thread.
    let result = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) };
    ensure!(result == 0, "cannot raise the generator's priority: {}", std::io::Error::last_os_error());
    Ok(())
}
