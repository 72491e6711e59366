//! A node loses its power and comes back: its pods return, policies hold from their first packet, and nothing is left
//! of what was before.
//!
//! Only when asked for: `make live`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use cilia_e2e::scenario::live::Datagrams;
use cilia_e2e::scenario::pods::{self, Plan, Pod};
use cilia_e2e::scenario::traffic::{Protocol, reaches, serve};
use cilia_e2e::scenario::{Stage, chart};
use cilia_e2e::wait::{Look, until};
use ipnet::IpNet;
use serde_json::{Value, json};

use crate::asked_for;
use crate::crowd::ipcache;

const PORT: u16 = 7500;
const NAMESPACE: &str = "power";
/// How long pods and the last trace may take on a busy machine.
const LIMIT: Duration = Duration::from_mins(3);

pub(crate) async fn a_node_comes_back_as_it_was(stage: &Stage) -> Result<()> {
    if !asked_for() {
        return Ok(());
    }
    pods::namespace(stage, NAMESPACE, &json!({})).await?;
    let plans: Vec<_> =
        [("server", "n1"), ("near", "n1"), ("far", "n2"), ("stranger", "n2"), ("other", "n2")]
            .into_iter()
            .map(|(name, node)| Plan::idle(NAMESPACE, name).on(node))
            .collect();
    let before = pods::run(stage, &plans).await?;
    let others = ["near", "far", "other"];
    stage
        .apply(&json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"namespace": NAMESPACE, "name": "friends"},
            "spec": {
                "podSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["server", "other"]}]},
                "ingress": [{"from": [{"podSelector": {"matchExpressions": [
                    {"key": "app", "operator": "In", "values": others},
                ]}}]}],
            },
        }))
        .await?;
    for pod in &before {
        serve(pod, PORT).await?;
    }
    holds(&before).await?;
    let identities = numbers(stage).await?;
    let [_, _, far, stranger, other] = &before[..] else { anyhow::bail!("five pods") };
    // Two pods of the other node, which has to notice nothing.
    let elsewhere = Datagrams::start(far, SocketAddr::new(other.ipv4.into(), PORT)).await?;
    let denied = Datagrams::start(stranger, SocketAddr::new(other.ipv4.into(), PORT)).await?;

    let node = stage.cluster.node("n1")?;
    node.power_off(stage.cluster.cgroups()).await?;
    let start = Instant::now();
    node.power_on(stage.cluster.cgroups(), &stage.cluster.tools, &stage.cluster.options).await?;
    until("the return of the pods", LIMIT, || async {
        match restarted(stage).await {
            Ok(not) if not.is_empty() => Look::Done(()),
            Ok(not) => Look::Not(not.join("; ")),
            Err(error) => Look::Not(error.to_string()),
        }
    })
    .await?;
    println!("  the pods are back {:.1} s after the power", start.elapsed().as_secs_f64());
    chart::ready(stage).await?;
    let after = pods::run(stage, &plans).await?;
    for pod in after.iter().filter(|pod| pod.node == "n1") {
        serve(pod, PORT).await?;
    }
    holds(&after).await?;
    println!("  policies hold {:.1} s after the power", start.elapsed().as_secs_f64());
    until("nothing of before in any map", LIMIT, || async {
        match stale(stage).await {
            Ok(left) if left.is_empty() => Look::Done(()),
            Ok(left) => Look::Not(format!("{} are stale: {left:?}", left.len())),
            Err(error) => Look::Not(error.to_string()),
        }
    })
    .await?;
    println!("  nothing is left of before {:.1} s after the power", start.elapsed().as_secs_f64());
    let now = numbers(stage).await?;
    ensure!(now == identities, "identities were {identities:?}, are {now:?}");
    let tally = elsewhere.finish().await?;
    ensure!(tally.answered == tally.sent, "between pods of the other node: {tally:?}");
    let tally = denied.finish().await?;
    ensure!(tally.answered == 0, "denied on the other node: {tally:?}");
    pods::leave(stage, NAMESPACE).await?;
    Ok(())
}

