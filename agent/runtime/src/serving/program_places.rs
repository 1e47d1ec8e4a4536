//! Keeps the classifiers before other programs on their interfaces.
//!
//! Another program that comes first may end the chain. Then replies leave with the backends'
//! addresses. So the self-check puts vipmux's own first again, within a budget: another component
//! may do the same for its own.

use std::{collections::BTreeSet, io, time::Instant};

use super::{repair::Repair, repair_budget::RepairBudget};
use crate::control::ReportedDifference;
use vipmux_datapath::{
    bpf::{direction::Direction, pinned::PinnedObjects, place::Chain, tcx},
    link::interface_name,
};

/// A classifier that the agent has attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttachedClassifier {
    pub(crate) direction: Direction,
    pub(crate) ifindex: u32,
    /// It is attached by a filter, not by a link.
    pub(crate) filter: bool,
}

/// The chains that the classifiers are in.
pub(crate) struct Places(Vec<(AttachedClassifier, Chain)>);

impl Places {
    /// Reads the chains, in the network namespace of the calling thread.
    pub(crate) fn read(classifiers: &[AttachedClassifier], pinned: &PinnedObjects) -> io::Result<Self> {
        let chain = |classifier: &AttachedClassifier| {
            let AttachedClassifier { direction, ifindex, filter } = *classifier;
            let link = pinned.links.get(&(direction.kind(), ifindex)).map_or(0, |link| link.id);
            let chain = Chain::read(direction, ifindex, (!filter).then_some(link))?;
            // To list the names takes long.
            let is_first = chain.before().is_empty();
            Ok((*classifier, if is_first { chain } else { chain.named(&tcx::program_names()) }))
        };
        classifiers.iter().map(chain).collect::<io::Result<_>>().map(Self)
    }

    /// Returns the number of classifiers that run after others.
    pub(crate) fn not_first(&self) -> usize {
        self.0.iter().filter(|(_, chain)| !chain.before().is_empty()).count()
    }
}

/// Returns the classifiers that are not first, and the filters that are gone. Links that are gone
/// are differences of the pins.
pub(crate) fn place_differences(places: &Places) -> impl Iterator<Item = (ReportedDifference, Repair)> {
    places.0.iter().filter_map(|(AttachedClassifier { direction, ifindex, filter }, chain)| {
        let entry = format!("{} of interface {ifindex}", direction.kind().program());
        let before = chain.before().iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let (found, repair) = match chain.own {
            None if *filter => (None, Repair::Link(*ifindex)),
            Some(place) if place > 0 => (Some(format!("after {before}")), Repair::Place(*direction, *ifindex)),
            _ => return None,
        };
        Some((ReportedDifference::new("place", &entry, Some("first".to_owned()), found), repair))
    })
}

/// The moves to the first place.
#[derive(Default)]
pub(crate) struct Moves {
    budget: RepairBudget<(Direction, u32)>,
    /// The classifiers that have used up their budget.
    contested: BTreeSet<(Direction, u32)>,
}

impl Moves {
    /// Removes the moves that are over the budget, and logs each when it first is.
    pub(crate) fn without_contested(
        &mut self,
        mut found: Vec<(ReportedDifference, Repair)>,
    ) -> Vec<(ReportedDifference, Repair)> {
        let (now, before) = (Instant::now(), std::mem::take(&mut self.contested));
        found.retain(|(difference, repair)| match repair {
            Repair::Place(direction, ifindex) if !self.budget.take((*direction, *ifindex), now) => {
                if self.contested.insert((*direction, *ifindex)) && !before.contains(&(*direction, *ifindex)) {
                    let (program, interface) = (direction.kind().program(), interface_name(*ifindex));
                    let others = difference.found.as_deref().unwrap_or_default();
                    tracing::warn!(program, interface, found = others, "others keep coming first, giving way for now");
                }
                false
            }
            _ => true,
        });
        found
    }
}
