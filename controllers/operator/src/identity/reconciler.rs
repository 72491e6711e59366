//! Carries pods and identities between the core, the lane and the API server.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cilia_crds::labels::SOURCE_K8S;
use cilia_crds::{CiliumIdentity, Labels, NumericIdentity};
use cilia_identity::{Full, Managed, Plan};
use cilia_runtime::events::Recorder;
use cilia_runtime::lanes::{Job, Lanes, Next, Retry};
use cilia_runtime::watch::{Key, Store};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::metrics::Metrics;
use super::sources::{Heard, PodState, record};
use crate::conflicts::Conflicts;
use crate::failure::{CONFLICT, Failure};

const KIND: &str = "CiliumIdentity";
const ADVICE: &str = "cilia identity advise says which labels cost most of them";
/// Pods without a number that try again when one is free. Several may have the labels that get it.
const TRY_AGAIN: usize = 16;
/// The only label that identities can be selected by.
const NAMESPACE: &str = "io.kubernetes.pod.namespace";

/// What there is to look at.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Item {
    Pod(Key),
    Identity(NumericIdentity),
}

/// Why an item is not as it should be.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    #[error(transparent)]
    Request(#[from] Failure),
    #[error("identity of pod {0}: its namespace is not known")]
    NoNamespace(Key),
    #[error("identity of pod {0}: {1}")]
    Full(Key, Full),
}

pub(super) struct Reconciler {
    pub(super) client: Client,
    pub(super) events: Recorder,
    pub(super) managed: Mutex<Managed<Key>>,
    pub(super) pods: Store<PodState>,
    /// The labels that pods have from their namespaces.
    pub(super) namespaces: Store<Labels>,
    /// Everything that exists has been heard of.
    pub(super) complete: CancellationToken,
    pub(super) lanes: Lanes<Item>,
    pub(super) metrics: Metrics,
    pub(super) conflicts: Conflicts<Item>,
    /// When what is tried again was first asked for.
    pub(super) first: Mutex<HashMap<Item, Instant>>,
    /// Pods for which no number was left.
    pub(super) unplaced: Mutex<BTreeSet<Key>>,
}

impl Reconciler {
    /// Tells the core, and queues what to look at. Before everything is known nothing is queued: [`Self::start`] sees
    /// to all pods then.
    pub(super) fn hear(&self, heard: Heard) {
        let complete = self.complete.is_cancelled();
        match heard {
            Heard::Pod(key) if complete => self.lanes.add(0, Item::Pod(key)),
            Heard::Namespace(name) if complete => {
                for (key, _) in self.pods.all() {
                    if key.namespace == name {
                        self.lanes.add(0, Item::Pod(key));
                    }
                }
            }
            Heard::Identity(identity, record) => {
                self.managed().seen(identity, record);
                self.look([identity]);
            }
            Heard::IdentityGone(identity) => {
                self.managed().gone(identity);
                self.look([identity]);
                self.try_again();
            }
            Heard::Users(who, identities) => {
                let unused = self.managed().published(who, identities);
                self.look(unused);
            }
            Heard::Pod(_) | Heard::Namespace(_) | Heard::Nothing | Heard::Synced => {}
        }
    }

    /// Looks at every pod that is there at the start. Only those in trouble are queued: all of them at once would take
    /// a quarter of a kilobyte each.
    pub(super) async fn start(&self) {
        let begin = Instant::now();
        for (key, _) in self.pods.all() {
            // The lease and the others on this thread have their turn, too.
            tokio::task::yield_now().await;
            let started = Instant::now();
            if self.pod(&key).is_ok() {
                self.metrics.ended("pod", true, started.duration_since(begin), started.elapsed());
            } else {
                self.lanes.add(0, Item::Pod(key));
            }
        }
    }

    pub(super) async fn reconcile(&self, job: &Job<Item>) -> Result<Next, Trouble> {
        let started = Instant::now();
        let (resource, result) = match &job.key {
            Item::Pod(key) => {
                // Thousands come at once: the lease and the others on this thread have their turn, too.
                tokio::task::yield_now().await;
                let placed = self.pod(key);
                if let Err(Trouble::Full(_, full)) = &placed
                    && job.failures == 0
                {
                    self.tell(key, *full).await;
                }
                ("pod", placed)
            }
            Item::Identity(identity) => ("cid", self.identity(job, *identity).await),
        };
        let ended = match &result {
            Ok(next) => *next == Next::Done,
            Err(_) => job.failures >= Retry::default().max,
        };
        self.count(job, resource, ended.then_some(result.is_ok()), started);
        result
    }

    /// Counts an item once: when it is done or given up, from when it was first asked for.
    fn count(&self, job: &Job<Item>, resource: &'static str, well: Option<bool>, started: Instant) {
        let asked = started.checked_sub(job.waited).unwrap_or(started);
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(well) = well else {
            first.entry(job.key.clone()).or_insert(asked);
            return;
        };
        let asked = first.remove(&job.key).unwrap_or(asked);
        self.metrics.ended(resource, well, started.duration_since(asked), started.elapsed());
    }

    /// Tells those who look at a pod that gets no identity.
    async fn tell(&self, key: &Key, full: Full) {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        // Without an answer the log has to do.
        if let Ok(Some(pod)) = pods.get_metadata_opt(&key.name).await {
            let note = format!("{full}, until unused ones are collected: {ADVICE}");
            self.events.warning(&pod, "NoIdentity", note);
        }
    }

