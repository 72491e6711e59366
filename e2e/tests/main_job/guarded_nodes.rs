//! Policies about nodes and of nodes: which of them a pod may reach, what comes to a node that guards itself, and what
//! is open when it begins to.
//!
//! Only when asked for, since agents are restarted with another configuration: `make live`.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use cilia_e2e::scenario::live::Connection;
use cilia_e2e::scenario::pods::{self, Plan, Pod};
use cilia_e2e::scenario::traffic::serve;
use cilia_e2e::scenario::{Stage, chart};
use cilia_e2e::wait::{Look, until};
use serde_json::{Value, json};

use crate::asked_for;

const PORT: u16 = 7600;
/// Nodes serve on the other one as long as the cluster lives.
const GUARDED_PORT: u16 = 7650;
const LIMIT: Duration = Duration::from_secs(30);
/// After how long without an answer a connection counts as cut.
const PATIENCE: Duration = Duration::from_secs(4);
const NAMESPACE: &str = "guarded";

/// Somewhere to connect to.
#[derive(Clone)]
struct Target {
    name: &'static str,
    to: SocketAddr,
}

/// Waits until exactly these targets can be connected to from a pod.
async fn reaches_only(from: &Pod, targets: &[Target], wanted: &[&str], when: &str) -> Result<()> {
    let what = format!("{when}: {} reaches {wanted:?} and nothing else", from.name);
    until(&what, LIMIT, || async {
        let tries =
            targets.iter().map(|target| async move { (target, connects(from, target.to).await) });
        let mut wrong = Vec::new();
        for (target, reached) in futures::future::join_all(tries).await {
            if reached != wanted.contains(&target.name) {
                wrong.push(format!("{} at {}: {reached}", target.name, target.to));
            }
        }
        if wrong.is_empty() { Look::Done(()) } else { Look::Not(wrong.join("; ")) }
    })
    .await?;
    Ok(())
}

async fn connects(from: &Pod, to: SocketAddr) -> bool {
    let opened =
        from.run(move || std::net::TcpStream::connect_timeout(&to, Duration::from_secs(1)).is_ok());
    opened.await.unwrap_or(false)
}

fn at(name: &'static str, addresses: [IpAddr; 2], port: u16) -> impl Iterator<Item = Target> {
    addresses.into_iter().map(move |ip| Target { name, to: SocketAddr::new(ip, port) })
}

fn on_nodes(name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumClusterwideNetworkPolicy",
        "metadata": {"name": name}, "spec": spec,
    })
}

fn on_pods(name: &str, app: &str, section: &str, rules: &Value) -> Value {
    json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy",
        "metadata": {"namespace": NAMESPACE, "name": name},
        "spec": {"endpointSelector": {"matchLabels": {"app": app}}, section: rules},
    })
}

