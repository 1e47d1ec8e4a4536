//! Parses what a request asks the API server for.

use http::{Method, Uri};

/// A request, with the terms of RBAC and the audit log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiRequest {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or `deletecollection`.
    pub verb: &'static str,
    /// With its subresource. Empty for paths that are no resource, such as `/readyz`.
    pub resource: String,
    /// Empty for cluster-scoped objects.
    pub namespace: String,
    /// Empty for requests about several objects.
    pub name: String,
    /// A watch that continues an earlier one: it does not begin with all objects.
    pub resumes: bool,
}

impl ApiRequest {
    pub(super) fn of(method: &Method, uri: &Uri) -> Self {
        let query = uri.query().unwrap_or_default();
        let has = |pair: &str| query.split('&').any(|part| part == pair);
        let is_watch = has("watch=true") || has("watch=1");
        let (namespace, resource, name) = target(uri.path());
        let verb = match (method, name.is_empty()) {
            (&Method::POST, _) => "create",
            (&Method::PUT, _) => "update",
            (&Method::PATCH, _) => "patch",
            (&Method::DELETE, false) => "delete",
            (&Method::DELETE, true) => "deletecollection",
            _ if is_watch => "watch",
            (_, true) if !resource.is_empty() => "list",
            _ => "get",
        };
        Self { verb, resource, namespace, name, resumes: is_watch && !has("sendInitialEvents=true") }
    }

    /// Returns whether the request changes something.
    pub fn is_write(&self) -> bool {
        !matches!(self.verb, "get" | "list" | "watch")
    }
}

/// Returns namespace, resource and name.
fn target(path: &str) -> (String, String, String) {
    let mut parts: Vec<_> = path.trim_matches('/').split('/').collect();
    let group = match parts.first() {
        Some(&"api") => 2,
        Some(&"apis") => 3,
        _ => return Default::default(),
    };
    let mut parts = parts.split_off(group.min(parts.len()));
    let mut namespace = "";
    if parts.len() > 2 && parts[0] == "namespaces" {
        namespace = parts[1];
        parts.drain(..2);
    }
    let part = |number: usize| parts.get(number).copied().unwrap_or_default();
    let resource = if part(2).is_empty() { part(0).to_owned() } else { format!("{}/{}", part(0), part(2)) };
    (namespace.to_owned(), resource, part(1).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_parsed_from_its_method_and_path() {
        let leases = "/apis/coordination.k8s.io/v1/namespaces/vipmux-system/leases";
        for (method, uri, expected) in [
            (Method::GET, "/api/v1/services?watch=true&resourceVersion=7", ("watch", "services", "", "", true)),
            (Method::GET, "/api/v1/nodes?watch=true&sendInitialEvents=true", ("watch", "nodes", "", "", false)),
            (Method::GET, "/api/v1/namespaces/shop", ("get", "namespaces", "", "shop", false)),
            (Method::PATCH, "/api/v1/namespaces/a/services/b/status", ("patch", "services/status", "a", "b", false)),
            (Method::GET, leases, ("list", "leases", "vipmux-system", "", false)),
            (Method::POST, leases, ("create", "leases", "vipmux-system", "", false)),
            (Method::PUT, &format!("{leases}/vip-1"), ("update", "leases", "vipmux-system", "vip-1", false)),
            (Method::GET, "/readyz", ("get", "", "", "", false)),
            (Method::GET, "/apis", ("get", "", "", "", false)),
        ] {
            let request = ApiRequest::of(&method, &uri.parse().unwrap());
            let parsed = (request.verb, &*request.resource, &*request.namespace, &*request.name, request.resumes);
            assert_eq!(parsed, expected, "{uri}");
        }
    }
}
