//! Writes to nodes what the cluster's pool decides.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cilia_crds::CiliumNode;
use cilia_ipam::{ClusterPool, Node, Verdict};
use cilia_runtime::events::Recorder;
use cilia_runtime::lanes::{Job, Next};
use cilia_runtime::watch::{Key, Store};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::{Patch, PatchParams};
use kube::runtime::events::EventType;
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::{Value, json};
use tracing::{info, warn};

use super::{FENCE_ANNOTATION, fence, guard, guard_and_unfence};
use crate::conflicts::Conflicts;
use crate::failure::Failure;

pub(super) const IGNORE_ANNOTATION: &str = "ipam.cilium.io/ignore";

/// What is kept of a `CiliumNode`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NodeState {
    uid: String,
    resource_version: String,
    pod_cidrs: Vec<String>,
    error: String,
    /// When the object was made, in seconds since 1970.
    created: i64,
    /// It was fenced off from a former leader.
    fenced: bool,
    /// Somebody else looks after the node: it is not written, and keeps what it has.
    ignored: bool,
}

impl NodeState {
    #[expect(clippy::unnecessary_wraps, reason = "the shape that a store asks for")]
    #[expect(clippy::needless_pass_by_value, reason = "the shape that a store asks for")]
    pub(super) fn of(node: CiliumNode) -> Option<Self> {
        let ignored = node.annotations().get(IGNORE_ANNOTATION);
        let ignored = ignored.is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let ipam = node.status.as_ref().and_then(|status| status.ipam.as_ref());
        let status = ipam.and_then(|ipam| ipam.operator_status.as_ref());
        Some(Self {
            uid: node.uid().unwrap_or_default(),
            resource_version: node.resource_version().unwrap_or_default(),
            pod_cidrs: node
                .spec
                .ipam
                .as_ref()
                .map(|ipam| ipam.pod_cidrs.clone())
                .unwrap_or_default(),
            error: status.and_then(|status| status.error.clone()).unwrap_or_default(),
            created: super::created(&node.metadata),
            fenced: node.annotations().contains_key(FENCE_ANNOTATION),
            ignored,
        })
    }
}

pub(super) struct Reconciler {
    nodes_api: Api<CiliumNode>,
    events: Recorder,
    nodes: Store<NodeState>,
    pool: Mutex<ClusterPool>,
    conflicts: Conflicts<Arc<str>>,
}

impl Reconciler {
    pub(super) fn new(
        client: Client,
        events: Recorder,
        nodes: Store<NodeState>,
        pool: ClusterPool,
    ) -> Self {
        let (pool, conflicts) = (Mutex::new(pool), Conflicts::default());
        Self { nodes_api: Api::all(client), events, nodes, pool, conflicts }
    }

    /// Notes what a node has now.
    pub(super) fn look(&self, name: &str) {
        match self.nodes.get(&Key::new("", name)) {
            Some(node) => _ = self.ask(name, &node),
            None => _ = self.pool().delete(name),
        }
    }

    /// The nodes that what was noted may help.
    pub(super) fn to_ask(&self) -> Vec<Arc<str>> {
        self.pool().to_ask().into_iter().map(Arc::from).collect()
    }

    /// Every node is known; all of them. What two nodes have belongs to the older one.
    pub(super) fn resync(&self, cut_off: bool) -> Vec<Arc<str>> {
        let mut nodes = self.nodes.all();
        nodes.sort_by(|(a, one), (b, other)| (one.created, a).cmp(&(other.created, b)));
        for (key, node) in &nodes {
            self.ask(&key.name, node);
        }
        self.pool().resync(cut_off);
        nodes.into_iter().map(|(key, _)| key.name).collect()
    }

    pub(super) async fn reconcile(&self, job: &Job<Arc<str>>) -> Result<Next, Failure> {
        let name: &str = &job.key;
        let Some(node) = self.nodes.get(&Key::new("", name)) else { return Ok(Next::Done) };
        let written = match self.ask(name, &node) {
            Verdict::Nothing | Verdict::Wait => return Ok(Next::Done),
            Verdict::Fence => {
                job.write().await;
                self.fence(name, &node).await
            }
            Verdict::SetCidrs(cidrs) => {
                let cidrs: Vec<String> = cidrs.iter().map(ToString::to_string).collect();
                job.write().await;
                info!(node = name, ?cidrs, "node gets its pod CIDRs");
                let version = self.set_cidrs(name, &node, &cidrs).await;
                match version {
                    Ok(version) if !node.error.is_empty() => {
                        job.write().await;
                        self.set_error(name, &node.uid, &version, "").await
                    }
                    other => other.map(drop),
                }
            }
            Verdict::ClearError => {
                job.write().await;
                self.set_error(name, &node.uid, &node.resource_version, "").await
            }
            Verdict::SetError(text) => {
                warn!(node = name, error = text, "node cannot have the pod CIDRs it asks for");
                self.tell(name, &node, &text);
                job.write().await;
                self.set_error(name, &node.uid, &node.resource_version, &text).await
            }
        };
        self.conflicts.next(&job.key, written)
    }

    async fn set_cidrs(
        &self,
        name: &str,
        node: &NodeState,
        cidrs: &[String],
    ) -> Result<String, Failure> {
        let mut patch = guard_and_unfence(&node.uid, &node.resource_version, node.fenced);
        patch["spec"] = json!({ "ipam": { "podCIDRs": cidrs } });
        let failed = Failure::of("set pod CIDRs of", "CiliumNode", name);
        let params = PatchParams::default();
        let patched = self.nodes_api.patch_metadata(name, &params, &Patch::Merge(&patch)).await;
        Ok(patched.map_err(failed)?.resource_version().unwrap_or_default())
    }

    async fn fence(&self, name: &str, node: &NodeState) -> Result<(), Failure> {
        let patch = fence(&node.uid, &node.resource_version);
        let failed = Failure::of("fence", "CiliumNode", name);
        let params = PatchParams::default();
        let patched = self.nodes_api.patch_metadata(name, &params, &Patch::Merge(&patch)).await;
        patched.map(drop).map_err(failed)
    }

    async fn set_error(
        &self,
        name: &str,
        uid: &str,
        resource_version: &str,
        text: &str,
    ) -> Result<(), Failure> {
        let mut patch = guard(uid, resource_version);
        let error = if text.is_empty() { Value::Null } else { json!(text) };
        patch["status"] = json!({ "ipam": { "operator-status": { "error": error } } });
        let failed = Failure::of("set status of", "CiliumNode", name);
        let params = PatchParams::default();
        let patched = self.nodes_api.patch_status(name, &params, &Patch::Merge(&patch)).await;
        patched.map(drop).map_err(failed)
    }

    fn tell(&self, name: &str, node: &NodeState, text: &str) {
        let reference = ObjectReference {
            api_version: Some(CiliumNode::api_version(&()).into_owned()),
            kind: Some(CiliumNode::kind(&()).into_owned()),
            name: Some(name.to_owned()),
            uid: Some(node.uid.clone()),
            ..ObjectReference::default()
        };
        self.events.about(reference, EventType::Warning, "NoPodCIDR", text.to_owned());
    }

    fn ask(&self, name: &str, node: &NodeState) -> Verdict {
        let asked = Node {
            name,
            version: &node.resource_version,
            pod_cidrs: &node.pod_cidrs,
            error: &node.error,
        };
        if node.ignored { self.pool().observe(asked) } else { self.pool().upsert(asked) }
    }

    fn pool(&self) -> MutexGuard<'_, ClusterPool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
