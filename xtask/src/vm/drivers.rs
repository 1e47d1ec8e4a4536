//! `cargo xtask vm drivers`: network tests on drivers of real cards, which QEMU emulates.
//!
//! ```text
//!  guest:  node-1                  switch              node-2 ...
//!          eth0, a card under test port, virtio
//!  --------|-----------------------|-----------------------------
//!  host:   tap card1 -- bridge --- tap port1           card2 -- bridge -- port2
//! ```
//!
//! There is a guest for each kind of card, with a card for each of three nodes. The network suite's LAN takes
//! them in place of veths ([`CARDS`]). The taps exchange frames with partial checksums and unsegmented ones
//! with QEMU (`vnet_hdr`). They are in a network namespace that ends with QEMU.

use std::{path::Path, process::Command, time::Instant};

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use nix::unistd::geteuid;

use super::{
    Kernel,
    archive::{self, Flavor},
    cache, guest,
    machine::Machine,
    root, suites,
};
use crate::{
    setup,
    summary::{self, Outcome},
    workspace,
};

/// The variables with the cards' PCI addresses, and with the name of their driver (`tests/src/lan/card.rs`).
const CARDS: &str = "VIPMUX_CARDS";
const DRIVER: &str = "VIPMUX_DRIVER";

/// QEMU's monitor, at the guest's second serial port: there a test pulls a card's cable (`set_link card1 off`).
/// A socket connects both ends. Its name is abstract, so it belongs to the network namespace of this QEMU.
const MONITOR: [&str; 8] = [
    "-chardev",
    "socket,id=monitor,path=vipmux-monitor,abstract=on,server=on,wait=off",
    "-mon",
    "chardev=monitor,mode=readline",
    "-chardev",
    "socket,id=port,path=vipmux-monitor,abstract=on",
    "-serial",
    "chardev:port",
];

/// Nodes with a card.
const NODES: u8 = 3;

/// Makes the taps and the bridges between them, then becomes the command in its arguments. A bridge that forgets
/// addresses at once floods each frame to its other port, as a wire does.
const WIRES: &str = include_str!("wires.sh");

/// The options of the command.
#[derive(Args)]
pub(crate) struct Drivers {
    /// The cards to run on (all, if none is named)
    #[arg(value_name = "CARD")]
    cards: Vec<Card>,
    /// The kernel, in the flavor with all drivers
    #[arg(long, value_name = "KERNEL", default_value = "6.12")]
    kernel: Kernel,
    /// Run only this test of the network suite: its full name. May be repeated
    #[arg(long = "test", value_name = "NAME")]
    tests: Vec<String>,
    /// Download newer packages of the kernel and of QEMU, if they are cached already
    #[arg(long)]
    update: bool,
}

/// A kind of card that QEMU emulates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "verbatim")]
enum Card {
    /// virtio_net, as most hypervisors configure it
    #[value(name = "virtio")]
    Virtio,
    /// virtio_net without mergeable buffers: its mode for big packets has no XDP
    #[value(name = "virtio-big-packets")]
    VirtioBigPackets,
    /// virtio_net that cannot turn segmentation offloads off
    #[value(name = "virtio-fixed-offloads")]
    VirtioFixedOffloads,
    /// Intel 82576
    #[value(name = "igb")]
    Igb,
    /// VMware's
    #[value(name = "vmxnet3")]
    Vmxnet3,
    /// Intel 82574L
    #[value(name = "e1000e")]
    E1000e,
    /// Intel 82540EM
    #[value(name = "e1000")]
    E1000,
    /// Realtek 8139C+
    #[value(name = "8139cp")]
    Rtl8139,
    /// A card on the USB
    #[value(name = "cdc_ether")]
    CdcEther,
}

impl Card {
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// QEMU's name of the device, with its properties.
    const fn device(self) -> &'static str {
        match self {
            Self::Virtio => "virtio-net-pci",
            Self::VirtioBigPackets => "virtio-net-pci,mrg_rxbuf=off",
            Self::VirtioFixedOffloads => "virtio-net-pci,ctrl_guest_offloads=off",
            Self::Igb => "igb",
            Self::Vmxnet3 => "vmxnet3",
            Self::E1000e => "e1000e",
            Self::E1000 => "e1000",
            Self::Rtl8139 => "rtl8139",
            Self::CdcEther => "usb-net",
        }
    }

    /// The driver's name.
    const fn driver(self) -> &'static str {
        match self {
            Self::Virtio | Self::VirtioBigPackets | Self::VirtioFixedOffloads => "virtio_net",
            Self::Igb => "igb",
            Self::Vmxnet3 => "vmxnet3",
            Self::E1000e => "e1000e",
            Self::E1000 => "e1000",
            Self::Rtl8139 => "8139cp",
            Self::CdcEther => "cdc_ether",
        }
    }

    /// Whether native XDP runs on it.
    const fn is_native(self) -> bool {
        matches!(self, Self::Virtio | Self::Igb | Self::Vmxnet3)
    }

    /// Whether it takes jumbo frames of 9,000 bytes, in native mode or in generic mode. The drivers of igb and
    /// vmxnet3 refuse native XDP with such an MTU.
    const fn is_jumbo(self, native: bool) -> bool {
        match self {
            Self::Rtl8139 | Self::CdcEther => false,
            Self::Igb | Self::Vmxnet3 => !native,
            _ => true,
        }
    }

    fn tests(self) -> Vec<&'static str> {
        let runs = |test: &&str| {
            let native = test.contains("native");
            let cable = !test.contains("cable") || self != Self::CdcEther;
            (self.is_native() || !native) && (self.is_jumbo(native) || !test.contains("jumbo")) && cable
        };
        let by_default = (!self.is_native()).then_some(suites::BY_DEFAULT);
        let refused = (self == Self::VirtioFixedOffloads).then_some(suites::REFUSED);
        suites::CARDS.into_iter().filter(runs).chain(by_default).chain(refused).collect()
    }
}

