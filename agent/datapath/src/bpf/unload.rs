//! Removes everything that vipmux has put into the kernel.

use std::{
    collections::BTreeMap,
    fs, io,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
};

use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use vipmux_common::abi::{INTERFACE_FILTER, INTERFACE_QDISC, INTERFACE_TAGS, Interface, VIP_LEADING};

use super::{
    clsact::{self, FilterError},
    maps::{Maps, MapsError, raw::UpdateFlag},
    pinned,
    pins::{self, LinkKind, PinError, PinLock, Pins},
    syscall::{BpfCommand, bpf},
};

/// Something could not be removed from the kernel.
#[derive(Debug, thiserror::Error)]
pub enum UnloadError {
    /// The pin path is an ordinary folder. Nothing in it is touched.
    #[error("{} is not on a bpffs, so it is no pin path of vipmux", path.display())]
    NotBpffs {
        /// The pin path.
        path: PathBuf,
    },
    /// An agent runs. Nothing was changed: without its programs it would lead VIPs that nobody
    /// answers for.
    #[error(
        "an agent runs on this node and works with the pins in {}: stop it first (in a cluster, let deploy/uninstall \
         replace the DaemonSet)", path.display()
    )]
    InUse {
        /// The pin path.
        path: PathBuf,
    },
    /// A pin or a folder could not be read or removed.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// A filter or its qdisc could not be removed.
    #[error(transparent)]
    Filter(#[from] FilterError),
}

/// The result of [`unload`].
#[derive(Debug, Default)]
pub struct Unloaded {
    /// VIPs that this node led. It no longer answers for them.
    pub relinquished: usize,
    /// The reason why the leading flags could not be cleared. The programs were detached
    /// nevertheless.
    pub unreadable: Option<MapsError>,
    /// Detached programs, with the ifindex of the interface. `None`: a link with a name that is not
    /// vipmux's.
    pub detached: Vec<Option<(LinkKind, u32)>>,
    /// Interfaces whose tc filters were removed.
    pub filters: Vec<u32>,
    /// Interfaces, by ifindex, on which the agent turned off VLAN offload. The caller must turn it
    /// on again.
    pub tags: Vec<u32>,
    /// Removed pins of programs.
    pub programs: usize,
    /// Removed pins of maps.
    pub maps: usize,
}

/// The part of `union bpf_attr` for `BPF_LINK_DETACH`.
#[repr(C)]
struct LinkDetachAttr {
    fd: u32,
}

/// Detaches a pinned link. To remove its pin would detach it too, but only some time later, and not
/// while another process has the link open.
pub(super) fn detach(path: &Path) -> io::Result<()> {
    let link = pinned::get(path)?;
    let mut attributes = LinkDetachAttr { fd: link.as_raw_fd().cast_unsigned() };
    // SAFETY: the attributes contain no pointers.
    unsafe { bpf(BpfCommand::LinkDetach, &mut attributes) }?;
    Ok(())
}

/// Clears all leading flags, so that this node answers for no VIP. Returns the number of VIPs that
/// it led.
fn relinquish(maps: &mut Maps) -> Result<usize, MapsError> {
    let mut led = 0;
    for (address, mut vip) in maps.read_vips()? {
        if vip.flags & VIP_LEADING != 0 {
            vip.flags &= !VIP_LEADING;
            let written = maps.vips.insert(address, vip, UpdateFlag::Existing as u64);
            written.map_err(|error| maps.vips.writing(error))?;
            led += 1;
        }
    }
    Ok(led)
}

/// Removes the filters that the interfaces' flags record. Notes these interfaces, and those with
/// VLAN offload turned off.
fn remove_filters(interfaces: BTreeMap<u32, Interface>, done: &mut Unloaded) -> Result<(), FilterError> {
    for (ifindex, Interface { flags, .. }) in interfaces {
        if flags & INTERFACE_FILTER != 0 {
            clsact::remove(ifindex, flags & INTERFACE_QDISC != 0)?;
            done.filters.push(ifindex);
        }
        if flags & INTERFACE_TAGS != 0 {
            done.tags.push(ifindex);
        }
    }
    Ok(())
}

