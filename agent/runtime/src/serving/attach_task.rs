//! Attaches programs to interfaces and changes cards' settings, beside the event loop.
//!
//! A driver may reset its card for that, which takes seconds. All calls that wait for it, or for the kernel's
//! lock of all interfaces that it holds meanwhile, are here. One attach is under way at a time. Its changes
//! count for the event loop when it ends. Until then, the loop goes on with the interfaces as they were.

use std::{collections::BTreeSet, future::pending, mem::take, panic::resume_unwind, sync::Arc};

use tokio::task::{JoinHandle, spawn_blocking};
use vipmux_common::abi::INTERFACE_FILTER;

use super::{interfaces::AttachedInterfaces, link_kernel::LinkKernel};
use crate::{AgentError, problems::warnings::Warnings};
use vipmux_datapath::{
    bpf::direction::Direction,
    error_chain::error_chain,
    link::{Links, interface_name},
};

/// The extent of an attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// All interfaces.
    All,
    /// Interfaces that lost a program to another user of the kernel; all interfaces if there is one.
    Detached,
}

/// The repairs that the next attach begins with.
#[derive(Debug, Default)]
struct Repairs {
    /// The interfaces whose programs are to be attached again.
    forgotten: BTreeSet<u32>,
    /// The interfaces where the XDP program is to be detached first.
    detached: BTreeSet<u32>,
    /// The classifiers that are to be first on their interfaces.
    first: Vec<(Direction, u32)>,
    /// The interfaces where others turned `rx-vlan-offload` on.
    drifted: BTreeSet<u32>,
}

/// One attach.
struct Attach {
    kernel: LinkKernel,
    interfaces: AttachedInterfaces,
    links: Arc<Links>,
    repairs: Repairs,
    extent: Extent,
    /// The agent is ready.
    ready: bool,
}

/// The end of an attach.
pub(crate) struct AttachResult {
    kernel: LinkKernel,
    interfaces: AttachedInterfaces,
    result: Result<Changes, AgentError>,
}

/// The changes by an attach.
struct Changes {
    /// Programs or entries of `INTERFACES` changed.
    changed: bool,
    /// The number of interfaces that others detached a program from.
    detached: usize,
    /// The warnings; `None`: only detached programs were looked for.
    warnings: Option<BTreeSet<String>>,
}

/// The attach under way, or what the next one needs.
#[derive(Default)]
pub(crate) struct AttachTask {
    /// `None` while an attach is under way.
    kernel: Option<LinkKernel>,
    running: Option<JoinHandle<AttachResult>>,
    /// Another attach of all interfaces is to follow.
    again: bool,
    /// An attach has ended.
    begun: bool,
    links: Arc<Links>,
    /// There are backends with direct server return; `None`: the Services are not known yet.
    direct: Option<bool>,
    repairs: Repairs,
    /// The warnings of the last attach.
    warnings: BTreeSet<String>,
}

impl AttachTask {
    pub(crate) fn new(kernel: LinkKernel) -> Self {
        Self { kernel: Some(kernel), ..Self::default() }
    }

    /// Returns the programs and their links; `None` while an attach is under way.
    pub(crate) fn kernel(&self) -> Option<&LinkKernel> {
        self.kernel.as_ref()
    }

    /// Returns the programs and their links, to change them; `None` while an attach is under way.
    pub(crate) fn kernel_mut(&mut self) -> Option<&mut LinkKernel> {
        self.kernel.as_mut()
    }

