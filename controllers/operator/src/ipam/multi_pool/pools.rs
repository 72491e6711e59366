//! Follows pools, makes those of `auto-create-cilium-pod-ip-pools`, and tells users what is wrong with one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cilia_crds::CiliumPodIpPool;
use cilia_crds::ciliumpodippool::PodIpPoolSpec;
use cilia_ipam::{FamilySpec, NewPool, PoolSpec};
use cilia_runtime::events::Recorder;
use cilia_runtime::lanes::{Job, Next};
use cilia_runtime::watch::{Key as ObjectKey, Store};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ObjectMeta, PostParams};
use kube::runtime::events::EventType;
use kube::{Api, Client, Resource, ResourceExt};
use tracing::{info, warn};

use super::super::created;
use super::Key;
use super::reconciler::Reconciler;
use crate::failure::{CONFLICT, Failure};

/// Orphans that are named in an event.
const SHOWN: usize = 8;
/// So long, in seconds, after it was decided a write may arrive: what the API server takes at most, a retry, and as
/// much again for clocks that differ.
const LATE: i64 = 300;

/// What is kept of a pool. About 200 bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PoolState {
    uid: String,
    spec: PodIpPoolSpec,
    /// When it last changed, in seconds since 1970.
    changed: i64,
}

#[expect(clippy::unnecessary_wraps, reason = "the shape that a store asks for")]
pub(super) fn spec_of(pool: CiliumPodIpPool) -> Option<PoolState> {
    let uid = pool.uid().unwrap_or_default();
    let changed = changed(&pool.metadata);
    // Which pods a pool is for is the agents' business.
    let spec = PodIpPoolSpec { pod_selector: None, namespace_selector: None, ..pool.spec };
    Some(PoolState { uid, spec, changed })
}

/// When an object was made or last changed, in seconds since 1970, by the API server's clock.
fn changed(metadata: &ObjectMeta) -> i64 {
    let writes = metadata.managed_fields.iter().flatten();
    let writes = writes.filter_map(|entry| Some(entry.time.as_ref()?.0.as_second()));
    writes.max().unwrap_or_default().max(created(metadata))
}

pub(super) struct Pools {
    api: Api<CiliumPodIpPool>,
    events: Recorder,
    store: Store<PoolState>,
    new: BTreeMap<Arc<str>, PodIpPoolSpec>,
}

impl Pools {
    pub(super) fn new(
        client: Client,
        events: Recorder,
        store: Store<PoolState>,
        new: Vec<NewPool>,
    ) -> Self {
        let new = new.into_iter().map(|pool| (pool.name.into(), pool.spec)).collect();
        Self { api: Api::all(client), events, store, new }
    }

    /// The pools that have changed since a former leader may have decided on writes that are still under way.
    pub(super) fn edited(&self) -> BTreeSet<String> {
        let since = Timestamp::now().as_second() - LATE;
        let recent = self.store.all().into_iter().filter(|(_, pool)| pool.changed >= since);
        recent.map(|(key, _)| key.name.to_string()).collect()
    }

    /// The pools to make.
    pub(super) fn names(&self) -> impl Iterator<Item = Arc<str>> {
        self.new.keys().cloned()
    }

    /// Makes a pool, unless there is one of that name: that stays as it is.
    pub(super) async fn make(&self, name: &str, job: &Job<Key>) -> Result<Next, Failure> {
        let Some(spec) = self.new.get(name) else { return Ok(Next::Done) };
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        let pool = CiliumPodIpPool { metadata, spec: spec.clone() };
        if self.store.get(&ObjectKey::new("", name)).is_some() {
            return Ok(Next::Done);
        }
        job.write().await;
        let made = self.api.create(&PostParams::default(), &pool).await;
        match made.map_err(Failure::of("create", "CiliumPodIPPool", name)) {
            Ok(_) => info!(pool = name, "created the pool"),
            // It was there before.
            Err(failure) if failure.code() == Some(CONFLICT) => {}
            Err(failure) => return Err(failure),
        }
        Ok(Next::Done)
    }

    /// Tells the core about a pool as it is now; the nodes that have something of it.
    pub(super) fn apply(&self, name: &str, nodes: &Reconciler) -> Vec<Arc<str>> {
        let mut core = nodes.core();
        let Some(pool) = self.store.get(&ObjectKey::new("", name)) else {
            core.delete_pool(name);
            info!(pool = name, "the pool is gone; what nodes have of it stays theirs");
            return core.holders(name).into_iter().map(Arc::from).collect();
        };
        let spec = PoolSpec {
            v4: pool
                .spec
                .ipv4
                .as_ref()
                .map(|own| FamilySpec { cidrs: &own.cidrs, mask_size: own.mask_size }),
            v6: pool
                .spec
                .ipv6
                .as_ref()
                .map(|own| FamilySpec { cidrs: &own.cidrs, mask_size: own.mask_size }),
        };
        if let Err(error) = core.upsert_pool(name, &spec) {
            warn!(pool = name, %error, "the pool is not used as it is now");
            self.tell(name, &pool.uid, "InvalidPool", error.to_string());
        }
        let orphans = core.orphans_in(name);
        if !orphans.is_empty() {
            let shown = orphans
                .iter()
                .take(SHOWN)
                .map(|(node, from, cidr)| format!("{cidr} (node {node}, from pool {from})"));
            let text = format!(
                "{} ranges are not given out, since nodes still have them from pools that do not contain them any more: {}",
                orphans.len(),
                shown.collect::<Vec<_>>().join(", ")
            );
            warn!(pool = name, "{text}");
            self.tell(name, &pool.uid, "OrphanedCIDR", text);
        }
        core.holders(name).into_iter().map(Arc::from).collect()
    }

    fn tell(&self, name: &str, uid: &str, reason: &'static str, text: String) {
        let reference = ObjectReference {
            api_version: Some(CiliumPodIpPool::api_version(&()).into_owned()),
            kind: Some(CiliumPodIpPool::kind(&()).into_owned()),
            name: Some(name.to_owned()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        };
        self.events.about(reference, EventType::Warning, reason, text);
    }
}
