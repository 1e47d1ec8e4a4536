//! Assigns addresses to Services by the allocation rules, as one pure function.
//!
//! `(Services, pools, previous assignments) -> (assignments, refusals)`. It uses no clock, no I/O
//! and no hash order. The order of the input does not matter. Given its own result as the previous
//! assignments, it returns that result again.
//!
//! Comments cite the rules by their numbers in docs/allocation-rules.md.
//!
//! # Modules
//!
//! Each uses only the ones above it:
//!
//! | modules | contents |
//! | --- | --- |
//! | `request_snapshot`, `request_record`, `previous` | the addresses that Services hold before the allocation, and for which requests |
//! | `occupancy`, `pool_usage` | the Services on each address, and the use of each pool |
//! | `allocation_state` | what each Service got so far |
//! | `allocation_run` | one run: Services keep addresses, and the others get some |
//! | `allocation`, `outcome` | the result: assignments with messages and warnings |
//! | `allocator`, `from_statuses` | entry points: with the rules, or as the statuses show |
//! | `lost_addresses` | what statuses show and Services do not keep |
//! | `postponed_edits` | edits that wait for the rest of a change |
//! | `status` | the desired statuses of Services, pools and policies |

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types))]

mod allocation;
mod allocation_run;
mod allocation_state;
mod allocator;
mod from_statuses;
mod lost_addresses;
mod occupancy;
mod outcome;
mod pool_usage;
mod postponed_edits;
pub mod previous;
mod request_record;
pub mod request_snapshot;
pub mod status;

pub use self::{
    allocation::{Allocation, Assignment},
    allocator::{Allocator, Renewed, allocate},
    from_statuses::{StatusAuthor, allocation_from_statuses},
    lost_addresses::lost_addresses,
    postponed_edits::{POSTPONED, PostponedEdits},
};

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
