//! Stands in for the kernel's lock of all interfaces (RTNL), which a driver holds while it resets its card.
//!
//! The kernel tells this process of each system call of a program that needs the lock (seccomp user
//! notification, Documentation/userspace-api/seccomp_filter.rst), and the program waits for an answer.

use std::{
    fs, io,
    os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd},
    ptr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use libc::{
    SECCOMP_FILTER_FLAG_NEW_LISTENER, SECCOMP_IOCTL_NOTIF_RECV, SECCOMP_IOCTL_NOTIF_SEND, SECCOMP_RET_ALLOW,
    SECCOMP_RET_USER_NOTIF, SECCOMP_SET_MODE_FILTER, sock_filter, sock_fprog,
};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};

use crate::wait;

/// `SIOCETHTOOL` of include/uapi/linux/sockios.h.
const ETHTOOL: u32 = 0x8946;
/// Of `enum bpf_cmd` in include/uapi/linux/bpf.h: `BPF_LINK_CREATE`.
const ATTACH: u32 = 28;
/// `BPF_OBJ_GET_INFO_BY_FD` for a link, `BPF_LINK_UPDATE` and `BPF_LINK_DETACH`.
const OTHERS: [u32; 3] = [15, 29, 34];
/// `BPF_LD | BPF_W | BPF_ABS`, `BPF_JMP | BPF_JEQ | BPF_K` and `BPF_RET | BPF_K` of
/// include/uapi/linux/bpf_common.h.
const LOAD: u16 = 0x20;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
/// `SECCOMP_USER_NOTIF_FLAG_CONTINUE` of include/uapi/linux/seccomp.h.
const CONTINUE: u32 = 1;
/// Offsets in `struct seccomp_data`: the number, and the low halves of the first two arguments.
const NUMBER: u32 = 0;
const FIRST: u32 = 16;
const SECOND: u32 = 24;

/// The lock, as the programs see it that the thread started which made it.
#[derive(Debug)]
pub struct Rtnl {
    state: Arc<Mutex<State>>,
    listener: Arc<OwnedFd>,
}

#[derive(Debug, Default)]
struct State {
    /// The process whose next attach takes long.
    slow: Option<u32>,
    /// Its calls that wait: the attach, and calls that wait for the lock meanwhile.
    waiting: Vec<u64>,
}

impl Rtnl {
    /// Takes part in the calls of all programs that this thread starts from now on.
    pub fn intercept() -> Result<Self> {
        // Of the calling thread, and inherited: the thread that answers must not have it.
        let (sender, receiver) = std::sync::mpsc::channel::<(Arc<OwnedFd>, Arc<Mutex<State>>)>();
        thread::Builder::new().name("RTNL".to_owned()).spawn(move || {
            let Ok((listener, state)) = receiver.recv() else { return };
            while let Ok(Some(call)) = next_call(&listener) {
                let mut state = lock(&state);
                let is_attach = i64::from(call.data.nr) == libc::SYS_bpf && call.data.args[0] == u64::from(ATTACH);
                let waits = is_attach || !state.waiting.is_empty();
                if waits && state.slow.is_some() && process_of(call.pid) == state.slow {
                    state.waiting.push(call.id);
                } else {
                    let _ = go_on(&listener, call.id);
                }
            }
        })?;
        let (listener, state) = (Arc::new(install()?), Arc::<Mutex<State>>::default());
        sender.send((Arc::clone(&listener), Arc::clone(&state)))?;
        Ok(Self { state, listener })
    }

    /// Lets the next attach of a program by this process take until [`Self::release`], with the lock.
    pub fn slow_down(&self, process: u32) {
        lock(&self.state).slow = Some(process);
    }

    /// Waits until the attach is under way.
    pub fn await_attach(&self, timeout: Duration) -> Result<()> {
        wait::until("an attach", timeout, || {
            ensure!(!lock(&self.state).waiting.is_empty(), "there is none");
            Ok(())
        })
    }

    /// Ends the attach.
    pub fn release(&self) -> Result<()> {
        let mut state = lock(&self.state);
        state.slow = None;
        // A process that was killed waits no more.
        let is_gone = |error: &Errno| *error == Errno::ENOENT;
        let mut answers = state.waiting.drain(..).map(|call| go_on(&self.listener, call));
        answers.try_for_each(|answer| answer.or_else(|error| if is_gone(&error) { Ok(()) } else { Err(error) }))?;
        Ok(())
    }
}

impl Drop for Rtnl {
    fn drop(&mut self) {
        let _ = self.release();
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes the filter one of the calling thread and of its children. Returns what tells of the calls.
fn install() -> Result<OwnedFd> {
    let load = |offset| sock_filter { code: LOAD, jt: 0, jf: 0, k: offset };
    let end = |action| sock_filter { code: RETURN, jt: 0, jf: 0, k: action };
    let is = |value, yes, no| sock_filter { code: JUMP_IF_EQUAL, jt: yes, jf: no, k: value };
    let [info, update, detach] = OTHERS;
    let (bpf, ioctl) = (u32::try_from(libc::SYS_bpf)?, u32::try_from(libc::SYS_ioctl)?);
    let mut filter = [
        load(NUMBER),
        is(bpf, 2, 0),
        is(ioctl, 6, 0),
        end(SECCOMP_RET_ALLOW),
        load(FIRST),
        is(info, 5, 0),
        is(ATTACH, 4, 0),
        is(update, 3, 0),
        is(detach, 2, 3),
        load(SECOND),
        is(ETHTOOL, 0, 1),
        end(SECCOMP_RET_USER_NOTIF),
        end(SECCOMP_RET_ALLOW),
    ];
    let program = sock_fprog { len: u16::try_from(filter.len())?, filter: filter.as_mut_ptr() };
    // SAFETY: seccomp(2) reads the program, which lives during the call.
    let listener = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            SECCOMP_SET_MODE_FILTER,
            SECCOMP_FILTER_FLAG_NEW_LISTENER,
            ptr::from_ref(&program),
        )
    };
    ensure!(listener >= 0, "cannot install a seccomp filter: {}", io::Error::last_os_error());
    // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(i32::try_from(listener)?) })
}

/// Waits for the next call; `None`: no program has the filter any more.
fn next_call(listener: &OwnedFd) -> Result<Option<libc::seccomp_notif>> {
    loop {
        let mut ready = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        poll(&mut ready, PollTimeout::NONE)?;
        if !ready[0].revents().is_some_and(|events| events.contains(PollFlags::POLLIN)) {
            return Ok(None);
        }
        // SAFETY: all zero is a value of this structure, and the kernel requires it.
        let mut call: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the command writes a `struct seccomp_notif`.
        let received = unsafe { libc::ioctl(listener.as_raw_fd(), SECCOMP_IOCTL_NOTIF_RECV, &raw mut call) };
        match Errno::result(received) {
            Ok(_) => return Ok(Some(call)),
            // The caller was killed meanwhile.
            Err(Errno::ENOENT | Errno::EINTR) => {}
            Err(error) => return Err(error).context("cannot learn of a call"),
        }
    }
}

/// Lets the kernel execute a call.
fn go_on(listener: &OwnedFd, id: u64) -> Result<(), Errno> {
    let mut answer = libc::seccomp_notif_resp { id, val: 0, error: 0, flags: CONTINUE };
    // SAFETY: the command reads a `struct seccomp_notif_resp`.
    let sent = unsafe { libc::ioctl(listener.as_raw_fd(), SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer) };
    Errno::result(sent).map(drop)
}

/// Returns the process of a thread.
fn process_of(thread: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok())
}
