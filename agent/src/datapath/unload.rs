//! Taking everything out of the kernel again.

use std::{
    ffi::CString,
    fs, io,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
};

use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use vipmux_common::abi::VIP_LEADING;

use super::{
    maps::{Maps, MapsError},
    pins::{LinkKind, Pins},
    syscall::{Command, bpf},
};

/// `BPF_EXIST` of include/uapi/linux/bpf.h: replace an entry, but make none.
const EXIST: u64 = 2;

/// Something could not be taken out of the kernel.
#[derive(Debug, thiserror::Error)]
pub enum UnloadError {
    /// The pin path is something else's folder: nothing in it is touched.
    #[error("{} is not on a bpffs, so it is no pin path of vipmux", path.display())]
    NotBpffs {
        /// The pin path.
        path: PathBuf,
    },
    /// A step failed.
    #[error("cannot {operation} {}", path.display())]
    Step {
        /// What was tried.
        operation: &'static str,
        /// The pin or folder.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// What was taken out.
#[derive(Debug, Default)]
pub struct Unloaded {
    /// VIPs that this node led, and no longer answers for.
    pub relinquished: usize,
    /// Why the leading flags could not be cleared; the programs were detached all the same.
    pub unreadable: Option<MapsError>,
    /// Programs that were detached, and the ifindex of the interface. `None` for a link with a foreign name.
    pub detached: Vec<Option<(LinkKind, u32)>>,
    /// Programs whose pins went.
    pub programs: usize,
    /// Maps whose pins went.
    pub maps: usize,
    /// The fence's deadline was ahead: an agent is running, or was a moment ago.
    pub agent_seen: bool,
}

fn step<T>(operation: &'static str, path: &Path, result: io::Result<T>) -> Result<T, UnloadError> {
    result.map_err(|source| UnloadError::Step { operation, path: path.into(), source })
}

/// `BPF_OBJ_GET`'s part of `union bpf_attr`.
#[repr(C)]
struct Pathname {
    path: u64,
    fd: u32,
    flags: u32,
}

/// `BPF_LINK_DETACH`'s part of `union bpf_attr`.
#[repr(C)]
struct Link {
    fd: u32,
}

/// Detaches the pinned link. Removing its pin would do so too, but only some time after, and not at all while another
/// process has it open.
fn detach(path: &Path) -> io::Result<()> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    let mut attributes = Pathname { path: name.as_ptr() as u64, fd: 0, flags: 0 };
    // SAFETY: the path is a string with its zero, live during the call.
    let fd = unsafe { bpf(Command::ObjectGet, &mut attributes) }?;
    let fd = RawFd::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel just made this descriptor for us, and nobody else knows it.
    let link = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut attributes = Link { fd: link.as_raw_fd().cast_unsigned() };
    // SAFETY: there are no pointers in it.
    unsafe { bpf(Command::LinkDetach, &mut attributes) }?;
    Ok(())
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, UnloadError> {
    let listed = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        listed => listed.and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect()),
    };
    step("list", folder, listed)
}

/// Removes a folder of pins, and them; how many there were.
fn remove(folder: &Path) -> Result<usize, UnloadError> {
    let pins = entries(folder)?;
    for pin in &pins {
        step("remove", pin, fs::remove_file(pin))?;
    }
    remove_folder(folder)?;
    Ok(pins.len())
}

fn remove_folder(folder: &Path) -> Result<(), UnloadError> {
    match fs::remove_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => step("remove", folder, result),
    }
}

/// Clears all leading flags, so that this node answers for no VIP; how many it led.
fn relinquish(maps: &mut Maps) -> Result<usize, MapsError> {
    let mut led = 0;
    for (address, mut vip) in maps.read_vips()? {
        if vip.flags & VIP_LEADING != 0 {
            vip.flags &= !VIP_LEADING;
            let written = maps.vips.insert(address, vip, EXIST);
            written.map_err(|source| MapsError::Write { map: "VIPS", source })?;
            led += 1;
        }
    }
    Ok(led)
}

/// Stops answering, detaches the programs, and removes every pin below the pin path, in this order. `None`: nothing was
/// there. `now`: nanoseconds of `CLOCK_BOOTTIME`.
pub fn unload(pins: &Pins, now: u64) -> Result<Option<Unloaded>, UnloadError> {
    let root = pins.root();
    if !step("look at", root, root.try_exists())? {
        return Ok(None);
    }
    if step("look at", root, statfs(root).map_err(io::Error::from))?.filesystem_type() != BPF_FS_MAGIC {
        return Err(UnloadError::NotBpffs { path: root.into() });
    }
    let mut done = Unloaded::default();
    match Maps::open(root).and_then(|mut maps| Ok((maps.read_fence()?.deadline, relinquish(&mut maps)?))) {
        Ok((deadline, led)) => (done.agent_seen, done.relinquished) = (deadline > now, led),
        Err(MapsError::NotLoaded { .. }) => {}
        // Maps of another version, or half of them: what is attached goes all the same.
        Err(error) => done.unreadable = Some(error),
    }
    for link in entries(&pins.links())? {
        step("detach", &link, detach(&link))?;
        done.detached.push(link.file_name().and_then(|name| Pins::parse_link(name.to_str()?)));
    }
    remove(&pins.links())?;
    done.programs = remove(&pins.programs())?;
    done.maps = remove(&pins.maps())?;
    remove_folder(root)?;
    Ok(Some(done))
}
