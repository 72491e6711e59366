//! Looks at every endpoint once in a while, and removes those that were decided against.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use cilia_crds::{CiliumEndpoint, CiliumEndpointSlice};
use cilia_runtime::events::Recorder;
use cilia_runtime::lanes::Next;
use cilia_runtime::metrics::Metrics;
use k8s_openapi::api::core::v1::{ObjectReference, Pod as KubePod};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, ObjectMeta, Preconditions, PropagationPolicy};
use kube::runtime::events::EventType;
use kube::{Api, Client, Resource as _};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tracing::{debug, info, warn};

use super::decision::{Endpoint, Owner, Pod};
use crate::failure::{CONFLICT, Failure, NOT_FOUND};
use crate::listing;

const KIND: &str = "CiliumEndpoint";
const NOT_FINISHED: &str = "status.phase!=Succeeded,status.phase!=Failed";
/// Endpoints that changed while they were removed are looked at again.
const AFTER_CONFLICT: Duration = Duration::from_secs(1);
/// How long slices stay for the sake of agents that may still read them.
const GRACE: Duration = Duration::from_hours(1);
/// How often it is looked whether such agents are left.
const AGENTS_AGAIN: Duration = Duration::from_secs(30);

/// What there is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Task {
    /// Remove endpoints whose pod is gone; again and again.
    Collect,
    /// Remove all endpoints, once: nobody publishes them any more.
    RemoveEndpoints,
    /// Remove all slices, once: nobody keeps them any more.
    RemoveSlices,
}

/// Where the agents' pods are.
pub(super) struct Agents {
    /// Empty for all namespaces.
    pub(super) namespace: String,
    pub(super) labels: String,
}

pub(super) struct Collector {
    client: Client,
    events: Recorder,
    interval: Duration,
    agents: Agents,
    /// When this operator began to work.
    began: Timestamp,
    metrics: Metrics,
    collected: Family<[(&'static str, &'static str); 1], Counter>,
}

impl Collector {
    pub(super) fn new(
        client: Client,
        events: Recorder,
        interval: Duration,
        agents: Agents,
        metrics: &Metrics,
    ) -> Self {
        let collected: Family<[(&str, &str); 1], Counter> = Family::default();
        // From zero on, so that rules see the first failure, too.
        for outcome in ["success", "fail"] {
            drop(collected.get_or_create(&[("outcome", outcome)]));
        }
        let help = "CiliumEndpoints collected, by outcome";
        metrics.register("endpoint_gc_objects", help, collected.clone());
        let (began, metrics) = (Timestamp::now(), metrics.clone());
        Self { client, events, interval, agents, began, metrics, collected }
    }

    pub(super) async fn run(&self, task: Task) -> Result<Next, Failure> {
        match task {
            Task::Collect => {
                let result = self.collect().await;
                self.metrics.group_ran("to-k8s-ciliumendpoint-gc", result.is_ok());
                result?;
                return Ok(Next::After(self.interval));
            }
            Task::RemoveEndpoints => {
                let (mut all, mut left, mut failed) = (Vec::new(), false, None);
                self.endpoints(|endpoint| all.push(endpoint)).await?;
                for endpoint in all {
                    match self.remove(&endpoint).await {
                        Ok(gone) => left |= !gone,
                        Err(failure) => failed = Some(failure),
                    }
                }
                if let Some(failure) = failed {
                    return Err(failure);
                }
                if left {
                    return Ok(Next::After(AFTER_CONFLICT));
                }
            }
            Task::RemoveSlices => return self.remove_slices().await,
        }
        Ok(Next::Done)
    }

