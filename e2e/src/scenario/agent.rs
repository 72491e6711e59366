//! Decides how tests ask an agent: by its command line, in its pod, as a user would.

use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;

use super::chart::NAMESPACE;
use super::stage::{Stage, parse};
use crate::Error;
use crate::command::command;

/// The agent's pod on a node.
pub async fn pod(stage: &Stage, node: &str) -> Result<Value, Error> {
    let pods = stage.list("pods", Some(NAMESPACE)).await?;
    let found = pods.into_iter().find(|pod| {
        pod["metadata"]["labels"]["k8s-app"] == "cilium" && pod["spec"]["nodeName"] == node
    });
    found.ok_or_else(|| Error::Invalid(format!("there is no agent on {node}")))
}

/// Runs `cilia` in the agent's pod on `node` and returns what it printed.
pub async fn run(stage: &Stage, node: &str, words: &[&str]) -> Result<String, Error> {
    let pod = pod(stage, node).await?;
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    let namespace = format!("--namespace={NAMESPACE}");
    let mut args = vec![&namespace, "exec", name, "--container=cilium-agent", "--", "cilia"];
    args.extend(words);
    stage.cluster.kubectl(&args).await
}

/// Runs `cilia … -o json` in the agent's pod on `node`.
pub async fn json(stage: &Stage, node: &str, words: &[&str]) -> Result<Value, Error> {
    let words: Vec<_> = words.iter().copied().chain(["-o", "json"]).collect();
    parse(&run(stage, node, &words).await?)
}

/// The agent's process on a node.
pub async fn process(stage: &Stage, node: &str) -> Result<i32, Error> {
    let pod = pod(stage, node).await?;
    let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
    let pids = stage.cluster.node(node)?.pod_processes(stage.cluster.cgroups(), uid);
    let agent = pids.into_iter().find(|pid| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        name.starts_with("cilia-agent")
    });
    agent.ok_or_else(|| Error::Invalid(format!("the agent on {node} has no process")))
}

/// Listens to the events of an agent.
#[derive(Debug)]
pub struct Monitor {
    lines: Arc<Mutex<Vec<String>>>,
    /// Ends with this value.
    _child: Child,
}

impl Monitor {
    /// Starts `cilia monitor` with these words.
    pub async fn start(stage: &Stage, node: &str, words: &[&str]) -> Result<Self, Error> {
        let pod = pod(stage, node).await?;
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        let config = format!("--kubeconfig={}", stage.cluster.layout.kubeconfig().display());
        let namespace = format!("--namespace={NAMESPACE}");
        let mut args = vec![&config, &namespace, "exec", name, "--container=cilium-agent", "--"];
        args.extend(["cilia", "monitor"]);
        args.extend(words);
        let mut monitor = command(stage.cluster.tools.path("kubectl"), args);
        let mut child = monitor
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| Error::Invalid(format!("cannot start kubectl: {error}")))?;
        let lines = Arc::new(Mutex::new(Vec::new()));
        let outputs: [Option<Box<dyn tokio::io::AsyncRead + Send + Unpin>>; 2] = [
            child.stdout.take().map(|stream| Box::new(stream) as _),
            child.stderr.take().map(|stream| Box::new(stream) as _),
        ];
        for output in outputs.into_iter().flatten() {
            let heard = lines.clone();
            tokio::spawn(async move {
                let mut reader = BufReader::new(output).lines();
                while let Ok(Some(line)) = reader.next_line().await {
                    heard.lock().unwrap_or_else(PoisonError::into_inner).push(line);
                }
            });
        }
        Ok(Self { lines, _child: child })
    }

    /// What was heard so far.
    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
