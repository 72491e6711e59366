//! An agent dies and comes back; nobody else notices.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cilia_e2e::scenario::live::{Connection, Datagrams};
use cilia_e2e::scenario::pods::{self, Plan};
use cilia_e2e::scenario::traffic::serve;
use cilia_e2e::scenario::{Stage, agent, audit, chart};
use cilia_e2e::wait::{Look, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

const PORT: u16 = 7000;
const LIMIT: Duration = Duration::from_mins(2);
/// For how long nothing may be written.
const SILENCE: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(5);

/// Kills the agent on `node` and waits until there is another, well or not.
pub(crate) async fn replace_agent(stage: &Stage, node: &str) -> Result<()> {
    let old = agent::process(stage, node).await?;
    kill(Pid::from_raw(old), Signal::SIGKILL).context("kill the agent")?;
    until(&format!("another agent on {node}"), LIMIT, || async {
        match agent::process(stage, node).await {
            Ok(pid) if pid != old => Look::Done(()),
            Ok(_) => Look::Not("the old one".to_owned()),
            Err(error) => Look::Not(error.to_string()),
        }
    })
    .await?;
    Ok(())
}

/// Kills the agent on `node` and waits until its successor is ready.
pub(crate) async fn kill_agent(stage: &Stage, node: &str) -> Result<()> {
    replace_agent(stage, node).await?;
    ready(stage, node).await
}

/// Waits until the agent on `node` says that it is well.
pub(crate) async fn ready(stage: &Stage, node: &str) -> Result<()> {
    until(&format!("readiness of the agent on {node}"), LIMIT, || async {
        match agent::run(stage, node, &["status", "--brief"]).await {
            Ok(text) if text.trim() == "OK" => Look::Done(()),
            Ok(text) => Look::Not(text),
            Err(error) => Look::Not(error.to_string()),
        }
    })
    .await?;
    Ok(())
}

pub(crate) async fn a_killed_agent_loses_no_packet(stage: &Stage) -> Result<()> {
    pods::namespace(stage, "killed", &json!({})).await?;
    let plans = [("here", "n1"), ("near", "n1"), ("far", "n2")]
        .map(|(name, node)| Plan::idle("killed", name).on(node));
    let found = pods::run(stage, &plans).await?;
    let [here, near, far] = &found[..] else { anyhow::bail!("three pods") };
    for pod in &found {
        serve(pod, PORT).await?;
    }
    let mut streams = Vec::new();
    let mut connections = Vec::new();
    for (from, to) in [(here, near), (here, far), (far, here)] {
        for ip in to.addresses() {
            let to = SocketAddr::new(ip, PORT);
            streams.push((from.name.clone(), to, Datagrams::start(from, to).await?));
            connections.push(Connection::open(from, to, PATIENCE).await?);
        }
    }
    let start = Instant::now();
    kill_agent(stage, "n1").await?;
    println!("  another agent is ready after {:.1} s", start.elapsed().as_secs_f64());
    let more: Vec<_> =
        (0..10).map(|i| Plan::idle("killed", &format!("more-{i}")).on("n1")).collect();
    let more = pods::run(stage, &more).await?;
    for (name, to, stream) in streams {
        let tally = stream.finish().await?;
        ensure!(tally.sent > 100, "{name} to {to} sent only {}", tally.sent);
        ensure!(tally.answered == tally.sent, "{name} to {to}: {tally:?}");
    }
    for connection in connections {
        connection.finish().await?;
    }
    let all = stage.list("pods", None).await?;
    let networked = all.iter().filter(|pod| pod["spec"]["hostNetwork"] != true);
    let mut seen: BTreeSet<IpAddr> = BTreeSet::new();
    for pod in networked {
        for ip in pod["status"]["podIPs"].as_array().into_iter().flatten() {
            let ip: IpAddr = ip["ip"].as_str().unwrap_or_default().parse()?;
            ensure!(seen.insert(ip), "{ip} was given twice");
        }
    }
    ensure!(more.iter().all(|pod| seen.contains(&pod.ipv4.into())), "the new pods are counted");
    pods::leave(stage, "killed").await?;
    Ok(())
}

pub(crate) async fn a_restart_at_rest_writes_nothing(stage: &Stage) -> Result<()> {
    chart::ready(stage).await?;
    silence(stage, "before the restart").await?;
    let mark = audit::mark(stage)?;
    kill_agent(stage, "n1").await?;
    let watched = Instant::now();
    until("the end of the watch", LIMIT, || async {
        let left = SILENCE.saturating_sub(watched.elapsed());
        if left.is_zero() { Look::Done(()) } else { Look::Not(format!("{left:?} to go")) }
    })
    .await?;
    let mut writes = audit::writes_since(stage, mark)?;
    // While an agent is away its node says so: that is the operator's to write, and right.
    writes.retain(|write| write != "cilium-operator patch nodes n1");
    ensure!(writes.is_empty(), "the agent wrote {} times: {writes:?}", writes.len());
    Ok(())
}

/// Waits until Cilia has written nothing for a while.
pub(crate) async fn silence(stage: &Stage, when: &str) -> Result<()> {
    let mut since = (Instant::now(), audit::mark(stage)?);
    until(&format!("silence {when}"), LIMIT, || {
        let writes = audit::writes_since(stage, since.1);
        let look = match writes {
            Ok(writes) if writes.is_empty() && since.0.elapsed() >= SILENCE => Look::Done(()),
            Ok(writes) if writes.is_empty() => Look::Not("not long enough".to_owned()),
            Ok(writes) => {
                if let Ok(mark) = audit::mark(stage) {
                    since = (Instant::now(), mark);
                }
                Look::Not(format!("{writes:?}"))
            }
            Err(error) => Look::Not(error.to_string()),
        };
        async move { look }
    })
    .await?;
    Ok(())
}
