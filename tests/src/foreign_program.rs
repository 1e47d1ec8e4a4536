//! Programs of other components on a node's interface, beside vipmux's.

use std::mem;

use anyhow::{Context as _, Result};
use aya::{
    Ebpf, EbpfLoader,
    maps::Array,
    programs::{
        LinkOrder, SchedClassifier, TcAttachType,
        tc::{NlOptions, SchedClassifierLink, TcAttachOptions, TcHandle},
    },
    util::KernelVersion,
};

use crate::{lan::Node, program::TESTING_OBJECT};

/// The interface.
const INTERFACE: &str = "eth0";
/// The priority and the handle of filters.
const FILTER: (u16, u16) = (1, 0x77);

/// What another component's program does with every packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behavior {
    /// It passes it, so that no later program sees it (`TCX_PASS`, `TC_ACT_OK`).
    EndsChain,
    /// It leaves it to the next program (`TCX_NEXT`, `TC_ACT_UNSPEC`).
    GoesOn,
}

/// A tcx program of another component. It is detached on drop.
#[derive(Debug)]
pub struct ForeignProgram {
    /// Its id.
    pub id: u32,
    link: SchedClassifierLink,
}

impl ForeignProgram {
    /// Attaches a program to a node's eth0.
    pub fn attach(node: &Node, direction: TcAttachType, order: LinkOrder, behavior: Behavior) -> Result<Self> {
        attached(node, direction, TcAttachOptions::TcxOrder(order), behavior)
    }

    /// Replaces the program at its place, as a component does that is upgraded.
    pub fn replace(self, behavior: Behavior) -> Result<Self> {
        let mut ebpf = loaded(behavior)?;
        let program = classifier(&mut ebpf, behavior)?;
        let id = program.attach_to_link(self.link)?;
        Ok(Self { id: program.info()?.id(), link: program.take_link(id)? })
    }
}

/// Attaches a filter of priority 1 to a node's eth0. It stays.
pub fn add_filter(node: &Node, direction: TcAttachType, behavior: Behavior) -> Result<()> {
    let (priority, handle) = FILTER;
    let options = NlOptions { priority, handle: TcHandle::new(0, handle), classid: None };
    let added = attached(node, direction, TcAttachOptions::Netlink(options), behavior)?;
    // On drop it would be sought in this thread's network namespace.
    mem::forget(added);
    Ok(())
}

fn attached(
    node: &Node,
    direction: TcAttachType,
    options: TcAttachOptions,
    behavior: Behavior,
) -> Result<ForeignProgram> {
    let mut ebpf = loaded(behavior)?;
    let program = classifier(&mut ebpf, behavior)?;
    let id = node.namespace().run(|| Ok(program.attach_with_options(INTERFACE, direction, options)?))?;
    Ok(ForeignProgram { id: program.info()?.id(), link: program.take_link(id)? })
}

fn loaded(behavior: Behavior) -> Result<Ebpf> {
    let mut ebpf = EbpfLoader::new().load(TESTING_OBJECT).context("loading the testing programs")?;
    classifier(&mut ebpf, behavior)?.load()?;
    Ok(ebpf)
}

fn classifier(ebpf: &mut Ebpf, behavior: Behavior) -> Result<&mut SchedClassifier> {
    let name = match behavior {
        Behavior::EndsChain => "end_chain",
        Behavior::GoesOn => "go_on",
    };
    Ok(ebpf.program_mut(name).with_context(|| format!("no program {name}"))?.try_into()?)
}

/// A program behind all others on a node's interface that notes the linear parts of sent packets. It is
/// detached on drop.
#[derive(Debug)]
pub struct LinearParts {
    ebpf: Ebpf,
}

impl LinearParts {
    /// Attaches it to a node's eth0.
    pub fn note(node: &Node) -> Result<Self> {
        let mut ebpf = EbpfLoader::new().load(TESTING_OBJECT).context("loading the testing programs")?;
        let program: &mut SchedClassifier = ebpf.program_mut("note_linear").context("no program")?.try_into()?;
        program.load()?;
        let options = TcAttachOptions::TcxOrder(LinkOrder::last());
        node.namespace().run(|| Ok(program.attach_with_options(INTERFACE, TcAttachType::Egress, options)?))?;
        Ok(Self { ebpf })
    }

    /// Returns how many packets had more than a linear part, and the longest linear part of them, in
    /// bytes.
    pub fn noted(&self) -> Result<(u64, u64)> {
        let map: Array<_, u64> = self.ebpf.map("LINEAR").context("no map LINEAR")?.try_into()?;
        Ok((map.get(&0, 0)?, map.get(&1, 0)?))
    }
}

/// Returns whether this kernel has tcx links. Tests of them are skipped elsewhere.
pub fn has_tcx() -> bool {
    KernelVersion::current().is_ok_and(|current| current >= KernelVersion::new(6, 6, 0))
}
