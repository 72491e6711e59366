//! Writes to nodes what the pools decide.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cilia_crds::CiliumNode;
use cilia_crds::ciliumnode::ipam::IpamSpec;
use cilia_ipam::{Allocation, Answer, MultiPool, PoolNode, Request};
use cilia_runtime::events::Recorder;
use cilia_runtime::lanes::{Job, Next};
use cilia_runtime::watch::{Key as ObjectKey, Store};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::{Patch, PatchParams};
use kube::runtime::events::EventType;
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::{Value, json};
use tracing::{info, warn};

use super::super::{FENCE_ANNOTATION, created, fence, guard, guard_and_unfence};
use super::Key;
use crate::conflicts::Conflicts;
use crate::failure::Failure;

/// What is kept of a `CiliumNode`. About 300 bytes with a range or two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NodeState {
    uid: String,
    resource_version: String,
    requested: Vec<Request>,
    allocated: Vec<Allocation>,
    error: String,
    /// When the object was made, in seconds since 1970.
    created: i64,
    /// It was fenced off from a former leader.
    fenced: bool,
}

impl NodeState {
    #[expect(clippy::unnecessary_wraps, reason = "the shape that a store asks for")]
    #[expect(clippy::needless_pass_by_value, reason = "the shape that a store asks for")]
    pub(super) fn of(node: CiliumNode) -> Option<Self> {
        let ipam = node.status.as_ref().and_then(|status| status.ipam.as_ref());
        let status = ipam.and_then(|ipam| ipam.operator_status.as_ref());
        let (requested, allocated) = node.spec.ipam.as_ref().map(pools).unwrap_or_default();
        Some(Self {
            uid: node.uid().unwrap_or_default(),
            resource_version: node.resource_version().unwrap_or_default(),
            requested,
            allocated,
            error: status.and_then(|status| status.error.clone()).unwrap_or_default(),
            created: created(&node.metadata),
            fenced: node.annotations().contains_key(FENCE_ANNOTATION),
        })
    }
}

fn pools(ipam: &IpamSpec) -> (Vec<Request>, Vec<Allocation>) {
    let Some(pools) = &ipam.pools else { return Default::default() };
    let requested = pools.requested.iter().map(|request| {
        let needed = request.needed.unwrap_or_default();
        Request {
            pool: request.pool.clone(),
            v4: needed.ipv4_addrs.unwrap_or_default(),
            v6: needed.ipv6_addrs.unwrap_or_default(),
        }
    });
    let allocated = pools
        .allocated
        .iter()
        .map(|one| Allocation { pool: one.pool.clone(), cidrs: one.cidrs.clone() });
    (requested.collect(), allocated.collect())
}

pub(super) struct Reconciler {
    api: Api<CiliumNode>,
    events: Recorder,
    nodes: Store<NodeState>,
    core: Mutex<MultiPool>,
    conflicts: Conflicts<Arc<str>>,
}

impl Reconciler {
    pub(super) fn new(
        client: Client,
        events: Recorder,
        nodes: Store<NodeState>,
        core: MultiPool,
    ) -> Self {
        let (core, conflicts) = (Mutex::new(core), Conflicts::default());
        Self { api: Api::all(client), events, nodes, core, conflicts }
    }

    /// Every pool and node is known; all nodes. What two nodes have belongs to the older one.
    pub(super) fn resync(&self, cut_off: Option<&BTreeSet<String>>) -> Vec<Arc<str>> {
        let mut nodes = self.nodes.all();
        nodes.sort_by(|(a, one), (b, other)| (one.created, a).cmp(&(other.created, b)));
        for (key, _) in &nodes {
            self.look(&key.name);
        }
        self.core().resync(cut_off);
        nodes.into_iter().map(|(key, _)| key.name).collect()
    }

    /// Notes what a node is now, and says what to write to it.
    ///
    /// The node is read with the core locked, so that the core never hears old news after new.
    pub(super) fn look(&self, name: &str) -> Option<(Arc<NodeState>, Answer)> {
        let mut core = self.core();
        let Some(node) = self.nodes.get(&ObjectKey::new("", name)) else {
            core.delete(name);
            return None;
        };
        let answer = core.upsert(PoolNode {
            name,
            version: &node.resource_version,
            requested: &node.requested,
            allocated: &node.allocated,
            error: &node.error,
        });
        Some((node, answer))
    }

    /// The nodes that what was noted may help.
    pub(super) fn to_ask(&self) -> Vec<Arc<str>> {
        self.core().to_ask().into_iter().map(Arc::from).collect()
    }

    pub(super) fn core(&self) -> MutexGuard<'_, MultiPool> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn reconcile(&self, name: &Arc<str>, job: &Job<Key>) -> Result<Next, Failure> {
        let Some((node, answer)) = self.look(name) else { return Ok(Next::Done) };
        let written = match answer {
            Answer::Wait | Answer::Write { allocated: None, error: None } => return Ok(Next::Done),
            Answer::Fence => {
                job.write().await;
                let patch = fence(&node.uid, &node.resource_version);
                self.patch("fence", name, &patch).await.map(drop)
            }
            Answer::Write { allocated, error } => {
                self.write(name, &node, allocated, error, job).await
            }
        };
        self.conflicts.next(name, written)
    }

    /// The ranges first; a conflict leaves the status alone.
    async fn write(
        &self,
        name: &str,
        node: &NodeState,
        allocated: Option<Vec<Allocation>>,
        error: Option<String>,
        job: &Job<Key>,
    ) -> Result<(), Failure> {
        let mut version = node.resource_version.clone();
        if let Some(allocated) = allocated {
            info!(node = name, ?allocated, "node gets ranges");
            let allocated: Vec<Value> = allocated
                .iter()
                .map(|one| json!({ "pool": one.pool, "cidrs": one.cidrs }))
                .collect();
            let mut patch = guard_and_unfence(&node.uid, &version, node.fenced);
            patch["spec"] = json!({ "ipam": { "pools": { "allocated": allocated } } });
            job.write().await;
            version = self.patch("set ranges of", name, &patch).await?;
        }
        let Some(error) = error else { return Ok(()) };
        if !error.is_empty() {
            warn!(node = name, error, "node cannot have all that it asks for");
            self.tell(name, node, &error);
        }
        let mut patch = guard(&node.uid, &version);
        let value = if error.is_empty() { Value::Null } else { json!(error) };
        patch["status"] = json!({ "ipam": { "operator-status": { "error": value } } });
        job.write().await;
        let params = PatchParams::default();
        let patched = self.api.patch_status(name, &params, &Patch::Merge(&patch)).await;
        patched.map(drop).map_err(Failure::of("set status of", "CiliumNode", name))
    }

    async fn patch(
        &self,
        operation: &'static str,
        name: &str,
        patch: &Value,
    ) -> Result<String, Failure> {
        let params = PatchParams::default();
        let patched = self.api.patch_metadata(name, &params, &Patch::Merge(patch)).await;
        let patched = patched.map_err(Failure::of(operation, "CiliumNode", name))?;
        Ok(patched.resource_version().unwrap_or_default())
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
}
