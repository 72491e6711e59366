//! Looks for pods without an endpoint once in a while, and restarts one.

use std::collections::HashMap;
use std::time::Duration;

use cilia_crds::CiliumEndpoint;
use cilia_runtime::events::Recorder;
use cilia_runtime::lanes::Next;
use cilia_runtime::metrics::Metrics;
use cilia_runtime::watch::{Key, Store};
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, Preconditions};
use kube::runtime::events::EventType;
use kube::{Api, Client, ResourceExt};
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::Mutex;
use tracing::{info, warn};

use super::decision::{Restarts, Unmanaged};
use crate::failure::Failure;
use crate::wiring::Context;

const GROUP: &str = "restart-unmanaged-pods";
/// The event by which the next leader knows, too.
const REASON: &str = "UnmanagedPodRestarted";
const NOTE: &str = "the pod had no CiliumEndpoint: it ran without Cilium, and is started again";
/// A pod that had its endpoint is not asked about again for this long.
const SURE: Duration = Duration::from_mins(5);

/// What is kept of a pod that may need a restart: about 200 bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PodState {
    uid: String,
    resource_version: String,
    started: Option<Timestamp>,
}

impl PodState {
    /// Nothing of pods with the node's network, or of pods that end anyway.
    #[expect(clippy::needless_pass_by_value, reason = "the shape that a store asks for")]
    pub(super) fn of(pod: Pod) -> Option<Self> {
        let host = pod.spec.as_ref().and_then(|spec| spec.host_network).unwrap_or_default();
        if host || pod.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let started = pod.status.as_ref().and_then(|status| status.start_time.as_ref());
        Some(Self {
            uid: pod.uid().unwrap_or_default(),
            resource_version: pod.resource_version().unwrap_or_default(),
            started: started.map(|time| time.0),
        })
    }
}

pub(super) struct Watcher {
    client: Client,
    events: Recorder,
    metrics: Metrics,
    pods: Store<PodState>,
    interval: Duration,
    memory: Mutex<Memory>,
    unmanaged: Gauge,
}

#[derive(Default)]
struct Memory {
    /// Nothing before the first pod that may have to be restarted.
    restarts: Option<Restarts>,
    /// When a pod's endpoint was last seen, by the pod's uid.
    managed: HashMap<String, Duration>,
}

impl Watcher {
    pub(super) fn new(context: &Context, pods: Store<PodState>, interval: Duration) -> Self {
        let unmanaged = Gauge::default();
        let help = "Running pods of the restart selector without an endpoint";
        context.metrics.register("unmanaged_pods", help, unmanaged.clone());
        Self {
            client: context.client.clone(),
            events: context.events.clone(),
            metrics: context.metrics.clone(),
            pods,
            interval,
            memory: Mutex::default(),
            unmanaged,
        }
    }

    pub(super) async fn run(&self) -> Result<Next, Failure> {
        let result = self.cycle().await;
        self.metrics.group_ran(GROUP, result.is_ok());
        result.map(|()| Next::After(self.interval))
    }

    async fn cycle(&self) -> Result<(), Failure> {
        let mut memory = self.memory.lock().await;
        let now = since_epoch(Timestamp::now());
        let unmanaged = self.unmanaged(&mut memory.managed, now).await?;
        self.unmanaged.set(i64::try_from(unmanaged.len()).unwrap_or(i64::MAX));
        if unmanaged.is_empty() {
            return Ok(());
        }
        let restarts = match &mut memory.restarts {
            Some(restarts) => restarts,
            none => none.insert(self.former_restarts().await?),
        };
        for Unmanaged { key, .. } in restarts.candidates(&unmanaged, now) {
            match self.restart(key).await {
                Ok(()) => {
                    restarts.remember(key.clone(), now);
                    break;
                }
                Err(failure) => warn!(pod = %key, %failure, "unmanaged pod not restarted"),
            }
        }
        Ok(())
    }

    /// The pods that have no endpoint. `managed` are those that had one a while ago.
    async fn unmanaged(
        &self,
        managed: &mut HashMap<String, Duration>,
        now: Duration,
    ) -> Result<Vec<Unmanaged>, Failure> {
        managed.retain(|_, seen| now.saturating_sub(*seen) < SURE);
        let mut pods = self.pods.all();
        pods.retain(|(_, pod)| !managed.contains_key(&pod.uid));
        pods.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let mut unmanaged = Vec::new();
        for (key, pod) in pods {
            let api: Api<CiliumEndpoint> = Api::namespaced(self.client.clone(), &key.namespace);
            let failed = Failure::of("read", "CiliumEndpoint", &key.name);
            if api.get_metadata_opt(&key.name).await.map_err(failed)?.is_some() {
                managed.insert(pod.uid.clone(), now);
            } else {
                let age = pod.started.map(|started| now.saturating_sub(since_epoch(started)));
                unmanaged.push(Unmanaged { key, age });
            }
        }
        Ok(unmanaged)
    }

    /// The restarts of former leaders, as they told the pods.
    async fn former_restarts(&self) -> Result<Restarts, Failure> {
        let api: Api<Event> = Api::all(self.client.clone());
        let params = ListParams::default().fields(&format!("reason={REASON}"));
        let mut restarts = Restarts::default();
        for event in api.list(&params).await.map_err(Failure::of("list", "events", ""))? {
            let Some(about) = event.regarding else { continue };
            let name = about.name.unwrap_or_default();
            let key = Key::new(about.namespace.as_deref().unwrap_or_default(), &name);
            if let Some(created) = event.metadata.creation_timestamp {
                restarts.remember(key, since_epoch(created.0));
            }
        }
        Ok(restarts)
    }

    async fn restart(&self, key: &Key) -> Result<(), Failure> {
        // Gone or terminating by now: that is as good.
        let Some(pod) = self.pods.get(key) else { return Ok(()) };
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        let guard = Preconditions {
            uid: Some(pod.uid.clone()),
            resource_version: Some(pod.resource_version.clone()),
        };
        let deleted = api.delete(&key.name, &DeleteParams::default().preconditions(guard)).await;
        deleted.map_err(Failure::of("delete", "pod", &key.name))?;
        info!(pod = %key, "restarting a pod that runs without Cilium");
        let reference = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(key.namespace.to_string()),
            name: Some(key.name.to_string()),
            uid: Some(pod.uid.clone()),
            ..ObjectReference::default()
        };
        self.events.about(reference, EventType::Normal, REASON, NOTE.to_owned());
        Ok(())
    }
}

fn since_epoch(time: Timestamp) -> Duration {
    Duration::try_from(time.duration_since(Timestamp::UNIX_EPOCH)).unwrap_or_default()
}
