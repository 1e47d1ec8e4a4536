//! Attaches the programs to interfaces, and detaches them.

use std::{io, path::Path};

use aya::programs::{
    LinkOrder, ProgramError, SchedClassifier, Xdp, XdpMode,
    links::{FdLink, LinkError, PinnedLink},
    tc::TcAttachOptions,
};

use super::{
    clsact,
    direction::Direction,
    kernel_version::kernel_is,
    pins::{LinkKind, XDP_PROGRAM},
    programs::{LoadError, Programs, attach_error, detach_pin, link_error, pin_link, program},
    xdp::{Buffers, MTU_LIMIT},
};
use crate::{error_chain::error_chain, link::interface_name};

/// The mode in which XDP programs run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum XdpAttachMode {
    /// Native where the driver has it, else generic. Generic if an interface is a veth.
    #[default]
    Auto,
    /// Native, in the driver, or not at all.
    Native,
    /// Generic, in the network stack: on any interface, but slower.
    Generic,
}

/// The source MAC of frames that are handed over to another node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum HandoverMac {
    /// A hand-over MAC derived from the interface's. It tells the next node that the frame was
    /// balanced already.
    #[default]
    Derived,
    /// The interface's own MAC, for networks that refuse a second one. The next node then knows
    /// less about the frame.
    Own,
}

/// The way to attach the classifiers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum TcAttachMode {
    /// By a tcx link if the kernel has them (Linux 6.6), else by a filter.
    #[default]
    Auto,
    /// By a tcx link, before all other programs.
    Tcx,
    /// By a filter in a clsact qdisc, before all other filters.
    Clsact,
}

impl TcAttachMode {
    /// Returns whether this means a filter on this kernel.
    pub fn is_clsact(self) -> bool {
        match self {
            Self::Auto => !kernel_is(6, 6),
            Self::Tcx => false,
            Self::Clsact => true,
        }
    }
}

/// The way in which a classifier was attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassifierAttachment {
    /// By a link, which is pinned.
    Link,
    /// By a filter.
    Filter {
        /// Its qdisc was added for it.
        qdisc_added: bool,
    },
}

impl Programs {
    /// Puts the programs into all pinned links. A link that accepts no program is detached already;
    /// it is replaced when the programs are attached to its interface.
    ///
    /// Classifiers get new links, which are pinned. Returns the old links of classifiers, which
    /// stay attached until they are dropped: a flow that begins meanwhile is only in the old maps,
    /// or only in the new ones.
    pub(super) fn take_over(&mut self) -> Vec<FdLink> {
        let mut links = Vec::from_iter(self.pins.pinned_links().unwrap_or_default());
        // XDP programs last: from then on, new flows are in the new maps.
        links.sort_unstable_by_key(|(kind, _)| *kind == LinkKind::Xdp);
        let mut replaced = Vec::new();
        for (kind, ifindex) in links {
            match kind {
                LinkKind::Xdp => drop(self.adopt::<Xdp>(self.xdp, &self.pins.link(kind, ifindex))),
                LinkKind::Egress => replaced.extend(self.replace_classifier(Direction::Egress, ifindex)),
                LinkKind::Ingress => replaced.extend(self.replace_classifier(Direction::Ingress, ifindex)),
            }
        }
        replaced
    }

    /// Attaches a classifier by a new link beside the pinned one, pins the new link, and returns
    /// the old one. `None`: the interface has no room for both. Then the pinned link gets the new
    /// program, if it is still attached.
    fn replace_classifier(&mut self, direction: Direction, ifindex: u32) -> Option<FdLink> {
        let (program, pin) = (direction.kind().program(), self.pins.link(direction.kind(), ifindex));
        let name = interface_name(ifindex);
        let old = PinnedLink::from_pin(&pin).ok()?;
        let Ok(new) = self.attach_tcx(direction, program, &name) else {
            self.adopt::<SchedClassifier>(program, &pin);
            return None;
        };
        let old = old.unpin().ok()?;
        if let Err(error) = pin_link(program, &name, Ok(new), &pin) {
            tracing::warn!(
                program,
                interface = name,
                error = error_chain(&error),
                "cannot pin the link, attaching again later"
            );
        }
        Some(old)
    }

