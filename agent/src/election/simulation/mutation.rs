//! The machine broken on purpose, so that the checker is seen to find it.

/// A fault of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// A deadline that has passed is extended like any other.
    ExtendsWhatHasPassed,
    /// A holder that is down, or has left, is succeeded at once, whatever it may have heard of us last.
    WaitsForNoSilence,
    /// Whoever loses the swap of a Lease leads all the same.
    LeadsInSpiteOfConflict,
    /// It goes on answering while it hands over.
    AnswersWhileHanding,
    /// Evidence counts from when the answer came, not from when it was asked for.
    CountsFromTheAnswer,
    /// A leadership that another claims in a later epoch is kept.
    IgnoresClaims,
}

impl Mutation {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::ExtendsWhatHasPassed,
        Self::WaitsForNoSilence,
        Self::LeadsInSpiteOfConflict,
        Self::AnswersWhileHanding,
        Self::CountsFromTheAnswer,
        Self::IgnoresClaims,
    ];
}
