//! Decides where the programs of a cluster come from.
//!
//! `KUBEBUILDER_ASSETS` and `PATH` first, if what is there has the pinned version; else built
//! once from the Go modules in `e2e/tools` and kept outside `target/`.

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};

use crate::Error;
use crate::progress::Progress;

mod build;
mod suites;

pub(crate) use build::cache_root;
pub use suites::Suite;

/// The Kubernetes release that `e2e/tools/kubernetes/go.mod` pins.
pub(crate) const KUBERNETES: &str = "v1.36.3";

/// A program the cluster is made of or the tests use.
#[derive(Debug)]
pub(crate) struct Tool {
    /// Its file name.
    name: &'static str,
    /// The folder of its module in `e2e/tools`.
    module: &'static str,
    /// Its main package.
    package: &'static str,
    /// What prints its version.
    version_args: &'static [&'static str],
    /// What that prints when it fits.
    version: &'static str,
    /// Whether the package's tests are built, instead of the package.
    tests: bool,
}

const fn kubernetes(name: &'static str, package: &'static str) -> Tool {
    Tool {
        name,
        module: "kubernetes",
        package,
        version_args: &["--version"],
        version: "Kubernetes v1.36.",
        tests: false,
    }
}

/// All of them.
pub(crate) const TOOLS: &[Tool] = &[
    Tool {
        name: "etcd",
        module: "etcd",
        package: "go.etcd.io/etcd/server/v3",
        version_args: &["--version"],
        version: "etcd Version: 3.6.",
        tests: false,
    },
    kubernetes("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
    kubernetes("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    kubernetes("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
    kubernetes("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"),
    kubernetes("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
    Tool {
        name: "kubectl",
        module: "kubernetes",
        package: "k8s.io/kubernetes/cmd/kubectl",
        version_args: &["version", "--client"],
        version: "Client Version: v1.36.",
        tests: false,
    },
    Tool {
        name: "agnhost",
        module: "kubernetes",
        package: "k8s.io/kubernetes/test/images/agnhost",
        version_args: &["--version"],
        version: "agnhost version 2.63",
        tests: false,
    },
    Tool {
        name: "coredns",
        module: "coredns",
        package: "github.com/coredns/coredns",
        version_args: &["-version"],
        version: "CoreDNS-1.12.",
        tests: false,
    },
    Tool {
        name: "helm",
        module: "helm",
        package: "helm.sh/helm/v3/cmd/helm",
        version_args: &["version", "--short"],
        version: "v3.",
        tests: false,
    },
];

/// Where each program is.
#[derive(Debug, Clone, Default)]
pub struct Tools {
    paths: BTreeMap<&'static str, PathBuf>,
}

impl Tools {
    /// Finds every program, building what is not there.
    pub async fn ensure(progress: &Progress) -> Result<Self, Error> {
        let mut tools = Self::default();
        let mut missing = Vec::new();
        for tool in TOOLS {
            match find(tool).await {
                Some(path) => drop(tools.paths.insert(tool.name, path)),
                None => missing.push(tool),
            }
        }
        for (tool, path) in build::build(&missing, progress).await? {
            tools.paths.insert(tool.name, path);
        }
        Ok(tools)
    }

    /// The path of the program called `name`.
    ///
    /// # Panics
    /// If it is none of the cluster's programs.
    pub fn path(&self, name: &str) -> &Path {
        self.paths.get(name).unwrap_or_else(|| panic!("{name} is not in the table of tools"))
    }

    /// All programs with their paths.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        self.paths.iter().map(|(name, path)| (*name, path.as_path()))
    }
}

async fn find(tool: &Tool) -> Option<PathBuf> {
    let assets = env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from);
    let path = env::var_os("PATH").unwrap_or_default();
    let dirs = assets.into_iter().chain(env::split_paths(&path));
    for candidate in dirs.map(|dir| dir.join(tool.name)).filter(|path| path.is_file()) {
        let mut command = crate::command::command(&candidate, tool.version_args);
        let printed = crate::command::output(&mut command).await.unwrap_or_default();
        if printed.contains(tool.version) {
            return Some(candidate);
        }
    }
    None
}
