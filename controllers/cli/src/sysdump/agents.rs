//! Decides what is collected of agents and operators: what their APIs say, and their logs.

use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, LogParams};
use kube::{Api, ResourceExt as _};
use serde_json::Value;

use super::objects::pretty;
use super::{Arguments, Item, mask};
use crate::agent::{Agent, segment};
use crate::cluster::{Cluster, node, runs, said};
use crate::output::{items, text};

/// What an agent is asked, and the file for the answer.
const ANSWERS: [(&str, &str); 13] = [
    ("/v1/healthz", "status.json"),
    ("/v1/config", "config.json"),
    ("/v1/endpoint", "endpoints.json"),
    ("/v1/identity", "identities.json"),
    ("/v1/identity/endpoints", "identities-of-endpoints.json"),
    ("/v1/ip", "ips.json"),
    ("/v1/cluster/nodes", "nodes.json"),
    ("/v1/policy", "policies.json"),
    ("/v1/policy/selectors", "policy-selectors.json"),
    ("/v1/service", "services.json"),
    ("/v1/node/ids", "node-ids.json"),
    ("/v1/metrics", "metrics.json"),
    ("/v1/map", "maps.json"),
];
/// Maps that grow with the traffic.
const LARGE: &str = "cilium_ct";

/// Everything about a cluster's agents and operators.
pub(super) async fn of_cluster(
    cluster: &Cluster,
    arguments: &Arguments,
    wanted: &[String],
) -> anyhow::Result<Vec<Item>> {
    let mut found = Vec::new();
    let api: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let part_of = ListParams::default().labels("app.kubernetes.io/part-of=cilium");
    let others = api.list(&part_of).await.map_err(said).context("list Cilium's pods")?.items;
    let agents = cluster.pods().await?;
    let is_wanted = |pod: &&Pod| wanted.is_empty() || wanted.contains(&node(pod));
    for pod in agents.iter().filter(is_wanted).filter(|pod| runs(pod)) {
        found.extend(state(&cluster.agent(pod), &pod.name_any(), arguments.quick));
    }
    if arguments.quick {
        return Ok(found);
    }
    let is_agent = |pod: &Pod| agents.iter().any(|agent| agent.name_any() == pod.name_any());
    let others = others.iter().filter(|pod| !is_agent(pod));
    for pod in agents.iter().filter(is_wanted).chain(others) {
        found.extend(logs(&api, pod, arguments));
    }
    Ok(found)
}

/// What an agent's API says.
pub(super) fn state(agent: &Agent, folder: &str, quick: bool) -> Vec<Item> {
    let mut found: Vec<Item> = ANSWERS
        .iter()
        .map(|(path, file)| {
            let agent = agent.clone();
            Item::new(format!("agents/{folder}/{file}"), async move {
                let mut answer = agent.get(path).await?;
                mask::object(&mut answer);
                pretty(&answer)
            })
        })
        .collect();
    let agent = agent.clone();
    // One file: which maps there are is not known before the agent is asked.
    found.push(Item::new(format!("agents/{folder}/map-entries.json"), async move {
        let maps = agent.get("/v1/map").await?;
        let mut all = serde_json::Map::new();
        for name in items(&maps["maps"]).iter().map(|map| text(&map["name"])) {
            if quick && name.starts_with(LARGE) {
                continue;
            }
            let entries = agent.find(&format!("/v1/map/{}", segment(&name))).await;
            let entries = match entries {
                Ok(map) => map.map(|map| map["entries"].clone()).unwrap_or_default(),
                Err(error) => Value::String(format!("{error:#}")),
            };
            all.insert(name, entries);
        }
        pretty(&Value::Object(all))
    }));
    found
}

/// The logs of a pod's containers, also of those that ended.
fn logs(api: &Api<Pod>, pod: &Pod, arguments: &Arguments) -> Vec<Item> {
    let name = pod.name_any();
    let status = pod.status.clone().unwrap_or_default();
    let restarted = |container: &str| {
        let of = status.container_statuses.iter().flatten();
        of.into_iter().any(|state| state.name == container && state.restart_count > 0)
    };
    let spec = pod.spec.clone().unwrap_or_default();
    let init = spec.init_containers.unwrap_or_default();
    let containers = spec.containers.iter().chain(&init).map(|container| container.name.clone());
    let mut found = Vec::new();
    for container in containers {
        for previous in [false, true] {
            if previous && !restarted(&container) {
                continue;
            }
            let (api, name, container) = (api.clone(), name.clone(), container.clone());
            let end = if previous { "-previous" } else { "" };
            let path = format!("logs/{name}-{container}{end}.log");
            let (limit, since) = (arguments.logs_limit_bytes, seconds(arguments.logs_since));
            found.push(Item::new(path, async move {
                let parameters = LogParams {
                    container: Some(container),
                    previous,
                    timestamps: true,
                    limit_bytes: Some(limit),
                    since_seconds: Some(since),
                    ..LogParams::default()
                };
                let log = api.logs(&name, &parameters).await.map_err(said)?;
                Ok(mask::text(&log).into_bytes())
            }));
        }
    }
    found
}

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX).max(1)
}