/// Stops answering for VIPs, detaches the programs, and removes all pins below the pin path, in
/// this order. Returns `None` if the pin path does not exist. Refuses while an agent runs.
pub fn unload(pins: &Pins) -> Result<Option<Unloaded>, UnloadError> {
    let root = pins.root();
    if !root.try_exists().map_err(PinError::new("read", root))? {
        return Ok(None);
    }
    let found = statfs(root).map_err(io::Error::from).map_err(PinError::new("read", root))?;
    if found.filesystem_type() != BPF_FS_MAGIC {
        return Err(UnloadError::NotBpffs { path: root.into() });
    }
    let _lock = PinLock::take(root)?.ok_or_else(|| UnloadError::InUse { path: root.into() })?;
    let mut done = Unloaded::default();
    let mut interfaces = BTreeMap::new();
    let mut look = |mut maps: Maps| {
        interfaces = maps.read_interfaces()?;
        relinquish(&mut maps)
    };
    match Maps::open(root).and_then(&mut look) {
        Ok(led) => done.relinquished = led,
        Err(MapsError::NotLoaded { .. }) => {}
        // Maps of another version, or only some of them. The programs are detached nevertheless.
        Err(error) => done.unreadable = Some(error),
    }
    for link in pins::list(&pins.links())? {
        detach(&link).map_err(PinError::new("detach", &link))?;
        done.detached.push(Pins::parse_link(&link));
    }
    remove_filters(interfaces, &mut done)?;
    pins::remove_folder(&pins.links())?;
    done.programs = pins::remove_folder(&pins.programs())?;
    done.maps = pins::remove_folder(&pins.maps())?;
    // Left by an agent that ended during a transition of the maps.
    pins::remove_folder(&pins.next_maps())?;
    pins::remove_folder(&pins.old_maps())?;
    fs::remove_dir(root).map_err(PinError::new("remove", root))?;
    Ok(Some(done))
}

#[cfg(test)]
mod tests {
    use aya::programs::{
        SchedClassifier, TcAttachType, Xdp, XdpMode,
        links::{FdLink, PinnedLink},
        tc::SchedClassifierLink,
        xdp::XdpLink,
    };
    use nix::sched::{CloneFlags, unshare};
    use vipmux_common::abi::{Address, Config, VIP_YIELDED, VipValue};

    use super::*;
    use crate::{
        bpf::{
            load::load,
            pins::{EGRESS_PROGRAM, XDP_PROGRAM},
        },
        fixture::{Fixture, mounted},
    };

    /// The loopback of the test's own network namespace.
    const LOOPBACK: u32 = 1;

    fn attach(fixture: &mut Fixture) {
        let pins = &fixture.pins;
        let xdp: &mut Xdp = fixture.ebpf.program_mut(XDP_PROGRAM).unwrap().try_into().unwrap();
        xdp.load().unwrap();
        xdp.pin(pins.program(XDP_PROGRAM)).unwrap();
        let id = xdp.attach("lo", XdpMode::Skb).unwrap();
        let link: XdpLink = xdp.take_link(id).unwrap();
        FdLink::try_from(link).unwrap().pin(pins.link(LinkKind::Xdp, LOOPBACK)).unwrap();

        let egress: &mut SchedClassifier = fixture.ebpf.program_mut(EGRESS_PROGRAM).unwrap().try_into().unwrap();
        egress.load().unwrap();
        egress.pin(pins.program(EGRESS_PROGRAM)).unwrap();
        let id = egress.attach("lo", TcAttachType::Egress).unwrap();
        let link: SchedClassifierLink = egress.take_link(id).unwrap();
        FdLink::try_from(link).unwrap().pin(pins.link(LinkKind::Egress, LOOPBACK)).unwrap();
    }

