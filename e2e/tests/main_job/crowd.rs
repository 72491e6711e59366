//! A hundred pods at once, and nothing of them afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use cilia_e2e::Node;
use cilia_e2e::scenario::pods::{self, Plan, Pod};
use cilia_e2e::scenario::{Stage, agent};
use cilia_e2e::wait::{Look, until};
use serde_json::{Value, json};

const PODS: usize = 100;
const NAMESPACE: &str = "crowd";
/// A node that never had a pod has no folder for network namespaces.
const FILES: &str = "find /run/cilium/state /sys/fs/bpf /run/netns -mindepth 1 2>/dev/null || true";
/// How long the last slice, map entry or file may take on a busy machine.
const LIMIT: Duration = Duration::from_mins(1);

pub(crate) async fn a_hundred_pods_come_and_go(stage: &Stage) -> Result<()> {
    pods::namespace(stage, NAMESPACE, &json!({})).await?;
    let before = traces(stage).await?;
    let plans: Vec<_> = (0..PODS)
        .map(|i| Plan::idle(NAMESPACE, &format!("pod-{i}")).label("app", &format!("app-{}", i % 5)))
        .collect();
    let start = Instant::now();
    let found = pods::run(stage, &plans).await?;
    println!("  {PODS} pods run after {:.1} s", start.elapsed().as_secs_f64());
    let addresses: BTreeSet<_> = found.iter().flat_map(Pod::addresses).collect();
    ensure!(addresses.len() == 2 * PODS, "an address was given twice");

    let identities = until("all endpoints, with identities", LIMIT, || async {
        match identities(stage).await {
            Ok(found) if found.len() == PODS => Look::Done(found),
            Ok(found) => Look::Not(format!("{} of {PODS}", found.len())),
            Err(error) => Look::Not(error.to_string()),
        }
    })
    .await?;
    let distinct: BTreeSet<_> = identities.values().collect();
    ensure!(distinct.len() == 5, "five sets of labels have {} identities", distinct.len());
    until("every endpoint in exactly one slice", LIMIT, || async {
        match in_slices(stage, &identities).await {
            Ok(wrong) if wrong.is_empty() => Look::Done(()),
            Ok(wrong) => Look::Not(format!("{} are wrong: {}", wrong.len(), wrong[0])),
            Err(error) => Look::Not(error.to_string()),
        }
    })
    .await?;
    for node in stage.cluster.nodes() {
        until(&format!("all addresses in {}'s map", node.name()), LIMIT, || async {
            match wrong_entries(stage, &node.name(), &found, &identities).await {
                Ok(wrong) if wrong.is_empty() => Look::Done(()),
                Ok(wrong) => Look::Not(format!("{} are wrong: {}", wrong.len(), wrong[0])),
                Err(error) => Look::Not(error.to_string()),
            }
        })
        .await?;
    }
    println!("  all are in slices and maps after {:.1} s", start.elapsed().as_secs_f64());

    let start = Instant::now();
    pods::delete(stage, &found).await?;
    until("the end of every trace", LIMIT, || async {
        match traces(stage).await {
            Ok(after) => {
                let left: Vec<_> = after.difference(&before).collect();
                match left.first() {
                    None => Look::Done(()),
                    Some(first) => Look::Not(format!("{} are left: {first}", left.len())),
                }
            }
            Err(error) => Look::Not(error.to_string()),
        }
    })
    .await?;
    println!("  nothing is left after {:.1} s", start.elapsed().as_secs_f64());
    pods::leave(stage, NAMESPACE).await?;
    Ok(())
}

/// The endpoints' names and identities.
async fn identities(stage: &Stage) -> Result<BTreeMap<String, u64>> {
    let endpoints = stage.list("ciliumendpoints", Some(NAMESPACE)).await?;
    let of = |endpoint: &Value| {
        let name = endpoint["metadata"]["name"].as_str()?.to_owned();
        Some((name, endpoint["status"]["identity"]["id"].as_u64()?))
    };
    Ok(endpoints.iter().filter_map(of).collect())
}