    /// Attaches the XDP program to an interface with this MTU (bytes), and returns whether it runs
    /// in generic mode.
    ///
    /// It replaces the program of a pinned link in place, so that every packet meets a program.
    /// Without a link it makes and pins a new one. `generic`: the mode of the pinned link, if there
    /// is one.
    pub fn attach_xdp(
        &mut self,
        name: &str,
        (ifindex, mtu): (u32, u32),
        mode: XdpAttachMode,
        generic: Option<bool>,
    ) -> Result<bool, LoadError> {
        let pin = self.pins.link(LinkKind::Xdp, ifindex);
        let keep = match (mode, generic) {
            (_, None) | (XdpAttachMode::Native, Some(true)) | (XdpAttachMode::Generic, Some(false)) => None,
            (_, generic) => generic,
        };
        if let Some(generic) = keep.filter(|_| self.adopt::<Xdp>(self.xdp, &pin)) {
            return Ok(generic);
        }
        detach_pin(&pin)?;
        self.attach_new_xdp(name, (ifindex, mtu), mode)
    }

    /// Attaches the classifier of one direction to an interface, before all other programs, and
    /// replaces that of an earlier agent.
    pub fn attach_classifier(
        &mut self,
        direction: Direction,
        name: &str,
        ifindex: u32,
        tc: TcAttachMode,
    ) -> Result<ClassifierAttachment, LoadError> {
        let (kind, pin) = (direction.kind(), self.pins.link(direction.kind(), ifindex));
        if tc.is_clsact() {
            let program: &mut SchedClassifier = program(&mut self.ebpf, kind.program())?;
            let qdisc_added = clsact::attach(program, name, direction);
            let qdisc_added = qdisc_added.map_err(|source| attach_error(kind.program(), name, source))?;
            // These must come after the filter is attached.
            clsact::remove_stand_in(ifindex, direction)?;
            detach_pin(&pin)?;
            self.keep_first(direction, name, ifindex, true)?;
            return Ok(ClassifierAttachment::Filter { qdisc_added });
        }
        if self.adopt::<SchedClassifier>(kind.program(), &pin) {
            self.keep_first(direction, name, ifindex, false)?;
        } else {
            detach_pin(&pin)?;
            let link = self.attach_tcx(direction, kind.program(), name)?;
            pin_link(kind.program(), name, Ok(link), &pin)?;
        }
        Ok(ClassifierAttachment::Link)
    }

    /// Detaches the ingress classifier from an interface, if there is one. `filter`: it may be a
    /// filter.
    pub fn detach_ingress(&self, ifindex: u32, filter: bool) -> Result<(), LoadError> {
        if filter {
            clsact::remove_ingress(ifindex)?;
        }
        detach_pin(&self.pins.link(LinkKind::Ingress, ifindex))
    }

    /// Removes the filters of [`ClassifierAttachment::Filter`]. With `qdisc_added`, removes the
    /// qdisc too, unless it has other filters.
    pub fn remove_filters(ifindex: u32, qdisc_added: bool) -> Result<(), LoadError> {
        Ok(clsact::remove(ifindex, qdisc_added)?)
    }

    /// Detaches the XDP program from an interface.
    pub fn detach_xdp(&self, ifindex: u32) -> Result<(), LoadError> {
        detach_pin(&self.pins.link(LinkKind::Xdp, ifindex))
    }

    /// Detaches the pinned links of an interface. The interface may be gone.
    pub fn detach(&self, ifindex: u32) -> Result<(), LoadError> {
        LinkKind::ALL.into_iter().try_for_each(|kind| detach_pin(&self.pins.link(kind, ifindex)))
    }

