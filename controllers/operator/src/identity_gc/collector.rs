//! Looks at every identity once in a while, and does what was decided.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cilia_crds::{CiliumEndpoint, CiliumEndpointSlice, CiliumIdentity, NumericIdentity};
use cilia_runtime::lanes::{Next, Rate};
use cilia_runtime::metrics::Metrics;
use cilia_runtime::watch::{PartialObjectMeta, Store};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client, ResourceExt};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use serde_json::{Value, json};
use std::sync::atomic::AtomicU64;
use tokio::time::Instant;
use tracing::{info, warn};

use super::heartbeats::{Heartbeats, Judgement};
use crate::failure::{CONFLICT, Failure, NOT_FOUND};
use crate::listing;

const KIND: &str = "CiliumIdentity";
const MARK: &str = "io.cilium.heartbeat";

type Labels = [(&'static str, &'static str); 2];

/// What is kept of a `CiliumIdentity`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IdentityState {
    uid: String,
    resource_version: String,
    marked: bool,
}

impl IdentityState {
    #[expect(clippy::unnecessary_wraps, reason = "the shape that a store asks for")]
    #[expect(clippy::needless_pass_by_value, reason = "the shape that a store asks for")]
    pub(super) fn of(identity: PartialObjectMeta<CiliumIdentity>) -> Option<Self> {
        Some(Self {
            uid: identity.uid().unwrap_or_default(),
            resource_version: identity.resource_version().unwrap_or_default(),
            marked: identity.annotations().contains_key(MARK),
        })
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Settings {
    pub(super) interval: Duration,
    /// Silence after which an identity is marked, and then deleted.
    pub(super) timeout: Duration,
    /// Whether slices say which identities are in use, too.
    pub(super) slices: bool,
}

pub(super) struct Collector {
    client: Client,
    identities: Store<IdentityState>,
    settings: Settings,
    rate: Rate,
    heartbeats: Mutex<Heartbeats>,
    epoch: Instant,
    entries: Family<Labels, Gauge>,
    runs: Family<Labels, Gauge>,
    latency: Family<Labels, Gauge<f64, AtomicU64>>,
}

impl Collector {
    pub(super) fn new(
        client: Client,
        identities: Store<IdentityState>,
        settings: Settings,
        rate: Rate,
        metrics: &Metrics,
    ) -> Self {
        let (entries, runs, latency) = (Family::default(), Family::default(), Family::default());
        let help = "Identities of the last run, by what became of them";
        metrics.register("identity_gc_entries", help, entries.clone());
        metrics.register("identity_gc_runs", "Runs, by outcome", runs.clone());
        metrics.register("identity_gc_latency", "Seconds of the last run", latency.clone());
        let heartbeats = Mutex::new(Heartbeats::new(settings.timeout));
        let epoch = Instant::now();
        Self { client, identities, settings, rate, heartbeats, epoch, entries, runs, latency }
    }

    /// An identity was written, or is gone.
    pub(super) fn heard(&self, name: &str, exists: bool) {
        let Some(identity) = number(name) else { return };
        let now = self.epoch.elapsed();
        let mut heartbeats = self.heartbeats();
        if exists { heartbeats.beat(identity, now) } else { heartbeats.forget(identity) }
    }

    pub(super) async fn run(&self) -> Result<Next, Failure> {
        let start = Instant::now();
        let in_use = self.in_use().await?;
        let mut identities: Vec<_> = self.identities.all();
        identities.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let (mut deleted, mut failures) = (0, 0);
        for (key, state) in &identities {
            let Some(identity) = number(&key.name) else { continue };
            let used = in_use.contains(&i64::from(identity.0));
            let now = self.epoch.elapsed();
            let judgement = self.heartbeats().judge(identity, state.marked, used, now);
            match self.perform(&key.name, state, judgement).await {
                Ok(done) => deleted += i64::from(done && judgement == Judgement::Delete),
                // One identity's trouble is no other's.
                Err(failure) => {
                    warn!(%failure, "identity left for the next run");
                    failures += 1;
                }
            }
        }
        self.heartbeats().purge(self.epoch.elapsed());
        let outcome = if failures == 0 { "success" } else { "fail" };
        let crd = ("identity_type", "crd");
        let alive = i64::try_from(identities.len()).unwrap_or(i64::MAX) - deleted;
        self.entries.get_or_create(&[("status", "alive"), crd]).set(alive);
        self.entries.get_or_create(&[("status", "deleted"), crd]).set(deleted);
        self.runs.get_or_create(&[("outcome", outcome), crd]).inc();
        let seconds = start.elapsed().as_secs_f64();
        self.latency.get_or_create(&[("outcome", outcome), crd]).set(seconds);
        Ok(Next::After(self.settings.interval))
    }

    /// The identities that an endpoint has, or a slice lists.
    async fn in_use(&self) -> Result<HashSet<i64>, Failure> {
        let mut in_use = HashSet::new();
        let endpoints: Api<CiliumEndpoint> = Api::all(self.client.clone());
        listing::objects(&endpoints, "CiliumEndpoints", |endpoint| {
            let identity = endpoint.status.and_then(|status| status.identity);
            in_use.extend(identity.and_then(|identity| identity.id));
        })
        .await?;
        if self.settings.slices {
            let slices: Api<CiliumEndpointSlice> = Api::all(self.client.clone());
            listing::objects(&slices, "CiliumEndpointSlices", |slice| {
                in_use.extend(slice.endpoints.iter().filter_map(|entry| entry.id));
            })
            .await?;
        }
        Ok(in_use)
    }

    /// Whether the write was done; not if the identity is another by now, or was changed.
    async fn perform(
        &self,
        name: &str,
        state: &IdentityState,
        judgement: Judgement,
    ) -> Result<bool, Failure> {
        let api: Api<CiliumIdentity> = Api::all(self.client.clone());
        let result = match judgement {
            Judgement::Keep => return Ok(false),
            Judgement::Unmark => annotate(&api, name, state, Value::Null).await,
            Judgement::Mark => annotate(&api, name, state, json!(now())).await,
            Judgement::Delete => {
                self.rate.write().await;
                let guard = Preconditions {
                    uid: Some(state.uid.clone()),
                    resource_version: Some(state.resource_version.clone()),
                };
                let params = DeleteParams::default().preconditions(guard);
                let deleted = api.delete(name, &params).await;
                deleted.map(drop).map_err(Failure::of("delete", KIND, name))
            }
        };
        match result {
            Ok(()) => {
                info!(identity = name, ?judgement, "identity");
                Ok(true)
            }
            Err(failure) if failure.code() == Some(NOT_FOUND) => Ok(false),
            // Somebody is about to use it.
            Err(failure) if failure.code() == Some(CONFLICT) => {
                warn!(%failure, "identity was changed by another");
                Ok(false)
            }
            Err(failure) => Err(failure),
        }
    }

    fn heartbeats(&self) -> MutexGuard<'_, Heartbeats> {
        self.heartbeats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn annotate(
    api: &Api<CiliumIdentity>,
    name: &str,
    state: &IdentityState,
    mark: Value,
) -> Result<(), Failure> {
    let patch = json!({ "metadata": {
        "uid": state.uid,
        "resourceVersion": state.resource_version,
        "annotations": { MARK: mark },
    } });
    let patched = api.patch_metadata(name, &PatchParams::default(), &Patch::Merge(&patch)).await;
    patched.map(drop).map_err(Failure::of("mark", KIND, name))
}

/// As Cilium writes it: RFC 3339 with nanoseconds.
fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%9fZ").to_string()
}

fn number(name: &str) -> Option<NumericIdentity> {
    name.parse().ok().map(NumericIdentity)
}
