//! Gives each node its pod CIDRs out of the cluster's pool: the shell around `cilia_ipam`.

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
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::failure::Failure;
use crate::wiring::Context;
use reconciler::{NodeState, Reconciler};

const CLUSTER_POOL: &str = "cluster-pool";
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

    // Nothing is handed out before every node's claims are known.
    let complete = CancellationToken::new();
    let pump = async {
        let mut changes = std::pin::pin!(changes);
        while let Some(Some(change)) = context.stop.run_until_cancelled(changes.next()).await {
            match change {
                Change::Object { key, new: Some(node), .. } => {
                    reconciler.claim(&key.name, &node);
                    lanes.add(0, key.name);
                }
                Change::Object { key, new: None, .. } => {
                    let helped = reconciler.forget(&key.name);
                    for name in helped {
                        lanes.add(0, name);
                    }
                }
                Change::Synced => {
                    let nodes = reconciler.resync();
                    info!(nodes = nodes.len(), "all nodes are known: pod CIDRs are given out");
                    for name in nodes {
                        lanes.add(0, name);
                    }
                    complete.cancel();
                }
            }
        }
    };
    let handle = {
        let reconciler = Arc::clone(&reconciler);
        move |job: Job<Arc<str>>| -> BoxFuture<'static, Result<Next, Failure>> {
            let reconciler = Arc::clone(&reconciler);
            async move { reconciler.reconcile(&job).await }.boxed()
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
