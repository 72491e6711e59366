//! etcd beside Kubernetes: the modes of a live cluster are changed, and etcd breaks, while pods talk across nodes.
//!
//! Nothing may be lost between pods that may talk, and nothing let in. Only where it is asked for, with
//! `CILIA_KVSTORE_FAULTS`: by `make kvstore-faults`.

mod frozen;
mod members;
mod traffic;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cilia_e2e::scenario::pods::{self, Pod};
use cilia_e2e::scenario::{Stage, agent, chart};
use cilia_e2e::wait::{Look, until, until_ok};

use crate::agent_restart::replace_agent;
use members::{Members, SIZE};
use traffic::{Cast, reached};

const LIMIT: Duration = Duration::from_mins(3);
/// For how long there is no quorum, unless `CILIA_QUORUM_LOST_SECONDS` says so.
const OUTAGE: Duration = Duration::from_secs(45);
/// How soon a pod runs whose identity is known, or can be made, whatever etcd does; on a busy machine.
const SOON: Duration = Duration::from_secs(40);
/// The modes in the order in which a live cluster takes them.
const MODES: [&str; 4] = ["crd", "doublewrite-readcrd", "doublewrite-readkvstore", "kvstore"];

pub(crate) async fn modes_change_under_traffic(stage: &Stage) -> Result<()> {
    let Some(members) = asked_for(stage).await? else { return Ok(()) };
    let cast = Cast::gather(stage, "modes").await?;
    let mut all = vec![cast.client.clone()];
    for mode in MODES.into_iter().skip(1).chain(MODES.into_iter().rev().skip(1)) {
        let traffic = cast.start().await?;
        change_mode(stage, &members, mode, &[]).await?;
        for (node, labels) in [("n1", "new"), ("n2", "newer")] {
            let name = format!("late-{}", all.len());
            let labels = format!("{labels}-{mode}");
            all.extend(pods::run(stage, &[cast.plan(&name, node, Some(&labels))]).await?);
        }
        for pod in &all {
            reached(pod, &cast.near).await?;
            reached(pod, &cast.far).await?;
        }
        traffic.finish(&format!("to {mode}")).await?;
    }
    pods::leave(stage, "modes").await?;
    Ok(())
}

pub(crate) async fn faults_of_etcd_lose_no_packet(stage: &Stage) -> Result<()> {
    let Some(members) = asked_for(stage).await? else { return Ok(()) };
    walk_to(stage, &members, "kvstore").await?;
    let cast = Cast::gather(stage, "faults").await?;
    let root = members.root()?;

    let traffic = cast.start().await?;
    let leader = members.leader().await?;
    members.kill(leader).await?;
    new_pods_talk(stage, &cast, "leader", &["n1", "n2"]).await?;
    members.run(leader)?;
    traffic.finish("the leader was killed").await?;

    let traffic = cast.start().await?;
    the_history_goes(stage, &members).await?;
    new_pods_talk(stage, &cast, "history", &["n1", "n2"]).await?;
    traffic.finish("the history was compacted behind a cut").await?;

    let traffic = cast.start().await?;
    let filler = vec![b'x'; 1_000_000];
    let mut file = 0;
    let full = until("a full disk", LIMIT, || {
        file += 1;
        let key = format!("filler/{file}");
        let (root, filler) = (&root, &filler);
        async move {
            match root.put(&key, filler, false).await {
                Ok(_) => Look::Not("there is room".to_owned()),
                Err(error) => Look::Done(error),
            }
        }
    });
    let full = full.await?;
    ensure!(full.is_no_space(), "{full}");
    known_pods_talk(stage, &cast, "full", &["n1", "n2"]).await?;
    let waiting = cast.plan("waits-full", "n2", Some("waits-full"));
    stage.apply(&waiting.manifest()).await?;
    let (_, revision) = root.list("filler/").await?;
    root.delete_prefix("filler/").await?;
    root.compact(revision + 1).await?;
    members.make_room().await?;
    talk(&cast, &pods::run(stage, &[waiting]).await?).await?;
    traffic.finish("the disk was full").await?;

    let traffic = cast.start().await?;
    the_quorum_is_lost(stage, &members, &cast).await?;
    traffic.finish("the quorum was lost, and an agent killed meanwhile").await?;
    pods::leave(stage, "faults").await?;
    Ok(())
}

pub(crate) async fn a_frozen_agent_cuts_nobody_off(stage: &Stage) -> Result<()> {
    let Some(members) = asked_for(stage).await? else { return Ok(()) };
    walk_to(stage, &members, "kvstore").await?;
    change_mode(stage, &members, "kvstore", &[frozen::LEASE]).await?;
    let cast = Cast::gather(stage, "frozen").await?;
    frozen::agent(stage, &members.root()?, &cast).await?;
    pods::leave(stage, "frozen").await?;
    change_mode(stage, &members, "kvstore", &[]).await
}

