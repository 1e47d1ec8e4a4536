//! The platforms that static programs are built for, and what that needs.

use std::{
    env,
    ffi::OsString,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result};

use crate::workspace;

/// A platform that vipmux runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Platform {
    /// Rust's name of its processors, which is also that of `uname -m`.
    pub(crate) machine: &'static str,
    /// Their name in images and in Kubernetes.
    pub(crate) architecture: &'static str,
    /// Rust's name of the target.
    pub(crate) triple: &'static str,
    /// What runs its programs on other machines.
    emulator: &'static str,
    /// The compiler for C code on machines of this platform.
    native: Compiler,
    /// The compiler for C code on other machines.
    cross: Compiler,
}

/// A compiler for C code, with a file that C code includes. Each has its Debian package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Compiler {
    program: (&'static str, &'static str),
    header: (&'static str, &'static str),
}

const WHY: &str = "the static binary contains C code, of the crate ring";

/// All of them. The compilers for the other platform have glibc's headers. ring's C code uses none of its
/// functions that musl lacks, and the program is linked with the musl of Rust's library.
pub(crate) const PLATFORMS: [Platform; 2] = [
    Platform {
        machine: "x86_64",
        architecture: "amd64",
        triple: "x86_64-unknown-linux-musl",
        emulator: "qemu-x86_64-static",
        native: Compiler {
            program: ("x86_64-linux-musl-gcc", "musl-tools"),
            header: ("/usr/include/x86_64-linux-musl/assert.h", "musl-dev"),
        },
        cross: Compiler {
            program: ("x86_64-linux-gnu-gcc", "gcc-x86-64-linux-gnu"),
            header: ("/usr/x86_64-linux-gnu/include/assert.h", "libc6-dev-amd64-cross"),
        },
    },
    Platform {
        machine: "aarch64",
        architecture: "arm64",
        triple: "aarch64-unknown-linux-musl",
        emulator: "qemu-aarch64-static",
        native: Compiler {
            program: ("aarch64-linux-musl-gcc", "musl-tools"),
            header: ("/usr/include/aarch64-linux-musl/assert.h", "musl-dev"),
        },
        cross: Compiler {
            program: ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),
            header: ("/usr/aarch64-linux-gnu/include/assert.h", "libc6-dev-arm64-cross"),
        },
    },
];

impl Platform {
    /// Returns this machine's.
    pub(crate) fn host() -> Result<Self> {
        let machine = env::consts::ARCH;
        let host = PLATFORMS.into_iter().find(|platform| platform.machine == machine);
        host.with_context(|| format!("cannot build a static binary on {machine}: use an x86-64 or arm64 machine"))
    }

    /// Ensures that static programs can be built for it here.
    pub(crate) fn install(self) -> Result<()> {
        let compiler = self.compiler();
        let wanted = [compiler.program, compiler.header].map(|(file, package)| (file, package, WHY));
        super::programs(&wanted)?;
        if has_library(self.triple) {
            return Ok(());
        }
        workspace::progress(&format!(
            "installing Rust's library for {} with rustup: the image's binary is static",
            self.triple
        ));
        let mut rustup = Command::new("rustup");
        rustup.args(["target", "add", self.triple]).current_dir(workspace::root());
        workspace::prepare(&mut rustup).with_context(|| format!("no standard library for {}", self.triple))
    }

    /// Returns the program that compiles C code for it here.
    pub(crate) fn c_compiler(self) -> &'static str {
        self.compiler().program.0
    }

    /// Returns the program that removes symbols from its programs here. It comes with the compiler.
    pub(crate) fn strip(self) -> String {
        if self.is_host() { "strip".to_owned() } else { self.c_compiler().replace("-gcc", "-strip") }
    }

    /// Makes cargo build for it. On another machine the compiler also links: this machine's knows no other
    /// processors.
    pub(crate) fn configure(self, cargo: &mut Command) {
        cargo.args(["--target", self.triple]);
        let variable = self.triple.replace('-', "_");
        cargo.env(format!("CC_{variable}"), self.c_compiler());
        if !self.is_host() {
            cargo.env(format!("CARGO_TARGET_{}_LINKER", variable.to_uppercase()), self.c_compiler());
        }
    }

    /// Returns a command that runs one of its programs here, in QEMU if this machine is another platform.
    pub(crate) fn emulated(self, program: &Path) -> Command {
        if self.is_host() {
            return Command::new(program);
        }
        let mut qemu = Command::new(self.emulator);
        qemu.arg(program);
        qemu
    }

    /// Ensures that its programs run here.
    pub(crate) fn install_emulator(self) -> Result<()> {
        if self.is_host() {
            return Ok(());
        }
        super::programs(&[(self.emulator, "qemu-user-static", "tries programs for the other platform")])
    }

    fn compiler(self) -> Compiler {
        if self.is_host() { self.native } else { self.cross }
    }

    /// Returns whether this machine is one.
    pub(crate) fn is_host(self) -> bool {
        self.machine == env::consts::ARCH
    }
}

/// Returns whether this rustc has its standard library for a target.
fn has_library(triple: &str) -> bool {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| OsString::from("rustc"));
    let mut command = Command::new(rustc);
    command.args(["--print", "target-libdir", "--target", triple]).stdin(Stdio::null()).current_dir(workspace::root());
    let Ok(output) = command.output() else { return false };
    Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_platforms_programs_are_compiled_and_linked_by_its_cross_compiler() {
        let variables = |platform: Platform| {
            let mut cargo = Command::new("cargo");
            platform.configure(&mut cargo);
            let variables = cargo.get_envs().map(|(name, value)| (name.to_owned(), value.unwrap().to_owned()));
            variables.map(|(name, value)| format!("{}={}", name.display(), value.display())).collect::<Vec<_>>()
        };
        let (host, other): (Vec<_>, Vec<_>) = PLATFORMS.into_iter().partition(|platform| platform.is_host());
        let compiler = host[0].native.program.0;
        assert_eq!(variables(host[0]), [format!("CC_{}={compiler}", host[0].triple.replace('-', "_"))]);
        let (compiler, triple) = (other[0].cross.program.0, other[0].triple.replace('-', "_"));
        let linker = format!("CARGO_TARGET_{}_LINKER={compiler}", triple.to_uppercase());
        assert_eq!(variables(other[0]), [linker, format!("CC_{triple}={compiler}")]);
    }
}
