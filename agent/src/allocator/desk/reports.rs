//! What came of what was begun.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Service;

use super::{Desk, Key, Turn};
use crate::{
    allocator::{
        answer::{Answer, owner},
        write::Report,
    },
    clock::boottime,
    events::Teller,
    model::ServiceName,
    status::{News, Statement, Weight, ingress},
};

/// The reason of an Event that tells that a status was not written.
const STATUS_DENIED: &str = "StatusDenied";
/// From one line of log about writes that fail to the next.
const TELL_AGAIN: Duration = Duration::from_secs(30);

impl Desk {
    /// Takes note of a report.
    pub(super) fn hear(&mut self, report: Report) {
        self.pulse.send_modify(|pulse| {
            pulse.written += u64::from(report.is_written());
            pulse.failed += u64::from(report.has_failed());
        });
        // What was begun under a mandate that has ended: the next one begins from the statuses.
        let Some(turn) = &mut self.turn else { return };
        turn.hear(report, &self.teller);
    }
}

impl Report {
    fn is_well(&self) -> bool {
        match self {
            Self::Service { answer, .. } | Self::Departed { answer, .. } => answer.is_well(),
            Self::Custom { answer, .. } => answer.is_well(),
        }
    }

    fn is_written(&self) -> bool {
        match self {
            Self::Service { answer, .. } => matches!(answer, Answer::Made(_)),
            Self::Departed { answer, wrote, .. } => *wrote && matches!(answer, Answer::Made(_)),
            Self::Custom { answer, .. } => matches!(answer, Answer::Made(_)),
        }
    }

    /// Whether it was refused, or came to nothing; not where the object is another by now, or gone.
    fn has_failed(&self) -> bool {
        !self.is_well() || matches!(self, Self::Service { answer: Answer::Taken(_), .. })
    }
}

impl<T> Answer<T> {
    /// Whether there is nothing to be tried again for now.
    const fn is_well(&self) -> bool {
        !matches!(self, Self::Denied(_) | Self::Unavailable(_) | Self::Contested)
    }
}

/// Whether the Service shows other addresses than it is to.
fn shows_others(service: &Service, statement: &Statement) -> bool {
    !ingress(service).is_empty() && !statement.has_ingress(service)
}

impl Turn {
    fn hear(&mut self, report: Report, teller: &Teller) {
        let (well, now) = (report.is_well(), boottime());
        match report {
            Report::Service { name, base, statement, answer } => {
                let key = Key::Service(name.clone());
                // Another controller that writes again is not raced.
                let overwrites = self.decider.adopts() && shows_others(&base, &statement);
                self.queue.done(&key, well && !overwrites, now);
                if !well && self.services.contains_key(&name) {
                    self.queue.put(key, 0, now);
                }
                self.service(&name, &base, statement, answer, teller);
            }
            Report::Departed { name, answer, .. } => {
                let key = Key::Departed(name.clone());
                self.queue.done(&key, well, now);
                match answer {
                    Answer::Made(made) => {
                        self.departed.remove(&name);
                        self.ledger.withdrew(&name, &made);
                    }
                    Answer::Gone => drop(self.departed.remove(&name)),
                    // It is another by now, and looked at again.
                    Answer::Stale | Answer::Taken(_) | Answer::Contested => self.queue.put(key, 0, now),
                    Answer::Denied(why) | Answer::Unavailable(why) => {
                        self.complain(&format!("taking back what was written into the status of {name}"), &why, now);
                        self.queue.put(key, 0, now);
                    }
                }
            }
            Report::Custom { object, base, status, answer } => {
                let key = Key::Custom(object.clone());
                self.queue.done(&key, well, now);
                if !well && self.customs.contains_key(&object) {
                    self.queue.put(key, 2, now);
                }
                match answer {
                    Answer::Made(made) => self.ledger.wrote_custom(object, &base, status, &made),
                    Answer::Denied(why) | Answer::Unavailable(why) => {
                        self.complain(&format!("writing the status of {object}"), &why, now);
                    }
                    Answer::Gone | Answer::Stale | Answer::Taken(_) | Answer::Contested => self.dirty = true,
                }
            }
        }
    }

    fn service(
        &mut self,
        name: &ServiceName,
        base: &Arc<Service>,
        statement: Statement,
        answer: Answer<Service>,
        teller: &Teller,
    ) {
        match answer {
            Answer::Made(made) => {
                self.denied.remove(name);
                if let Some(news) = News::of(base, &statement) {
                    teller.tell(base, news);
                }
                // What another wrote is to be told in the condition.
                self.dirty |= !statement.has_ingress(&made);
                self.ledger.wrote(name, base, statement, &made, owner(&made));
            }
            Answer::Stale => self.ledger.conflicted(name, base),
            Answer::Taken(manager) => {
                tracing::warn!(service = %name, manager, "its status was written by another, and is left as it is");
                self.ledger.taken(name, base, &manager);
                self.dirty = true;
            }
            Answer::Gone => {
                self.fresh.remove(name);
                // The watch may show it for a while yet.
                self.ledger.conflicted(name, base);
                self.dirty = true;
            }
            Answer::Denied(why) => {
                if self.denied.get(name) != Some(&why) {
                    tracing::warn!(service = %name, why, "its status is denied");
                    let note = format!("the API server does not take its status: {why}");
                    teller.tell(base, News::new(Weight::Warning, STATUS_DENIED, note));
                    self.denied.insert(name.clone(), why);
                }
            }
            Answer::Unavailable(why) => self.complain(&format!("writing the status of {name}"), &why, boottime()),
            Answer::Contested => {
                let why = "others hold its conditions, and hold them still";
                self.complain(&format!("writing the status of {name}"), why, boottime());
            }
        }
    }

    /// Logs a failure, one at a time: where one fails, often all do.
    fn complain(&mut self, doing: &str, why: &str, now: Duration) {
        if self.told.is_zero() || now.saturating_sub(self.told) >= TELL_AGAIN {
            tracing::warn!(why, "{doing} failed, and is tried again");
            self.told = now;
        }
    }
}
