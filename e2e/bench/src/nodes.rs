//! The benchmark of addresses: how long until every node of a large, new cluster has its first range.
//!
//! Every operator gets an API server of its own, with the nodes in it and nothing else. In order:
//!
//! 1. first ranges: until each node's `CiliumNode` has one; no two may have the same;
//! 2. restart: killed and started again, with nothing to do; any write is one too many.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cilia_crds::{CiliumNode, CiliumPodIpPool};
use cilia_runtime::testing::ApiServer;
use cilia_runtime::watch::{Store, reflect, watch};
use clap::{Args, ValueEnum};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::api::PostParams;
use kube::{Api, Client};
use serde::Serialize;
use serde_json::json;

use crate::operator::Operator;
use crate::start::{forget_leader, is_served, named, register_crds, until};

/// How long the operator may take.
const LIMIT: Duration = Duration::from_mins(5);
/// How long a restarted operator is watched for writes that it should not do.
const RESTART_WATCHED: Duration = Duration::from_secs(15);
/// Requests in flight while the cluster is filled.
const PARALLEL: usize = 48;

/// What the nodes ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// Nothing: each gets a CIDR of each family
    ClusterPool,
    /// What an agent without pods asks for of the default pool
    MultiPool,
}

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Nodes without a range
    #[arg(long, default_value_t = 10_000)]
    nodes: usize,
    /// What they ask for
    #[arg(long, value_enum, default_value_t = Mode::ClusterPool)]
    mode: Mode,
    /// NAME=COMMAND of an operator, words parted by blanks; {kubeconfig} stands for the
    /// kubeconfig's path. Give it again to compare.
    #[arg(long = "operator", required = true, value_name = "NAME=COMMAND")]
    operators: Vec<String>,
    /// Where the operators' output goes
    #[arg(long, default_value = "/tmp")]
    logs: PathBuf,
    /// Write JSON to this file as well
    #[arg(long)]
    write_json: Option<PathBuf>,
}

/// The figures of one operator.
#[derive(Debug, Serialize)]
struct Report {
    operator: String,
    nodes: usize,
    seconds: f64,
    writes: usize,
    cpu_seconds: f64,
    peak_mib: f64,
    restart_writes: usize,
}

/// Measures each operator in turn and prints the figures.
pub(crate) async fn run(arguments: Arguments) -> Result<()> {
    let mut reports = Vec::new();
    for operator in &arguments.operators {
        let (name, command) = named(operator)?;
        reports.push(measure(&arguments, name, &command).await.with_context(|| name.to_owned())?);
    }
    if let Some(file) = &arguments.write_json {
        let json = serde_json::to_string_pretty(&reports)?;
        std::fs::write(file, json).with_context(|| format!("write {}", file.display()))?;
    }
    for report in &reports {
        println!(
            "{}: {} nodes: first ranges after {:.2} s, {} writes, {:.2} s CPU, {:.1} MiB at most; restart: {} writes",
            report.operator,
            report.nodes,
            report.seconds,
            report.writes,
            report.cpu_seconds,
            report.peak_mib,
            report.restart_writes
        );
    }
    Ok(())
}

async fn measure(arguments: &Arguments, name: &str, command: &[String]) -> Result<Report> {
    eprintln!("{name}: starting an API server");
    let server = ApiServer::start().await;
    let client = server.client();
    let kubeconfig = server.kubeconfig();
    let log = arguments.logs.join(format!("cilia-bench-{name}.log"));
    let start = || Operator::start(command, &kubeconfig, &log);

    let there = async || {
        is_served::<CiliumNode>(&client).await && is_served::<CiliumPodIpPool>(&client).await
    };
    register_crds(&client, start, there).await?;
    eprintln!("{name}: creating {} nodes", arguments.nodes);
    seed(&client, arguments).await?;

    eprintln!("{name}: first ranges");
    let ranges = follow(client.clone());
    until(Duration::from_mins(1), "the nodes are not seen", async || {
        ranges.len() == arguments.nodes
    })
    .await?;
    let before = written(&server).await;
    let begin = Instant::now();
    let mut operator = start()?;
    let all =
        async || ranges.all().iter().filter(|(_, has)| !has.is_empty()).count() == arguments.nodes;
    until(LIMIT, "not every node has a range", all).await?;
    let seconds = begin.elapsed().as_secs_f64();
    let (cpu_seconds, peak_mib) = (operator.cpu_seconds()?, operator.memory_mib("VmHWM")?);
    let nodes = ranges.all();
    let mut distinct = HashSet::new();
    for (key, has) in &nodes {
        let twice = has.iter().find(|range| !distinct.insert((*range).clone()));
        ensure!(twice.is_none(), "{twice:?} of {key} is another node's, too");
    }
    let writes = written(&server).await - before;
    operator.kill()?;
    forget_leader(&client).await?;

    eprintln!("{name}: restart at rest");
    let before = written(&server).await;
    let _operator = start()?;
    tokio::time::sleep(RESTART_WATCHED).await;
    let restart_writes = written(&server).await - before;
    let (operator, nodes) = (name.to_owned(), arguments.nodes);
    Ok(Report { operator, nodes, seconds, writes, cpu_seconds, peak_mib, restart_writes })
}

async fn seed(client: &Client, arguments: &Arguments) -> Result<()> {
    let api: Api<CiliumNode> = Api::all(client.clone());
    let ipam = match arguments.mode {
        Mode::ClusterPool => json!({}),
        Mode::MultiPool => {
            json!({ "pools": { "requested": [{ "pool": "default", "needed": { "ipv4-addrs": 16 } }] } })
        }
    };
    stream::iter(0..arguments.nodes)
        .map(|number| {
            let (api, ipam) = (api.clone(), ipam.clone());
            async move {
                let node = json!({
                    "metadata": { "name": format!("node-{number}") },
                    "spec": { "ipam": ipam, "addresses": [{ "type": "InternalIP", "ip": "192.0.2.1" }] },
                });
                let node: CiliumNode = serde_json::from_value(node)?;
                api.create(&PostParams::default(), &node).await?;
                Ok::<_, anyhow::Error>(())
            }
        })
        .buffer_unordered(PARALLEL)
        .try_collect()
        .await
}

/// The ranges of every node, kept up to date.
fn follow(client: Client) -> Store<Vec<Arc<str>>> {
    let slim = |node: CiliumNode| {
        let ipam = node.spec.ipam.unwrap_or_default();
        let pools = ipam.pools.unwrap_or_default().allocated;
        let pools = pools.into_iter().flat_map(|one| one.cidrs);
        Some(ipam.pod_cidrs.into_iter().chain(pools).map(Arc::from).collect::<Vec<Arc<str>>>())
    };
    let (store, changes) = reflect(watch(Api::<CiliumNode>::all(client)), slim);
    tokio::spawn(changes.for_each(|_| std::future::ready(())));
    store
}

/// How often nodes were written, by others than this program.
async fn written(server: &ApiServer) -> usize {
    let writes = server.writes().await;
    writes.iter().filter(|write| write.resource == "ciliumnodes" && write.agent != "test").count()
}