    /// Puts the program into the pinned link. Returns false if there is no link, or its interface
    /// is gone.
    fn adopt<T: Adopt>(&mut self, name: &'static str, pin: &Path) -> bool
    where
        for<'a> &'a mut T: TryFrom<&'a mut aya::programs::Program, Error = ProgramError>,
    {
        let Ok(link) = PinnedLink::from_pin(pin) else { return false };
        match program::<T>(&mut self.ebpf, name).map(|program| program.replace(link.into())) {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                tracing::debug!(program = name, %error, "cannot reuse the pinned link");
                false
            }
            Err(_) => false,
        }
    }

    fn attach_new_xdp(
        &mut self,
        interface: &str,
        (ifindex, mtu): (u32, u32),
        mode: XdpAttachMode,
    ) -> Result<bool, LoadError> {
        let pin = self.pins.link(LinkKind::Xdp, ifindex);
        let is_long = mtu > MTU_LIMIT && Buffers::here() == Buffers::One;
        let program: &mut Xdp = program(&mut self.ebpf, self.xdp)?;
        let refused = |source| {
            let interface = interface.to_owned();
            match source {
                _ if is_busy(&source) => LoadError::Occupied { interface },
                _ if is_long && mode != XdpAttachMode::Generic => LoadError::Mtu { interface, mtu, source },
                _ => LoadError::Attach { program: XDP_PROGRAM, interface, source },
            }
        };
        let attached = match mode {
            XdpAttachMode::Native => program.attach_to_if_index(ifindex, XdpMode::Driver).map(|link| (link, false)),
            XdpAttachMode::Generic => program.attach_to_if_index(ifindex, XdpMode::Skb).map(|link| (link, true)),
            XdpAttachMode::Auto => match program.attach_to_if_index(ifindex, XdpMode::Driver) {
                Ok(link) => Ok((link, false)),
                Err(error) if is_busy(&error) => Err(error),
                Err(error) => {
                    tracing::warn!(
                        interface,
                        error = error_chain(&refused(error)),
                        "no native XDP, using the slower generic mode"
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

    /// Attaches a program before all others.
    pub(super) fn attach_tcx(
        &mut self,
        direction: Direction,
        name: &'static str,
        interface: &str,
    ) -> Result<FdLink, LoadError> {
        let program: &mut SchedClassifier = program(&mut self.ebpf, name)?;
        let options = TcAttachOptions::TcxOrder(LinkOrder::first());
        let link = program
            .attach_with_options(interface, direction.tc_type(), options)
            .and_then(|id| program.take_link(id))
            .map_err(|source| attach_error(name, interface, source))?;
        link.try_into().map_err(|source| link_error(name, interface, source))
    }
}

/// Returns whether the interface already has another XDP program.
fn is_busy(error: &ProgramError) -> bool {
    let errno = match error {
        ProgramError::SyscallError(error) => error.io_error.raw_os_error(),
        _ => None,
    };
    matches!(errno, Some(libc::EBUSY | libc::EEXIST))
}

/// A program type whose pinned links accept another program.
trait Adopt {
    /// Atomically replaces the link's program by this one. The pin keeps the link attached.
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
    use crate::{bpf::load::load, fixture::mounted};
    use vipmux_testing::netns::Namespace;

    #[test]
    fn an_interface_takes_the_program_in_another_mode_and_lets_go_of_it_when_it_is_gone() {
        let Some(pins) = mounted() else { return };
        let Some([node, peer]) = Namespace::new() else { return };
        node.veth("eth0", &peer, "eth0");
        let (mut programs, _) = load(&pins, 1024).unwrap();
        let ifindex = node.enter(|| if_nametoindex("eth0").unwrap());
        node.enter(|| {
            let mut pinned = None;
            for (mode, generic) in [
                (XdpAttachMode::Generic, true),
                (XdpAttachMode::Native, false),
                (XdpAttachMode::Auto, false),
                (XdpAttachMode::Generic, true),
            ] {
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
