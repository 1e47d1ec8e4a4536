//! Classifies the API server's answers to a write.

use k8s_openapi::api::core::v1::Service;
use kube::{Error, core::Status};
use serde_json::Value;

use super::work_queue::WorkResult;

/// The field manager of all writes.
pub const FIELD_MANAGER: &str = "vipmux-allocator";
/// `status.loadBalancer.ingress` as a conflict's cause names it.
const INGRESS: &str = ".status.loadBalancer.ingress";

/// The result of a write.
#[derive(Clone, Debug, PartialEq)]
pub enum WriteResult<T> {
    /// It was written. This is the object now.
    Written(Box<T>),
    /// Refused: the object has another version now.
    Stale,
    /// Refused: this other field manager owns the addresses.
    Taken(String),
    /// Refused: another field manager owns only our conditions.
    Contested,
    /// The object does not exist any more.
    Gone,
    /// Refused for good: not allowed, or invalid.
    Denied(String),
    /// No answer, or no meaningful one. The write may have been carried out.
    Unavailable(String),
}

impl<T> WriteResult<T> {
    /// Returns the result for the work queue. A conflict without causes is no proof that there is a newer
    /// version, and the answer 404 may come from something before the API server. So both are retried.
    pub const fn work_result(&self) -> WorkResult {
        match self {
            Self::Written(_) | Self::Taken(_) => WorkResult::Succeeded,
            Self::Stale | Self::Gone => WorkResult::Conflict,
            Self::Contested | Self::Denied(_) | Self::Unavailable(_) => WorkResult::Failed,
        }
    }

    /// Returns the result that a request's response stands for.
    pub fn from_response(result: Result<T, Error>) -> Self {
        match result {
            Ok(object) => Self::Written(Box::new(object)),
            Err(Error::Api(status)) => Self::from_status(&status),
            // The error's text includes its source.
            Err(error) => Self::Unavailable(error.to_string()),
        }
    }

    fn from_status(status: &Status) -> Self {
        let message = || status.message.clone();
        match status.code {
            404 => Self::Gone,
            409 => Self::from_conflict(status),
            408 | 429 => Self::Unavailable(message()),
            400..=499 => Self::Denied(message()),
            _ => Self::Unavailable(message()),
        }
    }

    fn from_conflict(status: &Status) -> Self {
        let causes = status.details.iter().flat_map(|details| &details.causes);
        let conflicts: Vec<_> = causes.filter(|cause| cause.reason == "FieldManagerConflict").collect();
        match conflicts.iter().find(|cause| cause.field.starts_with(INGRESS)) {
            Some(cause) => Self::Taken(manager_named_in(&cause.message)),
            None if conflicts.is_empty() => Self::Stale,
            None => Self::Contested,
        }
    }
}

/// Returns the manager that a conflict's message names: `conflict with "controller" using v1`.
fn manager_named_in(message: &str) -> String {
    message.split('"').nth(1).filter(|name| !name.is_empty()).unwrap_or("another controller").to_owned()
}

/// Returns the field managers that own the addresses in a Service's status. If they are several,
/// all wrote the same addresses.
fn owners(service: &Service) -> impl Iterator<Item = &str> {
    let owns = |fields: &Value| fields.pointer("/f:status/f:loadBalancer/f:ingress").is_some();
    let entries = service.metadata.managed_fields.iter().flatten();
    let of_them = entries.filter(move |entry| entry.fields_v1.as_ref().is_some_and(|fields| owns(&fields.0)));
    of_them.filter_map(|entry| entry.manager.as_deref())
}

/// Returns whether our field manager owns the addresses in a Service's status, alone or not. Then no
/// other controller has written others since.
pub fn is_owner(service: &Service) -> bool {
    owners(service).any(|manager| manager == FIELD_MANAGER)
}

/// Returns the field manager that owns the addresses in a Service's status; `None`: ours does, or
/// none.
pub fn other_owner(service: &Service) -> Option<&str> {
    owners(service).next().filter(|_| !is_owner(service))
}

/// Returns a field manager that owns the addresses in a Service's status: ours if it is one of them.
pub fn addresses_owner(service: &Service) -> Option<&str> {
    if is_owner(service) { Some(FIELD_MANAGER) } else { other_owner(service) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(code: u16, causes: &Value) -> WriteResult<Service> {
        let status = serde_json::json!({
            "status": "Failure", "code": code, "message": "no", "reason": "Conflict", "details": {"causes": causes},
        });
        WriteResult::from_response(Err(Error::Api(Box::new(serde_json::from_value(status).unwrap()))))
    }

    #[test]
    fn each_answer_has_its_meaning() {
        let cause = |field: &str| {
            serde_json::json!({"reason": "FieldManagerConflict", "field": field,
                "message": "conflict with \"controller\" with subresource \"status\" using v1"})
        };
        let condition = cause(".status.conditions[type=\"vipmux.io/Allocated\"].reason");
        for (code, causes, expected) in [
            (404, serde_json::json!([]), WriteResult::Gone),
            (409, serde_json::json!([]), WriteResult::Stale),
            (409, serde_json::json!([condition, cause(INGRESS)]), WriteResult::Taken("controller".to_owned())),
            (409, serde_json::json!([condition]), WriteResult::Contested),
            (403, serde_json::json!([]), WriteResult::Denied("no".to_owned())),
            (422, serde_json::json!([]), WriteResult::Denied("no".to_owned())),
            (400, serde_json::json!([]), WriteResult::Denied("no".to_owned())),
            (429, serde_json::json!([]), WriteResult::Unavailable("no".to_owned())),
            (500, serde_json::json!([]), WriteResult::Unavailable("no".to_owned())),
            (504, serde_json::json!([]), WriteResult::Unavailable("no".to_owned())),
        ] {
            assert_eq!(refusal(code, &causes), expected, "{code} {causes}");
        }
        let lost: WriteResult<Service> = WriteResult::from_response(Err(Error::Service("connection refused".into())));
        assert_eq!(lost, WriteResult::Unavailable("ServiceError: connection refused".to_owned()));
    }

    #[test]
    fn the_other_owner_of_the_addresses_is_found() {
        let entry = |manager: &str, status: Value| serde_json::json!({"manager": manager, "operation": "Update", "subresource": "status", "fieldsV1": {"f:status": status}});
        let service = |entries: Vec<Value>| -> Service {
            serde_json::from_value(serde_json::json!({"metadata": {"managedFields": entries}})).unwrap()
        };
        let ingress = || serde_json::json!({"f:loadBalancer": {"f:ingress": {}}});
        let conditions = || serde_json::json!({"f:conditions": {}});
        let (ours, theirs) = (|| entry(FIELD_MANAGER, ingress()), || entry("metallb", ingress()));
        for (entries, other, is_ours) in [
            (vec![entry("x", conditions()), theirs()], Some("metallb"), false),
            (vec![theirs(), ours()], None, true),
            (vec![ours(), entry("x", conditions())], None, true),
            (vec![entry("x", conditions())], None, false),
        ] {
            let service = service(entries);
            assert_eq!((other_owner(&service), is_owner(&service)), (other, is_ours), "{service:?}");
        }
    }
}
