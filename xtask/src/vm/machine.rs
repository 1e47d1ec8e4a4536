//! The machines that QEMU emulates.

use std::{path::Path, process::Command};

use anyhow::{Context as _, Result};

use crate::setup::{PLATFORMS, Platform};

/// QEMU 7.2 corrupts the flags of `cmpxchg16b`, which makes kernels from 6.12 on panic at times.
/// Five-level page tables only cost time.
const X86_64: &str = "max,-cx16,-la57";

/// The guest's clock counts instructions, one nanosecond each, and jumps to the next timer when all
/// processes sleep. So the guest's suites and time limits see a machine of ordinary speed, however
/// slow QEMU is. Several CPUs take turns.
const CLOCK: [&str; 4] = ["-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off"];

/// An emulated machine.
pub(super) struct Machine {
    pub(super) platform: Platform,
    /// The program that emulates it, and its Debian package.
    pub(super) qemu: (&'static str, &'static str),
    arguments: &'static [&'static str],
    /// The kernel's name of the first serial port.
    console: &'static str,
    /// More of the kernel's parameters.
    parameters: &'static str,
    /// The kernel's folder with modules of this architecture.
    pub(super) modules: &'static str,
}

impl Machine {
    /// A machine of this architecture, as images name it.
    pub(super) fn of(architecture: &str) -> Result<Self> {
        let platform = PLATFORMS.into_iter().find(|platform| platform.architecture == architecture);
        let platform = platform.with_context(|| format!("no platform {architecture}"))?;
        Ok(if architecture == "arm64" {
            Self {
                platform,
                qemu: ("qemu-system-aarch64", "qemu-system-arm"),
                arguments: &["-machine", "virt", "-cpu", "max", "-smp", "2"],
                console: "ttyAMA0",
                parameters: "",
                modules: "arch/arm64/crypto",
            }
        } else {
            Self {
                platform,
                qemu: ("qemu-system-x86_64", "qemu-system-x86"),
                // One CPU: with the clock of instructions, Linux 5.10 waits forever for a second one.
                arguments: &["-machine", "q35", "-cpu", X86_64, "-smp", "1"],
                console: "ttyS0",
                parameters: "tsc=reliable",
                modules: "arch/x86/crypto",
            }
        })
    }

    /// Returns the command that emulates it, without a kernel.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(self.qemu.0);
        self.configure(&mut command);
        command
    }

    /// Adds the command that emulates it to another one, without a kernel. QEMU is in a folder with all its
    /// libraries, those of the C library included, so it needs nothing of this machine.
    pub(super) fn add_unpacked(&self, command: &mut Command, folder: &Path) {
        let at = |path: &str| folder.join(path).display().to_string();
        let libraries = ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"].map(at).join(":");
        command.args([at("lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"), "--library-path".to_owned(), libraries]);
        command.arg(folder.join("usr/bin").join(self.qemu.0));
        for data in ["usr/share/qemu", "usr/share/seabios"] {
            command.args(["-L", &at(data)]);
        }
        self.configure(command);
    }

    fn configure(&self, command: &mut Command) {
        command.args(CLOCK).args(self.arguments);
        command.args(["-m", "2048", "-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio"]);
        let Self { console, parameters, .. } = self;
        let parameters = format!("console={console} quiet panic=-1 net.ifnames=0 mitigations=off {parameters}");
        command.args(["-append", parameters.trim_end()]);
    }
}
