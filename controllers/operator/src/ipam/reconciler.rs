//! Says to the cluster's pool what nodes are, and turns what it decides into writes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cilia_crds::CiliumNode;
use cilia_ipam::{ClusterPool, Node, Verdict};
use cilia_runtime::lanes::{Job, Next};
use kube::ResourceExt;
use serde_json::json;
use tracing::info;

use super::nodes::{Nodes, Object, Order};
use crate::failure::Failure;

pub(super) const IGNORE_ANNOTATION: &str = "ipam.cilium.io/ignore";

/// What is kept of a `CiliumNode`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NodeState {
    object: Object,
    pod_cidrs: Vec<String>,
    /// Somebody else looks after the node: it is not written, and keeps what it has.
    ignored: bool,
}

impl NodeState {
    #[expect(clippy::unnecessary_wraps, reason = "the shape that a store asks for")]
    pub(super) fn of(node: CiliumNode) -> Option<Self> {
        let ignored = node.annotations().get(IGNORE_ANNOTATION);
        Some(Self {
            object: Object::of(&node),
            ignored: ignored.is_some_and(|value| value.eq_ignore_ascii_case("true")),
            pod_cidrs: node.spec.ipam.map(|ipam| ipam.pod_cidrs).unwrap_or_default(),
        })
    }
}

impl AsRef<Object> for NodeState {
    fn as_ref(&self) -> &Object {
        &self.object
    }
}

pub(super) struct Reconciler {
    nodes: Nodes<NodeState>,
    pool: Mutex<ClusterPool>,
}

impl Reconciler {
    pub(super) fn new(nodes: Nodes<NodeState>, pool: ClusterPool) -> Self {
        Self { nodes, pool: Mutex::new(pool) }
    }

    /// Notes what a node has now.
    pub(super) fn look(&self, name: &str) {
        match self.nodes.get(name) {
            Some(node) => _ = self.ask(name, &node),
            None => _ = self.pool().delete(name),
        }
    }

    /// The nodes that what was noted may help.
    pub(super) fn to_ask(&self) -> Vec<Arc<str>> {
        self.pool().to_ask().into_iter().map(Arc::from).collect()
    }

    /// Every node is known; all of them.
    pub(super) fn resync(&self, cut_off: bool) -> Vec<Arc<str>> {
        let nodes = self.nodes.by_age();
        for name in &nodes {
            self.look(name);
        }
        self.pool().resync(cut_off);
        nodes
    }

    pub(super) async fn reconcile(&self, job: &Job<Arc<str>>) -> Result<Next, Failure> {
        let name = &job.key;
        let Some(node) = self.nodes.get(name) else { return Ok(Next::Done) };
        let write = |spec, error: Option<&str>| Order::Write { spec, error: error.map(Into::into) };
        let order = match self.ask(name, &node) {
            Verdict::Nothing | Verdict::Wait => Order::Nothing,
            Verdict::Fence => Order::Fence,
            Verdict::Unfence => write(None, None),
            Verdict::SetCidrs(cidrs) => {
                let cidrs: Vec<String> = cidrs.iter().map(ToString::to_string).collect();
                info!(node = &**name, ?cidrs, "node gets its pod CIDRs");
                let over = Some("").filter(|_| !node.object.error.is_empty());
                write(Some(json!({ "ipam": { "podCIDRs": cidrs } })), over)
            }
            Verdict::ClearError => write(None, Some("")),
            Verdict::SetError(text) => write(None, Some(&text)),
        };
        self.nodes.write(name, &node.object, order, job).await
    }

    fn ask(&self, name: &str, node: &NodeState) -> Verdict {
        let asked = Node {
            name,
            version: &node.object.resource_version,
            pod_cidrs: &node.pod_cidrs,
            error: &node.object.error,
            fenced: node.object.fenced,
        };
        if node.ignored { self.pool().observe(asked) } else { self.pool().upsert(asked) }
    }

    fn pool(&self) -> MutexGuard<'_, ClusterPool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
