//! Looks at every endpoint once in a while, and removes those that were decided against.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use cilia_crds::{CiliumEndpoint, CiliumEndpointSlice};
use cilia_runtime::lanes::Next;
use cilia_runtime::metrics::Metrics;
use k8s_openapi::api::core::v1::Pod as KubePod;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, ObjectMeta, Preconditions, PropagationPolicy};
use kube::{Api, Client};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tracing::{debug, info, warn};

use super::decision::{Endpoint, Owner, Pod};
use crate::failure::{CONFLICT, Failure, NOT_FOUND};
use crate::listing;

const KIND: &str = "CiliumEndpoint";
const NOT_FINISHED: &str = "status.phase!=Succeeded,status.phase!=Failed";

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

pub(super) struct Collector {
    client: Client,
    interval: Duration,
    collected: Family<[(&'static str, &'static str); 1], Counter>,
}

impl Collector {
    pub(super) fn new(client: Client, interval: Duration, metrics: &Metrics) -> Self {
        let collected = Family::default();
        let help = "CiliumEndpoints collected, by outcome";
        metrics.register("endpoint_gc_objects", help, collected.clone());
        Self { client, interval, collected }
    }

    pub(super) async fn run(&self, task: Task) -> Result<Next, Failure> {
        match task {
            Task::Collect => {
                self.collect().await?;
                return Ok(Next::After(self.interval));
            }
            Task::RemoveEndpoints => {
                for endpoint in self.endpoints().await? {
                    self.remove(&endpoint).await?;
                }
            }
            Task::RemoveSlices => self.remove_slices().await?,
        }
        Ok(Next::Done)
    }

    async fn collect(&self) -> Result<(), Failure> {
        let endpoints = self.endpoints().await?;
        let running = self.running_pods().await?;
        let listed = |namespace: &str, name: &str| {
            let key = (namespace.to_owned(), name.to_owned());
            if running.contains(&key) { Pod::Running } else { Pod::Finished }
        };
        let suspects = endpoints.into_iter().filter(|endpoint| {
            endpoint.is_garbage(self.interval, |pod| listed(&endpoint.namespace, pod))
        });
        let mut failed = None;
        for endpoint in suspects {
            // What was listed may have been too early for the pod: ask again, one by one.
            let result = match self.is_garbage(&endpoint).await {
                Ok(true) => self.remove(&endpoint).await,
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

    async fn endpoints(&self) -> Result<Vec<Endpoint>, Failure> {
        let api: Api<CiliumEndpoint> = Api::all(self.client.clone());
        let now = Timestamp::now();
        let mut endpoints = Vec::new();
        listing::metadata(&api, KIND, "", |object| endpoints.push(endpoint(object.metadata, now)))
            .await?;
        Ok(endpoints)
    }

    async fn running_pods(&self) -> Result<HashSet<(String, String)>, Failure> {
        let api: Api<KubePod> = Api::all(self.client.clone());
        let mut running = HashSet::new();
        listing::metadata(&api, "pods", NOT_FINISHED, |pod| {
            let ObjectMeta { namespace, name, .. } = pod.metadata;
            running.insert((namespace.unwrap_or_default(), name.unwrap_or_default()));
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

    async fn remove(&self, endpoint: &Endpoint) -> Result<(), Failure> {
        let Endpoint { namespace, name, uid, .. } = endpoint;
        let api: Api<CiliumEndpoint> = Api::namespaced(self.client.clone(), namespace);
        let guard = Preconditions { uid: Some(uid.clone()), resource_version: None };
        let deleted = api.delete(name, &DeleteParams::background().preconditions(guard)).await;
        let outcome = match deleted.map_err(Failure::of("delete", KIND, name)) {
            Ok(_) => {
                info!(namespace, name, "endpoint without a pod removed");
                "success"
            }
            Err(failure) if matches!(failure.code(), Some(NOT_FOUND | CONFLICT)) => {
                debug!(namespace, %failure, "endpoint is gone or another");
                return Ok(());
            }
            Err(failure) => {
                self.collected.get_or_create(&[("outcome", "fail")]).inc();
                return Err(failure);
            }
        };
        self.collected.get_or_create(&[("outcome", outcome)]).inc();
        Ok(())
    }

    async fn remove_slices(&self) -> Result<(), Failure> {
        let api: Api<CiliumEndpointSlice> = Api::all(self.client.clone());
        let mut any = false;
        listing::metadata(&api, "CiliumEndpointSlices", "", |_| any = true).await?;
        if !any {
            return Ok(());
        }
        info!("slices are switched off: removing all CiliumEndpointSlices");
        let params = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Orphan),
            ..DeleteParams::default()
        };
        let deleted = api.delete_collection(&params, &ListParams::default()).await;
        deleted.map(drop).map_err(Failure::of("delete", "CiliumEndpointSlices", ""))
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
        age: Duration::try_from(now.duration_since(created)).unwrap_or_default(),
        owners: owners.collect(),
    }
}
