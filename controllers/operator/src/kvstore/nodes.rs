//! Deletes nodes from the kvstore whose `CiliumNode` and agent are gone.

use std::sync::Arc;
use std::time::Duration;

use cilia_crds::CiliumNode;
use cilia_kvstore::{Client, Event, is_stand_in, keys};
use cilia_runtime::lanes::{Job, Lane, Lanes, Next, Retry};
use cilia_runtime::watch::{Change, Key, PartialObjectMeta, Store, reflect, watch};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use tokio_util::sync::CancellationToken;

use crate::wiring::Context;

/// A node's own object comes after its key, maybe.
const NEW_KEY: Duration = Duration::from_mins(1);

pub(super) struct Collector {
    pub(super) client: Client,
    pub(super) pods: Api<Pod>,
    pub(super) labels: String,
    pub(super) cluster: String,
    pub(super) nodes: Store<()>,
}

/// Runs until the process stops.
pub(super) async fn run(context: &Context, client: &Client) {
    let config = &context.config;
    if !config.bool("synchronize-k8s-nodes") || !config.bool("enable-k8s") {
        return;
    }
    let nodes: Api<PartialObjectMeta<CiliumNode>> = Api::all(context.client.clone());
    let (nodes, changes) = reflect(watch(nodes), |_| Some(()));
    let namespace = crate::config::agents_namespace(config);
    let cluster = config.string("cluster-name").to_owned();
    let collector = Arc::new(Collector {
        client: client.clone(),
        pods: match namespace {
            "" => Api::all(context.client.clone()),
            namespace => Api::namespaced(context.client.clone(), namespace),
        },
        labels: config.string("cilium-pod-labels").to_owned(),
        cluster: cluster.clone(),
        nodes,
    });
    let retry = Retry {
        base: Duration::from_secs(1),
        cap: Duration::from_mins(2),
        max: u32::MAX,
        ..Retry::default()
    };
    let lanes = vec![Lane::new("kvstore-nodes")];
    let lanes: Lanes<String> = Lanes::new(lanes, retry, None, &context.workqueues);
    let complete = CancellationToken::new();
    let kubernetes = async {
        let mut changes = std::pin::pin!(changes);
        while let Some(change) = changes.next().await {
            match change {
                Change::Synced => complete.cancel(),
                Change::Object { key, new: None, .. } => lanes.add(0, key.name.to_string()),
                Change::Object { .. } => {}
            }
        }
    };
    let prefix = keys::nodes(&cluster);
    let mut watched = client.watch(&prefix);
    let kvstore = async {
        while let Some(events) = watched.next().await {
            for event in events {
                let Event::Put(kv) = event else { continue };
                let key = String::from_utf8_lossy(&kv.key);
                let Some(name) = key.strip_prefix(&prefix) else { continue };
                lanes.add_after(0, name.to_owned(), NEW_KEY);
            }
        }
    };
    let handle = move |job: Job<String>| -> BoxFuture<'static, anyhow::Result<Next>> {
        let collector = Arc::clone(&collector);
        async move { collector.collect(&job.key).await }.boxed()
    };
    let work = async {
        if context.stop.run_until_cancelled(complete.cancelled()).await.is_some() {
            lanes.run(1, &context.stop, handle).await;
        }
    };
    tokio::select! {
        () = work => {}
        () = kubernetes => {}
        () = kvstore => {}
    }
}

impl Collector {
    pub(super) async fn collect(&self, name: &str) -> anyhow::Result<Next> {
        // A cluster without any CiliumNode has lost them, or not made them yet: nothing follows from it.
        if self.nodes.is_empty() || self.nodes.get(&Key::new("", name)).is_some() {
            return Ok(Next::Done);
        }
        let key = keys::node(&self.cluster, name);
        let Some(present) = self.client.get(&key).await? else { return Ok(Next::Done) };
        if is_stand_in(present.lease) {
            // Who put it there takes it back, after its addresses.
            return Ok(Next::Done);
        }
        let params =
            ListParams::default().labels(&self.labels).fields(&format!("spec.nodeName={name}"));
        let agents = self.pods.list(&params).await?;
        let runs = |pod: &Pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            phase == Some("Running")
        };
        if agents.items.iter().any(runs) {
            anyhow::bail!("node {name} has no CiliumNode, but an agent that runs");
        }
        let txn = cilia_kvstore::Txn::new();
        let txn = txn.if_unchanged_since(&key, present.mod_revision).delete(&key);
        if self.client.txn("delete", &key, txn).await?.done {
            tracing::info!(node = name, "node without a CiliumNode deleted from the kvstore");
        }
        Ok(Next::Done)
    }
}