/// Waits until friends reach the server and strangers don't.
async fn holds(pods: &[Pod]) -> Result<()> {
    let [server, near, far, stranger, other] = pods else { anyhow::bail!("five pods") };
    for (from, wanted) in [(near, true), (far, true), (other, true), (stranger, false)] {
        for address in server.addresses() {
            until(&format!("the policy for {} at {address}", from.name), LIMIT, || async {
                let reached = reaches(from, address, PORT, Protocol::Tcp, false).await;
                if reached.is_ok() == wanted {
                    Look::Done(())
                } else {
                    Look::Not(format!("{reached:?}"))
                }
            })
            .await?;
        }
    }
    Ok(())
}

/// Pods that were on the node and have not started again, with what is known of them.
async fn restarted(stage: &Stage) -> Result<Vec<String>> {
    let mut not = Vec::new();
    for pod in stage.list("pods", Some(NAMESPACE)).await? {
        let container = &pod["status"]["containerStatuses"][0];
        let again = container["restartCount"].as_u64().unwrap_or_default() > 0;
        if pod["spec"]["nodeName"] == "n1"
            && !(again && container["state"].get("running").is_some())
        {
            not.push(format!("{}: {container}", pod["metadata"]["name"]));
        }
    }
    Ok(not)
}

/// The numbers of the namespace's identities.
async fn numbers(stage: &Stage) -> Result<BTreeSet<u64>> {
    let endpoints = stage.list("ciliumendpoints", Some(NAMESPACE)).await?;
    Ok(endpoints.iter().filter_map(|one| one["status"]["identity"]["id"].as_u64()).collect())
}

/// Addresses of pods in nodes' maps and in slices that no pod has, and pods' that are missing or another's.
async fn stale(stage: &Stage) -> Result<Vec<String>> {
    let (mut right, mut ranges): (BTreeMap<IpAddr, u64>, Vec<IpNet>) = Default::default();
    for pod in stage.list("pods", None).await? {
        if pod["spec"]["hostNetwork"] == true {
            continue;
        }
        let (namespace, name) = (&pod["metadata"]["namespace"], &pod["metadata"]["name"]);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let endpoint = stage.get("ciliumendpoint", &text(namespace), &text(name)).await?;
        let identity = endpoint["status"]["identity"]["id"].as_u64().unwrap_or_default();
        for ip in pod["status"]["podIPs"].as_array().into_iter().flatten() {
            right.insert(ip["ip"].as_str().unwrap_or_default().parse()?, identity);
        }
    }
    for node in stage.list("ciliumnodes", None).await? {
        for cidr in node["spec"]["ipam"]["podCIDRs"].as_array().into_iter().flatten() {
            ranges.push(cidr.as_str().unwrap_or_default().parse()?);
        }
    }
    let mut left = Vec::new();
    for slice in stage.list("ciliumendpointslices", None).await? {
        for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
            for pair in endpoint["networking"]["addressing"].as_array().into_iter().flatten() {
                for address in ["ipv4", "ipv6"].iter().filter_map(|family| pair[family].as_str()) {
                    if right.get(&address.parse()?) != endpoint["id"].as_u64().as_ref() {
                        left.push(format!("{address} of {} in a slice", endpoint["name"]));
                    }
                }
            }
        }
    }
    for node in stage.cluster.nodes() {
        let name = node.name();
        let map = ipcache(stage, &name).await?;
        for (prefix, identity) in &map {
            let prefix: IpNet = prefix.parse()?;
            let single = prefix.prefix_len() == prefix.max_prefix_len();
            // Below 256 they are the nodes' own.
            let of_pod =
                single && *identity >= 256 && ranges.iter().any(|range| range.contains(&prefix));
            if of_pod && right.get(&prefix.addr()) != Some(identity) {
                left.push(format!("{prefix} is {identity} on {name}"));
            }
        }
        for (address, identity) in &right {
            let prefix = format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 });
            if map.get(&prefix) != Some(identity) {
                left.push(format!("{prefix} is {:?} on {name}, not {identity}", map.get(&prefix)));
            }
        }
    }
    Ok(left)
}
