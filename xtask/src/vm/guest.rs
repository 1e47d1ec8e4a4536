//! Boots one guest and follows it to its end.

use std::{
    fs::{self, File},
    io::{self, BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail};

use super::{archive::Image, root};
use crate::{summary::Outcome, workspace};

/// A guest that is silent for this long is stuck. A test that restarts three agents can take ten minutes, since
/// the emulated kernel checks the programs for nearly a minute.
const SILENCE: Duration = Duration::from_mins(20);

/// Lines of the guest's output that are shown if it died.
const LAST_WORDS: usize = 60;

/// Boots the kernel on the machine that `emulator` emulates, with these files. Prints the output of the script's
/// suites, and returns how they ended.
pub(super) fn run(emulator: Command, folder: &Path, image: &Image, files: &Path, script: &str) -> Result<Outcome> {
    let initramfs = folder.join("initramfs");
    concatenate(&[&image.modules, files, &pack_script(folder, script)?], &initramfs)?;
    let mut guest = Guest::boot(emulator, image, &initramfs)?;
    match guest.watch()? {
        Some(0) => Ok(Outcome::Passed),
        Some(_) => Ok(Outcome::Failed(anyhow!("a suite failed, see above"))),
        None => bail!("the guest ended without a result, see above"),
    }
}

/// Packs the script with the suites to run, and returns the archive's path.
fn pack_script(folder: &Path, script: &str) -> Result<PathBuf> {
    let (root, archive) = (folder.join("script"), folder.join("script.cpio"));
    fs::create_dir_all(&root).with_context(|| format!("cannot make {}", root.display()))?;
    fs::write(root.join("suites"), script).context("cannot write the suites' script")?;
    root::archive(&root, &archive)?;
    Ok(archive)
}

/// Concatenates archives: the kernel unpacks them all.
fn concatenate(sources: &[&Path], target: &Path) -> Result<()> {
    let mut file = File::create(target).with_context(|| format!("cannot write {}", target.display()))?;
    for source in sources {
        let mut from = File::open(source).with_context(|| format!("cannot read {}", source.display()))?;
        io::copy(&mut from, &mut file).with_context(|| format!("cannot write {}", target.display()))?;
    }
    Ok(())
}

/// A running QEMU, killed on drop.
struct Guest {
    qemu: Child,
    console: Receiver<String>,
}

impl Guest {
    fn boot(mut command: Command, image: &Image, initramfs: &Path) -> Result<Self> {
        command.arg("-kernel").arg(&image.vmlinuz).arg("-initrd").arg(initramfs);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut qemu =
            command.spawn().with_context(|| format!("cannot run `{}`", workspace::command_line(&command)))?;
        let output = qemu.stdout.take().context("QEMU has no output")?;
        Ok(Self { qemu, console: lines(output) })
    }

    /// Prints the output between the marks of `init.sh`. Returns the status in the second mark, or
    /// `None` if the guest ended without it.
    fn watch(&mut self) -> Result<Option<u32>> {
        let mut hidden = Vec::new();
        let mut shown = false;
        loop {
            let line = match self.console.recv_timeout(SILENCE) {
                Ok(line) => line,
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => bail!("the guest wrote nothing for {} s", SILENCE.as_secs()),
            };
            if let Some(status) = line.strip_prefix("@@END ") {
                return Ok(Some(status.parse().with_context(|| format!("the guest ended with `{line}`"))?));
            }
            if line == "@@BEGIN" {
                shown = true;
            } else if shown {
                println!("{line}");
            } else {
                hidden.push(line);
            }
        }
        for line in &hidden[hidden.len().saturating_sub(LAST_WORDS)..] {
            eprintln!("{line}");
        }
        Ok(None)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

/// Returns the lines of the serial console. Its own thread reads them, so that a silent guest can
/// be given up. The thread ends with QEMU.
fn lines(output: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).trim_end_matches('\r').to_owned();
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}
