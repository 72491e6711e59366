//! Gives each node its pod CIDRs out of the cluster's pool (mode cluster-pool).

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
use tracing::info;

use super::metrics::SyncMetrics;
use super::nodes::Nodes;
use super::reconciler::{NodeState, Reconciler};
use crate::failure::Failure;
use crate::wiring::Context;

const GROUP: &str = "update-cilium-nodes-pod-cidr";

/// The pool that the settings describe.
pub(super) fn pool(config: &Config) -> anyhow::Result<ClusterPool> {
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
pub(super) async fn run(context: Context) -> anyhow::Result<()> {
    let workers = super::workers(&context.config)?;
    let pool = pool(&context.config)?;
    let nodes: Api<CiliumNode> = Api::all(context.client.clone());
    let (nodes, changes) = reflect(watch(nodes), NodeState::of);
    let lanes = vec![Lane::new("ipam-pod-cidrs")];
    let lanes = Lanes::new(lanes, Retry::default(), None, &context.workqueues);
    let nodes = Nodes::new(context.bulk.clone(), context.events.clone(), nodes);
    let reconciler = Arc::new(Reconciler::new(nodes, pool));

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
                Change::Object { key, new, .. } => {
                    // Before all are known, the order in which they are told says nothing.
                    if complete.is_cancelled() {
                        reconciler.look(&key.name);
                        if new.is_some() {
                            ask(key.name);
                        }
                        reconciler.to_ask().into_iter().for_each(ask);
                    }
                }
                Change::Synced => {
                    let nodes = reconciler.resync(context.leadership.cut_off());
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
            lanes.run(workers, &context.stop, handle).await;
        }
    };
    tokio::join!(pump, work);
    Ok(())
}
