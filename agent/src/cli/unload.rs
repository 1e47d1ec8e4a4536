//! Runs `vipmux unload`.

use std::{
    io::{self, Write},
    path::PathBuf,
};

use anyhow::Context as _;
use clap::Args;
use tokio::runtime::Runtime;

use super::{config::SharedConfigArgs, current_thread_runtime};
use vipmux_datapath::{
    bpf::{
        pins::{DEFAULT_PIN_PATH, Pins},
        unload::{Unloaded, unload},
    },
    link::{Ethtool, EthtoolError, interface_name, remove_neighbors},
    snat::IdentitySnat,
};
use vipmux_inspect::output::table::ignore_broken_pipe;
use vipmux_supervisor::signals::StopSignals;

/// Remove vipmux from this node, after its agent was stopped: stop answering for VIPs, detach the
/// programs, and remove pins, maps, and in this network namespace the nftables table and neighbor
/// entries
#[derive(Clone, Debug, Args)]
pub struct Unload {
    #[command(flatten)]
    _config: SharedConfigArgs,
    /// Directory of the pinned maps, programs and links
    #[arg(long, value_name = "DIR", default_value = DEFAULT_PIN_PATH, env = "VIPMUX_PIN_PATH")]
    pin_path: PathBuf,
    /// Then wait for a signal to stop, for Pods that remove vipmux from their node
    /// (deploy/uninstall)
    #[arg(long)]
    stay: bool,
}

impl Unload {
    /// Unloads, and prints on standard output what it did.
    pub fn run(&self) -> anyhow::Result<()> {
        let runtime = current_thread_runtime()?;
        let stop = {
            let _context = runtime.enter();
            self.stay.then(StopSignals::listen).transpose().context("cannot wait for a signal")?
        };
        self.write(&runtime, &mut io::stdout().lock())?;
        if let Some(mut stop) = stop {
            runtime.block_on(stop.received());
        }
        Ok(())
    }

    fn write(&self, runtime: &Runtime, out: &mut impl Write) -> anyhow::Result<()> {
        let pins = Pins::new(&self.pin_path);
        let done = unload(&pins)?;
        let printed = ignore_broken_pipe(print_summary(&pins, done.as_ref(), out));
        // Also if nothing is pinned: these may be all that is left.
        let removed = IdentitySnat::open().and_then(|mut snat| snat.remove());
        removed.context("cannot remove vipmux's nftables table")?;
        runtime.block_on(remove_neighbors()).context("cannot remove vipmux's neighbor entries")?;
        if let Some(done) = &done {
            strip_tags(&done.tags).context("cannot turn rx-vlan-offload on again")?;
        }
        printed.context("cannot write the output")
    }
}

/// Turns `rx-vlan-offload` on again, unless an interface is gone.
fn strip_tags(ifindices: &[u32]) -> Result<(), EthtoolError> {
    let ethtool = Ethtool::open()?;
    ifindices.iter().try_for_each(|ifindex| match ethtool.strip_tags(&interface_name(*ifindex), true) {
        Err(EthtoolError::Request { source, .. }) if source.raw_os_error() == Some(libc::ENODEV) => Ok(()),
        result => result,
    })
}

fn print_summary(pins: &Pins, done: Option<&Unloaded>, out: &mut impl Write) -> io::Result<()> {
    let root = pins.root().display();
    let Some(done) = done else {
        return writeln!(out, "nothing to unload: vipmux is not loaded on this node (no {root})");
    };
    if let Some(error) = &done.unreadable {
        writeln!(out, "warning: this node did not give up its VIPs before detaching: {error}")?;
    }
    if done.relinquished != 0 {
        writeln!(out, "stopped answering for {} VIPs", done.relinquished)?;
    }
    for link in &done.detached {
        match link {
            Some((kind, ifindex)) => {
                writeln!(out, "detached {} from {}", kind.program(), interface_name(*ifindex))?;
            }
            None => writeln!(out, "detached a link with an unknown name")?,
        }
    }
    for ifindex in &done.filters {
        writeln!(out, "removed the tc filters of {}", interface_name(*ifindex))?;
    }
    for ifindex in &done.tags {
        writeln!(out, "turning rx-vlan-offload of {} on again", interface_name(*ifindex))?;
    }
    writeln!(out, "removed {} programs, {} maps and {root}", done.programs, done.maps)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use nix::sched::{CloneFlags, unshare};

    use super::*;
    use vipmux_datapath::{
        bpf::pins::LinkKind,
        fixture::mounted,
        snat::{DesiredTable, Element, LocalBackend, SyncResult},
    };
    use vipmux_model::Protocol;

    fn summary(done: Option<&Unloaded>) -> String {
        let mut out = Vec::new();
        print_summary(&Pins::new("/p"), done, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn each_removed_thing_is_named() {
        let detached = vec![Some((LinkKind::Xdp, 1)), Some((LinkKind::Egress, u32::MAX)), None];
        let filters = vec![1];
        let done = Unloaded { relinquished: 3, detached, filters, programs: 2, maps: 17, ..Unloaded::default() };
        assert_eq!(
            summary(Some(&done)),
            "stopped answering for 3 VIPs\ndetached vipmux_xdp from lo\ndetached vipmux_egress from if4294967295\n\
             detached a link with an unknown name\nremoved the tc filters of lo\nremoved 2 programs, 17 maps and /p\n"
        );
    }

    #[test]
    fn the_nftables_table_goes_too_even_where_nothing_is_pinned() {
        let Some(pins) = mounted() else { return };
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        let backend =
            LocalBackend { address: [10, 0, 0, 1].into(), protocol: Protocol::Tcp, port: NonZeroU16::new(80) };
        let table =
            DesiredTable { elements: [Element::Backend(backend)].into_iter().collect(), ..DesiredTable::default() };
        let mut snat = IdentitySnat::open().unwrap();
        snat.sync(&table).unwrap();
        assert_eq!(snat.sync(&table).unwrap(), SyncResult::Unchanged);
        let mut out = Vec::new();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Unload { _config: SharedConfigArgs::default(), pin_path: pins.root().into(), stay: false }
            .write(&runtime, &mut out)
            .unwrap();
        assert!(out.starts_with(b"nothing to unload"));
        assert_eq!(snat.sync(&table).unwrap(), SyncResult::Replaced, "it was gone");
    }

    #[test]
    fn a_node_without_vipmux_is_reported() {
        assert_eq!(summary(None), "nothing to unload: vipmux is not loaded on this node (no /p)\n");
    }
}