    async fn collect(&self) -> Result<(), Failure> {
        let running = self.running_pods().await?;
        let mut suspects = Vec::new();
        self.endpoints(|endpoint| {
            let listed = |pod: &str| {
                if running.has(&endpoint.namespace, pod) { Pod::Running } else { Pod::Finished }
            };
            if endpoint.is_garbage(self.interval, listed) {
                suspects.push(endpoint);
            }
        })
        .await?;
        drop(running);
        let mut failed = None;
        for endpoint in suspects {
            // Pods were listed before, maybe too early for this one: ask again, one by one.
            let result = match self.is_garbage(&endpoint).await {
                Ok(true) => self.remove(&endpoint).await.map(drop),
                Ok(false) => Ok(()),
                Err(failure) => Err(failure),
            };
            if let Err(failure) = result {
                warn!(%failure, "endpoint not collected");
                failed = Some(failure);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Hands every endpoint to `look`, a page at a time: all of them at once would be tens of megabytes.
    async fn endpoints(&self, mut look: impl FnMut(Endpoint)) -> Result<(), Failure> {
        let api: Api<CiliumEndpoint> = Api::all(self.client.clone());
        let (all, now) = (ListParams::default(), Timestamp::now());
        listing::metadata(&api, KIND, all, |object| look(endpoint(object.metadata, now))).await
    }

    async fn running_pods(&self) -> Result<RunningPods, Failure> {
        let api: Api<KubePod> = Api::all(self.client.clone());
        let mut running = RunningPods::default();
        listing::metadata(&api, "pods", ListParams::default().fields(NOT_FINISHED), |pod| {
            let ObjectMeta { namespace, name, .. } = pod.metadata;
            running.add(&namespace.unwrap_or_default(), &name.unwrap_or_default());
        })
        .await?;
        Ok(running)
    }

    async fn is_garbage(&self, endpoint: &Endpoint) -> Result<bool, Failure> {
        let api: Api<KubePod> = Api::namespaced(self.client.clone(), &endpoint.namespace);
        let mut pods = HashMap::new();
        for name in endpoint.pods() {
            let pod = api.get_opt(name).await.map_err(Failure::of("read", "pod", name))?;
            let phase = pod.map(|pod| pod.status.and_then(|status| status.phase));
            let state = match phase {
                None => Pod::Missing,
                Some(Some(phase)) if phase == "Failed" || phase == "Succeeded" => Pod::Finished,
                Some(_) => Pod::Running,
            };
            pods.insert(name, state);
        }
        let pod = |name: &str| pods.get(name).copied().unwrap_or(Pod::Missing);
        Ok(endpoint.is_garbage(self.interval, pod))
    }

    /// Whether the endpoint is gone; not if it was changed since it was looked at.
    pub(super) async fn remove(&self, endpoint: &Endpoint) -> Result<bool, Failure> {
        let Endpoint { namespace, name, uid, resource_version, .. } = endpoint;
        let api: Api<CiliumEndpoint> = Api::namespaced(self.client.clone(), namespace);
        let guard = Preconditions {
            uid: Some(uid.clone()),
            resource_version: Some(resource_version.clone()),
        };
        let deleted = api.delete(name, &DeleteParams::background().preconditions(guard)).await;
        let outcome = match deleted.map_err(Failure::of("delete", KIND, name)) {
            Ok(_) => {
                info!(namespace, name, "endpoint without a pod removed");
                self.tell(endpoint);
                "success"
            }
            Err(failure) if matches!(failure.code(), Some(NOT_FOUND | CONFLICT)) => {
                debug!(namespace, %failure, "endpoint is gone or another");
                return Ok(failure.code() == Some(NOT_FOUND));
            }
            Err(failure) => {
                self.collected.get_or_create(&[("outcome", "fail")]).inc();
                return Err(failure);
            }
        };
        self.collected.get_or_create(&[("outcome", outcome)]).inc();
        Ok(true)
    }

    /// Tells those who look at the namespace.
    fn tell(&self, endpoint: &Endpoint) {
        let about = ObjectReference {
            api_version: Some(CiliumEndpoint::api_version(&()).into_owned()),
            kind: Some(KIND.to_owned()),
            namespace: Some(endpoint.namespace.clone()),
            name: Some(endpoint.name.clone()),
            uid: Some(endpoint.uid.clone()),
            ..ObjectReference::default()
        };
        let note = "its pod is gone or has finished, and no agent has removed it";
        self.events.about(about, EventType::Normal, "EndpointCollected", note.to_owned());
    }

    /// Removes the slices once no agent can read them any more.
    ///
    /// An agent that is older than this operator may not have heard that slices are off. One that hasn't
    /// within [`GRACE`] is taken to read endpoints for long.
    async fn remove_slices(&self) -> Result<Next, Failure> {
        let api: Api<CiliumEndpointSlice> = Api::all(self.client.clone());
        let mut any = false;
        let all = ListParams::default();
        listing::metadata(&api, "CiliumEndpointSlices", all, |_| any = true).await?;
        if !any {
            return Ok(Next::Done);
        }
        let since = Duration::try_from(Timestamp::now().duration_since(self.began));
        if since.unwrap_or_default() < GRACE && self.old_agents().await? {
            info!("slices are switched off: they stay until every agent was restarted");
            return Ok(Next::After(AGENTS_AGAIN));
        }
        info!("slices are switched off: removing all CiliumEndpointSlices");
        let params = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Orphan),
            ..DeleteParams::default()
        };
        let deleted = api.delete_collection(&params, &ListParams::default()).await;
        deleted.map_err(Failure::of("delete", "CiliumEndpointSlices", ""))?;
        Ok(Next::Done)
    }

    /// Whether an agent has been there since before this operator began.
    async fn old_agents(&self) -> Result<bool, Failure> {
        let pods: Api<KubePod> = match self.agents.namespace.as_str() {
            "" => Api::all(self.client.clone()),
            namespace => Api::namespaced(self.client.clone(), namespace),
        };
        let mut old = false;
        listing::metadata(
            &pods,
            "pods",
            ListParams::default().labels(&self.agents.labels),
            |pod| {
                let created = pod.metadata.creation_timestamp;
                old |= created.is_some_and(|created| created.0 < self.began);
            },
        )
        .await?;
        Ok(old)
    }
}

/// Pods that have not finished, by fingerprints: about 10 bytes each while a run lasts. The key is another one each time,
/// so an endpoint that is kept because its pod looks like another one goes the next time.
#[derive(Default)]
struct RunningPods {
    key: RandomState,
    seen: HashSet<u64>,
}

impl RunningPods {
    fn add(&mut self, namespace: &str, name: &str) {
        self.seen.insert(self.key.hash_one((namespace, name)));
    }

    fn has(&self, namespace: &str, name: &str) -> bool {
        self.seen.contains(&self.key.hash_one((namespace, name)))
    }
}

fn endpoint(metadata: ObjectMeta, now: Timestamp) -> Endpoint {
    let created = metadata.creation_timestamp.map_or(now, |time| time.0);
    let owners = metadata
        .owner_references
        .unwrap_or_default()
        .into_iter()
        .map(|owner| if owner.kind == "Pod" { Owner::Pod(owner.name) } else { Owner::Other });
    Endpoint {
        namespace: metadata.namespace.unwrap_or_default(),
        name: metadata.name.unwrap_or_default(),
        uid: metadata.uid.unwrap_or_default(),
        resource_version: metadata.resource_version.unwrap_or_default(),
        age: Duration::try_from(now.duration_since(created)).unwrap_or_default(),
        owners: owners.collect(),
    }
}
