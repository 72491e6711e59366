//! Gives each node ranges out of `CiliumPodIPPool`s, as its agent asks for them (mode multi-pool).

mod pools;
mod reconciler;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use cilia_crds::{CiliumNode, CiliumPodIpPool};
use cilia_ipam::{MultiPool, NewPool, parse_new_pool};
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
use crate::failure::Failure;
use crate::wiring::Context;
use pools::Pools;
use reconciler::{NodeState, Reconciler};

const GROUP: &str = "ipam-multi-pool-sync";
const NEW_POOLS: &str = "auto-create-cilium-pod-ip-pools";

/// What is to be looked at.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    /// A node, by its name.
    Node(Arc<str>),
    /// A pool that is to be made, by its name.
    NewPool(Arc<str>),
}

/// The pools that are to be made at the start.
pub(super) fn new_pools(config: &Config) -> anyhow::Result<Vec<NewPool>> {
    let parse = |(name, value): (&String, &String)| {
        parse_new_pool(name, value)
            .map_err(|error| config.reject(NEW_POOLS, error.to_string()).into())
    };
    config.map(NEW_POOLS).iter().map(parse).collect()
}

/// Runs until `context.stop`.
pub(super) async fn run(context: Context) -> anyhow::Result<()> {
    let workers = super::workers(&context.config)?;
    let client = context.bulk.clone();
    let (nodes, node_changes) =
        reflect(watch(Api::<CiliumNode>::all(client.clone())), NodeState::of);
    let (pools, pool_changes) =
        reflect(watch(Api::<CiliumPodIpPool>::all(client.clone())), pools::spec_of);
    let core =
        MultiPool::new(context.config.bool("enable-ipv4"), context.config.bool("enable-ipv6"));
    let nodes = Nodes::new(client.clone(), context.events.clone(), nodes);
    let reconciler = Arc::new(Reconciler::new(nodes, core));
    let pools =
        Arc::new(Pools::new(client, context.events.clone(), pools, new_pools(&context.config)?));
    let lanes = vec![Lane::new("ipam-multi-pool")];
    let lanes = Lanes::new(lanes, Retry::default(), None, &context.workqueues);
    let metrics = Arc::new(SyncMetrics::new(&context.metrics));
    let ask = |name: Arc<str>| {
        metrics.asked();
        lanes.add(0, Key::Node(name));
    };

    // Nothing is handed out before every pool and every node's claims are known.
    let complete = CancellationToken::new();
    let pump = async {
        let mut pool_changes = std::pin::pin!(pool_changes);
        let mut node_changes = std::pin::pin!(node_changes);
        let (mut pools_known, mut nodes_known) = (false, false);
        loop {
            tokio::select! {
                () = context.stop.cancelled() => return,
                Some(change) = pool_changes.next() => match change {
                    Change::Object { key, .. } => {
                        let touched = pools.apply(&key.name, &reconciler);
                        if complete.is_cancelled() {
                            touched.into_iter().for_each(ask);
                        }
                    }
                    Change::Synced => {
                        pools_known = true;
                        pools.names().for_each(|name| lanes.add(0, Key::NewPool(name)));
                    }
                },
                Some(change) = node_changes.next() => match change {
                    Change::Object { key, new, .. } => {
                        if complete.is_cancelled() {
                            reconciler.look(&key.name);
                            if new.is_some() {
                                ask(key.name);
                            }
                        }
                    }
                    Change::Synced => nodes_known = true,
                },
                else => return,
            }
            if pools_known && nodes_known && !complete.is_cancelled() {
                let edited = context.leadership.cut_off().then(|| pools.edited());
                let nodes = reconciler.resync(edited.as_ref());
                info!(nodes = nodes.len(), "all pools and nodes are known: ranges are given out");
                nodes.into_iter().for_each(ask);
                complete.cancel();
            }
            reconciler.to_ask().into_iter().for_each(ask);
        }
    };
    let handle = {
        let (reconciler, pools) = (Arc::clone(&reconciler), Arc::clone(&pools));
        let (metrics, groups) = (Arc::clone(&metrics), context.metrics.clone());
        let complete = complete.clone();
        move |job: Job<Key>| -> BoxFuture<'static, Result<Next, Failure>> {
            let (reconciler, pools) = (Arc::clone(&reconciler), Arc::clone(&pools));
            let (metrics, groups, complete) =
                (Arc::clone(&metrics), groups.clone(), complete.clone());
            async move {
                let name = match job.key.clone() {
                    Key::NewPool(name) => return pools.make(&name, &job).await,
                    Key::Node(name) => name,
                };
                if !complete.is_cancelled() {
                    return Ok(Next::Done);
                }
                let started = Instant::now();
                let result = reconciler.reconcile(&name, &job).await;
                metrics.ran(job.waited, started.elapsed());
                groups.group_ran(GROUP, result.is_ok());
                result
            }
            .boxed()
        }
    };
    let work = lanes.run(workers, &context.stop, handle);
    tokio::join!(pump, work);
    Ok(())
}