    /// Sees that a pod's labels have an identity.
    fn pod(&self, key: &Key) -> Result<Next, Trouble> {
        self.unplaced().remove(key);
        let Some(pod) = self.pods.get(key) else {
            let unused = self.managed().pod_gone(key);
            self.look(unused);
            return Ok(Next::Done);
        };
        let namespace = self.namespaces.get(&Key::new("", &key.namespace));
        let of_namespace = namespace.ok_or_else(|| Trouble::NoNamespace(key.clone()))?;
        let mut labels = pod.labels.clone();
        labels.extend(&of_namespace);
        let labels = labels.shared();
        let placed = self.managed().place(key.clone(), labels, &mut rand::rng());
        let placed = placed.map_err(|full| {
            self.unplaced().insert(key.clone());
            Trouble::Full(key.clone(), full)
        });
        self.look(placed?.look);
        Ok(Next::Done)
    }

    /// A number may be free now: who found none need not wait as long as for other trouble.
    fn try_again(&self) {
        for _ in 0..TRY_AGAIN {
            let Some(key) = self.unplaced().pop_first() else { return };
            self.lanes.add(0, Item::Pod(key));
        }
    }

    /// Writes an identity, if it needs that.
    async fn identity(&self, job: &Job<Item>, identity: NumericIdentity) -> Result<Next, Trouble> {
        let plan = self.managed().plan(identity);
        let written = match plan {
            Plan::Nothing => return Ok(Next::Done),
            Plan::Again(pods) => {
                info!(%identity, pods = pods.len(), "number is another's: its pods get another");
                for pod in pods {
                    self.lanes.add(0, Item::Pod(pod));
                }
                return Ok(Next::Done);
            }
            Plan::Create(labels) => {
                job.write().await;
                self.create(identity, &labels).await
            }
            Plan::Restore(labels) => {
                job.write().await;
                warn!(%identity, labels = labels.canonical(), "labels of an identity were changed: changed back");
                self.restore(identity, &labels).await
            }
        };
        Ok(self.conflicts.next(&job.key, written)?)
    }

    async fn create(&self, identity: NumericIdentity, labels: &Labels) -> Result<(), Failure> {
        let api: Api<CiliumIdentity> = Api::all(self.client.clone());
        let name = identity.to_string();
        let object = CiliumIdentity {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                labels: selectable(labels),
                ..ObjectMeta::default()
            },
            security_labels: labels.to_security_labels(),
        };
        let created = api.create(&PostParams::default(), &object).await;
        match created.map_err(Failure::of("create", KIND, &name)) {
            Ok(made) => {
                info!(%identity, labels = labels.canonical(), "identity made");
                self.managed().wrote(identity, record(&made));
                Ok(())
            }
            Err(failure) => {
                // It exists: an own attempt whose answer was lost, or somebody else's.
                if failure.code() == Some(CONFLICT)
                    && let Some(there) =
                        api.get_opt(&name).await.map_err(Failure::of("read", KIND, &name))?
                {
                    self.managed().wrote(identity, record(&there));
                }
                Err(failure)
            }
        }
    }

    async fn restore(&self, identity: NumericIdentity, labels: &Labels) -> Result<(), Failure> {
        let api: Api<CiliumIdentity> = Api::all(self.client.clone());
        let name = identity.to_string();
        let there = api.get(&name).await.map_err(Failure::of("read", KIND, &name))?;
        // A merge patch adds: what is not to be there must be named.
        let gone = there.security_labels.keys().map(|key| (key.clone(), Value::Null));
        let mut security_labels: serde_json::Map<String, Value> = gone.collect();
        security_labels.extend(
            labels.to_security_labels().into_iter().map(|(key, value)| (key, json!(value))),
        );
        let selectable_now = there.metadata.labels.iter().flatten();
        let gone = selectable_now.map(|(key, _)| (key.clone(), Value::Null));
        let mut selectors: serde_json::Map<String, Value> = gone.collect();
        let own = selectable(labels).into_iter().flatten();
        selectors.extend(own.map(|(key, value)| (key, json!(value))));
        let patch = json!({
            "metadata": {
                "uid": there.uid(),
                "resourceVersion": there.resource_version(),
                "labels": selectors,
            },
            "security-labels": security_labels,
        });
        let patched = api.patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        let restored = patched.map_err(Failure::of("restore", KIND, &name))?;
        self.managed().wrote(identity, record(&restored));
        let note = "its labels were changed while it is in use: they are what they were again";
        self.events.warning(&restored, "LabelsRestored", note);
        Ok(())
    }

    fn look(&self, identities: impl IntoIterator<Item = NumericIdentity>) {
        // Before everything is known no pod wants any identity, so none needs anything.
        if !self.complete.is_cancelled() {
            return;
        }
        for identity in identities {
            self.lanes.add(0, Item::Identity(identity));
        }
    }

    fn unplaced(&self) -> MutexGuard<'_, BTreeSet<Key>> {
        self.unplaced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn managed(&self) -> MutexGuard<'_, Managed<Key>> {
        self.managed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn selectable(labels: &Labels) -> Option<BTreeMap<String, String>> {
    let namespace = labels.get(SOURCE_K8S, NAMESPACE)?;
    Some([(NAMESPACE.to_owned(), namespace.to_owned())].into())
}
