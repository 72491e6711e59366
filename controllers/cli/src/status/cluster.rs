//! Finds out how a cluster is: asks Kubernetes about the programs, and every agent about itself.

use std::fmt::Debug;
use std::process::ExitCode;
use std::time::Instant;

use futures::{StreamExt as _, stream};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::diagnosis::{Agent, Facts, Problem, Workload, problems, row};
use super::{Arguments, POLL, Waiting, state};
use crate::access::AT_ONCE;
use crate::cluster::{Cluster, node, runs, said};
use crate::output::Format;
use crate::paint::Paint;
use crate::table::Table;

/// The taint of nodes whose agent is not ready.
const TAINT: &str = "node.cilium.io/agent-not-ready";
/// Objects that are asked for at a time.
const PAGE: u32 = 500;

pub(super) async fn run(
    cluster: &Cluster,
    arguments: &Arguments,
    format: Option<&Format>,
) -> anyhow::Result<ExitCode> {
    let deadline = Instant::now() + arguments.wait_duration;
    let mut waiting = Waiting::default();
    let (facts, found) = loop {
        match facts(cluster, arguments).await {
            Ok(facts) => {
                let found = problems(&facts);
                if !arguments.wait || found.is_empty() || Instant::now() >= deadline {
                    break (facts, found);
                }
                waiting.tell(found.first().map(|first| first.what.clone()).unwrap_or_default());
            }
            Err(error) if !arguments.wait || Instant::now() >= deadline => return Err(error),
            Err(error) => waiting.tell(format!("{error:#}")),
        }
        tokio::time::sleep(POLL).await;
    };
    match format {
        Some(format) => format.print(&show(&facts, &found))?,
        None if arguments.brief => {
            println!("{}", found.first().map_or("OK", |problem| &problem.what));
        }
        None => print!("{}", render(&facts, &found, !arguments.no_nodes, Paint::of_output())),
    }
    Ok(if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn facts(cluster: &Cluster, arguments: &Arguments) -> anyhow::Result<Facts> {
    let client = &cluster.client;
    let pods = cluster.pods().await?;
    let agents = stream::iter(&pods).map(|pod| agent(cluster, pod, arguments)).buffered(AT_ONCE);
    let agents: Vec<Agent> = agents.collect().await;
    let mut facts = Facts { namespace: cluster.namespace.clone(), agents, ..Facts::default() };
    let sets: Api<DaemonSet> = Api::namespaced(client.clone(), &cluster.namespace);
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), &cluster.namespace);
    let nodes: Api<Node> = Api::all(client.clone());
    let (set, operator, nodes, pods) = tokio::join!(
        sets.get_opt("cilium"),
        deployments.get_opt("cilium-operator"),
        all(&nodes),
        managed(client),
    );
    match set {
        Ok(set) => facts.daemon_set = set.map(|set| daemon_set(&set)),
        Err(error) => facts.unknown.push(("the daemon set", said(error).to_string())),
    }
    match operator {
        Ok(operator) => facts.operator = operator.map(|deployment| operators(&deployment)),
        Err(error) => facts.unknown.push(("the operator", said(error).to_string())),
    }
    // What may not be looked at is no problem of the cluster's.
    for (what, _) in &facts.unknown {
        match *what {
            "the daemon set" => {
                let count = i32::try_from(facts.agents.len()).unwrap_or(i32::MAX);
                facts.daemon_set = Some(Workload { wanted: count, ready: count, updated: count });
            }
            _ => facts.operator = Some(Workload { wanted: 1, ready: 1, updated: 1 }),
        }
    }
    match nodes {
        Ok(nodes) => {
            facts.nodes = nodes
                .iter()
                .filter(|node| may_have_agent(node))
                .map(kube::ResourceExt::name_any)
                .collect();
            facts.tainted = nodes
                .iter()
                .filter(|node| tainted(node))
                .map(kube::ResourceExt::name_any)
                .collect();
        }
        Err(error) => facts.unknown.push(("nodes", said(error).to_string())),
    }
    match pods {
        Ok(pods) => facts.pods = Some(pods),
        Err(error) => facts.unknown.push(("pods", said(error).to_string())),
    }
    Ok(facts)
}

