//! An agent is frozen for longer than its leases live: its pods keep what they had, other clusters read of them what an
//! operator says in its place, and it gets back what is its own.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use cilia_e2e::scenario::pods::{self, Pod};
use cilia_e2e::scenario::{Stage, agent};
use cilia_e2e::wait::{Look, until};
use cilia_kvstore::{Client, KeyValue, is_stand_in};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::traffic::{Cast, reached};
use super::{LIMIT, known, known_pods_talk, new_pods_talk};
use crate::agent_restart::kill_agent;

/// The shortest life that leases may have.
pub(super) const LEASE: &str = "extraConfig.kvstore-lease-ttl=25s";
const NODE: &str = "n2";

/// A process that is stopped; it goes on when this is dropped.
struct Frozen(Pid);

impl Drop for Frozen {
    fn drop(&mut self) {
        // It may be gone by now.
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

/// In mode `kvstore`, with leases of [`LEASE`].
pub(super) async fn agent(stage: &Stage, root: &Client, cast: &Cast) -> Result<()> {
    stage.apply(&egress(&cast.client)).await?;
    for server in [&cast.near, &cast.far] {
        reached(&cast.client, server).await?;
    }
    let host = Pod::of_node(stage, NODE)?.ipv4.to_string();
    let before = said(root, &host).await?;
    for kind in ["ip/", "nodes/", "identities/"] {
        let prefix = format!("cilium/state/{kind}");
        ensure!(before.keys().any(|key| key.starts_with(&prefix)), "{NODE} says nothing in {kind}");
    }
    let traffic = cast.start().await?;
    let pid = Pid::from_raw(agent::process(stage, NODE).await?);
    kill(pid, Signal::SIGSTOP).context("stop the agent")?;
    let (frozen, start) = (Frozen(pid), Instant::now());
    until(&format!("the end of what {NODE} says"), LIMIT, || async {
        match present(root, &before).await {
            Ok(all) if all.is_empty() => Look::Done(()),
            Ok(all) => Look::Not(format!("{} keys, {:?}", all.len(), all.keys().next())),
            Err(error) => Look::Not(error.to_string()),
        }
    })
    .await?;
    let ended = start.elapsed().as_secs_f64();
    let for_others = until(&format!("what is said for {NODE}"), LIMIT, || async {
        match stood_in(root, &before).await {
            Ok(all) if !all.is_empty() && all == of_pods(&before) => Look::Done(all.len()),
            Ok(all) => Look::Not(format!("{} keys, {:?}", all.len(), all.keys().next())),
            Err(error) => Look::Not(error.to_string()),
        }
    })
    .await?;
    let stood = start.elapsed().as_secs_f64();
    // A pod that is new to it all is let through to what nobody speaks of: n1 knows still who that is.
    known_pods_talk(stage, cast, "frozen", &["n1"]).await?;
    // So does its successor.
    kill_agent(stage, "n1").await?;
    known_pods_talk(stage, cast, "successor", &["n1"]).await?;
    known(stage, &cast.far.ipv4.to_string(), &["n1"], true).await?;
    ensure!(present(root, &before).await?.is_empty(), "{NODE} speaks already");
    println!("  its {} keys went after {ended:.1} s", before.len());
    println!("  {for_others} of them were said for it after {stood:.1} s");
    drop(frozen);
    let thawed = Instant::now();
    until(&format!("what {NODE} said"), LIMIT, || async {
        match present(root, &before).await {
            Ok(all) if all == before => Look::Done(()),
            Ok(all) => {
                let missing = before.iter().find(|(key, value)| all.get(*key) != Some(value));
                Look::Not(format!("{} keys of {}: {missing:?}", all.len(), before.len()))
            }
            Err(error) => Look::Not(error.to_string()),
        }
    })
    .await?;
    println!("  the same is said {:.1} s after it goes on", thawed.elapsed().as_secs_f64());
    new_pods_talk(stage, cast, "thawed", &["n1", NODE]).await?;
    traffic.finish("an agent was frozen for longer than its leases live").await?;
    // What goes then goes everywhere.
    let far = cast.far.ipv4.to_string();
    pods::delete(stage, std::slice::from_ref(&cast.far)).await?;
    known(stage, &far, &["n1", NODE], false).await
}

/// What a node's agent says: its own key, its pods' addresses, and what they use. Former agents' leases may live still.
async fn said(root: &Client, host: &str) -> Result<BTreeMap<String, Vec<u8>>> {
    let (all, _) = root.list("cilium/state/").await?;
    let key = |kv: &KeyValue| String::from_utf8_lossy(&kv.key).into_owned();
    let is_node = |key: &str| key.contains("/nodes/") && key.ends_with(&format!("/{NODE}"));
    let own = all.iter().find(|kv| is_node(&key(kv))).context("the node's key")?.lease;
    let of_node = |kv: &KeyValue| {
        let key = key(kv);
        let pair = || serde_json::from_slice::<Value>(&kv.value).ok();
        is_node(&key)
            || key.contains("/value/") && key.ends_with(&format!("/{host}"))
            || key.contains("/ip/") && pair().is_some_and(|pair| pair["HostIP"] == host)
    };
    let said = all.iter().filter(|kv| kv.lease == own && of_node(kv));
    Ok(said.map(|kv| (key(kv), kv.value.clone())).collect())
}

/// What an agent says of this.
async fn present(
    root: &Client,
    said: &BTreeMap<String, Vec<u8>>,
) -> Result<BTreeMap<String, Vec<u8>>> {
    let (all, _) = root.list("cilium/state/").await?;
    let all = all.into_iter().filter(|kv| !is_stand_in(kv.lease));
    let pairs = all.map(|kv| (String::from_utf8_lossy(&kv.key).into_owned(), kv.value));
    Ok(pairs.filter(|(key, _)| said.contains_key(key)).collect())
}

/// What an operator says of this.
async fn stood_in(
    root: &Client,
    said: &BTreeMap<String, Vec<u8>>,
) -> Result<BTreeMap<String, Vec<u8>>> {
    let (all, _) = root.list("cilium/state/").await?;
    let all = all.into_iter().filter(|kv| is_stand_in(kv.lease));
    let pairs = all.map(|kv| (String::from_utf8_lossy(&kv.key).into_owned(), kv.value));
    Ok(pairs.filter(|(key, _)| said.contains_key(key)).collect())
}

/// What other clusters need of this: all but which identities are used.
fn of_pods(said: &BTreeMap<String, Vec<u8>>) -> BTreeMap<String, Vec<u8>> {
    let said = said.iter().filter(|(key, _)| !key.contains("/identities/"));
    said.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Lets clients send to servers only: who doesn't know a server's identity lets nothing through to it.
fn egress(client: &Pod) -> Value {
    json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy",
        "metadata": {"namespace": client.namespace, "name": "clients"},
        "spec": {
            "endpointSelector": {"matchLabels": {"side": "client"}},
            "egress": [{"toEndpoints": [{"matchLabels": {"side": "server"}}]}],
        },
    })
}
