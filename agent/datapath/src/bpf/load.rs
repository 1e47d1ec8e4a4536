//! Loads the programs onto pinned maps.

use std::{fs, io, path::Path};

use aya::Ebpf;
use nix::{
    mount::{MsFlags, mount},
    sys::statfs::{BPF_FS_MAGIC, statfs},
};

use vipmux_common::abi::Config;

use super::{
    apply::new_secret,
    kernel_version::kernel_is,
    maps::{Maps, read_globals, use_pins},
    object::{loader, object, sizes},
    pins::{PinError, PinLock, Pins},
    place::{CLASSIFIERS, connect_classifiers},
    programs::{LoadError, Programs, load_all},
    refusals,
    transition::Transition,
    xdp::{Buffers, connect_xdp},
};
use crate::error_chain::error_chain;
use vipmux_plan::Step;

/// Loads the programs onto the pinned maps, or onto new ones, without attaching them to new
/// interfaces.
///
/// If the pinned maps have another layout or size, their entries are copied to new maps, and pinned
/// links get the new programs. `flows` is the number of flows that the flow table has room for.
pub fn load(pins: &Pins, flows: u32) -> Result<(Programs, Maps), LoadError> {
    check_kernel()?;
    ensure_bpffs(pins.root())?;
    let lock = lock(pins.root())?;
    let mut transition = Transition::begin(pins, flows)?;
    let maps = transition.folder(pins);
    for folder in [maps.clone(), pins.programs(), pins.links()] {
        fs::create_dir_all(&folder).map_err(PinError::new("make", &folder))?;
    }
    let globals = read_globals(&maps)?;
    let mut loader = loader();
    use_pins(&mut loader, &maps, &globals);
    for (name, entries) in sizes(flows) {
        loader.map_max_entries(name, entries);
    }
    let mut ebpf = loader.load(&object())?;
    let buffers = Buffers::here();
    load_programs(&mut ebpf, buffers)?;
    // Only after the kernel has accepted the programs.
    transition.fill(pins)?;
    let mut maps = Maps::open(pins.root())?;
    let config = maps.read_config()?;
    let flow_mask = maps.flow_mask()?;
    // Before these programs see a packet.
    if config.abi == 0 {
        maps.apply(&Step::Config(Config { flow_secret: new_secret()?, flow_mask, ..config }))?;
        maps.begin_backend_indices();
    } else {
        // Maps of another layout may have no indices, or other ones.
        maps.rebuild_vip_index()?;
        maps.rebuild_backend_indices()?;
    }
    // Also if some of the pins were lost: a copy counts before its entry.
    maps.rebuild_service_index()?;
    let mut programs = Programs { ebpf, pins: pins.clone(), xdp: buffers.entry(), lock };
    programs.pin()?;
    transition.finish(pins, || programs.take_over())?;
    if let Err(error) = refusals::count(&mut programs.ebpf, buffers.entry()) {
        tracing::warn!(error = error_chain(&error), "frames that the kernel refuses are not counted");
    }
    Ok((programs, maps))
}

/// Loads all programs for the interfaces.
pub(super) fn load_programs(ebpf: &mut Ebpf, buffers: Buffers) -> Result<(), LoadError> {
    load_all(ebpf, buffers.programs().chain(CLASSIFIERS))?;
    connect_xdp(ebpf, buffers)?;
    connect_classifiers(ebpf)
}

/// Refuses a kernel whose verifier would refuse the programs with a message that says little
/// (`bpf_jit_supports_subprog_tailcalls` in arch/arm64/net/bpf_jit_comp.c).
pub(super) fn check_kernel() -> Result<(), LoadError> {
    if cfg!(target_arch = "aarch64") && !kernel_is(6, 0) { Err(LoadError::Arm64) } else { Ok(()) }
}

/// Mounts a bpffs on `/sys/fs/bpf` if the pin path is below it and none is mounted. A host's init
/// usually does so.
fn ensure_bpffs(path: &Path) -> Result<(), LoadError> {
    const USUAL: &str = "/sys/fs/bpf";
    let is_bpffs = |path: &Path| statfs(path).is_ok_and(|found| found.filesystem_type() == BPF_FS_MAGIC);
    if path.ancestors().any(is_bpffs) {
        return Ok(());
    }
    let mounted = if path.starts_with(USUAL) {
        tracing::info!(path = USUAL, "mounting a bpffs");
        mount(Some("bpf"), USUAL, Some("bpf"), MsFlags::empty(), None::<&str>).map_err(io::Error::from)
    } else {
        Err(io::ErrorKind::NotFound.into())
    };
    mounted.map_err(|source| LoadError::Bpffs { path: path.into(), source })
}

/// Locks the pin path, and makes it if it is missing.
fn lock(root: &Path) -> Result<PinLock, LoadError> {
    fs::create_dir_all(root).map_err(PinError::new("make", root))?;
    PinLock::take(root)?.ok_or_else(|| LoadError::Taken { path: root.into() })
}
