//! Says to the pools what nodes are, and turns what they decide into writes.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cilia_crds::CiliumNode;
use cilia_crds::ciliumnode::ipam::IpamSpec;
use cilia_ipam::{Allocation, Answer, MultiPool, PoolNode, Request};
use cilia_runtime::lanes::{Job, Next};
use serde_json::{Value, json};
use tracing::info;

use super::super::nodes::{Nodes, Object, Order};
use super::Key;
use crate::failure::Failure;

/// What is kept of a `CiliumNode`. About 300 bytes with a range or two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NodeState {
    object: Object,
    requested: Vec<Request>,
    allocated: Vec<Allocation>,
}

impl NodeState {
    #[expect(clippy::unnecessary_wraps, reason = "the shape that a store asks for")]
    #[expect(clippy::needless_pass_by_value, reason = "the shape that a store asks for")]
    pub(super) fn of(node: CiliumNode) -> Option<Self> {
        let (requested, allocated) = node.spec.ipam.as_ref().map(pools).unwrap_or_default();
        Some(Self { object: Object::of(&node), requested, allocated })
    }
}

impl AsRef<Object> for NodeState {
    fn as_ref(&self) -> &Object {
        &self.object
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
    nodes: Nodes<NodeState>,
    core: Mutex<MultiPool>,
}

impl Reconciler {
    pub(super) fn new(nodes: Nodes<NodeState>, core: MultiPool) -> Self {
        Self { nodes, core: Mutex::new(core) }
    }

    /// Every pool and node is known; all nodes.
    pub(super) fn resync(&self, cut_off: Option<&BTreeSet<String>>) -> Vec<Arc<str>> {
        let nodes = self.nodes.by_age();
        for name in &nodes {
            self.look(name);
        }
        self.core().resync(cut_off);
        nodes
    }

    /// Notes what a node is now, and says what to write to it.
    ///
    /// The node is read with the core locked, so that the core never hears old news after new.
    pub(super) fn look(&self, name: &str) -> Option<(Arc<NodeState>, Answer)> {
        let mut core = self.core();
        let Some(node) = self.nodes.get(name) else {
            core.delete(name);
            return None;
        };
        let answer = core.upsert(PoolNode {
            name,
            version: &node.object.resource_version,
            requested: &node.requested,
            allocated: &node.allocated,
            error: &node.object.error,
            fenced: node.object.fenced,
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
        let order = match answer {
            Answer::Wait | Answer::Write { allocated: None, error: None } => Order::Nothing,
            Answer::Fence => Order::Fence,
            Answer::Unfence => Order::Write { spec: None, error: None },
            Answer::Write { allocated, error } => {
                if let Some(allocated) = &allocated {
                    info!(node = &**name, ?allocated, "node gets ranges");
                }
                Order::Write { spec: allocated.map(|all| spec(&all)), error }
            }
        };
        self.nodes.write(name, &node.object, order, job).await
    }
}

/// The part of a node's spec that lists these ranges.
fn spec(allocated: &[Allocation]) -> Value {
    let one = |one: &Allocation| json!({ "pool": one.pool, "cidrs": one.cidrs });
    let allocated: Vec<Value> = allocated.iter().map(one).collect();
    json!({ "ipam": { "pools": { "allocated": allocated } } })
}
