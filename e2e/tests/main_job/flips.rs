//! Policies come, go and take each other's place under traffic: what they all allow loses no packet, and what they
//! all deny never passes, nor while an agent dies and comes back.
//!
//! Only when asked for: `make live`.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cilia_e2e::scenario::Stage;
use cilia_e2e::scenario::live::Datagrams;
use cilia_e2e::scenario::pods::{self, Plan, Pod};
use cilia_e2e::scenario::traffic::{Protocol, reaches, serve};
use cilia_e2e::wait::{Look, until};
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::agent_restart::kill_agent;
use crate::asked_for;

const PORT: u16 = 7400;
/// How often each change is made.
const ROUNDS: usize = 15;
const LIMIT: Duration = Duration::from_secs(20);
/// Between changes, so that some meet in one batch and some do not.
const PAUSES: [Duration; 3] = [Duration::ZERO, Duration::from_millis(5), Duration::from_millis(60)];
const NAMESPACE: &str = "flips";

/// Makes policies, however fast.
struct Policies(Client);

impl Policies {
    fn api(&self, object: &Value) -> Result<Api<DynamicObject>> {
        let text = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
        let (group, version) = text("apiVersion")
            .split_once('/')
            .map(|(a, b)| (a.to_owned(), b.to_owned()))
            .context("a group")?;
        let kind = GroupVersionKind { group, version, kind: text("kind") };
        Ok(Api::namespaced_with(self.0.clone(), NAMESPACE, &ApiResource::from_gvk(&kind)))
    }

    async fn create(&self, object: &Value) -> Result<()> {
        let made = serde_json::from_value(object.clone())?;
        self.api(object)?.create(&PostParams::default(), &made).await?;
        Ok(())
    }

    async fn edit(&self, object: &Value, spec: &Value) -> Result<()> {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let patch = Patch::Json::<()>(serde_json::from_value(
            json!([{"op": "replace", "path": "/spec", "value": spec}]),
        )?);
        self.api(object)?.patch(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    async fn delete(&self, object: &Value) -> Result<()> {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        self.api(object)?.delete(name, &DeleteParams::default()).await?;
        Ok(())
    }
}

fn cilium(name: &str, ingress: &Value) -> Value {
    json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy",
        "metadata": {"namespace": NAMESPACE, "name": name},
        "spec": {"endpointSelector": {"matchLabels": {"app": "server"}}, "ingress": ingress},
    })
}

fn kubernetes(name: &str, ingress: &Value) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": NAMESPACE, "name": name},
        "spec": {"podSelector": {"matchLabels": {"app": "server"}}, "ingress": ingress},
    })
}

/// Lets the clients in, all in ways of their own: by label, by port, by range of ports, by negation.
fn ways() -> [Value; 4] {
    let clients = json!([{"matchLabels": {"role": "client"}}]);
    let not = json!([{"matchExpressions": [{"key": "role", "operator": "NotIn", "values": ["stranger"]}]}]);
    let to = |ports: Value| json!([{"ports": [ports]}]);
    [
        json!([{"fromEndpoints": clients}]),
        json!([{"fromEndpoints": clients, "toPorts": to(json!({"port": PORT.to_string(), "protocol": "UDP"}))}]),
        json!([{"fromEndpoints": not, "toPorts": to(json!({"port": "7000", "endPort": 8000, "protocol": "ANY"}))}]),
        json!([{"fromEndpoints": not}]),
    ]
}

fn in_kubernetes() -> Value {
    json!([{"from": [{"podSelector": {"matchLabels": {"role": "client"}}}]}])
}

