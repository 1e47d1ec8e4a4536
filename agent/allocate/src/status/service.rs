//! Computes the status of a Service.

use std::collections::BTreeSet;

use k8s_openapi::{api::core::v1::Service, apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use serde_json::{Value, json};

use super::{
    ConditionStatus, DesiredCondition, ForeignStatus, StatusInputs, announced,
    ingress::{entries, ingress, shows},
};
use crate::{allocation::Assignment, previous::PreviousAssignment, request_snapshot::RequestSnapshot};
use vipmux_model::{
    Model, ServiceName, Vip,
    api::{ALLOCATED, ANNOUNCED, FOREIGN_STATUS, REQUEST},
    reason::{Reason, Refusal},
    service as read,
};

/// The text before each note for a Service's owner.
pub(super) const NOTE: &str = "; note: ";

/// The desired status of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredStatus {
    /// The addresses; `None` if others wrote them and they are left alone.
    pub ingress: Option<BTreeSet<Vip>>,
    /// Whether it has addresses, and why.
    pub allocated: DesiredCondition,
    /// Which nodes answer for them.
    pub announced: DesiredCondition,
    /// The request that was judged; `None`: it is not known.
    pub request: Option<DesiredCondition>,
    /// The Service did not get what it asks for, or its owner should do something.
    pub warning: bool,
}

/// The difference between a status and the desired one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StatusDifference {
    /// The allocation differs.
    Outcome,
    /// Only the leaders differ.
    Announcement,
}

impl DesiredStatus {
    /// Returns the desired status of this Service; `None` if it is not vipmux's. `foreign` is
    /// another controller's status in the Service.
    pub fn of(name: &ServiceName, inputs: StatusInputs<'_>, foreign: Option<&ForeignStatus>) -> Option<Self> {
        let StatusInputs { model, allocation, .. } = inputs;
        let desired = match (allocation.assignments.get(name), allocation.refusals.get(name)) {
            (Some(assignment), _) => Self::assigned(name, assignment, inputs),
            (None, Some(refusal)) => match allocation.withheld.get(name) {
                Some(held) => Self::withheld(refusal, held),
                None => Self::refused(refusal, model.services.get(name)),
            },
            (None, None) => return None,
        };
        let notices = model.services.get(name).map(|service| service.notices.as_slice()).unwrap_or_default();
        Some(desired.beside(foreign, inputs).noting(notices))
    }

    fn assigned(name: &ServiceName, assignment: &Assignment, inputs: StatusInputs<'_>) -> Self {
        let message = noted(given(name, assignment, inputs.model), &assignment.warnings);
        // Without pools there is one for each address. That is no fault: pools may come last.
        let of_no_pools = if inputs.model.pools.is_empty() { assignment.addresses.len() } else { 0 };
        let warned = assignment.warnings.len() > of_no_pools;
        Self {
            ingress: Some(assignment.addresses.clone()),
            allocated: DesiredCondition::new(ConditionStatus::True, assignment.reason.to_string(), message),
            announced: announced::announced(&assignment.addresses, inputs),
            request: assignment.snapshot.as_ref().map(DesiredCondition::judged),
            warning: !assignment.is_as_asked() || warned,
        }
    }

    /// Returns the status of a Service that cannot be read, and whose addresses are kept for it.
    /// Only its status remembers that.
    fn withheld(refusal: &Refusal, PreviousAssignment { addresses, snapshot }: &PreviousAssignment) -> Self {
        let message = format!("{}; {} is kept for it, and nothing is served there", refusal.message, list(addresses));
        Self {
            ingress: Some(addresses.clone()),
            allocated: DesiredCondition::new(ConditionStatus::True, refusal.reason.to_string(), message),
            announced: announced::not_served(),
            request: snapshot.as_ref().map(DesiredCondition::judged),
            warning: true,
        }
    }

    fn refused(refusal: &Refusal, service: Option<&read::Service>) -> Self {
        let remedy = refusal.reason.remedy().map(|remedy| format!("; {remedy}")).unwrap_or_default();
        Self {
            ingress: Some(BTreeSet::new()),
            allocated: DesiredCondition::new(
                ConditionStatus::False,
                refusal.reason.to_string(),
                format!("{}{remedy}", refusal.message),
            ),
            announced: announced::not_allocated(),
            request: service
                .filter(|service| service.fault.is_none())
                .map(|service| DesiredCondition::judged(&RequestSnapshot::of(service))),
            warning: true,
        }
    }

