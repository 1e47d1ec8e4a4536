//! What the API server's answers to a write mean.

use k8s_openapi::api::core::v1::Service;
use kube::{Error, core::Status};
use serde_json::Value;

/// The field manager under which everything is written.
pub const MANAGER: &str = "vipmux-allocator";
/// `status.loadBalancer.ingress`, as conflicts name it.
const INGRESS: &str = ".status.loadBalancer.ingress";

/// What became of a write.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer<T> {
    /// It was made, and the object is this now.
    Made(Box<T>),
    /// The object has another version by now.
    Stale,
    /// This other manager holds the addresses.
    Taken(String),
    /// Another manager holds nothing but what is ours by its name: conditions.
    Contested,
    /// There is no such object any more.
    Gone,
    /// It is never made so: it is not allowed, or refused as invalid.
    Denied(String),
    /// There was no answer, or none that says anything: it may have been made, or not.
    Unavailable(String),
}

impl<T> Answer<T> {
    /// Of a request.
    pub fn of(result: Result<T, Error>) -> Self {
        match result {
            Ok(made) => Self::Made(Box::new(made)),
            Err(Error::Api(status)) => Self::refused(&status),
            // It tells its source itself.
            Err(error) => Self::Unavailable(error.to_string()),
        }
    }

    fn refused(status: &Status) -> Self {
        let message = || status.message.clone();
        match status.code {
            404 => Self::Gone,
            409 => Self::conflict(status),
            408 | 429 => Self::Unavailable(message()),
            400..=499 => Self::Denied(message()),
            _ => Self::Unavailable(message()),
        }
    }

    fn conflict(status: &Status) -> Self {
        let causes = status.details.iter().flat_map(|details| &details.causes);
        let conflicts: Vec<_> = causes.filter(|cause| cause.reason == "FieldManagerConflict").collect();
        match conflicts.iter().find(|cause| cause.field.starts_with(INGRESS)) {
            Some(cause) => Self::Taken(manager_in(&cause.message)),
            None if conflicts.is_empty() => Self::Stale,
            None => Self::Contested,
        }
    }
}

/// The manager that a conflict names: `conflict with "controller" using v1`.
fn manager_in(message: &str) -> String {
    message.split('"').nth(1).filter(|name| !name.is_empty()).unwrap_or("another controller").to_owned()
}

/// Who else owns the addresses in a Service's status.
pub fn owner(service: &Service) -> Option<&str> {
    let owns = |fields: &Value| fields.pointer("/f:status/f:loadBalancer/f:ingress").is_some();
    let entries = service.metadata.managed_fields.iter().flatten();
    let other = |entry: &&k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry| {
        entry.manager.as_deref() != Some(MANAGER) && entry.fields_v1.as_ref().is_some_and(|fields| owns(&fields.0))
    };
    entries.filter(other).find_map(|entry| entry.manager.as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(code: u16, causes: &Value) -> Answer<Service> {
        let status = serde_json::json!({
            "status": "Failure", "code": code, "message": "no", "reason": "Conflict", "details": {"causes": causes},
        });
        Answer::of(Err(Error::Api(Box::new(serde_json::from_value(status).unwrap()))))
    }

    #[test]
    fn each_answer_has_its_meaning() {
        let cause = |field: &str| {
            serde_json::json!({"reason": "FieldManagerConflict", "field": field,
                "message": "conflict with \"controller\" with subresource \"status\" using v1"})
        };
        let condition = cause(".status.conditions[type=\"vipmux.io/Allocated\"].reason");
        for (code, causes, expected) in [
            (404, serde_json::json!([]), Answer::Gone),
            (409, serde_json::json!([]), Answer::Stale),
            (409, serde_json::json!([condition, cause(INGRESS)]), Answer::Taken("controller".to_owned())),
            (409, serde_json::json!([condition]), Answer::Contested),
            (403, serde_json::json!([]), Answer::Denied("no".to_owned())),
            (422, serde_json::json!([]), Answer::Denied("no".to_owned())),
            (400, serde_json::json!([]), Answer::Denied("no".to_owned())),
            (429, serde_json::json!([]), Answer::Unavailable("no".to_owned())),
            (500, serde_json::json!([]), Answer::Unavailable("no".to_owned())),
            (504, serde_json::json!([]), Answer::Unavailable("no".to_owned())),
        ] {
            assert_eq!(refusal(code, &causes), expected, "{code} {causes}");
        }
        let lost: Answer<Service> = Answer::of(Err(Error::Service("connection refused".into())));
        assert_eq!(lost, Answer::Unavailable("ServiceError: connection refused".to_owned()));
    }

    #[test]
    fn the_other_owner_of_the_addresses_is_found() {
        let entry = |manager: &str, status: Value| serde_json::json!({"manager": manager, "operation": "Update", "subresource": "status", "fieldsV1": {"f:status": status}});
        let service = |entries: Vec<Value>| -> Service {
            serde_json::from_value(serde_json::json!({"metadata": {"managedFields": entries}})).unwrap()
        };
        let ingress = || serde_json::json!({"f:loadBalancer": {"f:ingress": {}}});
        let conditions = || serde_json::json!({"f:conditions": {}});
        let both = service(vec![entry(MANAGER, ingress()), entry("x", conditions()), entry("metallb", ingress())]);
        assert_eq!(owner(&both), Some("metallb"));
        assert_eq!(owner(&service(vec![entry(MANAGER, ingress()), entry("x", conditions())])), None);
    }
}
