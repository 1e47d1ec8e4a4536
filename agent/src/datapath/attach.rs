//! Attaching the programs to interfaces, and detaching them.

use std::{io, path::Path};

use aya::programs::{
    LinkOrder, ProgramError, SchedClassifier, TcAttachType, Xdp, XdpMode,
    links::{FdLink, LinkError, PinnedLink},
    tc::TcAttachOptions,
};

use super::{
    clsact,
    load::{LoadError, Programs, kernel_is, program},
    pins::{self, LinkKind, PinError, XDP_PROGRAM},
    unload,
    xdp::Buffers,
};
use crate::link::interface_name;

/// The longest MTU at which drivers run a program that takes packets in one buffer: a page, less its headroom, the
/// Ethernet header and `struct skb_shared_info`.
pub(super) const MTU_LIMIT: u32 = 3_498;

/// How XDP programs are to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// Native where the driver has it, else generic.
    #[default]
    Auto,
    /// In the driver, or not at all.
    Native,
    /// In the stack, on any interface, slower.
    Generic,
}

/// The source MAC of frames that are handed over to another node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum HandoverMac {
    /// One of the node's own making, which says that the frame was balanced already.
    #[default]
    Derived,
    /// The interface's own, where the network refuses a second one: less is known to the next node then.
    Own,
}

/// How the classifiers are to be attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Tc {
    /// By a tcx link where the kernel has them (Linux 6.6), else by a filter.
    #[default]
    Auto,
    /// By a tcx link: after all other programs on the way out, before them on the way in.
    Tcx,
    /// By a filter in a clsact qdisc, before all other filters: one that passes a packet ends the row.
    Clsact,
}

impl Tc {
    /// Whether that means a filter, on this kernel.
    fn is_clsact(self) -> bool {
        match self {
            Self::Auto => !kernel_is(6, 6),
            Self::Tcx => false,
            Self::Clsact => true,
        }
    }
}

/// A side of an interface, with the classifier that is attached there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// [`LinkKind::Egress`].
    Out,
    /// [`LinkKind::Ingress`].
    In,
}

impl Side {
    const fn kind(self) -> LinkKind {
        match self {
            Self::Out => LinkKind::Egress,
            Self::In => LinkKind::Ingress,
        }
    }

    const fn direction(self) -> TcAttachType {
        match self {
            Self::Out => TcAttachType::Egress,
            Self::In => TcAttachType::Ingress,
        }
    }

    /// Next to the wire: on the way out after every other program, the CNI's among them; on the way in before them.
    fn order(self) -> LinkOrder {
        match self {
            Self::Out => LinkOrder::last(),
            Self::In => LinkOrder::first(),
        }
    }
}

/// How a classifier was attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// By a link, which is pinned.
    Link,
    /// By a filter; `made`: the qdisc that it is in was made for it.
    Filter {
        /// See above.
        made: bool,
    },
}

impl Programs {
    /// Puts the programs into every pinned link. One that takes none attaches nothing any more, and is replaced when the
    /// programs are attached there.
    ///
    /// Of the classifiers' links, new ones are pinned, and the old ones given back, which stay attached as long as they
    /// live: a flow that began meanwhile is known to the old maps alone, or to the new ones alone.
    pub(super) fn take_over(&mut self) -> Vec<FdLink> {
        let mut links = Vec::from_iter(self.pins.pinned_links().unwrap_or_default());
        // The XDP programs last: from then on flows are known to the new maps.
        links.sort_unstable_by_key(|(kind, _)| *kind == LinkKind::Xdp);
        let mut relieved = Vec::new();
        for (kind, ifindex) in links {
            match kind {
                LinkKind::Xdp => drop(self.adopt::<Xdp>(self.xdp, &self.pins.link(kind, ifindex))),
                LinkKind::Egress => relieved.extend(self.relieve(Side::Out, ifindex)),
                LinkKind::Ingress => relieved.extend(self.relieve(Side::In, ifindex)),
            }
        }
        relieved
    }

    /// Attaches a classifier by a new link beside the pinned one, and pins it in its place; the old link. `None`: there was
    /// no room beside it, and it has the new program, if it is still attached.
    fn relieve(&mut self, side: Side, ifindex: u32) -> Option<FdLink> {
        let (program, pin) = (side.kind().program(), self.pins.link(side.kind(), ifindex));
        let name = interface_name(ifindex);
        let old = PinnedLink::from_pin(&pin).ok()?;
        let Ok(new) = self.attach_tcx(side, &name) else {
            self.adopt::<SchedClassifier>(program, &pin);
            return None;
        };
        let old = old.unpin().ok()?;
        if let Err(error) = pin_link(program, &name, Ok(new), &pin) {
            let error = format!("{:#}", anyhow::Error::from(error));
            tracing::warn!(program, error, "the program is attached anew a little later");
        }
        Some(old)
    }

