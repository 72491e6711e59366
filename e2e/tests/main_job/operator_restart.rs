//! Operators come and go; one of them leads.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cilia_e2e::scenario::{Stage, audit, chart};
use cilia_e2e::wait::{Look, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::agent_restart::silence;

const LEASE: &str = "cilium-operator-resource-lock";
const LIMIT: Duration = Duration::from_mins(1);
/// After a clean stop another leads this soon.
const CLEAN: Duration = Duration::from_secs(2);

struct Leader {
    identity: String,
    duration: Duration,
}

async fn leader(stage: &Stage) -> Result<Leader> {
    let lease = stage.get("lease", chart::NAMESPACE, LEASE).await?;
    let identity = lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned();
    let seconds = lease["spec"]["leaseDurationSeconds"].as_u64().unwrap_or_default();
    Ok(Leader { identity, duration: Duration::from_secs(seconds) })
}

/// The pod of the operator that leads, and its process.
async fn leading_pod(stage: &Stage, identity: &str) -> Result<(String, i32)> {
    let pods = stage.list("pods", Some(chart::NAMESPACE)).await?;
    let operators = pods.iter().filter(|pod| {
        pod["metadata"]["labels"]["io.cilium/app"] == "operator"
            && pod["metadata"]["deletionTimestamp"].is_null()
    });
    for pod in operators {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (name, node) = (text(&pod["metadata"]["name"]), text(&pod["spec"]["nodeName"]));
        // An identity is the host's name, which is the node's or the pod's, and a random part.
        let host = identity.split(['_', '-']).next().unwrap_or_default();
        if !(identity.starts_with(&name) || identity.starts_with(&node) || host == node) {
            continue;
        }
        let uid = text(&pod["metadata"]["uid"]);
        let processes = stage.cluster.node(&node)?.pod_processes(stage.cluster.cgroups(), &uid);
        let operator = processes.into_iter().find(|pid| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            name.starts_with("cilia-operator")
        });
        return Ok((name, operator.context("the leading operator has no process")?));
    }
    anyhow::bail!("no operator is {identity:?}")
}

async fn another_leads(stage: &Stage, old: &str, limit: Duration) -> Result<()> {
    until("another leader", limit, || async {
        match leader(stage).await {
            Ok(now) if !now.identity.is_empty() && now.identity != old => Look::Done(()),
            Ok(now) => Look::Not(format!("{:?} leads", now.identity)),
            Err(error) => Look::Not(error.to_string()),
        }
    })
    .await?;
    Ok(())
}

pub(crate) async fn another_leads_after_a_clean_stop(stage: &Stage) -> Result<()> {
    chart::ready(stage).await?;
    let old = leader(stage).await?;
    let (_, pid) = leading_pod(stage, &old.identity).await?;
    kill(Pid::from_raw(pid), Signal::SIGTERM).context("stop the operator")?;
    let start = Instant::now();
    another_leads(stage, &old.identity, LIMIT).await?;
    let took = start.elapsed();
    println!("  another leads after {:.2} s", took.as_secs_f64());
    ensure!(took <= CLEAN, "it took {took:?}");
    chart::ready(stage).await?;
    Ok(())
}

pub(crate) async fn another_leads_after_a_kill(stage: &Stage) -> Result<()> {
    chart::ready(stage).await?;
    let old = leader(stage).await?;
    let (_, pid) = leading_pod(stage, &old.identity).await?;
    kill(Pid::from_raw(pid), Signal::SIGKILL).context("kill the operator")?;
    let start = Instant::now();
    another_leads(stage, &old.identity, LIMIT).await?;
    let took = start.elapsed();
    println!("  another leads after {:.2} s", took.as_secs_f64());
    ensure!(took <= old.duration + CLEAN, "it took {took:?}, the lease {:?}", old.duration);
    chart::ready(stage).await?;
    Ok(())
}

pub(crate) async fn a_restart_at_rest_writes_nothing(stage: &Stage) -> Result<()> {
    chart::ready(stage).await?;
    silence(stage, "before the restart").await?;
    let mark = audit::mark(stage)?;
    let old = leader(stage).await?;
    let (_, pid) = leading_pod(stage, &old.identity).await?;
    kill(Pid::from_raw(pid), Signal::SIGTERM).context("stop the operator")?;
    another_leads(stage, &old.identity, LIMIT).await?;
    chart::ready(stage).await?;
    silence(stage, "after the restart").await?;
    let writes = audit::writes_since(stage, mark)?;
    ensure!(writes.is_empty(), "the operator wrote {} times: {writes:?}", writes.len());
    Ok(())
}
