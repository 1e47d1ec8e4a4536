//! A way into a node's card that native XDP does not see.
//!
//! ```text
//! bridge ─ near ═ far ─ bpf_redirect_peer ─► eth0 of the node, past its driver
//!                 far ◄─ bpf_redirect ─────  the node's port
//! ```

use anyhow::{Context as _, Result};
use aya::{
    Ebpf, EbpfLoader,
    programs::{SchedClassifier, TcAttachType, tc},
};

use super::BRIDGE;
use crate::{links::End, netns::Namespace, program::TESTING_OBJECT};

/// Frames of the switch that bypass native XDP on a node.
#[derive(Debug)]
pub struct Bypass {
    port: String,
    near: String,
    /// Attached as long as they live.
    _programs: [Ebpf; 2],
}

impl Bypass {
    pub(super) fn begin(switch: &Namespace, port: &str) -> Result<Self> {
        let (near, far) = (format!("{port}-near"), format!("{port}-far"));
        switch.links(|links| {
            links.add_veth(End::named(&near), End::named(&far), switch)?;
            links.set_up(&near)?;
            links.remove_port(port)?;
            links.add_port(BRIDGE, &near)
        })?;
        let index = |name: &str| switch.links(|links| links.index(name));
        let (port_index, far_index) = (index(port)?, index(&far)?);
        let programs =
            switch.run(|| Ok([attach("to_peer", &far, port_index)?, attach("to_outlet", port, far_index)?]))?;
        Ok(Self { port: port.to_owned(), near, _programs: programs })
    }

    pub(super) fn end(self, switch: &Namespace) -> Result<()> {
        switch.links(|links| {
            links.delete(&self.near)?;
            links.add_port(BRIDGE, &self.port)
        })?;
        // A filter of a kernel without tcx links is sought in this thread's network namespace.
        switch.run(|| {
            drop(self);
            Ok(())
        })
    }
}

/// Attaches a testing program to an interface's incoming frames.
fn attach(name: &str, interface: &str, outlet: u32) -> Result<Ebpf> {
    let mut loader = EbpfLoader::new();
    let mut ebpf = loader.override_global("OUTLET", &outlet, true).load(TESTING_OBJECT)?;
    let program: &mut SchedClassifier =
        ebpf.program_mut(name).with_context(|| format!("no program {name}"))?.try_into()?;
    program.load()?;
    // Kernels with tcx links need no qdisc, and may have one.
    let _present = tc::qdisc_add_clsact(interface);
    program.attach(interface, TcAttachType::Ingress).with_context(|| format!("attaching {name} to {interface}"))?;
    Ok(ebpf)
}