pub(crate) async fn without_quorum_kubernetes_is_enough(stage: &Stage) -> Result<()> {
    let Some(members) = asked_for(stage).await? else { return Ok(()) };
    walk_to(stage, &members, "doublewrite-readcrd").await?;
    let cast = Cast::gather(stage, "enough").await?;
    let traffic = cast.start().await?;
    members.kill(0).await?;
    members.kill(1).await?;
    let gone = Instant::now();
    // New identities, too, on an agent that knew etcd and on one that never has reached it.
    let mut late = pods::run(stage, &[cast.plan("one", "n2", Some("one"))]).await?;
    // The next one is not well as long as etcd isn't: what it does is seen by pods.
    replace_agent(stage, "n1").await?;
    late.extend(pods::run(stage, &[cast.plan("two", "n1", Some("two"))]).await?);
    talk(&cast, &late).await?;
    println!("  two pods of new labels talk {:.1} s after the loss", gone.elapsed().as_secs_f64());
    members.run(0)?;
    members.run(1)?;
    let root = members.root()?;
    for labels in ["one", "two"] {
        let used = |key: &str| key.contains(&format!("k8s:app={labels};"));
        until(&format!("the use of {labels} in etcd"), LIMIT, || async {
            match root.list("cilium/state/identities/v1/value/").await {
                Ok((all, _)) if all.iter().any(|kv| used(&String::from_utf8_lossy(&kv.key))) => {
                    Look::Done(())
                }
                Ok((all, _)) => Look::Not(format!("{} uses, none of these", all.len())),
                Err(error) => Look::Not(error.to_string()),
            }
        })
        .await?;
    }
    traffic.finish("the quorum was lost where Kubernetes is read").await?;
    pods::leave(stage, "enough").await?;
    Ok(())
}

fn outage() -> Duration {
    let seconds = std::env::var("CILIA_QUORUM_LOST_SECONDS").ok();
    seconds.and_then(|text| text.parse().ok()).map_or(OUTAGE, Duration::from_secs)
}

/// The members of etcd, where these scenarios are wanted.
async fn asked_for(stage: &Stage) -> Result<Option<Members<'_>>> {
    if std::env::var_os("CILIA_KVSTORE_FAULTS").is_none_or(|value| value.is_empty()) {
        println!("  left out: `make kvstore-faults` has it");
        return Ok(None);
    }
    Members::start(stage).await.map(Some)
}

async fn the_history_goes(stage: &Stage, members: &Members<'_>) -> Result<()> {
    const ADDRESS: &str = "10.244.250.250";
    let (root, key) = (members.root()?, format!("cilium/state/ip/v1/default/{ADDRESS}"));
    let value = format!(
        r#"{{"IP":"{ADDRESS}","Mask":null,"HostIP":"192.0.2.1","ID":300,"Key":0,"Metadata":""}}"#
    );
    root.put(&key, value.as_bytes(), false).await?;
    known(stage, ADDRESS, &["n1", "n2"], true).await?;
    members.cut(true).await?;
    let cut = async {
        root.delete(&key).await?;
        let revision = root.put("after", b"", false).await?;
        root.compact(revision).await
    };
    let compacted = cut.await;
    members.cut(false).await?;
    compacted?;
    // No watch will ever tell of the deletion.
    known(stage, ADDRESS, &["n1", "n2"], false).await
}

/// Waits until these agents' maps have an address, or have it no more.
async fn known(stage: &Stage, address: &str, nodes: &[&str], wanted: bool) -> Result<()> {
    for &node in nodes {
        until(&format!("{address} on {node}: {wanted}"), LIMIT, || async {
            match agent::run(stage, node, &["bpf", "ipcache", "list"]).await {
                Ok(list) if list.contains(address) == wanted => Look::Done(()),
                Ok(list) => Look::Not(format!("{} entries", list.lines().count())),
                Err(error) => Look::Not(error.to_string()),
            }
        })
        .await?;
    }
    Ok(())
}

