//! Removes `CiliumNodes` whose Kubernetes node has been gone for a while.

mod candidates;

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cilia_crds::CiliumNode;
use cilia_runtime::config::Config;
use cilia_runtime::events::Recorder;
use cilia_runtime::lanes::{Job, Lane, Lanes, Next, Retry};
use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Node as KubeNode, ObjectReference};
use kube::api::{DeleteParams, ListParams, Preconditions};
use kube::runtime::events::EventType;
use kube::{Api, Client, Resource as _, ResourceExt};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::failure::{CONFLICT, Failure, NOT_FOUND};
use crate::listing;
use crate::wiring::Context;
use candidates::{Candidates, Node};

const KIND: &str = "CiliumNode";
const KEEP_ANNOTATION: &str = "cilium.io/do-not-gc";

/// Errors for settings that cannot work: there are none.
#[expect(clippy::unnecessary_wraps, reason = "the shape of every duty")]
pub(crate) fn check(_: &Config) -> anyhow::Result<()> {
    Ok(())
}

/// Runs until `context.stop`.
pub(crate) async fn run(context: Context) -> anyhow::Result<()> {
    let interval = context.config.duration("nodes-gc-interval");
    if interval.is_zero() {
        return Ok(());
    }
    let lanes = vec![Lane::new("cilium-node-gc")];
    let lanes = Lanes::new(lanes, Retry::default(), None, &context.workqueues);
    lanes.add(0, ());
    let collector = Arc::new(Collector {
        client: context.client.clone(),
        events: context.events.clone(),
        interval,
        candidates: Mutex::default(),
        epoch: Instant::now(),
    });
    let metrics = context.metrics.clone();
    let handle = move |_: Job<()>| -> BoxFuture<'static, Result<Next, Failure>> {
        let (collector, metrics) = (Arc::clone(&collector), metrics.clone());
        async move {
            let result = collector.run().await;
            metrics.group_ran("cilium-node-gc", result.is_ok());
            result
        }
        .boxed()
    };
    lanes.run(1, &context.stop, handle).await;
    Ok(())
}

struct Collector {
    client: Client,
    events: Recorder,
    interval: Duration,
    candidates: Mutex<Candidates>,
    epoch: Instant,
}

impl Collector {
    async fn run(&self) -> Result<Next, Failure> {
        // The other way round a node that has just joined would seem to be missing.
        let mut cilium_nodes = Vec::new();
        let api: Api<CiliumNode> = Api::all(self.client.clone());
        listing::metadata(&api, KIND, ListParams::default(), |object| {
            let keep = object.annotations().get(KEEP_ANNOTATION);
            let owned = !object.owner_references().is_empty();
            cilium_nodes.push(Node {
                exempt: owned || keep.is_some_and(|value| value.eq_ignore_ascii_case("true")),
                name: object.name_any(),
                uid: object.uid().unwrap_or_default(),
                resource_version: object.resource_version().unwrap_or_default(),
            });
        })
        .await?;
        let mut kube_nodes = HashSet::new();
        let nodes: Api<KubeNode> = Api::all(self.client.clone());
        listing::metadata(&nodes, "nodes", ListParams::default(), |object| {
            kube_nodes.insert(object.name_any());
        })
        .await?;
        let garbage = {
            let mut candidates = self.candidates.lock().unwrap_or_else(PoisonError::into_inner);
            candidates.look(&cilium_nodes, &kube_nodes, self.epoch.elapsed(), self.interval)
        };
        let mut failed = None;
        for node in garbage {
            let guard = Preconditions {
                uid: Some(node.uid.clone()),
                resource_version: Some(node.resource_version.clone()),
            };
            let params = DeleteParams::default().preconditions(guard);
            let deleted = api.delete(&node.name, &params).await;
            match deleted.map_err(Failure::of("delete", KIND, &node.name)) {
                Ok(_) => {
                    info!(node = node.name, "CiliumNode without a node removed");
                    self.tell(&node);
                }
                Err(failure) if matches!(failure.code(), Some(NOT_FOUND | CONFLICT)) => {}
                // One node's trouble is no other's.
                Err(failure) => {
                    warn!(%failure, "node not collected");
                    failed = Some(failure);
                }
            }
        }
        failed.map_or(Ok(Next::After(self.interval)), Err)
    }

    /// Tells those who look for the node's addresses.
    fn tell(&self, node: &Node) {
        let about = ObjectReference {
            api_version: Some(CiliumNode::api_version(&()).into_owned()),
            kind: Some(KIND.to_owned()),
            name: Some(node.name.clone()),
            uid: Some(node.uid.clone()),
            ..ObjectReference::default()
        };
        let text = format!("its Kubernetes node has been gone for at least {:?}", self.interval);
        self.events.about(about, EventType::Normal, "NodeCollected", text);
    }
}
