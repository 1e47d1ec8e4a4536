//! Handles the results of writes: remembers them, and queues failed writes again.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Service;

use super::{
    StatusController,
    reconciler::{ObjectKey, StatusReconciler},
};
use crate::{
    status_writer::WriteReport,
    work_queue::WorkResult,
    write_result::{WriteResult, other_owner},
};
use vipmux_allocate::status::{DesiredStatus, EventContent, EventType, ingress};
use vipmux_cluster::{clock::boottime, events::EventRecorder};
use vipmux_model::ServiceName;

/// The reason of the Event for a status that the API server denied.
const STATUS_DENIED: &str = "StatusDenied";
/// The shortest time from one line of log about failed writes to the next.
const LOG_INTERVAL: Duration = Duration::from_secs(30);

impl StatusController {
    /// Counts the result of a write, and handles it if this allocator still leads.
    ///
    /// A new leader lists all statuses first. So it needs no results of earlier writes.
    pub(super) fn handle(&mut self, report: WriteReport) {
        self.health.send_modify(|health| {
            health.written += u64::from(report.is_written());
            health.failed += u64::from(report.has_failed());
        });
        if let Some(reconciler) = &mut self.reconciler {
            reconciler.handle(report, &self.recorder);
        }
    }
}

/// Returns whether the Service shows other addresses than it should.
fn shows_others(service: &Service, statement: &DesiredStatus) -> bool {
    !ingress(service).is_empty() && !statement.has_ingress(service)
}

impl StatusReconciler {
    fn handle(&mut self, report: WriteReport, recorder: &EventRecorder) {
        let (work_result, now) = (report.work_result(), boottime());
        match report {
            WriteReport::Service { name, base, statement, result } => {
                let key = ObjectKey::Service(name.clone());
                // Back off: another controller may write its addresses again and again.
                let overwrites = self.decider.adopts() && shows_others(&base, &statement);
                let is_first = work_result == WorkResult::Succeeded && overwrites;
                self.queue.done(&key, if is_first { WorkResult::Failed } else { work_result }, now);
                if work_result != WorkResult::Succeeded && self.pending.services.contains_key(&name) {
                    self.queue.put(key, 0, now);
                }
                self.handle_service(&name, &base, statement, result, recorder);
            }
            WriteReport::Withdrawal { name, result, .. } => {
                let key = ObjectKey::Withdrawal(name.clone());
                self.queue.done(&key, work_result, now);
                match result {
                    WriteResult::Written(written) => {
                        self.pending.withdrawals.remove(&name);
                        self.write_cache.record_withdrawal(&name, &written);
                    }
                    WriteResult::Gone => drop(self.pending.withdrawals.remove(&name)),
                    // The object changed. The next attempt reads it again.
                    WriteResult::Stale | WriteResult::Taken(_) | WriteResult::Contested => self.queue.put(key, 0, now),
                    WriteResult::Denied(why) | WriteResult::Unavailable(why) => {
                        self.log_failure(&format!("withdraw the status of {name}"), &why, now);
                        self.queue.put(key, 0, now);
                    }
                }
            }
            WriteReport::CustomResource { object, base, status, result } => {
                let key = ObjectKey::CustomResource(object.clone());
                self.queue.done(&key, work_result, now);
                if work_result != WorkResult::Succeeded && self.pending.custom_resources.contains_key(&object) {
                    self.queue.put(key, 2, now);
                }
                match result {
                    WriteResult::Written(written) => {
                        self.write_cache.record_custom_write(object, &base, status, &written);
                    }
                    WriteResult::Denied(why) | WriteResult::Unavailable(why) => {
                        self.log_failure(&format!("write the status of {object}"), &why, now);
                    }
                    WriteResult::Gone | WriteResult::Stale | WriteResult::Taken(_) | WriteResult::Contested => {
                        self.needs_decision = true;
                    }
                }
            }
        }
    }

    fn handle_service(
        &mut self,
        name: &ServiceName,
        base: &Arc<Service>,
        statement: DesiredStatus,
        result: WriteResult<Service>,
        recorder: &EventRecorder,
    ) {
        match result {
            WriteResult::Written(written) => {
                self.logged.denied.remove(name);
                if let Some(content) = EventContent::of(base, &statement) {
                    recorder.record(base, content);
                }
                // The condition has to say so if another controller's addresses are still there.
                self.needs_decision |= !statement.has_ingress(&written);
                self.write_cache.record_write(name, base, statement, &written, other_owner(&written));
            }
            WriteResult::Stale => self.write_cache.record_conflict(name, base),
            WriteResult::Taken(manager) => {
                tracing::warn!(service = %name, manager, "status belongs to another controller, leaving it");
                self.write_cache.record_foreign(name, base, &manager);
                self.needs_decision = true;
            }
            WriteResult::Gone => {
                self.initial_list.remove(name);
                // The watch may show it for a while yet.
                self.write_cache.record_conflict(name, base);
                self.needs_decision = true;
            }
            WriteResult::Denied(why) => {
                if self.logged.denied.get(name) != Some(&why) {
                    tracing::warn!(service = %name, why, "status denied by the API server");
                    let note = format!("the API server refuses its status: {why}");
                    recorder.record(base, EventContent::new(EventType::Warning, STATUS_DENIED, note));
                    self.logged.denied.insert(name.clone(), why);
                }
            }
            WriteResult::Unavailable(why) => {
                self.log_failure(&format!("write the status of {name}"), &why, boottime());
            }
            WriteResult::Contested => {
                let why = "another field manager holds its conditions";
                self.log_failure(&format!("write the status of {name}"), why, boottime());
            }
        }
    }

    /// Logs a failure, at most one in [`LOG_INTERVAL`]: where one write fails, often all do.
    fn log_failure(&mut self, operation: &str, why: &str, now: Duration) {
        let last = &mut self.logged.failure_logged_at;
        if last.is_zero() || now.saturating_sub(*last) >= LOG_INTERVAL {
            tracing::warn!(operation, why, "write failed, will retry");
            *last = now;
        }
    }
}
