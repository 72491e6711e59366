//! The command line on a real node: every command in every format, from a node's socket and from a workstation; no
//! secrets in a dump; settings of one node; events across an agent's end.
//!
//! Only when asked for, since it takes half a minute: `make live`.

mod agents;
mod dump;
mod labels;

use std::process::{Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use cilia_e2e::scenario::pods::{self, Plan, Pod};
use cilia_e2e::scenario::traffic::{Protocol, reaches, serve};
use cilia_e2e::scenario::{Stage, agent};
use cilia_e2e::wait::{Look, until};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::{Value, json};
use tokio::process::Command;

pub(crate) use agents::{a_node_has_settings_of_its_own, events_go_on_when_an_agent_ends};
pub(crate) use dump::a_dump_holds_no_secrets;
pub(crate) use labels::an_endpoint_has_labels_of_its_own;

use crate::asked_for;

const PORT: u16 = 7700;
const LIMIT: Duration = Duration::from_mins(2);
/// Commands that run at the same time: requests about endpoints have to wait for their turn.
const AT_ONCE: usize = 4;
/// `{pod}`, `{id}`, `{identity}` and `{address}` are those of a pod that was reached.
const COMMANDS: &[&str] = &[
    "status",
    "status --verbose",
    "endpoint list",
    "endpoint get {id}",
    "endpoint get pod-name:{pod}",
    "endpoint get ipv4:{address}",
    "endpoint get --labels app=server",
    "endpoint log {id}",
    "endpoint health {id}",
    "endpoint labels {id}",
    "endpoint config {id}",
    "identity list",
    "identity list --endpoints",
    "identity get {identity}",
    "identity get --label app=server",
    "identity advise",
    "ip list",
    "ip list -n -v",
    "ip get {address}",
    "ip get --labels app=server",
    "node list",
    "nodeid list",
    "service list",
    "service list --clustermesh-affinity",
    "policy get",
    "policy selectors",
    "policy selectors -v",
    "policy subject-selectors",
    "policy explain {pod} {pod} 80/TCP",
    "bpf ipcache list",
    "bpf ipcache get {address}",
    "bpf ipcache match {address}",
    "bpf policy get {id}",
    "bpf policy get {id} -n",
    "bpf policy get --all",
    "bpf policy list",
    "bpf ct list global",
    "bpf ct list endpoint {id} -d",
    "bpf endpoint list",
    "bpf lb list",
    "bpf lb list --revnat",
    "bpf lb list --backends",
    "bpf lb list --frontends",
    "bpf lb list --source-ranges",
    "bpf tunnel list",
    "bpf metrics list",
    "bpf config list",
    "bpf frag list",
    "bpf fs show",
    "map list",
    "map get cilium_lxc",
    "map get cilium_ct4_global",
    "metrics list",
    "metrics list -p ^cilium_endpoint",
    "config",
    "config --all",
    "config --read-only",
    "config get routing-mode",
    "encrypt status",
    "fqdn cache list",
    "fqdn names",
    "lrp list",
    "bgp peers",
    "bgp routes",
    "bgp route-policies",
    "version",
    "debuginfo",
];
const FORMATS: [&str; 5] = ["", "table", "json", "yaml", "jsonpath={.}"];

/// The command line with these words, without what this machine's user has.
fn command(words: &[&str]) -> Command {
    let mut command = Command::new(Stage::program("cilia"));
    command.args(words).env("HOME", "/nowhere").env_remove("KUBECONFIG").env_remove("CILIUM_SOCK");
    command.kill_on_drop(true).stdin(Stdio::null());
    command
}

/// Runs the command line to its end.
async fn cilia(words: &[&str]) -> Result<Output> {
    let mut command = command(words);
    let output = tokio::time::timeout(LIMIT, command.output()).await;
    output
        .with_context(|| format!("cilia {} takes too long", words.join(" ")))?
        .context("start cilia")
}

/// The socket of the agent on a node, as this process sees it.
async fn socket(stage: &Stage, node: &str) -> Result<String> {
    let pid = agent::process(stage, node).await?;
    Ok(format!("unix:///proc/{pid}/root/var/run/cilium/cilium.sock"))
}

/// Two pods on n1 that have talked, under a policy.
async fn talkers(stage: &Stage, namespace: &str) -> Result<Vec<Pod>> {
    pods::namespace(stage, namespace, &json!({})).await?;
    let plans = ["server", "client"].map(|name| Plan::idle(namespace, name).on("n1"));
    let found = pods::run(stage, &plans).await?;
    stage
        .apply(&json!({
            "apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy",
            "metadata": {"namespace": namespace, "name": "server"},
            "spec": {"endpointSelector": {"matchLabels": {"app": "server"}}, "ingress": [{
                "fromEndpoints": [{"matchLabels": {"app": "client"}}],
                "toPorts": [{"ports": [{"port": PORT.to_string(), "protocol": "TCP"}]}],
            }]},
        }))
        .await?;
    let [server, client] = &found[..] else { bail!("two pods") };
    serve(server, PORT).await?;
    until("the answer of the server", LIMIT, || async {
        match reaches(client, server.ipv4.into(), PORT, Protocol::Tcp, false).await {
            Ok(()) => Look::Done(()),
            Err(why) => Look::Not(why),
        }
    })
    .await?;
    Ok(found)
}

pub(crate) async fn every_command_speaks_every_format(stage: &Stage) -> Result<()> {
    if !asked_for() {
        return Ok(());
    }
    let found = talkers(stage, "speaks").await?;
    let server = &found[0];
    let host = socket(stage, "n1").await?;
    let name = format!("pod-name:speaks/{}", server.name);
    let words = ["-H", &host, "endpoint", "get", &name, "-o", "json"];
    let endpoint: Value = serde_json::from_slice(&cilia(&words).await?.stdout)?;
    let (id, identity) = (&endpoint[0]["id"], &endpoint[0]["status"]["identity"]["id"]);
    let fill = |command: &str| {
        let filled = command.replace("{pod}", &format!("speaks/{}", server.name));
        let filled = filled.replace("{id}", &id.to_string());
        let filled = filled.replace("{identity}", &identity.to_string());
        filled.replace("{address}", &server.ipv4.to_string())
    };
    let config = stage.cluster.layout.kubeconfig().display().to_string();
    let here = ["-H", &host];
    let there = ["--kubeconfig", &config, "--node", "n1"];
    let mut runs: Vec<(Vec<String>, &str)> = Vec::new();
    for command in COMMANDS {
        for format in FORMATS {
            runs.push((line(&here, &fill(command), format), format));
        }
        runs.push((line(&there, &fill(command), "json"), "json"));
    }
    for command in ["status", "endpoint list", "version", "config", "bpf ipcache list"] {
        for format in FORMATS {
            runs.push((line(&["--kubeconfig", &config], command, format), format));
        }
    }
    let total = runs.len();
    let checked = stream::iter(runs).map(|(words, format)| check(words, format));
    let faults: Vec<Option<String>> = checked.buffered(AT_ONCE).try_collect().await?;
    let faults: Vec<String> = faults.into_iter().flatten().collect();
    ensure!(faults.is_empty(), "{} of {total}:\n{}", faults.len(), faults.join("\n"));
    println!("  {total} runs of {} commands", COMMANDS.len());
    pods::leave(stage, "speaks").await?;
    Ok(())
}

fn line(access: &[&str], command: &str, format: &str) -> Vec<String> {
    let words = access.iter().copied().chain(command.split(' '));
    let format = ["-o", format].into_iter().filter(|_| !format.is_empty());
    words.chain(format).map(str::to_owned).collect()
}

/// What is wrong with an answer.
async fn check(words: Vec<String>, format: &str) -> Result<Option<String>> {
    let output = cilia(&words.iter().map(String::as_str).collect::<Vec<_>>()).await?;
    let (text, told) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // A packet that is dropped is an answer.
    let is_answer = words.iter().any(|word| word == "explain") && output.status.code() == Some(1);
    let fault = match format {
        _ if !(output.status.success() || is_answer) => Some(output.status.to_string()),
        "json" => serde_json::from_str::<Value>(&text).err().map(|error| error.to_string()),
        "yaml" => serde_saphyr::from_str::<Value>(&text).err().map(|error| error.to_string()),
        _ if text.trim().is_empty() && !told.contains("No entries found.") => {
            Some("it says nothing".to_owned())
        }
        _ if text.contains('\u{1b}') => Some("it is coloured".to_owned()),
        _ => None,
    };
    Ok(fault.map(|fault| {
        let start: String = text.chars().take(200).collect();
        format!("cilia {}: {fault}: {told}{start}", words.join(" "))
    }))
}
