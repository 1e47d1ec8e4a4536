//! Decides which Services have reachable endpoints, and which are left to the node's own stack.

use vipmux_model::desired::{Desired, DesiredService, Unreachable};

/// Whether packets are left to the node's own stack. Then no backend of the Service has a place in
/// the maps.
pub(super) fn is_left_to_the_stack(desired: &Desired, service: &DesiredService) -> bool {
    service.treatment.kernel || desired.unreachable == Unreachable::Kernel && is_out_of_reach(desired, service)
}

/// Whether there are endpoints for new flows, all of them on nodes that are not in the desired
/// state.
pub(super) fn is_out_of_reach(desired: &Desired, service: &DesiredService) -> bool {
    let mut ready = service.backends.iter().filter(|backend| backend.readiness.is_ready()).peekable();
    ready.peek().is_some() && !ready.any(|backend| desired.reaches(backend))
}
