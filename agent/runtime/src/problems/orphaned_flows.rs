//! Lets flows leave backends that their Services do not have any more.
//!
//! A backend that no Service has is gone, and the programs see that in their maps. A flow's record also names its
//! Service. If another Service still has the backend, the record alone tells nothing. So the agent marks such
//! records after a Service port has lost a backend, and no packet has to ask.

use std::{thread, time::Duration};

use vipmux_datapath::{bpf::maps::MapsError, reconciler::Reconciler};
use vipmux_plan::ServiceBackends;
use vipmux_supervisor::Supervisor;

use crate::serving::kernel::Kernel;

/// The pause before another look: a packet under way may have written a record by the former table.
const PAUSE: Duration = Duration::from_millis(100);
/// The most looks at the table after a change.
const MOST_LOOKS: u32 = 5;

/// Starts the task. Its state is what the Services have.
pub(crate) fn start_reconciler(
    kernel: &Kernel,
    supervisor: &Supervisor,
) -> Result<Reconciler<ServiceBackends>, MapsError> {
    let handle = kernel.maps.flow_table_handle()?;
    let mut seen = ServiceBackends::default();
    let mark = move |backends: &ServiceBackends| {
        if backends.lost_any_since(&seen) {
            let table = match handle.map_writable() {
                Ok(table) => table,
                Err(error) => return vec![error],
            };
            let looks = (0..MOST_LOOKS).map(|_| table.mark_orphans(|record| backends.is_orphan(record)));
            let marked: usize = looks.take_while(|marked| *marked > 0).inspect(|_| thread::sleep(PAUSE)).sum();
            if marked > 0 {
                tracing::debug!(marked, "flows leave backends that their Services do not have any more");
            }
        }
        seen = backends.clone();
        Vec::new()
    };
    Ok(Reconciler::start("flows of Services", mark, supervisor))
}