async fn agent(cluster: &Cluster, pod: &Pod, arguments: &Arguments) -> Agent {
    let containers =
        pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    let init = pod.status.iter().flat_map(|status| status.init_container_statuses.iter().flatten());
    let waits = |state: &k8s_openapi::api::core::v1::ContainerStatus| {
        state.state.as_ref()?.waiting.as_ref()?.reason.clone()
    };
    // Waiting for one's turn is no trouble.
    let waits = init
        .chain(containers.clone())
        .filter_map(waits)
        .find(|why| why != "PodInitializing" && why != "ContainerCreating");
    let phase = || pod.status.as_ref().and_then(|status| status.phase.clone());
    let trouble = waits.or_else(|| (!runs(pod)).then(phase).flatten());
    let status = if trouble.is_none() {
        let agent = cluster.agent(pod).patience(arguments.timeout);
        Some(agent.get("/v1/healthz").await.map_err(|error| format!("{error:#}")))
    } else {
        None
    };
    Agent {
        node: node(pod),
        pod: pod.name_any(),
        trouble,
        restarts: containers.map(|state| state.restart_count).sum(),
        status,
    }
}

fn daemon_set(set: &DaemonSet) -> Workload {
    let status = set.status.clone().unwrap_or_default();
    Workload {
        wanted: status.desired_number_scheduled,
        ready: status.number_ready,
        updated: status.updated_number_scheduled.unwrap_or(0),
    }
}

fn operators(deployment: &Deployment) -> Workload {
    let status = deployment.status.clone().unwrap_or_default();
    let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    Workload {
        wanted,
        ready: status.ready_replicas.unwrap_or(0),
        updated: status.updated_replicas.unwrap_or(0),
    }
}

/// Whether the daemon set means this node.
fn may_have_agent(node: &Node) -> bool {
    node.labels().get("kubernetes.io/os").is_none_or(|os| os == "linux")
}

fn tainted(node: &Node) -> bool {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints.into_iter().any(|taint| taint.key == TAINT)
}

/// How many pods are on the pod network, and how many of them have an endpoint.
async fn managed(client: &Client) -> kube::Result<(usize, usize)> {
    let pods: Vec<Pod> = all(&Api::all(client.clone())).await?;
    let endpoints: Api<cilia_crds::CiliumEndpoint> = Api::all(client.clone());
    let endpoints = match all(&endpoints).await {
        Ok(endpoints) => endpoints,
        // The operator has not made the kind yet.
        Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
        Err(error) => return Err(error),
    };
    let endpoints: std::collections::HashSet<(String, String)> =
        endpoints.iter().map(|one| (one.namespace().unwrap_or_default(), one.name_any())).collect();
    let on_network = |pod: &&Pod| {
        let host = pod.spec.as_ref().and_then(|spec| spec.host_network) == Some(true);
        runs(pod) && !host
    };
    let wanted = pods.iter().filter(on_network);
    let has =
        |pod: &&Pod| endpoints.contains(&(pod.namespace().unwrap_or_default(), pod.name_any()));
    Ok((wanted.clone().count(), wanted.filter(has).count()))
}

/// Every object of a kind, page by page.
async fn all<K>(api: &Api<K>) -> kube::Result<Vec<K>>
where
    K: Clone + DeserializeOwned + Debug,
{
    let (mut items, mut parameters) = (Vec::new(), ListParams::default().limit(PAGE));
    loop {
        let page = api.list(&parameters).await?;
        items.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters = parameters.continue_token(&token),
            None => return Ok(items),
        }
    }
}

fn show(facts: &Facts, found: &[Problem]) -> Value {
    let workload = |one: Option<Workload>| {
        one.map(|one| json!({"wanted": one.wanted, "ready": one.ready, "updated": one.updated}))
    };
    let agent = |agent: &Agent| {
        let (status, error) = match &agent.status {
            Some(Ok(status)) => (Some(status), agent.trouble.clone()),
            Some(Err(error)) => (None, Some(error.clone())),
            None => (None, agent.trouble.clone()),
        };
        json!({"node": agent.node, "pod": agent.pod, "restarts": agent.restarts, "error": error, "status": status})
    };
    json!({
        "agents": workload(facts.daemon_set),
        "operators": workload(facts.operator),
        "pods": facts.pods.map(|(pods, with)| json!({"total": pods, "managed": with})),
        "nodes": facts.agents.iter().map(agent).collect::<Vec<_>>(),
        "problems": found.iter().map(Problem::show).collect::<Vec<_>>(),
        "unknown": facts.unknown.iter().map(|(what, why)| json!({"what": what, "why": why})).collect::<Vec<_>>(),
    })
}

