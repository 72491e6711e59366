//! Policy: what it cuts, what it lets through, and what is told about it.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use cilia_e2e::scenario::Stage;
use cilia_e2e::scenario::agent::Monitor;
use cilia_e2e::scenario::live::Connection;
use cilia_e2e::scenario::pods::{self, Plan, Pod};
use cilia_e2e::scenario::traffic::{Protocol, reaches, serve};
use cilia_e2e::wait::{Look, until};
use futures::future::try_join_all;
use serde_json::{Value, json};

const PORT: u16 = 7000;
const OTHER_PORT: u16 = 7001;
/// How long a policy may take to be in force on a busy machine.
const LIMIT: Duration = Duration::from_secs(20);
/// After how long without an answer a connection counts as cut.
const PATIENCE: Duration = Duration::from_secs(2);

async fn cast(stage: &Stage, namespace: &str) -> Result<Vec<Pod>> {
    pods::namespace(stage, namespace, &json!({})).await?;
    let plans = [("server", "n1"), ("client", "n2"), ("stranger", "n1")]
        .map(|(name, node)| Plan::idle(namespace, name).on(node));
    let found = pods::run(stage, &plans).await?;
    serve(&found[0], PORT).await?;
    serve(&found[0], OTHER_PORT).await?;
    Ok(found)
}

fn default_deny(namespace: &str, app: &str, direction: &str) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": namespace, "name": format!("deny-{app}-{direction}").to_lowercase()},
        "spec": {"podSelector": {"matchLabels": {"app": app}}, "policyTypes": [direction]},
    })
}

fn allow(namespace: &str) -> Value {
    json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy",
        "metadata": {"namespace": namespace, "name": "allow"},
        "spec": {
            "endpointSelector": {"matchLabels": {"app": "server"}},
            "ingress": [{
                "fromEndpoints": [{"matchLabels": {"app": "client"}}],
                "toPorts": [{"ports": [{"port": PORT.to_string(), "protocol": "TCP"}]}],
            }],
        },
    })
}

/// Waits until a new connection from `pod` is made, or is not, as `wanted`.
async fn connects(pod: &Pod, to: SocketAddr, wanted: bool) -> Result<()> {
    let what = format!("{} of {to} by {}", if wanted { "reach" } else { "denial" }, pod.name);
    until(&what, LIMIT, || async {
        let reached = reaches(pod, to.ip(), to.port(), Protocol::Tcp, false).await;
        if reached.is_ok() == wanted { Look::Done(()) } else { Look::Not(format!("{reached:?}")) }
    })
    .await?;
    Ok(())
}

async fn identity(stage: &Stage, pod: &Pod) -> Result<u64> {
    let endpoint = stage.get("ciliumendpoint", &pod.namespace, &pod.name).await?;
    let identity = endpoint["status"]["identity"]["id"].as_u64();
    identity.ok_or_else(|| anyhow::anyhow!("{} has no identity", pod.name))
}

pub(crate) async fn deny_cuts_and_allow_restores(stage: &Stage) -> Result<()> {
    let found = cast(stage, "rules").await?;
    let [server, client, stranger] = &found[..] else { anyhow::bail!("three pods") };
    let to = server.addresses().map(|ip| SocketAddr::new(ip, PORT));
    let mut live = Vec::new();
    for address in to {
        live.push(Connection::open(client, address, PATIENCE).await?);
    }
    let monitor = Monitor::start(stage, &server.node, &["--type", "drop"]).await?;
    until("the monitor's first line", LIMIT, || async {
        if monitor.lines().is_empty() { Look::Not("silent".to_owned()) } else { Look::Done(()) }
    })
    .await?;

    stage.apply(&default_deny("rules", "server", "Ingress")).await?;
    until("the cut of the live connections", LIMIT, || async {
        let alive = live.iter().filter(|connection| !connection.broken()).count();
        if alive == 0 { Look::Done(()) } else { Look::Not(format!("{alive} are alive")) }
    })
    .await?;
    // What takes as long as patience lasts is looked at for both families at once.
    try_join_all(to.map(|address| connects(client, address, false))).await?;
    let (from, at) = (identity(stage, client).await?, identity(stage, server).await?);
    let words = ["Policy denied".to_owned(), format!("identity {from}->{at}")];
    until(&format!("an event with {words:?}"), LIMIT, || async {
        let lines = monitor.lines();
        let fits = |line: &&String| words.iter().all(|word| line.contains(word.as_str()));
        match lines.iter().find(fits) {
            Some(_) => Look::Done(()),
            None => Look::Not(format!("{:?}", lines.last())),
        }
    })
    .await?;

    stage.apply(&allow("rules")).await?;
    try_join_all(to.map(|address| connects(client, address, true))).await?;
    let others = to.map(|address| SocketAddr::new(address.ip(), OTHER_PORT));
    let denied = to.map(|to| (stranger, to)).into_iter().chain(others.map(|to| (client, to)));
    try_join_all(denied.map(|(pod, to)| connects(pod, to, false))).await?;
    stage.delete("networkpolicy", "rules", "deny-server-ingress").await?;
    stage.delete("ciliumnetworkpolicy", "rules", "allow").await?;
    for address in to {
        connects(stranger, address, true).await?;
    }
    pods::leave(stage, "rules").await?;
    Ok(())
}

pub(crate) async fn replies_pass_both_ways_denied(stage: &Stage) -> Result<()> {
    let found = cast(stage, "replies").await?;
    let [server, client, stranger] = &found[..] else { anyhow::bail!("three pods") };
    serve(client, PORT).await?;
    let own = SocketAddr::new(client.ipv4.into(), PORT);
    connects(server, own, true).await?;
    // The server may be asked by the client, and may itself ask nobody.
    for direction in ["Ingress", "Egress"] {
        stage.apply(&default_deny("replies", "server", direction)).await?;
    }
    stage.apply(&allow("replies")).await?;
    let to = server.addresses().map(|address| SocketAddr::new(address, PORT));
    try_join_all(to.map(|to| connects(client, to, true))).await?;
    let denied = to.map(|to| (stranger, to)).into_iter().chain([(server, own)]);
    try_join_all(denied.map(|(pod, to)| connects(pod, to, false))).await?;
    for address in server.addresses() {
        let large = reaches(client, address, PORT, Protocol::Tcp, true).await;
        ensure!(large.is_ok(), "a reply of many packets: {large:?}");
    }
    pods::leave(stage, "replies").await?;
    Ok(())
}
