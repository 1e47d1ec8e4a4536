//! Users of the API server and their credentials.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::ServiceAccount as Account,
};
use kube::{
    Api, Client, Config,
    api::PostParams,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::json;

use super::{
    ApiServer,
    host::{Launch, PORT},
};
use crate::lan::MOST_NODES;

/// The user with all rights.
pub const ADMIN: &str = "admin";
/// kube-proxy's user. The API server itself grants its rights.
pub const KUBE_PROXY: &str = "system:kube-proxy";
/// The controller manager's user. The API server itself grants its rights.
pub const CONTROLLER_MANAGER: &str = "system:kube-controller-manager";
/// The scheduler's user. The API server itself grants its rights.
pub const SCHEDULER: &str = "system:kube-scheduler";

pub(super) const TOKENS_FILE: &str = "tokens.csv";
/// The folder in which the API server puts its self-signed certificate.
pub(super) const CERTIFICATES: &str = "certificates";
/// That certificate, followed by its authority's.
pub(super) const CERTIFICATE_FILE: &str = "certificates/apiserver.crt";
/// Its key, which also signs ServiceAccounts' tokens. The server makes it before it looks for a
/// signing key.
pub(super) const KEY_FILE: &str = "certificates/apiserver.key";
pub(super) const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
/// The lifetime of ServiceAccounts' tokens, seconds: longer than any test.
const TOKEN_LIFETIME: i64 = 24 * 60 * 60;

/// Users with constant tokens, and their groups. The network namespace keeps other users away, not
/// the token.
const USERS: [(&str, &str); 4] =
    [(ADMIN, "system:masters"), (KUBE_PROXY, ""), (CONTROLLER_MANAGER, ""), (SCHEDULER, "")];
/// The prefix and the group of kubelets' users. The rest is the Node's name.
const KUBELET: (&str, &str) = ("system:node:", "system:nodes");

/// Returns a file for `--token-auth-file`: each user's token is its name.
pub(super) fn tokens() -> String {
    let users = USERS.iter().map(|(user, groups)| ((*user).to_owned(), *groups));
    let kubelets = (1..=MOST_NODES).map(|number| (format!("{}node-{number}", KUBELET.0), KUBELET.1));
    let line = |(user, groups): (String, &str)| format!("{user},{user},{user},\"{groups}\"\n");
    users.chain(kubelets).map(line).collect()
}

/// Returns a client for a kubeconfig.
pub async fn connect(kubeconfig: PathBuf) -> Result<Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

/// A ServiceAccount, as a process in one of its Pods has it.
#[derive(Clone, Debug)]
pub struct ServiceAccount {
    /// A file for `--kubeconfig`.
    pub kubeconfig: PathBuf,
    /// A folder with `token`, `ca.crt` and `namespace`, as a kubelet mounts it at
    /// `/var/run/secrets/kubernetes.io/serviceaccount`.
    pub mount: PathBuf,
}

impl ApiServer {
    /// Returns a file for `--kubeconfig`. `user` is [`ADMIN`], [`KUBE_PROXY`], [`CONTROLLER_MANAGER`],
    /// [`SCHEDULER`], or `system:node:` with the name of a node of the LAN.
    pub fn kubeconfig(&self, user: &str) -> Result<PathBuf> {
        self.launch.kubeconfig(user)
    }

    /// Returns a ServiceAccount with a real token, by the TokenRequest API. The account and its
    /// namespace must exist.
    pub fn service_account(&self, namespace: &str, name: &str) -> Result<ServiceAccount> {
        let client = self.client()?;
        let token = self.block_on(async {
            let spec = TokenRequestSpec { expiration_seconds: Some(TOKEN_LIFETIME), ..TokenRequestSpec::default() };
            let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
            let accounts = Api::<Account>::namespaced(client, namespace);
            let made = accounts.create_token_request(name, &PostParams::default(), &request).await?;
            made.status.and_then(|status| status.token).context("there is no token in the answer")
        });
        let token = token.with_context(|| format!("cannot get a token for the ServiceAccount {namespace}/{name}"))?;
        let label = format!("{namespace}-{name}");
        let kubeconfig = self.launch.write_kubeconfig(&label, &token, namespace)?;
        let mount = self.launch.path(&format!("{label}.mount"));
        fs::create_dir_all(&mount).with_context(|| format!("cannot make {}", mount.display()))?;
        for (file, text) in
            [("token", token), ("ca.crt", self.launch.authority()?), ("namespace", namespace.to_owned())]
        {
            write(&mount.join(file), &text)?;
        }
        Ok(ServiceAccount { kubeconfig, mount })
    }
}

impl Launch {
    pub(super) fn kubeconfig(&self, user: &str) -> Result<PathBuf> {
        let is_known = user.starts_with(KUBELET.0) || USERS.iter().any(|(known, _)| *known == user);
        ensure!(is_known, "no user {user}; other ones are ServiceAccounts");
        self.write_kubeconfig(&user.replace(':', "-"), user, "default")
    }

    fn write_kubeconfig(&self, label: &str, token: &str, namespace: &str) -> Result<PathBuf> {
        let path = self.path(&format!("{label}.kubeconfig"));
        let server = format!("https://{}", SocketAddr::new(self.address(), PORT));
        let authority = self.path(CERTIFICATE_FILE);
        // JSON is YAML.
        let text = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": label,
            "contexts": [{"name": label, "context": {"cluster": "tests", "user": label, "namespace": namespace}}],
            "clusters": [{"name": "tests", "cluster": {"server": server, "certificate-authority": authority}}],
            "users": [{"name": label, "user": {"token": token}}],
        });
        write(&path, &text.to_string())?;
        Ok(path)
    }

    /// Returns the certificate of the authority that signed the API server's.
    fn authority(&self) -> Result<String> {
        let path = self.path(CERTIFICATE_FILE);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_as_the_api_server_reads_them() {
        assert_eq!(tokens().lines().next(), Some("admin,admin,admin,\"system:masters\""));
    }
}
