//! Defines the errors of a plan.

use vipmux_model::PortClaim;

/// The reason why there is no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The desired state contradicts itself.
    #[error("{claim} is wanted, but not its VIP")]
    UnknownVip {
        /// The port claim.
        claim: PortClaim,
    },
    /// This happens after four billion new VIPs. Only new maps help.
    #[error("no VIP id is left that was never used: unload the data plane and start again")]
    VipIdsExhausted,
    /// This happens after four billion plans. Only new maps help.
    #[error("no generation is left that was never used: unload the data plane and start again")]
    GenerationsExhausted,
}
