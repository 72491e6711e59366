//! Reaches the agents of a cluster by way of its API server.
//!
//! Agents serve a unix socket and nothing else, so `cilia relay` is run in their pods and passes
//! bytes on. That takes the right to list pods and to exec into pods of the agents' namespace.

use std::path::PathBuf;
use std::pin::Pin;

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{AttachParams, AttachedProcess, ListParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::agent::Agent;

/// The label of agents' pods.
pub(crate) const AGENTS: &str = "k8s-app=cilium";
/// The container with the agent and `cilia` in it.
pub(crate) const CONTAINER: &str = "cilium-agent";

/// Where a cluster is.
#[derive(Debug, Clone, Default)]
pub(crate) struct Place {
    pub(crate) kubeconfig: Option<PathBuf>,
    pub(crate) context: Option<String>,
    pub(crate) namespace: String,
}

/// A cluster.
#[derive(Clone)]
pub(crate) struct Cluster {
    pub(crate) client: Client,
    /// Where the agents are.
    pub(crate) namespace: String,
    /// What messages call it.
    pub(crate) name: String,
}

/// A pod with an agent in it.
#[derive(Clone)]
pub(crate) struct AgentPod {
    pub(crate) pods: Api<Pod>,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) node: String,
}

impl std::fmt::Debug for AgentPod {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{} on {}", self.namespace, self.name, self.node)
    }
}

/// A connection to an agent.
pub(crate) type Stream = Pin<Box<dyn Both>>;

/// What can be read and written.
pub(crate) trait Both: AsyncRead + AsyncWrite + Send {}
impl<T: AsyncRead + AsyncWrite + Send> Both for T {}

impl Cluster {
    /// The cluster that a kubeconfig means.
    pub(crate) async fn connect(place: &Place) -> anyhow::Result<Self> {
        let options = KubeConfigOptions { context: place.context.clone(), ..Default::default() };
        let config = match &place.kubeconfig {
            Some(path) => {
                let file = Kubeconfig::read_from(path)
                    .with_context(|| format!("--kubeconfig {}", path.display()))?;
                Config::from_custom_kubeconfig(file, &options).await
            }
            None => Config::from_kubeconfig(&options).await,
        };
        let config = config.context("read the kubeconfig")?;
        let name = config.cluster_url.to_string();
        let client = Client::try_from(config).context("prepare to talk to the API server")?;
        Ok(Self { client, namespace: place.namespace.clone(), name })
    }

    /// The pods of agents, by node.
    pub(crate) async fn pods(&self) -> anyhow::Result<Vec<Pod>> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let list = pods.list(&ListParams::default().labels(AGENTS)).await;
        let list = list.map_err(said).with_context(|| {
            format!("list the agents' pods in namespace {} of {}", self.namespace, self.name)
        })?;
        let mut pods = list.items;
        pods.sort_by_key(node);
        Ok(pods)
    }

    /// The agents that run, by node; only that of `wanted`, if it is given.
    pub(crate) async fn agents(&self, wanted: Option<&str>) -> anyhow::Result<Vec<Agent>> {
        let pods = self.pods().await?;
        if pods.is_empty() {
            bail!(
                "there is no pod with the label {AGENTS} in namespace {} of {}: is Cilia installed \
                 there? Name another namespace with --namespace",
                self.namespace,
                self.name
            );
        }
        let running: Vec<&Pod> = pods.iter().filter(|pod| runs(pod)).collect();
        let Some(wanted) = wanted else {
            if running.is_empty() {
                bail!("no agent runs: see kubectl -n {} get pods -l {AGENTS}", self.namespace);
            }
            return Ok(running.into_iter().map(|pod| self.agent(pod)).collect());
        };
        let named =
            |pod: &&&Pod| node(pod) == wanted || pod.metadata.name.as_deref() == Some(wanted);
        if let Some(pod) = running.iter().find(named) {
            return Ok(vec![self.agent(pod)]);
        }
        let known: Vec<String> = running.iter().map(|pod| node(pod)).collect();
        bail!("no agent runs on --node {wanted}; agents run on: {}", known.join(", "))
    }

    /// The agent in a pod.
    pub(crate) fn agent(&self, pod: &Pod) -> Agent {
        Agent::in_pod(AgentPod {
            pods: Api::namespaced(self.client.clone(), &self.namespace),
            namespace: self.namespace.clone(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            node: node(pod),
        })
    }
}

/// What an API server refuses, in its own words; other errors as they are.
pub(crate) fn said(error: kube::Error) -> anyhow::Error {
    match error {
        kube::Error::Api(status) => anyhow::anyhow!("{} ({})", status.message, status.code),
        other => other.into(),
    }
}

/// The node of a pod.
pub(crate) fn node(pod: &Pod) -> String {
    pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default()
}

/// Whether a pod's containers run and are meant to.
pub(crate) fn runs(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    phase == Some("Running") && pod.metadata.deletion_timestamp.is_none()
}

impl AgentPod {
    /// A connection to the agent; it lasts as long as the process that is returned with it.
    pub(crate) async fn connect(&self) -> anyhow::Result<(Stream, AttachedProcess)> {
        let how =
            AttachParams::default().container(CONTAINER).stdin(true).stdout(true).stderr(false);
        let process = self.pods.exec(&self.name, ["cilia", "relay"], &how).await;
        let mut process = process.map_err(said).with_context(|| {
            format!(
                "run `cilia relay` in pod {}/{} (that takes the rights to get and to create pods/exec \
                 in namespace {})",
                self.namespace, self.name, self.namespace
            )
        })?;
        let (Some(stdin), Some(stdout)) = (process.stdin(), process.stdout()) else {
            bail!("pod {} gives no input and output", self.name);
        };
        Ok((Box::pin(tokio::io::join(stdout, stdin)), process))
    }
}
