//! What agents are told, and what is heard of them: settings of one node, events across an agent's end.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use cilia_e2e::scenario::pods::{self, Pod};
use cilia_e2e::scenario::traffic::{Protocol, reaches};
use cilia_e2e::scenario::{Stage, agent, chart};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{ChildStderr, ChildStdout};

use super::{LIMIT, PORT, command, talkers};
use crate::agent_restart::{kill_agent, ready};
use crate::asked_for;

pub(crate) async fn a_node_has_settings_of_its_own(stage: &Stage) -> Result<()> {
    if !asked_for() {
        return Ok(());
    }
    let node = |label: &Value| {
        json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "n2", "labels": {"cilia.test/size": label}}})
    };
    stage.apply(&node(&json!("large"))).await?;
    stage
        .apply(&json!({
            "apiVersion": "cilium.io/v2", "kind": "CiliumNodeConfig",
            "metadata": {"namespace": chart::NAMESPACE, "name": "large"},
            "spec": {"nodeSelector": {"matchLabels": {"cilia.test/size": "large"}},
                "defaults": {"monitor-aggregation-interval": "7s"}},
        }))
        .await?;
    for name in ["n1", "n2"] {
        renew_agent(stage, name).await?;
    }
    let mut told = Vec::new();
    for name in ["n1", "n2"] {
        let words = ["config", "get", "monitor-aggregation-interval"];
        told.push(agent::run(stage, name, &words).await?.trim().to_owned());
    }
    ensure!(told == ["5s", "7s"], "{told:?}");
    let sources = agent::run(stage, "n2", &["config", "get", "config-sources"]).await?;
    ensure!(sources.contains(r#""name":"large""#), "{sources}");
    stage.delete("ciliumnodeconfig", chart::NAMESPACE, "large").await?;
    renew_agent(stage, "n2").await?;
    let words = ["config", "get", "monitor-aggregation-interval"];
    ensure!(agent::run(stage, "n2", &words).await?.trim() == "5s", "it is as others are again");
    Ok(())
}

/// Deletes the agent's pod on a node, and waits for the next one: settings are put together at its start.
async fn renew_agent(stage: &Stage, node: &str) -> Result<()> {
    let old = agent::pod(stage, node).await?["metadata"]["name"].clone();
    stage.delete("pod", chart::NAMESPACE, old.as_str().unwrap_or_default()).await?;
    ready(stage, node).await
}

pub(crate) async fn events_go_on_when_an_agent_ends(stage: &Stage) -> Result<()> {
    if !asked_for() {
        return Ok(());
    }
    let found = talkers(stage, "follows").await?;
    let [server, client] = &found[..] else { bail!("two pods") };
    let config = stage.cluster.layout.kubeconfig().display().to_string();
    let name = format!("follows/{}", server.name);
    let port = PORT.to_string();
    let filters = ["--type", "policy-verdict", "--pod", &name, "--port", &port];
    let mut words = vec!["--kubeconfig", &config, "--node", "n1", "monitor"];
    words.extend(filters);
    words.extend(["--verdict", "forwarded", "-o", "json"]);
    let mut command = command(&words);
    let mut monitor = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut events = BufReader::new(monitor.stdout.take().context("its events")?).lines();
    let mut notes = BufReader::new(monitor.stderr.take().context("its notes")?).lines();
    note(&mut notes, "Listening for events on").await?;
    heard(&mut events, client, server).await?;
    kill_agent(stage, "n1").await?;
    note(&mut notes, "the agent is back").await?;
    heard(&mut events, client, server).await?;
    pods::leave(stage, "follows").await?;
    Ok(())
}

type Lines<T> = tokio::io::Lines<BufReader<T>>;

/// Reads until a note comes.
async fn note(notes: &mut Lines<ChildStderr>, wanted: &str) -> Result<()> {
    let mut all = Vec::new();
    let read = async {
        while let Some(line) = notes.next_line().await? {
            let found = line.contains(wanted);
            all.push(line);
            if found {
                return Ok(());
            }
        }
        bail!("monitor ended")
    };
    let read = tokio::time::timeout(LIMIT, read).await;
    read.unwrap_or_else(|_| bail!("not in time")).with_context(|| format!("{wanted}: {all:?}"))
}

/// Has one pod reach the other until an event says so: connections that are known are not judged again.
async fn heard(events: &mut Lines<ChildStdout>, client: &Pod, server: &Pod) -> Result<()> {
    let reach = async {
        loop {
            reaches(client, server.ipv4.into(), PORT, Protocol::Tcp, false)
                .await
                .map_err(anyhow::Error::msg)?;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    let hear = async {
        let line = events.next_line().await?.context("monitor ended")?;
        let event: Value = serde_json::from_str(&line)?;
        ensure!(event["type"] == "policy-verdict" && event["port"] == PORT, "{event}");
        Ok(())
    };
    tokio::select! {
        failed = reach => failed,
        heard = tokio::time::timeout(LIMIT, hear) => heard.context("no event came")?,
    }
}
