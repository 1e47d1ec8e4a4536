//! The cluster programs that the tests start, at pinned versions. The tests share this file to find
//! them.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

/// A Go module with the programs that are built from it.
#[derive(Clone, Copy, Debug)]
pub struct Module {
    /// The name of its folder.
    pub name: &'static str,
    /// The module path.
    pub path: &'static str,
    /// The version that all tests use.
    pub version: &'static str,
    /// The version of the modules in the same repository that are published separately.
    pub siblings: &'static str,
    /// The programs that are built from it.
    pub programs: &'static [Program],
    /// Build tags, which leave parts out.
    pub tags: &'static str,
    /// Variables that the linker sets in these programs, so that they know their version.
    pub stamps: &'static [(&'static str, &'static str)],
    /// Packages of the module that its only program is built without: its main file imports them for
    /// what they register.
    pub without: &'static [&'static str],
    /// Files of the module that are kept beside the programs, by their paths in the module.
    pub files: &'static [&'static str],
}

/// A program of a module.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Its name.
    pub name: &'static str,
    /// Its package.
    pub package: &'static str,
    /// What needs it.
    pub need: Need,
}

/// What needs a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The tests.
    Tests,
    /// A cluster with real nodes.
    Nodes,
    /// A cluster whose Pods flannel connects.
    Flannel,
    /// Kubernetes' own tests in such a cluster.
    Conformance,
    /// The tests of the alerts.
    Alerts,
    /// A cluster that MetalLB serves.
    MetalLb,
    /// A cluster that kube-vip serves.
    KubeVip,
}

/// What most modules have.
const PLAIN: Module = Module {
    name: "",
    path: "",
    version: "",
    siblings: "",
    programs: &[],
    tags: "",
    stamps: &[],
    without: &[],
    files: &[],
};

