//! Runs the agent: the event loop, and the tasks beside it.
//!
//! | folder | |
//! | --- | --- |
//! | `serving` | brings the kernel to the desired state: interfaces, programs, maps, the NAT chain |
//! | `election` | executes the election's commands: Lease writes, gossip, fences, announcements, the drain |
//! | `problems` | looks for what goes wrong around the agent, and reports it |

pub mod control;
mod election;
mod error;
mod event_loop;
mod events;
pub mod metrics;
mod metrics_server;
pub mod probe;
mod problems;
mod published;
mod runtime_options;
mod serving;
mod startup;
mod telemetry;

pub use self::{
    error::AgentError,
    runtime_options::RuntimeOptions,
    serving::{kernel_error::KernelError, object_source::ObjectSource},
    startup::run,
};
