//! Decides which test suites of others there are; each is built once, to one program.

use std::path::{Path, PathBuf};

use super::{Tool, build};
use crate::Error;
use crate::progress::Progress;

/// A test suite of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suite {
    /// Kubernetes' end-to-end tests, of the release that the cluster runs.
    Kubernetes,
    /// The conformance tests of sigs.k8s.io/network-policy-api.
    PolicyApi,
}

const KUBERNETES: Tool = tests("e2e.test", "conformance", "k8s.io/kubernetes/test/e2e");
const POLICY_API: Tool =
    tests("policy-api.test", "policy-api", "sigs.k8s.io/network-policy-api/conformance");
const POLICY_API_MODULE: &str = "sigs.k8s.io/network-policy-api";

const fn tests(name: &'static str, module: &'static str, package: &'static str) -> Tool {
    Tool { name, module, package, version_args: &[], version: "", tests: true }
}

impl Suite {
    /// The suite's program, built if it is not in the cache. That takes minutes.
    pub async fn program(self, progress: &Progress) -> Result<PathBuf, Error> {
        let built = build::build(&[self.tool()], progress).await?;
        built.into_iter().next().map(|(_, path)| path).ok_or_else(|| {
            Error::Invalid(format!("the build of {} left no program", self.tool().name))
        })
    }

    /// The names of the images that the suite's pods are made from, as the suite spells them.
    pub async fn images(self, program: &Path) -> Result<Vec<String>, Error> {
        let text = match self {
            Self::Kubernetes => {
                let mut list = crate::command::command(program, ["--list-images"]);
                crate::command::output(&mut list).await?
            }
            Self::PolicyApi => self.read("conformance/base/manifests.yaml").await?,
        };
        let mut images: Vec<_> = text
            .split_whitespace()
            .filter(|word| word.contains("/agnhost:"))
            .map(str::to_owned)
            .collect();
        images.sort();
        images.dedup();
        Ok(images)
    }

    /// The custom resource definitions that the policy API's users install.
    pub async fn definitions() -> Result<String, Error> {
        let path = "config/crd/standard/policy.networking.k8s.io_clusternetworkpolicies.yaml";
        Self::PolicyApi.read(path).await
    }

    async fn read(self, file: &str) -> Result<String, Error> {
        let path = build::source(self.tool(), POLICY_API_MODULE).await?.join(file);
        std::fs::read_to_string(&path).map_err(crate::error::io("read", &path))
    }

    const fn tool(self) -> &'static Tool {
        match self {
            Self::Kubernetes => &KUBERNETES,
            Self::PolicyApi => &POLICY_API,
        }
    }
}