    fn attached(fixture: &mut Fixture) -> (bool, usize) {
        let xdp: &mut Xdp = fixture.ebpf.program_mut(XDP_PROGRAM).unwrap().try_into().unwrap();
        // An interface has one generic XDP program at most.
        let free = xdp.attach("lo", XdpMode::Skb).map(|id| xdp.detach(id).unwrap()).is_ok();
        (!free, SchedClassifier::query_tcx("lo", TcAttachType::Egress).unwrap().1.len())
    }

    #[test]
    fn while_an_agent_runs_nothing_is_touched() {
        let Some(pins) = mounted() else { return };
        let (programs, maps) = load(&pins, 1024).unwrap();
        assert!(programs.has_pins());
        let refused = unload(&pins).unwrap_err();
        assert!(matches!(&refused, UnloadError::InUse { path } if path == pins.root()), "{refused}");
        assert!(programs.has_pins() && Maps::open(pins.root()).is_ok());
        // Removed by hand, and made by another agent.
        for removed in [pins.links(), pins.root().to_owned()] {
            fs::remove_dir_all(&removed).unwrap();
            assert!(!programs.has_pins());
            drop(load(&pins, 1024));
        }
        assert!(!programs.has_pins());
        drop((programs, maps));
        assert!(unload(&pins).unwrap().is_some());
    }

    #[test]
    fn nothing_is_left_even_where_a_process_holds_the_links() {
        let Some(mut fixture) = Fixture::new() else { return };
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        attach(&mut fixture);
        let held = PinnedLink::from_pin(fixture.pins.link(LinkKind::Xdp, LOOPBACK)).unwrap();
        let vip = |id, flags| (Address::v4(id), VipValue { id, flags, epoch: 9, ..VipValue::default() });
        for (address, value) in [vip(1, VIP_LEADING), vip(2, VIP_YIELDED)] {
            fixture.maps.vips.insert(address, value, 0).unwrap();
        }
        assert_eq!(attached(&mut fixture), (true, 1));

        let done = unload(&fixture.pins).unwrap().unwrap();

        assert_eq!(attached(&mut fixture), (false, 0));
        assert!(!fixture.pins.root().exists());
        let mut detached = done.detached;
        detached.sort_unstable();
        assert_eq!(detached, [Some((LinkKind::Xdp, LOOPBACK)), Some((LinkKind::Egress, LOOPBACK))]);
        let maps = Maps::NAMES.len() + Maps::CALLING.len();
        assert_eq!((done.programs, done.maps, done.relinquished), (2, maps, 1));
        assert!(done.unreadable.is_none());
        assert_eq!(fixture.maps.read_vips().unwrap().into_iter().collect::<Vec<_>>(), [vip(1, 0), vip(2, VIP_YIELDED)]);
        assert!(unload(&fixture.pins).unwrap().is_none(), "a second time, there is nothing");
        drop(held);
    }

    #[test]
    fn maps_of_another_version_do_not_keep_the_rest_from_going() {
        let Some(mut fixture) = Fixture::new() else { return };
        fixture.maps.config.set(0, Config { abi: 77, ..Config::default() }, 0).unwrap();
        let done = unload(&fixture.pins).unwrap().unwrap();
        assert!(matches!(done.unreadable, Some(MapsError::Abi { found: 77, .. })));
        assert!(!fixture.pins.root().exists());
    }

    #[test]
    fn a_half_done_unload_is_completed() {
        let Some(pins) = mounted() else { return };
        fs::create_dir_all(pins.programs()).unwrap();
        let done = unload(&pins).unwrap().unwrap();
        assert!((done.programs, done.maps) == (0, 0) && done.unreadable.is_none() && !pins.root().exists());
    }

    #[test]
    fn a_folder_that_is_not_on_a_bpffs_is_not_touched() {
        let folder = tempfile::tempdir().unwrap();
        let pins = Pins::new(folder.path());
        fs::create_dir(pins.maps()).unwrap();
        fs::write(pins.map("VIPS"), "").unwrap();
        assert!(matches!(unload(&pins), Err(UnloadError::NotBpffs { .. })));
        assert!(pins.map("VIPS").exists());
    }
}
