//! The benchmark of identities: what an operator that makes and collects them costs, and how soon a new one is there.
//!
//! The API server is filled first, with as many identities as a cluster can have, pods and endpoints for most of
//! them. Then, with one operator:
//!
//! 1. start: until every pod has been looked at; the memory that takes, and how long the collector's run takes;
//! 2. new label sets: from the request that creates a pod to its `CiliumIdentity`;
//! 3. a namespace's labels change: until there is an identity for each of its pods' new label sets.

mod follow;
mod load;
mod scrape;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cilia_crds::{CiliumEndpoint, CiliumIdentity};
use cilia_runtime::testing::ApiServer;
use clap::Args;
use serde::Serialize;

use crate::operator::Operator;
use crate::report::Latency;
use crate::start::{is_served, register_crds, words};
use follow::Made;
use load::Load;
use scrape::Metrics;

const START_LIMIT: Duration = Duration::from_mins(10);
const MADE_LIMIT: Duration = Duration::from_mins(1);
/// Pods of the namespace whose labels change, and their label sets.
const MOVED: (usize, usize) = (1000, 10);

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// `CiliumIdentities` that exist
    #[arg(long, default_value_t = 65_000)]
    identities: usize,
    /// Pods with endpoints that use one each
    #[arg(long, default_value_t = 50_000)]
    pods: usize,
    /// Namespaces that they are spread over
    #[arg(long, default_value_t = 200)]
    namespaces: usize,
    /// New label sets, 20 a second
    #[arg(long, default_value_t = 200)]
    new: usize,
    /// The operator's command, words parted by blanks; {kubeconfig} stands for the kubeconfig's path
    #[arg(long)]
    operator: String,
    /// Where the operator serves its metrics
    #[arg(long, default_value = "127.0.0.1:19963")]
    metrics: String,
    /// Where the operator's output goes
    #[arg(long, default_value = "/tmp")]
    logs: PathBuf,
    /// Write JSON to this file as well
    #[arg(long)]
    write_json: Option<PathBuf>,
}

/// The figures.
#[derive(Debug, Serialize)]
struct Report {
    identities: usize,
    pods: usize,
    start_seconds: f64,
    start_cpu_seconds: f64,
    rss_mib: f64,
    peak_mib: f64,
    gc_run_seconds: f64,
    new: Latency,
    namespace_seconds: f64,
}

pub(crate) async fn run(arguments: Arguments) -> Result<()> {
    let command = words(&arguments.operator);
    let server = ApiServer::start().await;
    let client = server.client();
    let (kubeconfig, log) =
        (server.kubeconfig(), arguments.logs.join("cilia-bench-identities.log"));
    let start = || Operator::start(&command, &kubeconfig, &log);
    let there = async || {
        is_served::<CiliumIdentity>(&client).await && is_served::<CiliumEndpoint>(&client).await
    };
    register_crds(&client, start, there).await?;

    let Arguments { identities, pods, namespaces, new, .. } = arguments;
    eprintln!("creating {identities} identities, {pods} pods and their endpoints");
    let load = Load::new(client.clone(), namespaces);
    load.namespaces(MOVED).await?;
    load.seed(identities, pods).await?;

    eprintln!("start");
    let made = Made::follow(client.clone()).await?;
    let begin = Instant::now();
    let operator = start()?;
    let metrics = Metrics::at(&arguments.metrics);
    let looked = "cid_controller_work_queue_event_count{resource=\"pod\",outcome=\"success\"}";
    let ran = "identity_gc_latency{outcome=\"success\",identity_type=\"crd\"}";
    let all = f64::from(u32::try_from(pods + MOVED.0)?);
    while metrics.value(looked).await < Some(all) || metrics.value(ran).await.is_none() {
        ensure!(begin.elapsed() < START_LIMIT, "not all pods were looked at");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let (start_seconds, start_cpu_seconds) =
        (begin.elapsed().as_secs_f64(), operator.cpu_seconds()?);
    rest(&operator).await?;
    let (rss_mib, peak_mib) = (operator.memory_mib("VmRSS")?, operator.memory_mib("VmHWM")?);
    let gc_run_seconds = metrics.value(ran).await.context("no run of the collector")?;

    eprintln!("new label sets");
    let asked = load.new_sets(new).await?;
    made.wait(asked.keys(), MADE_LIMIT).await?;
    let waited = asked.iter().filter_map(|(app, asked)| made.seconds_since(app, *asked)).collect();

    eprintln!("a namespace's labels change");
    made.forget();
    let begin = Instant::now();
    load.change_namespace().await?;
    made.wait((0..MOVED.1).map(load::moved).collect::<Vec<_>>().iter(), MADE_LIMIT).await?;
    let namespace_seconds = begin.elapsed().as_secs_f64();

    let report = Report {
        identities,
        pods,
        start_seconds,
        start_cpu_seconds,
        rss_mib,
        peak_mib,
        gc_run_seconds,
        new: Latency::of(waited),
        namespace_seconds,
    };
    if let Some(file) = &arguments.write_json {
        let json = serde_json::to_string_pretty(&report)?;
        std::fs::write(file, json).with_context(|| format!("write {}", file.display()))?;
    }
    print(&report);
    Ok(())
}

/// Waits until the operator has nothing to do: what it needs to start is the peak's.
async fn rest(operator: &Operator) -> Result<()> {
    let begin = Instant::now();
    loop {
        let before = operator.cpu_seconds()?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        if operator.cpu_seconds()? - before < 0.05 {
            return Ok(());
        }
        ensure!(begin.elapsed() < MADE_LIMIT, "the operator does not come to rest");
    }
}

fn print(report: &Report) {
    let Report { identities, pods, new, .. } = report;
    println!("{identities} identities, {pods} pods with endpoints");
    for (name, figure) in [
        ("start: seconds", format!("{:.2}", report.start_seconds)),
        ("start: CPU seconds", format!("{:.2}", report.start_cpu_seconds)),
        ("memory: MiB, at rest / peak", format!("{:.1} / {:.1}", report.rss_mib, report.peak_mib)),
        ("collector: seconds a run", format!("{:.2}", report.gc_run_seconds)),
        ("new label set: p50 / p99 s", format!("{:.3} / {:.3} ({})", new.p50, new.p99, new.n)),
        ("namespace, 1000 pods: seconds", format!("{:.2}", report.namespace_seconds)),
    ] {
        println!("{name:<32}{figure:>20}");
    }
}
