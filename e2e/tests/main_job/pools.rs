//! Pools of addresses: nodes get ranges as their pods need them, keep them through restarts, and give them back.
//!
//! Only where the cluster's addresses come from pools: `make pools`.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cilia_e2e::scenario::pods::{self, Plan, Pod};
use cilia_e2e::scenario::traffic::{Protocol, reaches, serve};
use cilia_e2e::scenario::{Stage, chart};
use cilia_e2e::wait::{Look, until};
use futures::future::try_join_all;
use ipnet::IpNet;
use serde_json::{Value, json};

const PORT: u16 = 7200;
const LIMIT: Duration = Duration::from_mins(1);
const POOL: &str = "tenant";
/// Two blocks of each family, of six and eight addresses.
const RANGES: [&str; 2] = ["10.77.0.0/28", "fd77::/124"];

pub(crate) async fn ranges_follow_the_pods(stage: &Stage) -> Result<()> {
    let settings = stage.get("configmap", chart::NAMESPACE, "cilium-config").await?;
    if settings["data"]["ipam"] != "multi-pool" {
        println!("  there are no pools: `make pools` has them");
        return Ok(());
    }
    stage.apply(&pool(&RANGES[..1], &RANGES[1..])).await?;
    pods::namespace(stage, "pools", &json!({"ipam.cilium.io/ip-pool": POOL})).await?;
    let plan = |number: usize| {
        let node = ["n1", "n2"][number % 2];
        Plan::idle("pools", &format!("pod-{number}")).on(node)
    };
    let first = pods::run(stage, &(0..4).map(plan).collect::<Vec<_>>()).await?;
    inside(&first, &RANGES)?;
    reach(&first).await?;

    // Both blocks are held, and n1 needs a third.
    let crowd: Vec<_> = (2..8).map(|half| plan(2 * half)).collect();
    let items: Vec<_> = crowd.iter().map(Plan::manifest).collect();
    stage.apply(&json!({"apiVersion": "v1", "kind": "List", "items": items})).await?;
    let told = until("the error of an empty pool", LIMIT, || async {
        match error(stage, "n1").await {
            Ok(told) if told.contains("pool empty") => Look::Done(told),
            Ok(told) => Look::Not(told),
            Err(error) => Look::Not(error.to_string()),
        }
    })
    .await?;
    println!("  full: {told}");
    let more = ["10.77.0.0/28", "10.78.0.0/28"];
    stage.apply(&pool(&more, &["fd77::/124", "fd78::/124"])).await?;
    let crowd = pods::run(stage, &crowd).await?;
    let all: Vec<_> = first.iter().chain(&crowd).cloned().collect();
    inside(&all, &["10.77.0.0/28", "10.78.0.0/28", "fd77::/124", "fd78::/124"])?;

    let before = held(stage).await?;
    chart::restart(stage).await?;
    chart::ready(stage).await?;
    reach(&all).await?;
    let after = held(stage).await?;
    ensure!(before == after, "before the restart {before:?}, after it {after:?}");
    ensure!(before.len() >= 6, "three blocks of each family: {before:?}");

    pods::delete(stage, &all).await?;
    until("all ranges to be given back", LIMIT, || async {
        let left = held(stage).await;
        match left {
            Ok(left) if left.is_empty() => Look::Done(()),
            left => Look::Not(format!("{left:?}")),
        }
    })
    .await?;
    for node in ["n1", "n2"] {
        let told = error(stage, node).await?;
        ensure!(told.is_empty(), "{node}: {told}");
    }
    pods::leave(stage, "pools").await?;
    stage.delete("ciliumpodippool", "", POOL).await?;
    Ok(())
}

fn pool(v4: &[&str], v6: &[&str]) -> Value {
    json!({
        "apiVersion": "cilium.io/v2alpha1", "kind": "CiliumPodIPPool", "metadata": {"name": POOL},
        "spec": {"ipv4": {"cidrs": v4, "maskSize": 29}, "ipv6": {"cidrs": v6, "maskSize": 125}},
    })
}

/// Every address is one pod's, and of the pool.
fn inside(pods: &[Pod], ranges: &[&str]) -> Result<()> {
    let ranges: Vec<IpNet> = ranges.iter().map(|range| range.parse()).collect::<Result<_, _>>()?;
    let mut seen = BTreeSet::new();
    for pod in pods {
        for address in pod.addresses() {
            let fits = ranges.iter().any(|range| range.contains(&address));
            ensure!(fits, "{} has {address}, not of {ranges:?}", pod.name);
            ensure!(seen.insert(address), "{} has {address}, as another", pod.name);
        }
    }
    Ok(())
}

/// The first pod reaches the others, by both families.
async fn reach(pods: &[Pod]) -> Result<()> {
    let (client, servers) = pods.split_first().context("no pods")?;
    let asked = servers.iter().map(|server| async move {
        // One that serves already says so by an error.
        drop(serve(server, PORT).await);
        for address in server.addresses() {
            reaches(client, address, PORT, Protocol::Tcp, false)
                .await
                .map_err(anyhow::Error::msg)?;
        }
        anyhow::Ok(())
    });
    try_join_all(asked).await.map(drop)
}

/// What the nodes hold of the pool.
async fn held(stage: &Stage) -> Result<BTreeSet<(String, IpAddr)>> {
    let mut held = BTreeSet::new();
    for node in stage.list("ciliumnodes", None).await? {
        let name = node["metadata"]["name"].as_str().unwrap_or_default();
        let pools = node["spec"]["ipam"]["pools"]["allocated"].as_array().cloned();
        for pool in pools.unwrap_or_default().iter().filter(|pool| pool["pool"] == POOL) {
            for cidr in pool["cidrs"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                held.insert((name.to_owned(), cidr.parse::<IpNet>()?.network()));
            }
        }
    }
    Ok(held)
}

/// Why a node does not get what it needs.
async fn error(stage: &Stage, node: &str) -> Result<String> {
    let node = stage.get("ciliumnode", "", node).await?;
    let told = &node["status"]["ipam"]["operator-status"]["error"];
    Ok(told.as_str().unwrap_or_default().to_owned())
}