    /// Attaches the XDP program to an interface with that MTU (bytes): replaces the program of a pinned link in place,
    /// so that no packet meets none, or makes and pins a new link. `generic`: the mode of the pinned link, where there
    /// is one. Whether it runs in generic mode.
    pub fn attach_xdp(
        &mut self,
        name: &str,
        (ifindex, mtu): (u32, u32),
        mode: Mode,
        generic: Option<bool>,
    ) -> Result<bool, LoadError> {
        let pin = self.pins.link(LinkKind::Xdp, ifindex);
        let keep = match (mode, generic) {
            (_, None) | (Mode::Native, Some(true)) | (Mode::Generic, Some(false)) => None,
            (_, generic) => generic,
        };
        if let Some(generic) = keep.filter(|_| self.adopt::<Xdp>(self.xdp, &pin)) {
            return Ok(generic);
        }
        detach_pin(&pin)?;
        self.attach_new_xdp(name, (ifindex, mtu), mode)
    }

    /// Attaches a classifier to one side of an interface, in place of the one of an earlier agent.
    pub fn attach_classifier(&mut self, side: Side, name: &str, ifindex: u32, tc: Tc) -> Result<By, LoadError> {
        let (kind, pin) = (side.kind(), self.pins.link(side.kind(), ifindex));
        if tc.is_clsact() {
            let program: &mut SchedClassifier = program(&mut self.ebpf, kind.program())?;
            let made = clsact::attach(program, name, side.direction());
            let made = made.map_err(|source| attach_error(kind.program(), name, source))?;
            // Only now that the filter is there.
            detach_pin(&pin)?;
            return Ok(By::Filter { made });
        }
        if !self.adopt::<SchedClassifier>(kind.program(), &pin) {
            detach_pin(&pin)?;
            let link = self.attach_tcx(side, name)?;
            pin_link(kind.program(), name, Ok(link), &pin)?;
        }
        Ok(By::Link)
    }

    /// Detaches the classifier on an interface's way in, if it is there. `filter`: it may be a filter.
    pub fn detach_ingress(&self, ifindex: u32, filter: bool) -> Result<(), LoadError> {
        if filter {
            clsact::remove_ingress(ifindex)?;
        }
        detach_pin(&self.pins.link(LinkKind::Ingress, ifindex))
    }

    /// Removes the filters that [`By::Filter`] tells of, and with `made` the qdisc, unless others have filters there.
    pub fn remove_filters(ifindex: u32, made: bool) -> Result<(), LoadError> {
        Ok(clsact::remove(ifindex, made)?)
    }

    /// Detaches the links of an interface; of one that is gone they attach nothing any more.
    pub fn detach(&self, ifindex: u32) -> Result<(), LoadError> {
        LinkKind::ALL.into_iter().try_for_each(|kind| detach_pin(&self.pins.link(kind, ifindex)))
    }

    /// Puts the program into the pinned link; not if there is none, or its interface is gone.
    fn adopt<T: Adopt>(&mut self, name: &'static str, pin: &Path) -> bool
    where
        for<'a> &'a mut T: TryFrom<&'a mut aya::programs::Program, Error = ProgramError>,
    {
        let Ok(link) = PinnedLink::from_pin(pin) else { return false };
        match program::<T>(&mut self.ebpf, name).map(|program| program.replace(link.into())) {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                tracing::debug!(program = name, %error, "the pinned link is of no use any more");
                false
            }
            Err(_) => false,
        }
    }

    fn attach_new_xdp(&mut self, interface: &str, (ifindex, mtu): (u32, u32), mode: Mode) -> Result<bool, LoadError> {
        let pin = self.pins.link(LinkKind::Xdp, ifindex);
        let is_long = mtu > MTU_LIMIT && Buffers::here() == Buffers::One;
        let program: &mut Xdp = program(&mut self.ebpf, self.xdp)?;
        let refused = |source| {
            let interface = interface.to_owned();
            match source {
                _ if is_busy(&source) => LoadError::Occupied { interface },
                _ if is_long && mode != Mode::Generic => LoadError::Mtu { interface, mtu, source },
                _ => LoadError::Attach { program: XDP_PROGRAM, interface, source },
            }
        };
        let attached = match mode {
            Mode::Native => program.attach_to_if_index(ifindex, XdpMode::Driver).map(|link| (link, false)),
            Mode::Generic => program.attach_to_if_index(ifindex, XdpMode::Skb).map(|link| (link, true)),
            Mode::Auto => match program.attach_to_if_index(ifindex, XdpMode::Driver) {
                Ok(link) => Ok((link, false)),
                Err(error) if is_busy(&error) => Err(error),
                Err(error) => {
                    let error = anyhow::Error::from(refused(error));
                    tracing::warn!(
                        interface,
                        error = format!("{error:#}"),
                        "no native XDP here: using generic mode, which is slower"
                    );
                    program.attach_to_if_index(ifindex, XdpMode::Skb).map(|link| (link, true))
                }
            },
        };
        let (id, generic) = attached.map_err(refused)?;
        let link = program.take_link(id);
        let link = link.map_err(|source| attach_error(XDP_PROGRAM, interface, source))?;
        let link: Result<FdLink, LinkError> = link.try_into();
        pin_link(XDP_PROGRAM, interface, link, &pin)?;
        Ok(generic)
    }