    /// Adapts the status to one that another controller wrote, which is not overwritten.
    fn beside(mut self, foreign: Option<&ForeignStatus>, inputs: StatusInputs<'_>) -> Self {
        let Some(ForeignStatus { manager, shown, addresses }) = foreign else { return self };
        let given = self.ingress.take().unwrap_or_default();
        let message = format!(
            "{manager} wrote {shown} into status.loadBalancer.ingress, and vipmux does not change it: configure \
             {manager} to ignore this Service, or let vipmux take over the status (vipmux allocator --adopt)"
        );
        if given.is_empty() {
            self.allocated.message.push_str(NOTE);
            self.allocated.message.push_str(&message);
        } else {
            self.allocated = DesiredCondition::new(ConditionStatus::False, FOREIGN_STATUS, message);
        }
        if !addresses.is_empty() {
            self.announced = announced::announced(addresses, inputs);
        }
        self.warning = true;
        self
    }

    fn noting(mut self, notices: &[String]) -> Self {
        self.allocated =
            DesiredCondition::new(self.allocated.status, self.allocated.reason, noted(self.allocated.message, notices));
        self
    }

    /// Returns the difference of this Service's status; `None` if there is nothing to write.
    pub fn differs(&self, service: &Service) -> Option<StatusDifference> {
        let generation = service.metadata.generation;
        let is_current =
            |wanted: &DesiredCondition, kind| condition(service, kind).is_some_and(|it| wanted.matches(it, generation));
        let has_request = self
            .request
            .as_ref()
            .map_or_else(|| condition(service, REQUEST).is_none(), |request| is_current(request, REQUEST));
        if !self.has_ingress(service) || !is_current(&self.allocated, ALLOCATED) || !has_request {
            return Some(StatusDifference::Outcome);
        }
        (!is_current(&self.announced, ANNOUNCED)).then_some(StatusDifference::Announcement)
    }

    /// Whether the Service's status shows the desired addresses.
    pub fn has_ingress(&self, service: &Service) -> bool {
        self.ingress.as_ref().is_none_or(|addresses| shows(ingress(service), addresses))
    }
}

/// Returns the addresses and their pools. It does not name the Services that share them: in a group
/// of a thousand, each that comes or goes would change a thousand statuses.
fn given(name: &ServiceName, assignment: &Assignment, model: &Model) -> String {
    let one = |vip: &Vip| match model.pool_of(*vip).and_then(|pool| model.pools.get(pool)) {
        Some(pool) => format!("{vip} from pool {}", pool.name),
        None => vip.to_string(),
    };
    let all = assignment.addresses.iter().map(one).collect::<Vec<_>>().join(", ");
    match assignment.reason {
        Reason::Shared => format!("{all}, shared (see vipmux explain {name})"),
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

pub(crate) fn list(addresses: &BTreeSet<Vip>) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

pub(super) fn condition<'a>(service: &'a Service, kind: &str) -> Option<&'a Condition> {
    service.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
}

/// Whether the Service's status has a condition that only vipmux's allocator writes.
pub fn is_marked(service: &Service) -> bool {
    [ALLOCATED, ANNOUNCED].iter().any(|kind| condition(service, kind).is_some())
}

/// Returns the object to apply so that this Service's status is as desired. It has the
/// `resourceVersion`: the API server refuses it if the Service has changed since.
pub fn body(name: &ServiceName, service: &Service, desired: &DesiredStatus, now: Timestamp) -> Value {
    let generation = service.metadata.generation;
    let made = |kind, wanted: &DesiredCondition| wanted.condition(kind, generation, condition(service, kind), now);
    let conditions = [(ALLOCATED, &desired.allocated), (ANNOUNCED, &desired.announced)];
    let conditions = conditions.into_iter().chain(desired.request.as_ref().map(|request| (REQUEST, request)));
    let conditions: Vec<_> = conditions.map(|(kind, wanted)| made(kind, wanted)).collect();
    let mut status = json!({ "conditions": conditions });
    if let Some(addresses) = desired.ingress.as_ref().filter(|addresses| !addresses.is_empty()) {
        status["loadBalancer"] = json!({ "ingress": entries(service, addresses) });
    }
    let mut body = withdrawal(name, service);
    body["status"] = status;
    body
}

/// Returns the object to apply to remove all fields that were applied before.
pub fn withdrawal(name: &ServiceName, service: &Service) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "namespace": name.namespace(),
            "name": name.name(),
            "resourceVersion": service.metadata.resource_version,
        },
    })
}
