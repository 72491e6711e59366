//! Decides how Cilia is installed on the tests' cluster: by Helm, from the chart,
//! with the values of the demo.

use std::time::Duration;

use super::stage::{Stage, root};
use crate::Error;
use crate::command::{command, output};
use crate::wait::{Look, until};

/// Where Cilia lives.
pub const NAMESPACE: &str = "kube-system";
/// How long agents and nodes may take to be ready on a busy machine.
const READY_LIMIT: Duration = Duration::from_mins(3);

/// Installs the chart, or changes the installation to these values.
pub async fn install(stage: &Stage, extra: &[&str]) -> Result<(), Error> {
    let file = |path: &str| root().join(path).display().to_string();
    let (chart, values) = (file("charts/cilia"), file("demo/values.yaml"));
    let config = stage.cluster.layout.kubeconfig().display().to_string();
    let namespace = format!("--namespace={NAMESPACE}");
    let mut args = vec!["upgrade", "--install", "cilium", &chart, &namespace, "--values", &values];
    for &value in extra {
        args.extend(["--set", value]);
    }
    let mut helm = command(stage.cluster.tools.path("helm"), args);
    output(helm.env("KUBECONFIG", config)).await.map(drop)
}

/// Replaces all pods of Cilia: the images' names stay the same from build to build.
pub async fn restart(stage: &Stage) -> Result<(), Error> {
    let namespace = format!("--namespace={NAMESPACE}");
    for workload in ["daemonset/cilium", "deployment/cilium-operator"] {
        stage.cluster.kubectl(&[&namespace, "rollout", "restart", workload]).await?;
    }
    rolled_out(stage).await
}

/// Waits until all pods of Cilia are of the configuration that was installed last.
pub async fn rolled_out(stage: &Stage) -> Result<(), Error> {
    let namespace = format!("--namespace={NAMESPACE}");
    let limit = format!("--timeout={}s", READY_LIMIT.as_secs());
    for workload in ["daemonset/cilium", "deployment/cilium-operator"] {
        stage.cluster.kubectl(&[&namespace, "rollout", "status", workload, &limit]).await?;
    }
    Ok(())
}

/// Waits until every agent and operator is ready and every node takes pods.
pub async fn ready(stage: &Stage) -> Result<(), Error> {
    until("readiness of Cilia and the nodes", READY_LIMIT, || async {
        match not_ready(stage).await {
            Ok(not) if not.is_empty() => Look::Done(()),
            Ok(not) => Look::Not(not.join("; ")),
            Err(error) => Look::Not(error.to_string()),
        }
    })
    .await
}

async fn not_ready(stage: &Stage) -> Result<Vec<String>, Error> {
    let mut not = Vec::new();
    let nodes = stage.list("nodes", None).await?;
    for node in &nodes {
        let name = node["metadata"]["name"].as_str().unwrap_or_default();
        if let Some(taints) = node["spec"]["taints"].as_array().filter(|taints| !taints.is_empty())
        {
            let keys: Vec<_> = taints.iter().filter_map(|taint| taint["key"].as_str()).collect();
            not.push(format!("{name} has taints {}", keys.join(", ")));
        }
        let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let ready = conditions.iter().find(|condition| condition["type"] == "Ready");
        if ready.is_none_or(|ready| ready["status"] != "True") {
            let why = ready.and_then(|ready| ready["message"].as_str()).unwrap_or_default();
            not.push(format!("{name} is not ready: {why}"));
        }
    }
    let agents = stage.get("daemonset", NAMESPACE, "cilium").await?;
    let ready = agents["status"]["numberReady"].as_u64().unwrap_or_default();
    if usize::try_from(ready).unwrap_or_default() != nodes.len() {
        not.push(format!("{ready} agents of {} are ready", nodes.len()));
    }
    let operator = stage.get("deployment", NAMESPACE, "cilium-operator").await?;
    let (ready, want) = (&operator["status"]["readyReplicas"], &operator["spec"]["replicas"]);
    if ready != want {
        not.push(format!("{ready} operators of {want} are ready"));
    }
    Ok(not)
}
