//! Runs the data plane's BPF programs on single frames without a network, by `BPF_PROG_TEST_RUN`
//! (Documentation/bpf/bpf_prog_run.rst). The programs have maps of their own.

mod counters;
mod state;

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use aya::{
    Ebpf, EbpfLoader, include_bytes_aligned,
    maps::{Array, Map, MapData, PerCpuHashMap},
    programs::{SchedClassifier, TestRun, TestRunOptions, TestRunResult, Xdp, XdpMode},
};

use vipmux_common::{
    abi::{Activity, FLOW_REPLIES, FLOW_UNPROVEN, FlowSet, RefusalKey, VipSlot},
    service_index::IndexedService,
};
use vipmux_datapath::bpf::{
    object::object,
    refusals,
    uninterrupted::uninterrupted,
    vip_index,
    xdp::{Buffers, load_xdp},
};

pub use counters::Counters;
pub use state::{FLOW_SECRET, NOW, NOW_LOW, State, path};

/// The programs for tests and the bench (`ebpf/src/testing.rs`).
pub static TESTING_OBJECT: &[u8] = include_bytes_aligned!(env!("VIPMUX_TESTING_OBJECT"));

/// The ingress interface of a test run's frames: loopback, the default of both program types.
pub const IFINDEX: usize = 1;

/// Room for headers that a program might prepend.
const SPARE: usize = 256;

/// The program to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// The XDP program for interfaces, on a frame from the wire.
    Ingress,
    /// `vipmux_egress`, on a frame that the stack sends.
    Egress,
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The program's return value: an `xdp_action`, or a `TC_ACT_` value.
    pub verdict: u32,
    /// The resulting frame.
    pub frame: Vec<u8>,
}

/// The two programs and their maps, only in this process.
#[derive(Debug)]
pub struct Program {
    ebpf: Ebpf,
    testing: Ebpf,
    buffers: Buffers,
    /// The number of entries of each map.
    capacities: Vec<(&'static str, u32)>,
    /// `VIP_INDEX`.
    vip_index: BTreeMap<u32, VipSlot>,
    /// `SERVICE_INDEX`.
    service_index: BTreeMap<u32, IndexedService>,
    /// `jiffies_64` at the last [`Self::install`], which [`NOW`] stands for.
    origin: u64,
}

impl Program {
    /// Loads the programs with maps just large enough for `state` and with `flows` entries in the
    /// LRU maps. Then installs `state`.
    pub fn load(state: &State, flows: u32) -> Result<Self> {
        Self::load_for(state, flows, Buffers::here())
    }

    /// Like [`Self::load`], with XDP programs of this kind.
    pub fn load_for(state: &State, flows: u32, buffers: Buffers) -> Result<Self> {
        Self::load_object(&object(), state, flows, buffers)
    }

    /// Like [`Self::load_for`], from this data plane's object.
    pub fn load_object(object: &[u8], state: &State, flows: u32, buffers: Buffers) -> Result<Self> {
        let mut loader = EbpfLoader::new();
        let capacities = state.capacities(flows)?;
        for (name, entries) in &capacities {
            loader.map_max_entries(name, *entries);
        }
        let mut ebpf = loader.load(object).context("loading the data plane's object")?;
        load_xdp(&mut ebpf, buffers)?;
        let egress: &mut SchedClassifier =
            ebpf.program_mut("vipmux_egress").context("no program vipmux_egress")?.try_into()?;
        uninterrupted(|| egress.load())?;
        let mut testing = EbpfLoader::new().load(TESTING_OBJECT).context("loading the testing object")?;
        let clock = xdp_mut(&mut testing, "clock")?;
        uninterrupted(|| clock.load())?;
        let (vip_index, service_index) = (BTreeMap::new(), BTreeMap::new());
        let mut program = Self { ebpf, testing, buffers, capacities, vip_index, service_index, origin: 0 };
        program.install(state)?;
        Ok(program)
    }

    /// Whether [`Self::load_for`] would load just this program again.
    pub fn suits(&self, state: &State, flows: u32, buffers: Buffers) -> bool {
        self.buffers == buffers && state.capacities(flows).is_ok_and(|capacities| capacities == self.capacities)
    }

    /// Does what loading it again would do: installs `state`, and clears the counters and the activity.
    pub fn reset(&mut self, state: &State) -> Result<()> {
        Counters::clear(&mut self.ebpf)?;
        self.take_activity()?;
        self.install(state)
    }

    /// Returns the data plane's object.
    pub fn ebpf(&self) -> &Ebpf {
        &self.ebpf
    }

    /// Returns the XDP program for interfaces.
    pub fn xdp(&self) -> Result<&Xdp> {
        xdp(&self.ebpf, self.buffers.entry())
    }

    /// Attaches that program natively to an interface of the calling thread's network namespace,
    /// until drop.
    pub fn attach(&mut self, interface: &str) -> Result<()> {
        let program = xdp_mut(&mut self.ebpf, self.buffers.entry())?;
        program.attach(interface, XdpMode::Driver).with_context(|| format!("attaching to {interface}"))?;
        Ok(())
    }

