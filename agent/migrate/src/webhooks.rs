//! Finds admission webhooks that refuse writes when nobody answers them.

use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, RuleWithOperations, ValidatingWebhookConfiguration, WebhookClientConfig,
};

/// The writes that vipmux and its users depend on: group, resources, and whether vipmux stops
/// without them.
const WRITES: [(&str, &[&str], bool); 4] = [
    ("", &["services", "services/status"], true),
    ("coordination.k8s.io", &["leases"], true),
    ("vipmux.io", &["vippools", "vippolicies", "vippools/status", "vippolicies/status"], true),
    ("metallb.io", &["ipaddresspools", "l2advertisements"], false),
];

/// The program behind a webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// It is outside the cluster.
    Unknown,
    /// It answers.
    Ready,
    /// Its Service has no ready endpoint.
    Gone,
}

/// A webhook with `failurePolicy: Fail`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    /// `validatingwebhookconfiguration` or `mutatingwebhookconfiguration`.
    pub kind: &'static str,
    /// The name of its configuration.
    pub configuration: String,
    /// The Service that answers, `namespace/name`; empty: a URL.
    pub service: String,
    /// Those resources of its rules that vipmux or its users write.
    pub resources: Vec<&'static str>,
    /// vipmux itself writes one of them.
    pub blocks_vipmux: bool,
    /// The program behind it.
    pub backend: Backend,
}

impl Webhook {
    /// Returns the webhooks of a configuration.
    pub fn of_validating(configuration: &ValidatingWebhookConfiguration) -> Vec<Self> {
        let name = configuration.metadata.name.as_deref().unwrap_or_default();
        let hooks = configuration.webhooks.iter().flatten();
        let made = hooks.filter(|hook| fails(hook.failure_policy.as_ref()));
        made.map(|hook| Self::new("validatingwebhookconfiguration", name, &hook.client_config, hook.rules.as_deref()))
            .collect()
    }

    /// Returns the webhooks of a configuration.
    pub fn of_mutating(configuration: &MutatingWebhookConfiguration) -> Vec<Self> {
        let name = configuration.metadata.name.as_deref().unwrap_or_default();
        let hooks = configuration.webhooks.iter().flatten();
        let made = hooks.filter(|hook| fails(hook.failure_policy.as_ref()));
        made.map(|hook| Self::new("mutatingwebhookconfiguration", name, &hook.client_config, hook.rules.as_deref()))
            .collect()
    }

    fn new(
        kind: &'static str,
        configuration: &str,
        client: &WebhookClientConfig,
        rules: Option<&[RuleWithOperations]>,
    ) -> Self {
        let service = client.service.as_ref().map(|service| format!("{}/{}", service.namespace, service.name));
        let (mut resources, mut blocks_vipmux) = (Vec::new(), false);
        for (group, names, own) in WRITES {
            for name in names {
                if rules.into_iter().flatten().any(|rule| matches(rule, group, name)) {
                    resources.push(*name);
                    blocks_vipmux |= own;
                }
            }
        }
        let configuration = configuration.to_owned();
        let service = service.unwrap_or_default();
        Self { kind, configuration, service, resources, blocks_vipmux, backend: Backend::Unknown }
    }

    /// Whether it is asked about writes that vipmux or its users depend on.
    pub fn concerns_vipmux(&self) -> bool {
        !self.resources.is_empty()
    }

    /// Returns the command that deletes its configuration.
    pub fn removal(&self) -> String {
        format!("kubectl delete {} {}", self.kind, self.configuration)
    }
}

/// `Fail` is the default.
fn fails(policy: Option<&String>) -> bool {
    policy.is_none_or(|policy| policy == "Fail")
}

/// Whether a rule is about a resource. Selectors and conditions may exclude some of its objects.
fn matches(rule: &RuleWithOperations, group: &str, resource: &str) -> bool {
    let has =
        |list: &Option<Vec<String>>, all: &[&str]| list.iter().flatten().any(|entry| all.contains(&entry.as_str()));
    let (main, sub) = resource.split_once('/').unwrap_or((resource, ""));
    let every = if sub.is_empty() { vec![resource, "*", "*/*"] } else { vec![resource, "*/*"] };
    let of_main = format!("{main}/*");
    has(&rule.api_groups, &[group, "*"]) && (has(&rule.resources, &every) || has(&rule.resources, &[&of_main]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn webhook(policy: &str, groups: &[&str], resources: &[&str]) -> Vec<Webhook> {
        let configuration = json!({"metadata": {"name": "hook"}, "webhooks": [{
            "name": "a.example", "failurePolicy": policy, "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": {"service": {"namespace": "metallb-system", "name": "metallb-webhook-service"}},
            "rules": [{"apiGroups": groups, "apiVersions": ["*"], "operations": ["CREATE"], "resources": resources}],
        }]});
        Webhook::of_validating(&serde_json::from_value(configuration).unwrap())
    }

    #[test]
    fn the_resources_of_a_webhook_are_found() {
        for (groups, resources, found, blocks) in [
            (["metallb.io"], ["ipaddresspools"], vec!["ipaddresspools"], false),
            ([""], ["services/*"], vec!["services", "services/status"], true),
            ([""], ["services"], vec!["services"], true),
            (["*"], ["leases"], vec!["leases"], true),
            (["apps"], ["*"], vec![], false),
            (["vipmux.io"], ["*"], vec!["vippools", "vippolicies"], true),
        ] {
            let [hook] = webhook("Fail", &groups, &resources).try_into().unwrap();
            assert_eq!((&hook.resources, hook.blocks_vipmux), (&found, blocks), "{groups:?} {resources:?}");
            assert_eq!(hook.concerns_vipmux(), !found.is_empty());
            assert_eq!(hook.service, "metallb-system/metallb-webhook-service");
            assert_eq!(hook.removal(), "kubectl delete validatingwebhookconfiguration hook");
        }
    }

    #[test]
    fn a_webhook_that_lets_writes_pass_is_in_nobodys_way() {
        assert_eq!(webhook("Ignore", &["*"], &["*"]), []);
    }
}