    fn attach_tcx(&mut self, side: Side, interface: &str) -> Result<FdLink, LoadError> {
        let name = side.kind().program();
        let program: &mut SchedClassifier = program(&mut self.ebpf, name)?;
        let options = TcAttachOptions::TcxOrder(side.order());
        let link = program
            .attach_with_options(interface, side.direction(), options)
            .and_then(|id| program.take_link(id))
            .map_err(|source| attach_error(name, interface, source))?;
        link.try_into().map_err(|source| link_error(name, interface, source))
    }
}

/// Detaches a pinned link that may not be there, and removes its pin.
fn detach_pin(pin: &Path) -> Result<(), LoadError> {
    match unload::detach(pin) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => Ok(result.map_err(PinError::new("detach the link", pin)).and_then(|()| pins::remove(pin))?),
    }
}

fn attach_error(program: &'static str, interface: &str, source: ProgramError) -> LoadError {
    LoadError::Attach { program, interface: interface.to_owned(), source }
}

fn link_error(program: &'static str, interface: &str, source: LinkError) -> LoadError {
    LoadError::Link { program, interface: interface.to_owned(), source }
}

fn pin_link(
    program: &'static str,
    interface: &str,
    link: Result<FdLink, LinkError>,
    pin: &Path,
) -> Result<(), LoadError> {
    let link = link.map_err(|source| link_error(program, interface, source))?;
    Ok(link.pin(pin).map(drop).map_err(io::Error::other).map_err(PinError::new("pin", pin))?)
}

/// Whether another program holds the interface's XDP hook.
fn is_busy(error: &ProgramError) -> bool {
    let errno = match error {
        ProgramError::SyscallError(error) => error.io_error.raw_os_error(),
        _ => None,
    };
    matches!(errno, Some(libc::EBUSY | libc::EEXIST))
}

/// A program type whose pinned links can be given another program.
trait Adopt {
    /// Replaces the link's program with this one, atomically. The link's pin keeps it attached.
    fn replace(&mut self, link: FdLink) -> Result<(), ProgramError>;
}

impl Adopt for Xdp {
    fn replace(&mut self, link: FdLink) -> Result<(), ProgramError> {
        let id = self.attach_to_link(link.try_into().map_err(not_adoptable)?)?;
        self.take_link(id).map(drop)
    }
}

impl Adopt for SchedClassifier {
    fn replace(&mut self, link: FdLink) -> Result<(), ProgramError> {
        let id = self.attach_to_link(link.try_into().map_err(not_adoptable)?)?;
        self.take_link(id).map(drop)
    }
}

fn not_adoptable(error: LinkError) -> ProgramError {
    ProgramError::IOError(io::Error::other(error))
}

#[cfg(test)]
mod tests {
    use nix::net::if_::if_nametoindex;

    use super::*;
    use crate::{
        datapath::{load::load, maps::fixture::mounted},
        link::netns::Namespace,
    };

    #[test]
    fn an_interface_takes_the_program_in_another_mode_and_lets_go_of_it_when_it_is_gone() {
        let Some(pins) = mounted() else { return };
        let Some([node, peer]) = Namespace::new() else { return };
        node.veth("eth0", &peer, "eth0");
        let (mut programs, _) = load(&pins, 1024).unwrap();
        let ifindex = node.enter(|| if_nametoindex("eth0").unwrap());
        node.enter(|| {
            let mut pinned = None;
            for (mode, generic) in
                [(Mode::Generic, true), (Mode::Native, false), (Mode::Auto, false), (Mode::Generic, true)]
            {
                let now = programs.attach_xdp("eth0", (ifindex, 1500), mode, pinned).unwrap();
                assert_eq!(now, generic, "{mode:?} after {pinned:?}");
                pinned = Some(now);
            }
        });
        node.run(async |handle| handle.link().del(ifindex).execute().await.unwrap());
        programs.detach(ifindex).unwrap();
        assert_eq!(pins.pinned_links().unwrap().len(), 0);
    }
}