    /// Returns whether an attach has ended. Before, nothing is known of the interfaces.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun
    }

    /// Returns the warnings of the last attach.
    pub(crate) fn warnings(&self) -> &BTreeSet<String> {
        &self.warnings
    }

    /// Sets the interfaces as they are now.
    pub(crate) fn set_links(&mut self, links: &Arc<Links>) {
        self.links = Arc::clone(links);
    }

    /// Begins an attach. If one is under way, another one follows it.
    pub(crate) fn begin(&mut self, interfaces: &AttachedInterfaces, extent: Extent, ready: bool) {
        let Some(kernel) = self.kernel.take() else {
            self.again |= extent == Extent::All;
            return;
        };
        let (links, repairs) = (Arc::clone(&self.links), take(&mut self.repairs));
        let attach = Attach { kernel, interfaces: interfaces.copy(self.direct), links, repairs, extent, ready };
        // If the agent ends meanwhile, this is cut off as by a kill: the next agent finds what is pinned.
        self.running = Some(spawn_blocking(|| attach.run()));
    }

    /// Waits for the end of the attach under way. Cancel-safe.
    pub(crate) async fn ended(&mut self) -> AttachResult {
        let Some(task) = &mut self.running else { return pending().await };
        let attached = match task.await.map_err(tokio::task::JoinError::try_into_panic) {
            Ok(attached) => attached,
            Err(Ok(panic)) => resume_unwind(panic),
            // The runtime ends.
            Err(Err(_)) => return pending().await,
        };
        self.running = None;
        attached
    }

    /// Ends an attach. Returns whether to reconcile, since something changed, and the number of interfaces
    /// that others detached a program from.
    pub(crate) fn finish(
        &mut self,
        attached: AttachResult,
        interfaces: &mut AttachedInterfaces,
        ready: bool,
    ) -> Result<(bool, usize), AgentError> {
        let AttachResult { kernel, interfaces: copy, result } = attached;
        self.kernel = Some(kernel);
        let Changes { changed, detached, warnings } = result?;
        let mut reconcile = interfaces.adopt(copy) || changed || !self.begun;
        if let Some(warnings) = warnings {
            reconcile |= warnings != self.warnings;
            (self.warnings, self.begun) = (warnings, true);
        }
        if take(&mut self.again) {
            self.begin(interfaces, Extent::All, ready);
        }
        Ok((reconcile, detached))
    }

    /// Sets whether there are backends with direct server return, for the next attach.
    pub(crate) fn set_direct(&mut self, direct: bool) {
        self.direct = Some(direct);
    }

    /// Lets the next attach attach an interface's programs again, since its pinned link is not as desired.
    pub(crate) fn forget_link(&mut self, ifindex: u32) {
        self.repairs.forgotten.insert(ifindex);
    }

    /// Lets the next attach attach the XDP program of a port anew, which is attached at these places.
    pub(crate) fn attach_anew(&mut self, port: u32, places: BTreeSet<u32>) {
        self.repairs.detached.extend(places);
        self.forget_link(port);
    }

    /// Lets the next attach put a classifier before all others on its interface.
    pub(crate) fn put_first(&mut self, direction: Direction, ifindex: u32) {
        self.repairs.first.push((direction, ifindex));
    }

    /// Lets the next attach look at an interface that the self-check found with `rx-vlan-offload` on.
    pub(crate) fn note_drifted_tags(&mut self, receiver: u32) {
        self.repairs.drifted.insert(receiver);
    }
}

impl Attach {
    fn run(mut self) -> AttachResult {
        let result = self.attach();
        let Self { kernel, interfaces, .. } = self;
        AttachResult { kernel, interfaces, result }
    }

    fn attach(&mut self) -> Result<Changes, AgentError> {
        let before = self.kernel.writes();
        let detached = self.take_detached()?;
        let mut warnings = None;
        if self.extent == Extent::All || detached > 0 {
            self.repair()?;
            let mut added = Warnings::new(self.ready);
            self.interfaces.attach(&mut self.kernel, &self.links, &mut added)?;
            self.kernel.note_linked(self.interfaces.linked())?;
            warnings = Some(added.into_texts());
        }
        Ok(Changes { changed: self.kernel.writes() != before, detached, warnings })
    }

    /// Forgets the interfaces that others detached a program from, and returns their number.
    fn take_detached(&mut self) -> Result<usize, AgentError> {
        if self.extent == Extent::All {
            return Ok(0);
        }
        let detached = self.kernel.detached()?;
        for ifindex in &detached {
            tracing::warn!(ifindex, "somebody detached a program, attaching it again");
            self.forget(*ifindex);
        }
        Ok(detached.len())
    }

    fn forget(&mut self, ifindex: u32) {
        self.interfaces.unlink(ifindex);
        self.kernel.forget_links();
    }

    fn repair(&mut self) -> Result<(), AgentError> {
        let Repairs { forgotten, detached, first, drifted } = take(&mut self.repairs);
        for place in detached {
            self.kernel.programs.detach_xdp(place)?;
        }
        for ifindex in forgotten {
            self.forget(ifindex);
        }
        for (direction, ifindex) in first {
            self.put_first(direction, ifindex);
        }
        for receiver in drifted {
            self.interfaces.note_drifted_tags(receiver);
        }
        Ok(())
    }

    /// Puts a classifier before all others on its interface. If that fails, attaches it again.
    fn put_first(&mut self, direction: Direction, ifindex: u32) {
        let filter = self.kernel.interface(ifindex).flags & INTERFACE_FILTER != 0;
        let name = interface_name(ifindex);
        match self.kernel.programs.put_first(direction, &name, ifindex, filter) {
            // The link is another one.
            Ok(()) => self.kernel.forget_links(),
            Err(error) => {
                let (program, error) = (direction.kind().program(), error_chain(&error));
                tracing::warn!(program, interface = name, error, "cannot put the program first");
                self.forget(ifindex);
            }
        }
    }
}