fn render(facts: &Facts, found: &[Problem], nodes: bool, paint: Paint) -> String {
    let mut text = String::new();
    let mut push = |line: String| {
        text.push_str(&line);
        text.push('\n');
    };
    let about = |word: &str| found.iter().all(|problem| !problem.what.contains(word));
    let workload = |one: Option<Workload>| {
        one.map_or_else(|| "not there".into(), |one| format!("{}/{} ready", one.ready, one.wanted))
    };
    let line = |label: &str, well: bool, what: &str| {
        format!("{label:<14}{}   {what}", state(paint, well)).trim_end().to_owned()
    };
    let agents_well = about("agent") && facts.daemon_set.is_some();
    push(line("Agents:", agents_well, &workload(facts.daemon_set)));
    push(line("Operators:", about("operator"), &workload(facts.operator)));
    if let Some((pods, with)) = facts.pods {
        push(line("Pods:", with == pods, &format!("{with}/{pods} managed by Cilia")));
    }
    for (what, why) in &facts.unknown {
        push(format!("{:<14}{}   {why}", "", paint.odd(&format!("{what} can't be looked at"))));
    }
    if nodes && !facts.agents.is_empty() {
        let mut table = Table::new(5);
        table.row(["NODE", "POD", "STATE", "ENDPOINTS", "RESTARTS", "VERSION"]);
        for agent in &facts.agents {
            table.row(row(agent));
        }
        push(String::new());
        for line in table.trimmed().lines() {
            push(line.to_owned());
        }
    }
    if !found.is_empty() {
        push(String::new());
        push(paint.bad("What is wrong:"));
        for problem in found {
            push(format!("  {}", problem.what));
            push(format!("    -> {}", problem.todo));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Agent, Facts, Paint, Workload, problems, render, show};

    #[test]
    fn the_picture_of_a_cluster() {
        let mut facts = Facts {
            namespace: "kube-system".into(),
            nodes: vec!["n1".into(), "n2".into()],
            agents: vec![
                Agent {
                    node: "n1".into(),
                    pod: "cilium-a".into(),
                    status: Some(Ok(
                        json!({"cilium": {"state": "Ok", "msg": "0.1.0"}, "endpoints": {"total": 4}}),
                    )),
                    ..Agent::default()
                },
                Agent {
                    node: "n2".into(),
                    pod: "cilium-b".into(),
                    trouble: Some("CrashLoopBackOff".into()),
                    restarts: 7,
                    ..Agent::default()
                },
            ],
            operator: Some(Workload { wanted: 2, ready: 2, updated: 2 }),
            daemon_set: Some(Workload { wanted: 2, ready: 1, updated: 2 }),
            pods: Some((4, 4)),
            ..Facts::default()
        };
        let found = problems(&facts);
        let want = "\
Agents:       error   1/2 ready
Operators:    OK   2/2 ready
Pods:         OK   4/4 managed by Cilia

NODE   POD        STATE              ENDPOINTS   RESTARTS   VERSION
n1     cilium-a   OK                 4           0          0.1.0
n2     cilium-b   CrashLoopBackOff               7

What is wrong:
  agent on n2: CrashLoopBackOff
    -> kubectl -n kube-system logs cilium-b --all-containers --tail=50 (--previous if it restarts)
";
        assert_eq!(render(&facts, &found, true, Paint::plain()), want);
        let value = show(&facts, &found);
        assert_eq!(value["problems"][0]["problem"], "agent on n2: CrashLoopBackOff");
        assert_eq!(value["nodes"][1]["error"], "CrashLoopBackOff");

        facts.agents.pop();
        facts.nodes.pop();
        facts.daemon_set = Some(Workload { wanted: 1, ready: 1, updated: 1 });
        let text = render(&facts, &problems(&facts), false, Paint::plain());
        assert_eq!(
            text,
            "Agents:       OK   1/1 ready\nOperators:    OK   2/2 ready\nPods:         OK   4/4 managed by Cilia\n"
        );
    }
}
