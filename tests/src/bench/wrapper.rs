//! The wrapper program around a program under test (`ebpf/src/testing.rs`).

use anyhow::{Context, Result, bail, ensure};
use aya::{
    Ebpf, EbpfLoader,
    maps::{Array, ProgramArray},
    programs::{ProgramFd, TestRun, TestRunOptions},
};

use super::cpu_time::thread_time;
use crate::program::{self, TESTING_OBJECT};
pub(super) use vipmux_common::wrapper::{BACKENDS, LENGTH, Template};

/// How the flow varies between packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Variation {
    /// The number of flows, a power of two.
    pub(super) flows: u32,
    /// The Services that flows are spread over. Their ports follow the packet's own.
    pub(super) services: u32,
}

/// A wrapper with the packet that it restores and the program that it calls.
#[derive(Debug)]
pub(super) struct Wrapper {
    ebpf: Ebpf,
    entry: &'static str,
    packet: [u8; LENGTH],
}

/// Nanoseconds per packet, and the last verdict.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample {
    /// The thread's CPU time.
    pub(super) cpu: f64,
    /// The kernel's own measure of elapsed time, whole nanoseconds.
    pub(super) kernel: u32,
    pub(super) verdict: u32,
}

impl Wrapper {
    /// Makes a wrapper around `target`, with an Ethernet frame of at most 60 bytes. If the frame
    /// varies, its IPv4 header has no options.
    pub(super) fn new(target: &ProgramFd, frame: &[u8], variation: Option<Variation>) -> Result<Self> {
        Self::load(if variation.is_some() { "restore_flow" } else { "restore" }, target, frame, variation)
    }

    /// The same around a program that may add a header, which the wrapper takes away.
    pub(super) fn growing(target: &ProgramFd, frame: &[u8], variation: Option<Variation>) -> Result<Self> {
        let entry = if variation.is_some() { "restore_grown_flow" } else { "restore_grown" };
        Self::load(entry, target, frame, variation)
    }

    fn load(entry: &'static str, target: &ProgramFd, frame: &[u8], variation: Option<Variation>) -> Result<Self> {
        ensure!(frame.len() <= LENGTH, "a frame of {} bytes is longer than {LENGTH}", frame.len());
        let mut packet = [0; LENGTH];
        packet[..frame.len()].copy_from_slice(frame);
        let mut ebpf = EbpfLoader::new().load(TESTING_OBJECT).context("loading the wrapper")?;
        program::xdp_mut(&mut ebpf, entry)?.load()?;
        let mut templates: Array<_, Template> = ebpf.map_mut("TEMPLATE").context("no map TEMPLATE")?.try_into()?;
        templates.set(0, template(&packet, variation), 0)?;
        let mut targets: ProgramArray<_> = ebpf.map_mut("TARGET").context("no map TARGET")?.try_into()?;
        targets.set(0, target, 0).context("calling a program, which must be for frames in several buffers")?;
        Ok(Self { ebpf, entry, packet })
    }

    /// Visits the same flows in another order from now on: not in that of their first packets, in
    /// which a map may have them side by side.
    pub(super) fn visit_in_another_order(&mut self) -> Result<()> {
        /// Odd, and unrelated to the first one.
        const OTHER_STRIDE: u32 = 0x6c8e_944d;
        let mut templates: Array<_, Template> = self.ebpf.map_mut("TEMPLATE").context("no map TEMPLATE")?.try_into()?;
        let template = templates.get(&0, 0)?;
        Ok(templates.set(0, Template { stride: OTHER_STRIDE, ..template }, 0)?)
    }

    /// Runs it this many times.
    pub(super) fn run(&self, packets: u32) -> Result<Sample> {
        let program = program::xdp(&self.ebpf, self.entry)?;
        let options = TestRunOptions { data_in: Some(&self.packet), repeat: packets, ..Default::default() };
        let before = thread_time()?;
        let result = program.test_run(options)?;
        let elapsed = thread_time()?.saturating_sub(before);
        if result.return_value == 0 {
            bail!("the wrapper did not reach the program under test");
        }
        Ok(Sample {
            cpu: elapsed.as_secs_f64() * 1e9 / f64::from(packets),
            kernel: result.duration.subsec_nanos(),
            verdict: result.return_value,
        })
    }
}

pub(super) fn template(packet: &[u8; LENGTH], variation: Option<Variation>) -> Template {
    /// Odd, and far from any power of two.
    const STRIDE: u32 = 0x9e37_79b1;
    let mut template = Template { services: 1, stride: STRIDE, ..Template::default() };
    for (word, bytes) in template.words.iter_mut().zip(packet.as_chunks().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    if let Some(Variation { flows, services }) = variation {
        template.flow_mask = flows - 1;
        template.services = services;
        template.client = u32::from_be_bytes([packet[26], packet[27], packet[28], packet[29]]);
        template.port = u32::from(u16::from_be_bytes([packet[36], packet[37]]));
    }
    template
}
