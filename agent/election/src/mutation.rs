//! Faults that the simulation builds into the state machine, to see that its checker finds them.

#![cfg_attr(
    not(any(test, feature = "simulation")),
    allow(dead_code, unreachable_pub, reason = "only tests and the simulation build faults in")
)]

/// A fault of the state machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// A deadline that has passed is extended like any other.
    ExtendsWhatHasPassed,
    /// A VIP is taken at once from a leader that is down or has left. Its kernel may still answer.
    WaitsForNoSilence,
    /// A node leads although its swap of the Lease failed.
    LeadsInSpiteOfConflict,
    /// A node goes on answering while it transfers leadership.
    AnswersWhileHanding,
    /// Evidence counts from the heartbeat after the answer, not from the time of the question.
    CountsFromTheAnswer,
    /// A node keeps its leadership although another one claims a later epoch.
    IgnoresClaims,
    /// A node that is assured goes on answering, whatever a peer that announced the VIP says.
    IgnoresAnnouncements,
    /// A peer's kernel is believed to answer for as long as this node's.
    AssumesOwnLease,
    /// A node that another one challenges in the store has no time to answer.
    FencesAtOnce,
    /// A node does not announce a VIP that it takes over.
    AnnouncesNoTakeover,
    /// A node announces a VIP once.
    RepeatsNoAnnouncement,
}

#[cfg(any(test, feature = "simulation"))]
impl Mutation {
    /// All mutations.
    pub const ALL: [Self; 11] = [
        Self::ExtendsWhatHasPassed,
        Self::WaitsForNoSilence,
        Self::LeadsInSpiteOfConflict,
        Self::AnswersWhileHanding,
        Self::CountsFromTheAnswer,
        Self::IgnoresClaims,
        Self::IgnoresAnnouncements,
        Self::AssumesOwnLease,
        Self::FencesAtOnce,
        Self::AnnouncesNoTakeover,
        Self::RepeatsNoAnnouncement,
    ];
}

/// The mutation of one state machine. Outside of tests and the simulation there is none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mutated {
    #[cfg(any(test, feature = "simulation"))]
    mutation: Option<Mutation>,
}

impl Mutated {
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) const fn new(mutation: Option<Mutation>) -> Self {
        Self { mutation }
    }

    /// Returns whether the state machine has this fault.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn is(self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    /// Returns whether the state machine has this fault: never.
    #[cfg(not(any(test, feature = "simulation")))]
    #[allow(clippy::unused_self, reason = "as in tests")]
    pub(crate) const fn is(self, _: Mutation) -> bool {
        false
    }
}
