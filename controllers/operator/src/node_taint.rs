//! Lifts the `agent-not-ready` taint of nodes whose agent serves, and says that their network is up.

mod agents;
mod decision;
mod reconciler;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use cilia_runtime::config::{Config, Error};
use cilia_runtime::lanes::{Job, Lane, Lanes, Next, Retry};
use cilia_runtime::watch::{Change, Scope, reflect, watch, watch_scoped};
use futures::future::BoxFuture;
use futures::stream::select;
use futures::{FutureExt, StreamExt};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use tokio_util::sync::CancellationToken;

use crate::config::agents_namespace;
use crate::failure::Failure;
use crate::wiring::Context;
use agents::AgentOnNode;
use decision::Duties;
use reconciler::{NodeState, Reconciler};

const TAINT_KEY: &str = "node.cilium.io/agent-not-ready";

/// Errors for settings that cannot work.
pub(crate) fn check(config: &Config) -> anyhow::Result<()> {
    workers(config)?;
    Ok(())
}

fn workers(config: &Config) -> Result<usize, Error> {
    let flag = "taint-sync-workers";
    let workers = usize::try_from(config.int(flag)).ok().filter(|workers| *workers > 0);
    workers.ok_or_else(|| config.reject(flag, "a number from 1"))
}

/// Runs until `context.stop`.
pub(crate) async fn run(context: Context) -> anyhow::Result<()> {
    let config = &context.config;
    let duties = Duties {
        remove_taint: config.bool("remove-cilium-node-taints"),
        set_taint: config.bool("set-cilium-node-taints"),
        set_condition: config.bool("set-cilium-is-up-condition"),
    };
    if !duties.remove_taint && !duties.set_condition {
        return Ok(());
    }
    let taint_key = Some(config.string("agent-not-ready-taint-key")).filter(|key| !key.is_empty());
    let taint_key: Arc<str> = taint_key.unwrap_or(TAINT_KEY).into();
    let namespace = agents_namespace(config);
    let labels = config.string("cilium-pod-labels").to_owned();

    let pods: Api<Pod> = match namespace {
        "" => Api::all(context.client.clone()),
        namespace => Api::namespaced(context.client.clone(), namespace),
    };
    let scope = Scope { labels, fields: String::new() };
    let (_, agent_changes) = reflect(watch_scoped(pods, scope), reconciler::agent);
    let key = Arc::clone(&taint_key);
    let nodes: Api<Node> = Api::all(context.client.clone());
    let (nodes, node_changes) = reflect(watch(nodes), move |node| NodeState::of(&node, &key));

    let lanes = vec![Lane::new("node-queue")];
    let lanes = Lanes::new(lanes, Retry::default(), None, &context.workqueues);
    let client = context.client.clone();
    let events = context.events.clone();
    let reconciler = Arc::new(Reconciler::new(client, events, nodes, duties, taint_key));
    let handle = {
        let reconciler = Arc::clone(&reconciler);
        move |job: Job<Arc<str>>| -> BoxFuture<'static, Result<Next, Failure>> {
            let reconciler = Arc::clone(&reconciler);
            async move { reconciler.reconcile(&job).await }.boxed()
        }
    };

    // Node by node, from the first complete picture on.
    let complete = CancellationToken::new();
    let touched_by_agent = |change: Change<AgentOnNode>| match change {
        Change::Object { key, old, new } => {
            Some(reconciler.heard(&key, old.as_deref(), new.as_deref()))
        }
        Change::Synced => None,
    };
    let touched = select(node_changes.map(touched_node), agent_changes.map(touched_by_agent));
    let pump = async {
        let mut touched = std::pin::pin!(touched);
        let mut synced = 0;
        while let Some(Some(nodes)) = context.stop.run_until_cancelled(touched.next()).await {
            synced += u8::from(nodes.is_none());
            if synced == 2 {
                complete.cancel();
            }
            for node in nodes.into_iter().flatten() {
                lanes.add(0, node);
            }
        }
    };
    let workers = workers(config)?;
    let work = async {
        if context.stop.run_until_cancelled(complete.cancelled()).await.is_some() {
            lanes.run(workers, &context.stop, handle).await;
        }
    };
    tokio::join!(pump, work);
    Ok(())
}

/// The nodes that a change concerns; `None` when a list is complete.
fn touched_node(change: Change<NodeState>) -> Option<Vec<Arc<str>>> {
    match change {
        Change::Object { key, new, .. } => Some(new.map(|_| key.name).into_iter().collect()),
        Change::Synced => None,
    }
}