pub(crate) async fn entities_are_told_apart(stage: &Stage) -> Result<()> {
    if !asked_for() {
        return Ok(());
    }
    pods::namespace(stage, NAMESPACE, &json!({})).await?;
    let plans = [("client", "n1"), ("server", "n1")]
        .map(|(name, node)| Plan::idle(NAMESPACE, name).on(node));
    let found = pods::run(stage, &plans).await?;
    let [client, server] = &found[..] else { bail!("two pods") };
    let nodes = [Pod::of_node(stage, "n1")?, Pod::of_node(stage, "n2")?];
    for pod in found.iter().chain(&nodes) {
        serve(pod, PORT).await?;
    }
    let layout = &stage.cluster.layout;
    let api = stage.get("service", "default", "kubernetes").await?;
    let cluster_ip: IpAddr = api["spec"]["clusterIP"].as_str().unwrap_or_default().parse()?;
    let mut targets: Vec<_> = at("host", nodes[0].addresses(), PORT).collect();
    targets.extend(at("remote-node", nodes[1].addresses(), PORT));
    targets.extend(at("pod", server.addresses(), PORT));
    targets.push(Target { name: "kube-apiserver", to: layout.api_address() });
    targets.push(Target { name: "kube-apiserver", to: SocketAddr::new(cluster_ip, 443) });
    let all = ["host", "remote-node", "pod", "kube-apiserver"];
    reaches_only(client, &targets, &all, "without policy").await?;
    let cases: [(&[&str], &[&str]); 6] = [
        (&["host"], &["host"]),
        (&["remote-node"], &["remote-node"]),
        (&["kube-apiserver"], &["kube-apiserver"]),
        (&["cluster"], &["host", "remote-node", "pod", "kube-apiserver"]),
        (&["world"], &["kube-apiserver"]),
        (&["none"], &[]),
    ];
    for (entities, wanted) in cases {
        stage
            .apply(&on_pods("out", "client", "egress", &json!([{"toEntities": entities}])))
            .await?;
        reaches_only(client, &targets, wanted, &format!("to {entities:?}")).await?;
    }
    stage.delete("ciliumnetworkpolicy", NAMESPACE, "out").await?;
    println!("  six sets of entities to {} addresses", targets.len());

    // What comes to a pod: its own node may always, others as they are named.
    let target: Vec<_> = at("server", server.addresses(), PORT).collect();
    for (entities, far) in
        [(&["remote-node"][..], true), (&["host"], false), (&["cluster"], true), (&["none"], false)]
    {
        stage
            .apply(&on_pods("in", "server", "ingress", &json!([{"fromEntities": entities}])))
            .await?;
        let when = format!("from {entities:?}");
        let wanted: &[&str] = &["server"];
        reaches_only(&nodes[0], &target, wanted, &when).await?;
        reaches_only(&nodes[1], &target, if far { wanted } else { &[] }, &when).await?;
        let pods = entities.contains(&"cluster");
        reaches_only(client, &target, if pods { wanted } else { &[] }, &when).await?;
    }
    pods::leave(stage, NAMESPACE).await?;
    Ok(())
}

