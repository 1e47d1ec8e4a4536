//! Reads the API server's audit log: who has requested what.

use std::fs;

use anyhow::{Context as _, Result};
use serde::Deserialize;

use super::host::Launch;

pub(super) const POLICY_FILE: &str = "audit-policy.yaml";
pub(super) const LOG_FILE: &str = "audit.log";
/// Logs all requests without their content, except the API server's own.
pub(super) const POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  users: ['system:apiserver']
- level: Metadata
";

/// Verbs that change nothing.
const READING: [&str; 3] = ["get", "list", "watch"];

/// A request that was answered. For a watch: that it began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// `admin`, or `system:serviceaccount:NAMESPACE:NAME`.
    pub user: String,
    /// The client's user agent.
    pub agent: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or `deletecollection`.
    pub verb: String,
    /// With its subresource: `services/status`. Empty for paths that are no resource, such as
    /// `/readyz`.
    pub resource: String,
    /// Empty for cluster-scoped objects.
    pub namespace: String,
    /// The object's name; empty for requests about several objects.
    pub name: String,
    /// The response's HTTP status.
    pub code: u16,
}

impl Request {
    /// Returns whether the request changes something.
    pub fn is_write(&self) -> bool {
        !READING.contains(&self.verb.as_str())
    }
}

/// A position in the audit log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark(usize);

impl Launch {
    pub(super) fn mark(&self) -> Result<Mark> {
        Ok(Mark(complete(&self.log()?).len()))
    }

    pub(super) fn requests(&self, after: Mark) -> Result<Vec<Request>> {
        let log = self.log()?;
        parse(complete(&log).get(after.0..).unwrap_or_default())
    }

    fn log(&self) -> Result<String> {
        let path = self.path(LOG_FILE);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    }
}

/// Returns the log without a half-written last line.
fn complete(log: &str) -> &str {
    log.rfind('\n').map_or("", |end| &log[..=end])
}

fn parse(log: &str) -> Result<Vec<Request>> {
    let event = |line: &str| {
        serde_json::from_str::<Event>(line).with_context(|| format!("cannot read this line of the audit log: {line}"))
    };
    log.lines().map(event).filter_map(|event| event.map(Event::into_request).transpose()).collect()
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    stage: String,
    verb: String,
    user: User,
    #[serde(default)]
    user_agent: String,
    #[serde(default)]
    object_ref: ObjectRef,
    #[serde(default)]
    response_status: Status,
}

#[derive(Deserialize)]
struct User {
    #[serde(default)]
    username: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ObjectRef {
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    code: u16,
}

impl Event {
    /// Returns one entry per request. The log has a watch twice: when it begins and when it ends,
    /// which may be never.
    fn into_request(self) -> Option<Request> {
        let is_watch = self.verb == "watch" && self.response_status.code < 400;
        if (self.stage == "ResponseStarted") != is_watch {
            return None;
        }
        let ObjectRef { resource, subresource, namespace, name } = self.object_ref;
        let resource = if subresource.is_empty() { resource } else { format!("{resource}/{subresource}") };
        Some(Request {
            user: self.user.username,
            agent: self.user_agent,
            verb: self.verb,
            resource,
            namespace,
            name,
            code: self.response_status.code,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(stage: &str, verb: &str, object: &str, code: u16) -> String {
        format!(
            "{{\"kind\":\"Event\",\"stage\":\"{stage}\",\"verb\":\"{verb}\",\"user\":{{\"username\":\"admin\"}},\
             \"userAgent\":\"test\",{object}\"responseStatus\":{{\"metadata\":{{}},\"code\":{code}}}}}\n"
        )
    }

    #[test]
    fn a_watch_counts_once_also_before_its_end() {
        let object = "\"objectRef\":{\"resource\":\"services\",\"apiVersion\":\"v1\"},";
        let log = line("ResponseStarted", "watch", object, 200) + &line("ResponseComplete", "watch", object, 200);
        let requests = parse(&log).unwrap();
        let [watch] = requests.as_slice() else { panic!("{requests:?}") };
        assert_eq!((watch.verb.as_str(), watch.resource.as_str(), watch.is_write()), ("watch", "services", false));
        // A refused request never starts.
        assert_eq!(parse(&line("ResponseComplete", "watch", object, 403)).unwrap().len(), 1);
    }

    #[test]
    fn subresources_are_named_and_other_paths_have_no_resource() {
        let object = "\"objectRef\":{\"resource\":\"services\",\"subresource\":\"status\",\"namespace\":\"shop\",\
                      \"name\":\"web\"},";
        let log = line("ResponseComplete", "patch", object, 409) + &line("ResponseComplete", "get", "", 200);
        let requests = parse(&log).unwrap();
        assert_eq!(requests[0].resource, "services/status");
        assert_eq!((requests[0].namespace.as_str(), requests[0].name.as_str(), requests[0].code), ("shop", "web", 409));
        assert!(requests[0].is_write());
        assert_eq!(requests[1].resource, "");
    }

    #[test]
    fn a_line_that_is_half_written_is_left_for_later() {
        assert_eq!(complete("{}\n{}\n{\"sta"), "{}\n{}\n");
        assert_eq!(complete("{\"sta"), "");
    }
}