async fn the_quorum_is_lost(stage: &Stage, members: &Members<'_>, cast: &Cast) -> Result<()> {
    members.kill(0).await?;
    members.kill(1).await?;
    let (gone, outage) = (Instant::now(), outage());
    // The agent on n2 has the twin's identity. New ones wait.
    known_pods_talk(stage, cast, "lost", &["n2"]).await?;
    let mut waiting = vec![cast.plan("waits-n2", "n2", Some("waits-n2"))];
    stage.apply(&waiting[0].manifest()).await?;
    // On n1 another agent starts, with what is pinned, and says what it waits for.
    // The next one is not well as long as etcd isn't: what it does is seen by pods.
    replace_agent(stage, "n1").await?;
    waiting.push(cast.plan("waits-n1", "n1", Some("waits-n1")));
    stage.apply(&waiting[1].manifest()).await?;
    let said = until("what the new agent waits for", LIMIT, || async {
        // One that is not well fails, and says why.
        let told = match agent::run(stage, "n1", &["status", "--brief"]).await {
            Ok(text) => text,
            Err(error) => error.to_string(),
        };
        let line = told.lines().find(|line| line.contains("kvstore") && line.contains("etcd"));
        match line.map(str::to_owned) {
            Some(line) => Look::Done(line),
            None => Look::Not(told),
        }
    })
    .await?;
    println!("  the agent that started meanwhile: {}", said.trim());
    until("the end of the outage", 2 * outage, || async {
        let left = outage.saturating_sub(gone.elapsed());
        if left.is_zero() { Look::Done(()) } else { Look::Not(format!("{left:?} to go")) }
    })
    .await?;
    let now = stage.list("pods", Some("faults")).await?;
    for plan in ["waits-n1", "waits-n2"] {
        let pod = now.iter().find(|pod| pod["metadata"]["name"] == plan).context("a pod")?;
        ensure!(pod["status"]["phase"] == "Pending", "{plan} has an identity that nobody gave it");
    }
    members.run(0)?;
    members.run(1)?;
    let back = Instant::now();
    talk(cast, &pods::run(stage, &waiting).await?).await?;
    chart::ready(stage).await?;
    println!("  all talk {:.1} s after the quorum is back", back.elapsed().as_secs_f64());
    Ok(())
}

/// Pods of new labels get an identity, and reach the servers.
async fn new_pods_talk(stage: &Stage, cast: &Cast, what: &str, nodes: &[&str]) -> Result<()> {
    let plan = |node: &&str| {
        let name = format!("new-{what}-{node}");
        cast.plan(&name, node, Some(&name))
    };
    let plans: Vec<_> = nodes.iter().map(plan).collect();
    talk(cast, &pods::run(stage, &plans).await?).await
}

/// Pods with the client's labels do so while etcd takes no writes.
async fn known_pods_talk(stage: &Stage, cast: &Cast, what: &str, nodes: &[&str]) -> Result<()> {
    let start = Instant::now();
    let plan = |node: &&str| cast.plan(&format!("known-{what}-{node}"), node, None);
    let plans: Vec<_> = nodes.iter().map(plan).collect();
    talk(cast, &pods::run(stage, &plans).await?).await?;
    ensure!(start.elapsed() < SOON, "{what}: it took {:?}", start.elapsed());
    Ok(())
}

async fn talk(cast: &Cast, pods: &[Pod]) -> Result<()> {
    for pod in pods {
        reached(pod, &cast.near).await?;
        reached(pod, &cast.far).await?;
    }
    Ok(())
}

async fn walk_to(stage: &Stage, members: &Members<'_>, mode: &str) -> Result<()> {
    let settings = stage.get("configmap", chart::NAMESPACE, "cilium-config").await?;
    let is = settings["data"]["identity-allocation-mode"].as_str().unwrap_or("crd").to_owned();
    let place = |mode: &str| MODES.iter().position(|other| *other == mode).context("a mode");
    let (mut is, to) = (place(&is)?, place(mode)?);
    while is != to {
        is = if is < to { is + 1 } else { is - 1 };
        change_mode(stage, members, MODES[is], &[]).await?;
    }
    Ok(())
}

/// Rolls a mode out on every node, with more values.
async fn change_mode(
    stage: &Stage,
    members: &Members<'_>,
    mode: &str,
    extra: &[&str],
) -> Result<()> {
    let start = Instant::now();
    let mode = format!("identityAllocationMode={mode}");
    let urls: Vec<_> = (0..SIZE).map(|member| members.url(member)).collect();
    let endpoints = format!("etcd.endpoints={{{}}}", urls.join(","));
    let values =
        ["etcd.enabled=true", "etcd.ssl=true", &endpoints, &mode, "operator.rollOutPods=true"];
    chart::install(stage, &[&values[..], extra].concat()).await?;
    for workload in ["deployment/cilium-operator", "daemonset/cilium"] {
        let namespace = format!("--namespace={}", chart::NAMESPACE);
        let words = [namespace.as_str(), "rollout", "status", workload, "--timeout=120s"];
        until_ok(&format!("{mode}: {workload}"), LIMIT, || stage.cluster.kubectl(&words)).await?;
    }
    chart::ready(stage).await?;
    println!("  {mode} on all nodes after {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}