/// Kubernetes, etcd, Helm, what runs in Pods, what connects them, what tests alerts, and other load
/// balancers. Dependencies of the same version, above all Kubernetes' client, are compiled once. So the
/// Kubernetes version that Helm's release uses costs least.
pub const MODULES: [Module; 10] = [
    Module {
        name: "kubernetes",
        path: "k8s.io/kubernetes",
        version: "v1.37.1",
        siblings: "v0.37.1",
        programs: &[
            Program { name: "kube-apiserver", package: "k8s.io/kubernetes/cmd/kube-apiserver", need: Need::Tests },
            Program { name: "kube-proxy", package: "k8s.io/kubernetes/cmd/kube-proxy", need: Need::Tests },
            Program { name: "kubectl", package: "k8s.io/kubernetes/cmd/kubectl", need: Need::Tests },
            Program {
                name: "kube-controller-manager",
                package: "k8s.io/kubernetes/cmd/kube-controller-manager",
                need: Need::Nodes,
            },
            Program { name: "kube-scheduler", package: "k8s.io/kubernetes/cmd/kube-scheduler", need: Need::Nodes },
            Program { name: "kubelet", package: "k8s.io/kubernetes/cmd/kubelet", need: Need::Nodes },
            Program { name: "agnhost", package: "k8s.io/kubernetes/test/images/agnhost", need: Need::Nodes },
            Program { name: "e2e.test", package: "k8s.io/kubernetes/test/e2e", need: Need::Conformance },
        ],
        stamps: &[
            ("k8s.io/component-base/version.gitVersion", "v1.37.1"),
            ("k8s.io/component-base/version.gitMajor", "1"),
            ("k8s.io/component-base/version.gitMinor", "37"),
            ("k8s.io/client-go/pkg/version.gitVersion", "v1.37.1"),
        ],
        ..PLAIN
    },
    Module {
        name: "etcd",
        path: "go.etcd.io/etcd/server/v3",
        version: "v3.7.3",
        siblings: "v3.7.3",
        programs: &[Program { name: "etcd", package: "go.etcd.io/etcd/server/v3", need: Need::Tests }],
        ..PLAIN
    },
    Module {
        name: "helm",
        path: "helm.sh/helm/v4",
        version: "v4.3.1",
        siblings: "v4.3.1",
        programs: &[Program { name: "helm", package: "helm.sh/helm/v4/cmd/helm", need: Need::Tests }],
        stamps: &[("helm.sh/helm/v4/internal/version.version", "v4.3.1")],
        ..PLAIN
    },
    Module {
        name: "coredns",
        path: "github.com/coredns/coredns",
        version: "v1.15.0",
        siblings: "v1.15.0",
        programs: &[Program { name: "coredns", package: "github.com/coredns/coredns", need: Need::Nodes }],
        ..PLAIN
    },
    Module {
        name: "go-httpbin",
        path: "github.com/mccutchen/go-httpbin/v2",
        version: "v2.26.0",
        siblings: "v2.26.0",
        programs: &[Program {
            name: "go-httpbin",
            package: "github.com/mccutchen/go-httpbin/v2/cmd/go-httpbin",
            need: Need::Nodes,
        }],
        ..PLAIN
    },
    Module {
        name: "prometheus",
        path: "github.com/prometheus/prometheus",
        // Prometheus 3.16. Go would expect its major version in the module's path.
        version: "v0.316.0",
        siblings: "v0.316.0",
        programs: &[Program {
            name: "promtool",
            package: "github.com/prometheus/prometheus/cmd/promtool",
            need: Need::Alerts,
        }],
        // The clients of clouds' APIs are most of it.
        tags: "remove_all_sd",
        ..PLAIN
    },
    Module {
        name: "flannel",
        path: "github.com/flannel-io/flannel",
        version: "v0.28.10",
        siblings: "v0.28.10",
        programs: &[Program { name: "flanneld", package: "github.com/flannel-io/flannel", need: Need::Flannel }],
        stamps: &[("github.com/flannel-io/flannel/pkg/version.Version", "v0.28.10")],
        // One needs a module that not every proxy has, the other C.
        without: &["/pkg/backend/tencentvpc", "/pkg/backend/udp"],
        ..PLAIN
    },
    Module {
        name: "metallb",
        path: "go.universe.tf/metallb",
        // v0.16.2 needs a module that not every proxy has: frr-k8s v0.0.27.
        version: "v0.16.1",
        siblings: "v0.16.1",
        programs: &[
            Program { name: "metallb-controller", package: "go.universe.tf/metallb/controller", need: Need::MetalLb },
            Program { name: "metallb-speaker", package: "go.universe.tf/metallb/speaker", need: Need::MetalLb },
        ],
        files: &["config/manifests/metallb-native.yaml"],
        ..PLAIN
    },
    Module {
        name: "kube-vip",
        path: "github.com/kube-vip/kube-vip",
        version: "v1.2.1",
        siblings: "v1.2.1",
        programs: &[Program { name: "kube-vip", package: "github.com/kube-vip/kube-vip", need: Need::KubeVip }],
        stamps: &[("main.Version", "v1.2.1")],
        ..PLAIN
    },
    Module {
        name: "kube-vip-cloud-provider",
        path: "github.com/kube-vip/kube-vip-cloud-provider",
        version: "v0.0.12",
        siblings: "v0.0.12",
        programs: &[Program {
            name: "kube-vip-cloud-provider",
            package: "github.com/kube-vip/kube-vip-cloud-provider",
            need: Need::KubeVip,
        }],
        files: &["manifest/kube-vip-cloud-controller.yaml"],
        ..PLAIN
    },
];

impl Program {
    /// Returns whether it is the test program of its package.
    pub fn is_test(&self) -> bool {
        Path::new(self.name).extension() == Some(OsStr::new("test"))
    }
}

impl Module {
    /// Returns the path of a program, or of one of the files, below the cache folder, built or not.
    pub fn place(&self, cache: &Path, program: &str) -> PathBuf {
        cache.join("cluster").join(format!("{}-{}", self.name, self.version)).join(program)
    }
}

/// Finds a program: in `assets`, the folder that KUBEBUILDER_ASSETS names (by convention with
/// kube-apiserver, etcd and kubectl), or else below the cache folder, if it was built.
pub fn find(program: &str, assets: Option<&OsStr>, cache: Option<&Path>) -> Option<PathBuf> {
    let given = assets.map(|folder| Path::new(folder).join(program));
    let built = || {
        let module = MODULES.iter().find(|module| module.programs.iter().any(|built| built.name == program))?;
        Some(module.place(cache?, program))
    };
    given.filter(|path| path.is_file()).or_else(built).filter(|path| path.is_file())
}