pub(crate) async fn lose_nothing_and_let_nothing_through(stage: &Stage) -> Result<()> {
    if !asked_for() {
        return Ok(());
    }
    pods::namespace(stage, NAMESPACE, &json!({})).await?;
    let plan = |name: &str, node: &str, role: &str| {
        Plan::idle(NAMESPACE, name).on(node).label("role", role)
    };
    let found = pods::run(
        stage,
        &[
            plan("server", "n1", "server"),
            plan("near", "n1", "client"),
            plan("far", "n2", "client"),
            plan("near-stranger", "n1", "stranger"),
            plan("far-stranger", "n2", "stranger"),
        ],
    )
    .await?;
    let [server, near, far, strangers @ ..] = &found[..] else { anyhow::bail!("five pods") };
    serve(server, PORT).await?;
    let policies = Policies(stage.client().await?);
    let mut wrong = Vec::new();
    let ways = ways();
    let (first, second) = (cilium("first", &ways[0]), cilium("second", &ways[1]));
    let third = kubernetes("third", &in_kubernetes());
    policies.create(&first).await?;
    closed(strangers, server).await?;

    let traffic = Traffic::start(&[near, far], strangers, server).await?;
    for round in 0..ROUNDS {
        for other in [&second, &third] {
            policies.create(other).await?;
            tokio::time::sleep(PAUSES[round % PAUSES.len()]).await;
            policies.delete(other).await?;
            tokio::time::sleep(PAUSES[round % PAUSES.len()]).await;
        }
    }
    wrong.append(&mut traffic.finish("one stays while others come and go").await?);

    let traffic = Traffic::start(&[near, far], strangers, server).await?;
    for round in 0..4 * ROUNDS {
        let ingress = &ways[(round + 1) % ways.len()];
        policies.edit(&first, &cilium("", ingress)["spec"]).await?;
        tokio::time::sleep(PAUSES[round % PAUSES.len()]).await;
    }
    wrong.append(&mut traffic.finish("one is edited").await?);

    for (name, other) in [("two of a kind swap", &second), ("two of different kinds swap", &third)]
    {
        let traffic = Traffic::start(&[near, far], strangers, server).await?;
        for round in 0..ROUNDS {
            for (comes, goes) in [(other, &first), (&first, other)] {
                policies.create(comes).await?;
                policies.delete(goes).await?;
                tokio::time::sleep(PAUSES[round % PAUSES.len()]).await;
            }
        }
        wrong.append(&mut traffic.finish(name).await?);
    }

    // The same the other way round: what keeps strangers out is a denial, beside something that lets all in.
    let all = cilium("all", &json!([{"fromEntities": ["all"]}]));
    let denial = |name: &str, peers: Value| {
        let mut policy = cilium(name, &Value::Null);
        policy["spec"].as_object_mut().map(|spec| spec.remove("ingress"));
        policy["spec"]["ingressDeny"] = json!([{"fromEndpoints": peers}]);
        policy
    };
    let one = denial("one", json!([{"matchLabels": {"role": "stranger"}}]));
    let two = denial(
        "two",
        json!([{"matchExpressions": [
            {"key": "role", "operator": "NotIn", "values": ["client", "server"]},
        ]}]),
    );
    policies.create(&one).await?;
    policies.create(&all).await?;
    let traffic = Traffic::start(&[near, far], strangers, server).await?;
    for round in 0..ROUNDS {
        for (comes, goes) in [(&two, &one), (&one, &two)] {
            policies.create(comes).await?;
            policies.delete(goes).await?;
            tokio::time::sleep(PAUSES[round % PAUSES.len()]).await;
        }
    }
    wrong.append(&mut traffic.finish("two denials swap").await?);

    let traffic = Traffic::start(&[near, far], strangers, server).await?;
    kill_agent(stage, "n1").await?;
    wrong.append(&mut traffic.finish("the receiver's agent is killed").await?);
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    pods::leave(stage, NAMESPACE).await?;
    Ok(())
}

/// Waits until none of these gets through.
async fn closed(strangers: &[Pod], server: &Pod) -> Result<()> {
    for stranger in strangers {
        until(&format!("denial of {}", stranger.name), LIMIT, || async {
            let reached = reaches(stranger, server.ipv4.into(), PORT, Protocol::Udp, false).await;
            if reached.is_err() { Look::Done(()) } else { Look::Not("reached".to_owned()) }
        })
        .await?;
    }
    Ok(())
}

/// Datagrams of those who may, and of those who may not.
struct Traffic {
    allowed: Vec<(String, Datagrams)>,
    denied: Vec<(String, Datagrams)>,
}

impl Traffic {
    async fn start(clients: &[&Pod], strangers: &[Pod], server: &Pod) -> Result<Self> {
        let mut traffic = Self { allowed: Vec::new(), denied: Vec::new() };
        for ip in server.addresses() {
            let to = SocketAddr::new(ip, PORT);
            for from in clients {
                let stream = Datagrams::start(from, to).await?;
                traffic.allowed.push((format!("{} to {to}", from.name), stream));
            }
            for from in strangers {
                let stream = Datagrams::start(from, to).await?;
                traffic.denied.push((format!("{} to {to}", from.name), stream));
            }
        }
        Ok(traffic)
    }

    /// What allowed was lost, and what denied passed.
    async fn finish(self, when: &str) -> Result<Vec<String>> {
        let (mut sent, mut wrong) = (0, Vec::new());
        for (name, stream) in self.allowed {
            let tally = stream.finish().await?;
            sent += tally.sent;
            if tally.answered != tally.sent {
                wrong.push(format!(
                    "{name} lost {} of {}",
                    tally.sent - tally.answered,
                    tally.sent
                ));
            }
        }
        for (name, stream) in self.denied {
            let tally = stream.finish().await?;
            sent += tally.sent;
            if tally.answered != 0 {
                wrong.push(format!("{name} passed {} times", tally.answered));
            }
        }
        println!("  {when}: {sent} datagrams; {} streams went wrong", wrong.len());
        Ok(wrong.into_iter().map(|wrong| format!("{when}: {wrong}")).collect())
    }
}
