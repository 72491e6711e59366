//! Gives each node its pod CIDRs out of the cluster's pool: the shell around `cilia_ipam`.

mod metrics;
mod reconciler;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use cilia_crds::CiliumNode;
use cilia_ipam::{ClusterPool, PoolConfig};
use cilia_runtime::config::Config;
use cilia_runtime::lanes::{Job, Lane, Lanes, Next, Retry};
use cilia_runtime::watch::{Change, reflect, watch};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use kube::Api;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::failure::Failure;
use crate::wiring::Context;
use metrics::SyncMetrics;
use reconciler::{NodeState, Reconciler};

const CLUSTER_POOL: &str = "cluster-pool";
const GROUP: &str = "update-cilium-nodes-pod-cidr";
/// Modes in which nodes get their addresses without the operator.
const WITHOUT_OPERATOR: [&str; 2] = ["kubernetes", "delegated-plugin"];
/// Nodes written at once.
const WORKERS: usize = 16;

/// Errors for settings that cannot work.
pub(crate) fn check(config: &Config) -> anyhow::Result<()> {
    if config.string("ipam") == CLUSTER_POOL {
        pool(config)?;
    }
    Ok(())
}

fn pool(config: &Config) -> anyhow::Result<ClusterPool> {
    let v4 = PoolConfig {
        enabled: config.bool("enable-ipv4"),
        cidrs: config.strings("cluster-pool-ipv4-cidr"),
        mask_size: config.int("cluster-pool-ipv4-mask-size"),
    };
    let v6 = PoolConfig {
        enabled: config.bool("enable-ipv6"),
        cidrs: config.strings("cluster-pool-ipv6-cidr"),
        mask_size: config.int("cluster-pool-ipv6-mask-size"),
    };
    Ok(ClusterPool::new(&v4, &v6)?)
}

/// Runs until `context.stop`.
pub(crate) async fn run(context: Context) -> anyhow::Result<()> {
    let mode = context.config.string("ipam");
    if mode != CLUSTER_POOL {
        if !WITHOUT_OPERATOR.contains(&mode) {
            warn!(
                mode,
                "this ipam mode is not built yet: nodes get no addresses from the operator"
            );
        }
        return Ok(());
    }
    let pool = pool(&context.config)?;
    let nodes: Api<CiliumNode> = Api::all(context.client.clone());
    let (nodes, changes) = reflect(watch(nodes), NodeState::of);
    let lanes = vec![Lane::new("ipam-pod-cidrs")];
    let lanes = Lanes::new(lanes, Retry::default(), None, &context.workqueues);
    let reconciler =
        Arc::new(Reconciler::new(context.client.clone(), context.events.clone(), nodes, pool));

    let metrics = Arc::new(SyncMetrics::new(&context.metrics));
    let ask = |name| {
        metrics.asked();
        lanes.add(0, name);
    };

    // Nothing is handed out before every node's claims are known.
    let complete = CancellationToken::new();
    let pump = async {
        let mut changes = std::pin::pin!(changes);
        while let Some(Some(change)) = context.stop.run_until_cancelled(changes.next()).await {
            match change {
                Change::Object { key, new: Some(node), .. } => {
                    reconciler.claim(&key.name, &node);
                    ask(key.name);
                }
                Change::Object { key, new: None, .. } => {
                    reconciler.forget(&key.name).into_iter().for_each(ask);
                }
                Change::Synced => {
                    let nodes = reconciler.resync();
                    info!(nodes = nodes.len(), "all nodes are known: pod CIDRs are given out");
                    nodes.into_iter().for_each(ask);
                    complete.cancel();
                }
            }
        }
    };
    let handle = {
        let (reconciler, metrics) = (Arc::clone(&reconciler), Arc::clone(&metrics));
        let groups = context.metrics.clone();
        move |job: Job<Arc<str>>| -> BoxFuture<'static, Result<Next, Failure>> {
            let (reconciler, metrics) = (Arc::clone(&reconciler), Arc::clone(&metrics));
            let groups = groups.clone();
            async move {
                let started = Instant::now();
                let result = reconciler.reconcile(&job).await;
                metrics.ran(job.waited, started.elapsed());
                groups.group_ran(GROUP, result.is_ok());
                result
            }
            .boxed()
        }
    };
    let work = async {
        if context.stop.run_until_cancelled(complete.cancelled()).await.is_some() {
            lanes.run(WORKERS, &context.stop, handle).await;
        }
    };
    tokio::join!(pump, work);
    Ok(())
}