pub(crate) async fn policies_of_nodes_cut_and_keep(stage: &Stage) -> Result<()> {
    if !asked_for() {
        return Ok(());
    }
    let namespace = "guards";
    pods::namespace(stage, namespace, &json!({})).await?;
    let plans = [("friend", "n1"), ("stranger", "n1"), ("far", "n2")]
        .map(|(name, node)| Plan::idle(namespace, name).on(node));
    let probed = Plan::idle(namespace, "probed").on("n1").agnhost(&["netexec"]);
    stage.apply(&with_probe(probed.manifest())).await?;
    stage
        .apply(&json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"namespace": namespace, "name": "nobody"},
            "spec": {"podSelector": {"matchLabels": {"app": "probed"}}, "policyTypes": ["Ingress"]},
        }))
        .await?;
    let found = pods::run(stage, &plans).await?;
    let [friend, stranger, far] = &found[..] else { bail!("three pods") };
    let nodes = [Pod::of_node(stage, "n1")?, Pod::of_node(stage, "n2")?];
    for pod in found.iter().chain(&nodes) {
        serve(pod, GUARDED_PORT).await?;
    }
    let open = async |from: &Pod, to: &Pod| -> Result<Vec<Connection>> {
        let mut opened = Vec::new();
        for ip in to.addresses() {
            opened.push(Connection::open(from, SocketAddr::new(ip, GUARDED_PORT), PATIENCE).await?);
        }
        Ok(opened)
    };
    // Opened before nodes guard themselves.
    let mut kept = Vec::new();
    for (from, to) in [
        (friend, &nodes[0]),
        (friend, &nodes[1]),
        (&nodes[1], &nodes[0]),
        (&nodes[0], far),
        (far, &nodes[0]),
    ] {
        kept.extend(open(from, to).await?);
    }
    chart::install(stage, &["hostFirewall.enabled=true"]).await?;
    chart::rolled_out(stage).await?;
    chart::ready(stage).await?;
    let broken = kept.iter().filter(|one| one.broken()).count();
    ensure!(
        broken == 0,
        "{broken} of {} connections broke as nodes began to guard themselves",
        kept.len()
    );
    // And after.
    for (from, to) in [(friend, &nodes[0]), (friend, &nodes[1]), (&nodes[1], &nodes[0])] {
        kept.extend(open(from, to).await?);
    }
    let mut cut = open(stranger, &nodes[0]).await?;
    cut.extend(open(stranger, &nodes[1]).await?);

    let friends = json!([{"matchLabels": {"app": "friend", "k8s:io.kubernetes.pod.namespace": namespace}}, {"matchLabels": {"app": "far", "k8s:io.kubernetes.pod.namespace": namespace}}]);
    stage
        .apply(&on_nodes(
            "guards",
            &json!({
                "nodeSelector": {},
                "ingress": [
                    {"fromEntities": ["remote-node", "kube-apiserver", "health"]},
                    {"fromEndpoints": friends, "toPorts": [{"ports": [{"port": GUARDED_PORT.to_string(), "protocol": "TCP"}]}]},
                ],
            }),
        ))
        .await?;
    until("the cut of what strangers had open", LIMIT, || async {
        let alive = cut.iter().filter(|connection| !connection.broken()).count();
        if alive == 0 { Look::Done(()) } else { Look::Not(format!("{alive} are alive")) }
    })
    .await?;
    let targets: Vec<_> = at("n1", nodes[0].addresses(), GUARDED_PORT)
        .chain(at("n2", nodes[1].addresses(), GUARDED_PORT))
        .collect();
    reaches_only(stranger, &targets, &[], "guarded").await?;
    reaches_only(friend, &targets, &["n1", "n2"], "guarded").await?;
    let here: Vec<_> = targets[..2].to_vec();
    reaches_only(&nodes[1], &here, &["n1"], "guarded").await?;
    // Kubelet is asked for this by the API server, and asks the pod itself.
    let words =
        [&format!("--namespace={namespace}")[..], "exec", "probed", "--", "/agnhost", "--help"];
    stage.cluster.kubectl(&words).await?;
    until("the readiness of a pod that nobody may reach", LIMIT, || async {
        match stage.get("pod", namespace, "probed").await {
            Ok(pod) if pod["status"]["containerStatuses"][0]["ready"] == true => Look::Done(()),
            Ok(pod) => Look::Not(pod["status"]["conditions"].to_string()),
            Err(error) => Look::Not(error.to_string()),
        }
    })
    .await?;
    chart::ready(stage).await?;

    // What a node may ask is another thing: with that closed, its pods stay reachable by others.
    stage
        .apply(&on_nodes(
            "asks",
            &json!({
                "nodeSelector": {"matchLabels": {"kubernetes.io/hostname": "n1"}},
                "egress": [{"toEntities": ["remote-node", "kube-apiserver", "health"]}],
            }),
        ))
        .await?;
    let target: Vec<_> = at("far", far.addresses(), GUARDED_PORT).collect();
    reaches_only(&nodes[0], &target, &[], "asking only nodes").await?;
    reaches_only(friend, &target, &["far"], "asking only nodes").await?;
    let node_to_pod = 6..8;
    let mut exchanged = 0;
    let mut gone = Vec::new();
    for (number, connection) in kept.into_iter().enumerate() {
        match connection.finish().await {
            // That is what was closed last.
            Err(_) if node_to_pod.contains(&number) => {}
            Ok(count) => exchanged += count,
            Err(error) => gone.push(format!("connection {number}: {error}")),
        }
    }
    ensure!(gone.is_empty(), "{}", gone.join("; "));
    println!("  what is allowed stays open: {exchanged} messages");
    for name in ["guards", "asks"] {
        stage.delete("ciliumclusterwidenetworkpolicy", "", name).await?;
    }
    reaches_only(stranger, &targets, &["n1", "n2"], "unguarded").await?;
    chart::install(stage, &[]).await?;
    chart::rolled_out(stage).await?;
    chart::ready(stage).await?;
    pods::leave(stage, namespace).await?;
    Ok(())
}

/// The same pod, asked by kubelet whether it is ready.
fn with_probe(mut pod: Value) -> Value {
    pod["spec"]["containers"][0]["readinessProbe"] = json!({"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 1, "failureThreshold": 2});
    pod
}
