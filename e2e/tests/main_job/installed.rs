//! The chart's installation makes nodes ready, and pods get addresses of their node.

use anyhow::{Result, ensure};
use cilia_e2e::scenario::{Stage, pods};
use pods::Plan;
use serde_json::{Value, json};

/// What "two nodes ready in 15 s" is held against; a busy machine is given more.
const READY_S: u64 = 60;

pub(crate) async fn nodes_are_ready(stage: &Stage) -> Result<()> {
    let took = stage.ready_after;
    println!("  from nothing to ready nodes: {:.1} s", took.as_secs_f64());
    ensure!(took.as_secs() < READY_S, "it took {took:?}");
    for node in stage.list("nodes", None).await? {
        let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let network = conditions.iter().find(|c| c["type"] == "NetworkUnavailable");
        let fine = network.is_some_and(|c| c["status"] == "False" && c["reason"] == "CiliumIsUp");
        ensure!(fine, "{}: NetworkUnavailable is {network:?}", node["metadata"]["name"]);
    }
    for kind in ["ciliumnodes", "ciliumidentities", "ciliumendpoints", "ciliumendpointslices"] {
        stage.list(kind, None).await?;
    }
    Ok(())
}

pub(crate) async fn addresses_come_from_the_nodes_ranges(stage: &Stage) -> Result<()> {
    pods::namespace(stage, "ranges", &json!({})).await?;
    let plans = ["n1", "n2"].map(|node| Plan::idle("ranges", &format!("on-{node}")).on(node));
    let started = std::time::Instant::now();
    let found = pods::run(stage, &plans).await?;
    println!("  two pods after {:.1} s", started.elapsed().as_secs_f64());
    for pod in &found {
        let node = stage.get("ciliumnode", "", &pod.node).await?;
        let ranges: Vec<ipnet::IpNet> = node["spec"]["ipam"]["podCIDRs"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|cidr| cidr.as_str()?.parse().ok())
            .collect();
        for address in pod.addresses() {
            let inside = ranges.iter().any(|range| range.contains(&address));
            ensure!(inside, "{} has {address}, its node {ranges:?}", pod.name);
        }
        let endpoint = stage.get("ciliumendpoint", "ranges", &pod.name).await?;
        let networking = &endpoint["status"]["networking"]["addressing"][0];
        ensure!(networking["ipv4"] == json!(pod.ipv4), "{}: {networking}", pod.name);
        ensure!(networking["ipv6"] == json!(pod.ipv6), "{}: {networking}", pod.name);
        ensure!(endpoint["status"]["identity"]["id"].is_u64(), "{}: no identity", pod.name);
        ensure!(owner(&endpoint) == Some(pod.uid.as_str()), "{}: not its pod's", pod.name);
    }
    pods::leave(stage, "ranges").await?;
    Ok(())
}

fn owner(object: &Value) -> Option<&str> {
    object["metadata"]["ownerReferences"][0]["uid"].as_str()
}