    /// Makes the maps hold exactly `state`. Counters stay.
    pub fn install(&mut self, state: &State) -> Result<()> {
        self.origin = self.jiffies()?;
        let Self { ebpf, vip_index, service_index, .. } = self;
        state::write_index(ebpf, "VIP_INDEX", vip_index, vip_index::slots(&state.vips))?;
        state::write_index(ebpf, "SERVICE_INDEX", service_index, state.service_index.clone())?;
        state::write(&mut self.ebpf, state, self.origin)
    }

    /// Returns the maps' content, with times as in the last installed state. (No program writes the indices.)
    pub fn state(&self) -> Result<State> {
        Ok(State { service_index: self.service_index.clone(), ..state::read(&self.ebpf, self.origin)? })
    }

    /// Counts the frames that the kernel refuses, until drop. The kernel must have BTF.
    pub fn count_refusals(&mut self) -> Result<()> {
        Ok(refusals::count(&mut self.ebpf, self.buffers.entry())?)
    }

    /// Returns the numbers of refused frames.
    pub fn refusals(&self) -> Result<BTreeMap<RefusalKey, u64>> {
        let counts: PerCpuHashMap<_, RefusalKey, u64> =
            self.ebpf.map("REFUSALS").context("no map REFUSALS")?.try_into()?;
        let sums = counts.iter().map(|entry| entry.map(|(key, counts)| (key, counts.iter().sum())));
        Ok(sums.collect::<Result<_, _>>()?)
    }

    /// Returns the bits of the ports where the program showed that it ran, and clears them as the
    /// agent does.
    pub fn take_activity(&mut self) -> Result<u32> {
        let found: Vec<Activity> = state::read_array(&self.ebpf, "ACTIVITY")?;
        state::write_array(&mut self.ebpf, "ACTIVITY", &[Activity::default()])?;
        Ok(found.first().context("no ACTIVITY")?.ports)
    }

    /// Returns the flow table.
    pub fn flow_sets(&self) -> Result<Vec<FlowSet>> {
        state::read_array(&self.ebpf, "FLOWS")
    }

    /// Makes all flows to backends here established, as if each backend had answered.
    pub fn establish_flows(&self) -> Result<()> {
        let Map::Array(flows) = self.ebpf.map("FLOWS").context("no map FLOWS")? else { bail!("FLOWS is no array") };
        let own = MapData::from_id(flows.info()?.id())?;
        let mut table: Array<_, FlowSet> = Map::Array(own).try_into()?;
        let unproven = u8::try_from(FLOW_UNPROVEN)?;
        for index in 0..table.len() {
            let before = table.get(&index, 0)?;
            let mut set = before;
            for record in set.records.iter_mut().filter(|record| u32::from(record.flags) & FLOW_REPLIES != 0) {
                record.flags &= !unproven;
            }
            if set != before {
                table.set(index, set, 0)?;
            }
        }
        Ok(())
    }

    /// Returns all counters, summed over the CPUs.
    pub fn counters(&self) -> Result<Counters> {
        Counters::read(&self.ebpf)
    }

    /// Runs a program once on a frame of at least 14 bytes.
    pub fn run(&self, hook: Hook, frame: &[u8]) -> Result<Outcome> {
        let mut out = vec![0; frame.len() + SPARE];
        let options = TestRunOptions { data_in: Some(frame), data_out: Some(&mut out), ..Default::default() };
        let result = match hook {
            Hook::Ingress => self.xdp()?.test_run(options)?,
            Hook::Egress => {
                let program: &SchedClassifier =
                    self.ebpf.program("vipmux_egress").context("no program vipmux_egress")?.try_into()?;
                program.test_run(options)?
            }
        };
        outcome(&result, out)
    }

    /// Returns the current time of the clock that flow records use.
    fn jiffies(&self) -> Result<u64> {
        let mut out = [0; 64];
        let options = TestRunOptions { data_in: Some(&[0; 64]), data_out: Some(&mut out), ..Default::default() };
        xdp(&self.testing, "clock")?.test_run(options)?;
        let [first, ..] = out.as_chunks().0 else { bail!("no bytes from the clock program") };
        Ok(u64::from_ne_bytes(*first))
    }
}

fn outcome(result: &TestRunResult, mut out: Vec<u8>) -> Result<Outcome> {
    let length = usize::try_from(result.data_size_out)?;
    if length > out.len() {
        bail!("the program made the frame {length} bytes long");
    }
    out.truncate(length);
    Ok(Outcome { verdict: result.return_value, frame: out })
}

/// Returns a loaded XDP program of an object.
pub fn xdp<'a>(ebpf: &'a Ebpf, name: &str) -> Result<&'a Xdp> {
    Ok(ebpf.program(name).with_context(|| format!("no program {name}"))?.try_into()?)
}

/// Returns an XDP program of an object, to load or attach it.
pub fn xdp_mut<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut Xdp> {
    Ok(ebpf.program_mut(name).with_context(|| format!("no program {name}"))?.try_into()?)
}