async fn in_slices(stage: &Stage, identities: &BTreeMap<String, u64>) -> Result<Vec<String>> {
    let mut found: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for slice in stage.list("ciliumendpointslices", None).await? {
        if slice["namespace"] != NAMESPACE {
            continue;
        }
        for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
            let name = endpoint["name"].as_str().unwrap_or_default().to_owned();
            found.entry(name).or_default().push(endpoint["id"].as_u64().unwrap_or_default());
        }
    }
    let mut wrong: Vec<_> = found
        .keys()
        .filter(|name| !identities.contains_key(*name))
        .map(|name| format!("{name} is in a slice, and does not exist"))
        .collect();
    for (name, identity) in identities {
        let at = found.get(name).map(Vec::as_slice).unwrap_or_default();
        if at != [*identity] {
            wrong.push(format!("{name} with identity {identity} is in slices as {at:?}"));
        }
    }
    Ok(wrong)
}

async fn wrong_entries(
    stage: &Stage,
    node: &str,
    found: &[Pod],
    identities: &BTreeMap<String, u64>,
) -> Result<Vec<String>> {
    let map = ipcache(stage, node).await?;
    let mut wrong = Vec::new();
    for pod in found {
        for address in pod.addresses() {
            let prefix = if address.is_ipv4() { 32 } else { 128 };
            let (key, want) = (format!("{address}/{prefix}"), identities.get(&pod.name));
            let got = map.get(&key);
            if got != want {
                wrong.push(format!("{key} is {got:?}, should be {want:?}"));
            }
        }
    }
    Ok(wrong)
}

/// The agent's map of addresses, as `cilia bpf ipcache list` shows it.
pub(crate) async fn ipcache(stage: &Stage, node: &str) -> Result<BTreeMap<String, u64>> {
    let map = agent::json(stage, node, &["bpf", "ipcache", "list"]).await?;
    let of = |(prefix, values): (&String, &Value)| {
        let mut words = values[0].as_str()?.split_whitespace();
        let identity = words.find_map(|word| word.strip_prefix("identity="))?;
        Some((prefix.clone(), identity.parse().ok()?))
    };
    Ok(map.as_object().into_iter().flatten().filter_map(of).collect())
}

/// Everything that a pod leaves its marks in.
async fn traces(stage: &Stage) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for kind in ["ciliumendpoints", "ciliumendpointslices"] {
        for object in stage.list(kind, None).await? {
            let ours =
                object["metadata"]["namespace"] == NAMESPACE || object["namespace"] == NAMESPACE;
            if ours {
                found.insert(format!("{kind} {}", object["metadata"]["name"]));
            }
        }
    }
    for node in stage.cluster.nodes() {
        for (kind, marks) in marks_on(stage, &node).await? {
            found.extend(marks.into_iter().map(|mark| format!("{}: {kind} {mark}", node.name())));
        }
    }
    Ok(found)
}

/// What the kernel, the file system and the agent hold on a node itself, by kind.
pub(crate) async fn marks_on(
    stage: &Stage,
    node: &Node,
) -> Result<BTreeMap<&'static str, BTreeSet<String>>> {
    let mut found = BTreeMap::new();
    let name = node.name();
    found.insert("map entries", ipcache(stage, &name).await?.into_keys().collect());
    let questions: &[(&str, &[&str])] = &[
        ("devices", &["ip", "-o", "link"]),
        ("IPv4 routes", &["ip", "-4", "route"]),
        ("IPv6 routes", &["ip", "-6", "route"]),
        ("files", &["sh", "-c", FILES]),
    ];
    for &(kind, question) in questions {
        let answer = node.run(question).await.unwrap_or_default();
        found.insert(kind, answer.lines().map(stable).collect());
    }
    for (kind, command) in [
        ("endpoint entries", &["bpf", "endpoint", "list"][..]),
        ("agents' endpoints", &["endpoint", "list"]),
    ] {
        let listed = agent::run(stage, &name, command).await?;
        let lines = listed.lines().filter(|line| line.contains('.'));
        let words = lines.map(|line| line.split_whitespace().next().unwrap_or_default().to_owned());
        found.insert(kind, words.collect());
    }
    Ok(found)
}

/// The part of a line that does not change while the thing it is about stays.
fn stable(line: &str) -> String {
    match line.split_once(": ") {
        // `ip -o link`: the name alone.
        Some((index, rest)) if index.bytes().all(|b| b.is_ascii_digit()) => {
            rest.split([':', '@']).next().unwrap_or_default().to_owned()
        }
        _ => line.split(" expires").next().unwrap_or_default().to_owned(),
    }
}
