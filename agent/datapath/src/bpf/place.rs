//! Finds the place of vipmux's classifiers among the programs of an interface, and puts them before
//! all others: a program that passes a packet (`TCX_PASS`; a filter: `TC_ACT_OK`) ends the chain.

use std::{collections::BTreeMap, fmt, io};

use aya::{Ebpf, programs::SchedClassifier};
use vipmux_common::abi::{CALL_EGRESS, CALL_INGRESS};

use super::{
    clsact::{self, Filter},
    direction::Direction,
    pinned::PinnedObjects,
    pins::{EGRESS_PROGRAM, INGRESS_PROGRAM},
    programs::{LoadError, Programs, attach_error, detach_pin, make_callable, pin_link, program},
    tcx,
};
use crate::error_chain::error_chain;

/// A program on one direction of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Classifier {
    /// A tcx program.
    Tcx {
        /// Its id.
        id: u32,
        /// The id of its link; 0: it is attached without one.
        link: u32,
        /// Its name, if it is known.
        name: Option<String>,
    },
    /// A tc filter in a clsact qdisc.
    Filter(Filter),
}

impl fmt::Display for Classifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcx { id, name, .. } => write!(f, "{} (id {id})", name.as_deref().unwrap_or("a program")),
            Self::Filter(Filter { kind, priority, .. }) => write!(f, "a {kind} filter of priority {priority}"),
        }
    }
}

/// The programs of one direction of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// All of them, in the order in which they run: tcx programs come before filters.
    pub all: Vec<Classifier>,
    /// The index of vipmux's own; `None`: it is not there.
    pub own: Option<usize>,
}

impl Chain {
    /// Reads it, without names. It is empty if there is no such interface. `link`: the id of the
    /// link of vipmux's classifier; `None`: a filter.
    pub fn read(direction: Direction, ifindex: u32, link: Option<u32>) -> io::Result<Self> {
        let linked = match tcx::programs(direction, ifindex) {
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(Self::default()),
            linked => linked?.unwrap_or_default(),
        };
        let linked = linked.into_iter().map(|tcx::TcxProgram { id, link }| Classifier::Tcx { id, link, name: None });
        let filters = clsact::filters(direction, ifindex)?.into_iter().map(Classifier::Filter);
        let all: Vec<_> = linked.chain(filters).collect();
        let own = all.iter().position(|one| match one {
            Classifier::Tcx { link: found, .. } => Some(*found) == link,
            Classifier::Filter(filter) => link.is_none() && filter.ours,
        });
        Ok(Self { all, own })
    }

    /// Sets the names of the programs that are in `names`.
    #[must_use]
    pub fn named(mut self, names: &BTreeMap<u32, String>) -> Self {
        for one in &mut self.all {
            if let Classifier::Tcx { id, name, .. } = one {
                *name = names.get(id).cloned();
            }
        }
        self
    }

    /// Returns the programs before vipmux's own. They may end the chain.
    pub fn before(&self) -> &[Classifier] {
        &self.all[..self.own.unwrap_or_default()]
    }
}

impl Direction {
    const fn stand_in(self) -> &'static str {
        match self {
            Self::Egress => "vipmux_egress_stand_in",
            Self::Ingress => "vipmux_ingress_stand_in",
        }
    }

    const fn call(self) -> u32 {
        match self {
            Self::Egress => CALL_EGRESS,
            Self::Ingress => CALL_INGRESS,
        }
    }
}

/// The classifiers, and the programs that stand in for them.
pub(super) const CLASSIFIERS: [&str; 4] =
    [EGRESS_PROGRAM, INGRESS_PROGRAM, Direction::Egress.stand_in(), Direction::Ingress.stand_in()];

/// Writes the loaded classifiers to the array from which their stand-ins call them.
pub(super) fn connect_classifiers(ebpf: &mut Ebpf) -> Result<(), LoadError> {
    for direction in [Direction::Egress, Direction::Ingress] {
        make_callable(ebpf, "CLASSIFIERS", direction.kind().program(), direction.call())?;
    }
    Ok(())
}

impl Programs {
    /// Puts the classifier of one direction before all others on an interface. Every packet meets
    /// it or a program that calls it. `filter`: it is attached by a filter.
    ///
    /// After an error the classifier may be attached no more.
    pub fn put_first(&mut self, direction: Direction, name: &str, ifindex: u32, filter: bool) -> Result<(), LoadError> {
        let (kind, pin) = (direction.kind(), self.pins.link(direction.kind(), ifindex));
        if filter {
            let program: &mut SchedClassifier = program(&mut self.ebpf, kind.program())?;
            let moved = clsact::put_first(program, name, ifindex, direction);
            return moved.map_err(|source| attach_error(kind.program(), name, source));
        }
        // The kernel moves no link, and attaches no program twice to an interface.
        let stand_in = self.attach_tcx(direction, direction.stand_in(), name)?;
        detach_pin(&pin)?;
        let link = self.attach_tcx(direction, kind.program(), name)?;
        pin_link(kind.program(), name, Ok(link), &pin)?;
        drop(stand_in);
        Ok(())
    }

    /// Puts an earlier agent's classifier first, unless it is. If it must stay where it is, the
    /// self-check tries again.
    pub(super) fn keep_first(
        &mut self,
        direction: Direction,
        name: &str,
        ifindex: u32,
        filter: bool,
    ) -> Result<(), LoadError> {
        let kind = direction.kind();
        let link = || PinnedObjects::link_id(&self.pins, kind, ifindex);
        let chain = if filter { Ok(None) } else { link().map(Some) };
        let chain = chain.and_then(|link| Chain::read(direction, ifindex, link));
        if chain.is_ok_and(|chain| chain.before().is_empty()) {
            return Ok(());
        }
        match self.put_first(direction, name, ifindex, filter) {
            Err(error) if filter || self.pins.link(kind, ifindex).exists() => {
                let error = error_chain(&error);
                tracing::warn!(program = kind.program(), interface = name, error, "other programs run first");
                Ok(())
            }
            result => result,
        }
    }
}
