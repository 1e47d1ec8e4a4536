//! Real cards in place of the nodes' veths, as in a guest of `cargo xtask vm drivers`.
//!
//! Each card has a wire to another card, which becomes the switch's port. The driver binds both anew for
//! each LAN, so that no settings of an earlier test remain.

use std::{
    env, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};

use crate::{
    links::{End, Links},
    netns::Namespace,
    wait,
};

/// Names the cards: for each node, the PCI address of its card and that of the other end, as in
/// `0000:00:02.0+0000:00:03.0 0000:00:04.0+0000:00:05.0`. Further nodes have veths.
const CARDS: &str = "VIPMUX_CARDS";
/// The name of the cards' driver.
const DRIVER: &str = "VIPMUX_DRIVER";
/// QEMU's monitor. It calls the cable of the first node's card `card1`.
const MONITOR: &str = "/dev/ttyS1";
/// The time limit for a driver. It negotiates with the other end for some seconds.
const START: Duration = Duration::from_mins(1);
const DEVICES: &str = "/sys/bus/pci/devices";

/// Returns the name of the driver under test; `None`: the cards are veths.
pub fn driver() -> Option<String> {
    env::var(DRIVER).ok()
}

/// Two cards with a wire between them.
#[derive(Debug)]
pub(super) struct Wire {
    /// The node's number.
    number: usize,
    card: String,
    port: String,
}

impl Wire {
    /// Returns the wire of the node that is connected to the switch's port of this name.
    pub(super) fn of(port: &str) -> Result<Option<Self>> {
        let Some(number) = port.strip_prefix("node-").and_then(|number| number.parse::<usize>().ok()) else {
            return Ok(None);
        };
        let cards = env::var(CARDS).unwrap_or_default();
        let Some(wire) = cards.split_whitespace().nth(number - 1) else { return Ok(None) };
        let (card, port) = wire.split_once('+').with_context(|| format!("{CARDS}: {wire} is not CARD+PORT"))?;
        Ok(Some(Self { number, card: card.to_owned(), port: port.to_owned() }))
    }

    /// Plugs the card's cable in, or pulls it out: the card has a carrier, or has none.
    pub(super) fn set_plugged(&self, plugged: bool) -> Result<()> {
        // The first line ends what the terminal may have sent back before it was told not to.
        let command = format!("\nset_link card{} {}\n", self.number, if plugged { "on" } else { "off" });
        fs::write(MONITOR, command).with_context(|| format!("cannot write to {MONITOR}"))
    }

    /// Moves the ends into two namespaces, sets them up, and waits until both have a carrier.
    pub(super) fn connect(&self, here: (&Namespace, End<'_>), there: (&Namespace, End<'_>)) -> Result<()> {
        for (device, (namespace, end)) in [(&self.card, here), (&self.port, there)] {
            let name = bind(device).with_context(|| format!("the card at {device}"))?;
            if *device == self.card {
                expect_driver(&name).with_context(|| format!("the card at {device}"))?;
            }
            Links::open()?.give(&name, end, namespace)?;
        }
        for (namespace, end) in [here, there] {
            namespace.links(|links| {
                wait::until("a carrier", START, || {
                    ensure!(links.has_carrier(end.name)?, "{} has none", end.name);
                    Ok(())
                })
            })?;
        }
        Ok(())
    }
}

/// Checks that a card has the driver under test: another card would show nothing about it.
fn expect_driver(interface: &str) -> Result<()> {
    let expected = driver().with_context(|| format!("{DRIVER} is not set"))?;
    let found = fs::read_link(format!("/sys/class/net/{interface}/device/driver"))?;
    let found = found.file_name().unwrap_or_default();
    ensure!(found == expected.as_str(), "its driver is {}, not {expected}", found.display());
    Ok(())
}

/// Binds a device's driver anew, and returns the name of its interface in this network namespace.
fn bind(device: &str) -> Result<String> {
    let folder = Path::new(DEVICES).join(device);
    let write = |path: PathBuf| fs::write(&path, device).with_context(|| format!("cannot write to {}", path.display()));
    if folder.join("driver").exists() {
        write(folder.join("driver/unbind"))?;
    }
    write(Path::new(DEVICES).with_file_name("drivers_probe"))?;
    // A USB controller finds its card some time later.
    wait::until("an interface", START, || interface(&folder)?.context("the device has none"))
}

/// Returns the name of a network interface of a device, or of one behind it.
fn interface(device: &Path) -> Result<Option<String>> {
    for entry in fs::read_dir(device)? {
        let entry = entry?;
        if !entry.file_type()?.is_dir() {
            continue;
        }
        let found = if entry.file_name() == "net" {
            let first = fs::read_dir(entry.path())?.next().transpose()?;
            first.map(|interface| interface.file_name().to_string_lossy().into_owned())
        } else {
            interface(&entry.path())?
        };
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}