/// Runs tests on cards, one guest after the other. Fails if a test fails on one.
pub(crate) fn run(options: &Drivers) -> Result<()> {
    if !geteuid().is_root() {
        bail!("`cargo xtask vm drivers` connects guests by tap interfaces in a network namespace: run it as root");
    }
    let kernel = options.kernel;
    if kernel.architecture() != "amd64" {
        bail!("QEMU's machine for {} has no such cards", kernel.name());
    }
    let machine = Machine::of(kernel.architecture())?;
    setup::guests(&[])?;
    let emulator = archive::emulator(&cache()?, options.update)?;
    let image = archive::kernel(&machine, &cache()?, (kernel.suite(), Flavor::Full), options.update)?;
    let folder = workspace::target_folder()?.join("vm");
    let _lock = workspace::lock(&folder)?;
    let executables = suites::build(&machine)?;
    suites::check(&executables, options.tests.iter().map(String::as_str))?;
    let files = root::pack(&machine, &folder, &executables)?;
    let cards = if options.cards.is_empty() { Card::value_variants() } else { &options.cards };
    let mut rows = Vec::new();
    for card in cards {
        let start = Instant::now();
        workspace::progress(&format!("{} on kernel {}: {}", card.name(), kernel.name(), image.release));
        let tests =
            if options.tests.is_empty() { card.tests() } else { options.tests.iter().map(String::as_str).collect() };
        let (cards, driver, suite) = (addresses(), card.driver(), suites::network(&tests));
        let script = format!("export {CARDS}=\"{cards}\" {DRIVER}={driver}\n{suite}");
        let outcome = guest::run(command(&machine, &emulator, *card), &folder, &image, &files, &script);
        rows.push((card.name(), outcome.unwrap_or_else(Outcome::Failed), workspace::seconds(start.elapsed())));
    }
    summary::print("vm drivers", &rows, workspace::in_ci())
}

/// The slots of a node's card and of its other end on the guest's PCI bus. Slots 0 and 31 are the machine's.
fn slots(node: u8) -> (u8, u8) {
    (2 * node, 2 * node + 1)
}

/// Returns the PCI addresses of all cards and of their other ends.
fn addresses() -> String {
    let wire = |node| {
        let (card, port) = slots(node);
        format!("0000:00:{card:02x}.0+0000:00:{port:02x}.0")
    };
    (1..=NODES).map(wire).collect::<Vec<_>>().join(" ")
}

/// Returns the command that emulates the machine with these cards, without a kernel.
fn command(machine: &Machine, emulator: &Path, card: Card) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-euc", WIRES, "sh", &NODES.to_string()]);
    machine.add_unpacked(&mut command, emulator);
    command.args(MONITOR);
    for node in 1..=NODES {
        let (slot, port_slot) = slots(node);
        for end in ["card", "port"] {
            command.args(["-netdev", &format!("tap,id={end}{node},ifname={end}{node},script=no,downscript=no")]);
        }
        // No option ROM: no card boots the guest. The MAC is what the network suite gives to a node at
        // 192.0.2.11 and so on: an emulated vmxnet3 forgets any other one when it goes down.
        let place = format!("netdev=card{node},mac=02:00:c0:00:02:{:02x}", 10 + node);
        if card == Card::CdcEther {
            command.args(["-device", &format!("qemu-xhci,id=usb{node},addr={slot}")]);
            command.args(["-device", &format!("{},bus=usb{node}.0,{place}", card.device())]);
        } else {
            command.args(["-device", &format!("{},addr={slot},romfile=,{place}", card.device())]);
        }
        let place = format!("netdev=port{node},mac=52:54:00:00:00:{port_slot:02x}");
        command.args(["-device", &format!("virtio-net-pci,addr={port_slot},romfile=,{place}")]);
    }
    command
}
