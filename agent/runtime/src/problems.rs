//! Looks for what goes wrong around the agent, and reports it: in the log, in metrics, in Events, to its peers.

pub(crate) mod address_conflicts;
pub(crate) mod announcement_failures;
pub(crate) mod bypass;
pub(crate) mod conflict_events;
pub(crate) mod cut_segments;
pub(crate) mod debounce;
pub(crate) mod hashing_agreement;
pub(crate) mod key_conflict;
pub(crate) mod leadership_faults;
pub(crate) mod liveness;
pub(crate) mod log_limit;
pub(crate) mod orphaned_flows;
pub(crate) mod peer_versions;
pub(crate) mod warnings;
