//! A Service's status.

use std::collections::BTreeSet;

use k8s_openapi::{api::core::v1::Service, apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use serde_json::{Value, json};

use super::{
    Foreign, Told, Truth, View, announced,
    ingress::{entries, ingress, shows},
};
use crate::{
    allocate::Assignment,
    api::{ALLOCATED, ANNOUNCED},
    model::{
        Model, ServiceName, Vip,
        reason::{Reason, Refusal},
    },
};

/// The reason of [`ALLOCATED`] where another controller wrote the status.
pub const FOREIGN_STATUS: &str = "ForeignStatus";
/// What comes before each thing that a Service's owner should know.
pub(super) const NOTE: &str = "; note: ";

/// What a Service's status is to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// The addresses; `None`: others wrote them, and they are left alone.
    pub ingress: Option<BTreeSet<Vip>>,
    /// Whether it has addresses, and why.
    pub allocated: Told,
    /// Who answers for them.
    pub announced: Told,
    /// It did not get what it asks for, or its owner should do something about it.
    pub warning: bool,
}

/// In what a status differs from what it is to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Difference {
    /// In who got what.
    Outcome,
    /// In who leads alone.
    Announcement,
}

impl Statement {
    /// What is to be said of this Service; `None`: it is not ours. `foreign`: who else holds what its status shows.
    pub fn of(name: &ServiceName, view: View<'_>, foreign: Option<&Foreign>) -> Option<Self> {
        let View { model, allocation, .. } = view;
        let statement = match (allocation.assignments.get(name), allocation.refusals.get(name)) {
            (Some(assignment), _) => Self::assigned(name, assignment, view),
            (None, Some(refusal)) => match allocation.withheld.get(name) {
                Some(held) => Self::withheld(refusal, &held.addresses),
                None => Self::refused(refusal),
            },
            (None, None) => return None,
        };
        let notices = model.services.get(name).map(|service| service.notices.as_slice()).unwrap_or_default();
        Some(statement.beside(foreign, view).noting(notices))
    }

    fn assigned(name: &ServiceName, assignment: &Assignment, view: View<'_>) -> Self {
        let message = noted(given(name, assignment, view.model), &assignment.warnings);
        Self {
            ingress: Some(assignment.addresses.clone()),
            allocated: Told::new(Truth::True, assignment.reason.to_string(), message),
            announced: announced::announced(&assignment.addresses, view),
            warning: !assignment.is_as_asked() || !assignment.warnings.is_empty(),
        }
    }

    /// It cannot be read, and its address is nobody else's: its status is all that remembers that.
    fn withheld(refusal: &Refusal, addresses: &BTreeSet<Vip>) -> Self {
        let message = format!("{}; {} is kept for it, and nothing is served there", refusal.message, list(addresses));
        Self {
            ingress: Some(addresses.clone()),
            allocated: Told::new(Truth::True, refusal.reason.to_string(), message),
            announced: announced::not_served(),
            warning: true,
        }
    }

    fn refused(refusal: &Refusal) -> Self {
        let remedy = refusal.reason.remedy().map(|remedy| format!("; {remedy}")).unwrap_or_default();
        Self {
            ingress: Some(BTreeSet::new()),
            allocated: Told::new(Truth::False, refusal.reason.to_string(), format!("{}{remedy}", refusal.message)),
            announced: announced::not_allocated(),
            warning: true,
        }
    }

    /// Beside another controller, which is not overwritten.
    fn beside(mut self, foreign: Option<&Foreign>, view: View<'_>) -> Self {
        let Some(Foreign { manager, shown, addresses }) = foreign else { return self };
        let given = self.ingress.take().unwrap_or_default();
        let message = format!(
            "{manager} wrote {shown} into status.loadBalancer.ingress, and that is left as it is: let {manager} leave this \
             Service alone, or let vipmux take over what others wrote (vipmux allocator --adopt)"
        );
        if given.is_empty() {
            self.allocated.message.push_str(NOTE);
            self.allocated.message.push_str(&message);
        } else {
            self.allocated = Told::new(Truth::False, FOREIGN_STATUS, message);
        }
        if !addresses.is_empty() {
            self.announced = announced::announced(addresses, view);
        }
        self.warning = true;
        self
    }

    fn noting(mut self, notices: &[String]) -> Self {
        self.allocated = Told::new(self.allocated.truth, self.allocated.reason, noted(self.allocated.message, notices));
        self
    }

    /// In what this Service's status differs from that; `None`: there is nothing to write.
    pub fn differs(&self, service: &Service) -> Option<Difference> {
        let generation = service.metadata.generation;
        let told = |told: &Told, kind| condition(service, kind).is_some_and(|it| told.is_told_by(it, generation));
        if !self.has_ingress(service) || !told(&self.allocated, ALLOCATED) {
            return Some(Difference::Outcome);
        }
        (!told(&self.announced, ANNOUNCED)).then_some(Difference::Announcement)
    }

    /// Whether the Service's status shows the addresses that it is to show.
    pub fn has_ingress(&self, service: &Service) -> bool {
        self.ingress.as_ref().is_none_or(|addresses| shows(ingress(service), addresses))
    }
}

/// The addresses and their pools. With whom they are shared is not told: in a group of a thousand, each that comes or goes
/// would change a thousand statuses.
fn given(name: &ServiceName, assignment: &Assignment, model: &Model) -> String {
    let one = |vip: &Vip| match model.pool_of(*vip).and_then(|pool| model.pools.get(pool)) {
        Some(pool) => format!("{vip} from pool {}", pool.name),
        None => vip.to_string(),
    };
    let all = assignment.addresses.iter().map(one).collect::<Vec<_>>().join(", ");
    match assignment.reason {
        Reason::Shared => format!("{all}, shared (vipmux explain {name} tells with whom)"),
        _ => all,
    }
}

fn noted(mut message: String, notes: &[String]) -> String {
    for note in notes {
        message.push_str(NOTE);
        message.push_str(note);
    }
    message
}

pub(super) fn list(addresses: &BTreeSet<Vip>) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

pub(super) fn condition<'a>(service: &'a Service, kind: &str) -> Option<&'a Condition> {
    service.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
}

/// Whether the Service's status has something that only an allocator of ours writes.
pub fn is_marked(service: &Service) -> bool {
    [ALLOCATED, ANNOUNCED].iter().any(|kind| condition(service, kind).is_some())
}

/// What to apply so that this Service's status says that. With its `resourceVersion`: it is refused if the Service is another
/// by then.
pub fn body(name: &ServiceName, service: &Service, statement: &Statement, now: Timestamp) -> Value {
    let generation = service.metadata.generation;
    let made = |kind, told: &Told| told.condition(kind, generation, condition(service, kind), now);
    let mut status = json!({
        "conditions": [made(ALLOCATED, &statement.allocated), made(ANNOUNCED, &statement.announced)],
    });
    if let Some(addresses) = statement.ingress.as_ref().filter(|addresses| !addresses.is_empty()) {
        status["loadBalancer"] = json!({ "ingress": entries(service, addresses) });
    }
    let mut body = withdrawal(name, service);
    body["status"] = status;
    body
}

/// What to apply so that nothing is left of what was applied before.
pub fn withdrawal(name: &ServiceName, service: &Service) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "namespace": name.namespace,
            "name": name.name,
            "resourceVersion": service.metadata.resource_version,
        },
    })
}
