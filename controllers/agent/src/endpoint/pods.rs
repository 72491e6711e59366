//! This node's pods and all namespaces, as far as endpoints depend on them.
//!
//! About 500 bytes a pod and 200 a namespace, beside their labels. Pods on the node's own network
//! are not kept: they have no endpoint.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::future::ready;
use std::sync::{Arc, PoisonError, RwLock};

use cilia_runtime::watch::{Event, PartialObjectMeta, Scope, watch, watch_scoped};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::{Api, Client};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Error, NamedPort};

/// Annotations by which the object of a static pod says what kubelet calls the pod.
const STATIC_POD: [&str; 2] = ["kubernetes.io/config.mirror", "kubernetes.io/config.hash"];

/// A pod's namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodKey {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// What endpoints need to know of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodFacts {
    /// Its uid to kubelet and the container runtime.
    pub uid: String,
    /// The uid of its object: another one for a static pod, whose object is a mirror.
    pub object_uid: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its annotations about pools of addresses.
    pub annotations: BTreeMap<String, String>,
    /// Its service account.
    pub service_account: String,
    /// Its ports that have names, sorted.
    pub named_ports: Vec<NamedPort>,
    /// The address of the node that it says it is on.
    pub host_ip: Option<String>,
}

/// What has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A pod came, changed or went.
    Pod(PodKey),
    /// The labels of a namespace changed.
    Namespace(String),
}

/// The pods of this node; clones share them.
#[derive(Clone)]
pub struct Pods(Arc<Shared>);

struct Shared {
    client: Client,
    state: RwLock<State>,
    changes: mpsc::UnboundedSender<Change>,
    synced: tokio::sync::watch::Sender<(bool, bool)>,
}

#[derive(Debug, Default)]
struct State {
    pods: HashMap<PodKey, Arc<PodFacts>>,
    namespaces: HashMap<String, Arc<BTreeMap<String, String>>>,
    /// What namespaces say about pools of addresses, of those that say something.
    namespace_annotations: HashMap<String, Arc<BTreeMap<String, String>>>,
}

impl Pods {
    /// No pods yet. What changes is told on the receiver.
    pub fn new(client: Client) -> (Self, mpsc::UnboundedReceiver<Change>) {
        let (changes, told) = mpsc::unbounded_channel();
        let synced = tokio::sync::watch::Sender::new((false, false));
        (Self(Arc::new(Shared { client, state: RwLock::default(), changes, synced })), told)
    }

    /// Watches the pods of this node, and all namespaces, until the token is cancelled.
    pub async fn run(&self, node: &str, token: CancellationToken) {
        let scope = Scope { fields: format!("spec.nodeName={node}"), ..Scope::default() };
        let pods = watch_scoped::<Pod>(Api::all(self.0.client.clone()), scope);
        let pods = pods.for_each(|event| {
            match event {
                Event::Applied(pod) => self.applied(&pod),
                Event::Deleted(key) => {
                    let (namespace, name) = (key.namespace.to_string(), key.name.to_string());
                    self.deleted(PodKey { namespace, name });
                }
                Event::Synced => self.pods_synced(),
            }
            ready(())
        });
        let namespaces = watch::<PartialObjectMeta<Namespace>>(Api::all(self.0.client.clone()));
        let namespaces = namespaces.for_each(|event| {
            match event {
                Event::Applied(namespace) => {
                    let labels = namespace.metadata.labels.unwrap_or_default();
                    let name = namespace.metadata.name.unwrap_or_default();
                    let annotations = namespace.metadata.annotations.unwrap_or_default();
                    self.namespace_annotated(&name, about_pools(annotations));
                    self.namespace_applied(&name, labels.into_iter().collect());
                }
                Event::Deleted(key) => {
                    self.namespace_annotated(&key.name, BTreeMap::new());
                    self.namespace_deleted(&key.name);
                }
                Event::Synced => self.namespaces_synced(),
            }
            ready(())
        });
        tokio::select! {
            () = token.cancelled() => {}
            _ = async { tokio::join!(pods, namespaces) } => {}
        }
    }

    /// A pod of this node came or changed.
    pub fn applied(&self, pod: &Pod) {
        let (Some(key), Some(facts)) = (PodKey::of(pod), PodFacts::of(pod)) else { return };
        let mut state = self.0.state.write().unwrap_or_else(PoisonError::into_inner);
        if state.pods.get(&key).is_some_and(|present| **present == facts) {
            return;
        }
        state.pods.insert(key.clone(), Arc::new(facts));
        drop(state);
        self.tell(Change::Pod(key));
    }

    /// A pod of this node is gone.
    pub fn deleted(&self, key: PodKey) {
        let mut state = self.0.state.write().unwrap_or_else(PoisonError::into_inner);
        if state.pods.remove(&key).is_some() {
            drop(state);
            self.tell(Change::Pod(key));
        }
    }

    /// A namespace came or changed.
    pub fn namespace_applied(&self, name: &str, labels: BTreeMap<String, String>) {
        let mut state = self.0.state.write().unwrap_or_else(PoisonError::into_inner);
        if state.namespaces.get(name).is_some_and(|present| **present == labels) {
            return;
        }
        state.namespaces.insert(name.to_owned(), Arc::new(labels));
        drop(state);
        self.tell(Change::Namespace(name.to_owned()));
    }

    /// A namespace is gone.
    pub fn namespace_deleted(&self, name: &str) {
        self.0.state.write().unwrap_or_else(PoisonError::into_inner).namespaces.remove(name);
    }

    /// Every pod of this node is known.
    pub fn pods_synced(&self) {
        self.0.synced.send_modify(|synced| synced.0 = true);
    }

    /// Every namespace is known.
    pub fn namespaces_synced(&self) {
        self.0.synced.send_modify(|synced| synced.1 = true);
    }

    /// Returns once all pods of this node and all namespaces are known.
    pub async fn wait_synced(&self) {
        // The sender lives as long as `self`.
        let _ = self.0.synced.subscribe().wait_for(|synced| *synced == (true, true)).await;
    }

    /// The pod, if it is known.
    pub fn get(&self, key: &PodKey) -> Option<Arc<PodFacts>> {
        self.0.state.read().unwrap_or_else(PoisonError::into_inner).pods.get(key).cloned()
    }

    /// The pod, which the watch may not have told of yet: then the API server is asked.
    ///
    /// With `uid` it has to be that very pod, not another one of the same name.
    pub async fn find(&self, key: &PodKey, uid: Option<&str>) -> Result<Arc<PodFacts>, Error> {
        let is_it = |facts: &PodFacts| uid.is_none_or(|uid| uid == facts.uid);
        if let Some(facts) = self.get(key).filter(|facts| is_it(facts)) {
            return Ok(facts);
        }
        let api: Api<Pod> = Api::namespaced(self.0.client.clone(), &key.namespace);
        let missing = |reason: String| Error::NoPod { pod: key.to_string(), reason };
        let pod = api.get_opt(&key.name).await.map_err(|cause| Error::Kubernetes {
            operation: "get",
            object: format!("pod {key}"),
            cause: Box::new(cause),
        })?;
        let pod = pod.ok_or_else(|| missing("there is none".to_owned()))?;
        let facts =
            PodFacts::of(&pod).ok_or_else(|| missing("it is on the node's network".to_owned()))?;
        if !is_it(&facts) {
            return Err(missing(format!(
                "the one there is has uid {}, not {}",
                facts.uid,
                uid.unwrap_or_default()
            )));
        }
        self.applied(&pod);
        Ok(Arc::new(facts))
    }

    fn namespace_annotated(&self, name: &str, annotations: BTreeMap<String, String>) {
        let mut state = self.0.state.write().unwrap_or_else(PoisonError::into_inner);
        if annotations.is_empty() {
            state.namespace_annotations.remove(name);
        } else {
            state.namespace_annotations.insert(name.to_owned(), Arc::new(annotations));
        }
    }

    /// What a namespace says about pools of addresses; to be asked after its labels.
    pub fn namespace_annotations(&self, name: &str) -> Arc<BTreeMap<String, String>> {
        let state = self.0.state.read().unwrap_or_else(PoisonError::into_inner);
        state.namespace_annotations.get(name).cloned().unwrap_or_default()
    }

    /// The labels of a namespace, asked for where the watch has not told of it yet.
    pub async fn namespace_labels(
        &self,
        name: &str,
    ) -> Result<Arc<BTreeMap<String, String>>, Error> {
        let known = self
            .0
            .state
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .namespaces
            .get(name)
            .cloned();
        if let Some(labels) = known {
            return Ok(labels);
        }
        let api: Api<Namespace> = Api::all(self.0.client.clone());
        let namespace = api.get(name).await.map_err(|cause| Error::Kubernetes {
            operation: "get",
            object: format!("namespace {name}"),
            cause: Box::new(cause),
        })?;
        let annotations = namespace.metadata.annotations.unwrap_or_default();
        self.namespace_annotated(name, about_pools(annotations));
        Ok(Arc::new(namespace.metadata.labels.unwrap_or_default()))
    }

    fn tell(&self, change: Change) {
        // Nobody listens any more when the agent ends.
        let _ = self.0.changes.send(change);
    }
}

/// The annotations that say something about pools of addresses.
fn about_pools(annotations: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let about = |(key, _): &(String, String)| key.starts_with(cilia_ipam::ANNOTATION_PREFIX);
    annotations.into_iter().filter(about).collect()
}

impl PodKey {
    /// The key of an object.
    pub fn of(pod: &Pod) -> Option<Self> {
        let metadata = &pod.metadata;
        Some(Self { namespace: metadata.namespace.clone()?, name: metadata.name.clone()? })
    }
}

impl fmt::Display for PodKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl PodFacts {
    /// What endpoints need of a pod; nothing for one that has no endpoint.
    fn of(pod: &Pod) -> Option<Self> {
        let spec = pod.spec.as_ref()?;
        if spec.host_network == Some(true) {
            return None;
        }
        let init = spec
            .init_containers
            .iter()
            .flatten()
            .filter(|container| container.restart_policy.is_some());
        let ports = spec
            .containers
            .iter()
            .chain(init)
            .flat_map(|container| container.ports.iter().flatten());
        let mut named_ports: Vec<NamedPort> = ports
            .filter_map(|port| {
                Some(NamedPort {
                    name: port.name.clone()?,
                    port: port.container_port.try_into().ok()?,
                    protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
                })
            })
            .collect();
        named_ports.sort();
        named_ports.dedup();
        let object_uid = pod.metadata.uid.clone().unwrap_or_default();
        let annotations = pod.metadata.annotations.as_ref();
        let of_static = STATIC_POD
            .iter()
            .find_map(|name| annotations?.get(*name))
            .filter(|uid| !uid.is_empty());
        Some(Self {
            uid: of_static.unwrap_or(&object_uid).clone(),
            object_uid,
            labels: pod.metadata.labels.clone().unwrap_or_default().into_iter().collect(),
            annotations: about_pools(annotations.cloned().unwrap_or_default()),
            service_account: spec.service_account_name.clone().unwrap_or_default(),
            named_ports,
            host_ip: pod.status.as_ref().and_then(|status| status.host_ip.clone()),
        })
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::{Change, PodKey, Pods};

    fn pod(spec: &serde_json::Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"namespace": "n", "name": "p", "uid": "u", "labels": {"app": "web"}},
            "spec": spec,
            "status": {"hostIP": "192.0.2.1"},
        }))
        .unwrap()
    }

    #[tokio::test]
    async fn only_what_matters_is_news() {
        let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let (pods, mut changes) = Pods::new(kube::Client::try_from(config).unwrap());
        let key = PodKey { namespace: "n".into(), name: "p".into() };
        let ports = json!([
            {"name": "web", "containerPort": 80},
            {"name": "dns", "containerPort": 53, "protocol": "UDP"},
            {"containerPort": 9},
        ]);
        let web = pod(
            &json!({"serviceAccountName": "sa", "containers": [{"name": "c", "ports": ports}]}),
        );
        pods.applied(&web);
        assert_eq!(changes.try_recv(), Ok(Change::Pod(key.clone())));
        let facts = pods.find(&key, Some("u")).await.unwrap();
        let names: Vec<_> = facts.named_ports.iter().map(|port| port.name.as_str()).collect();
        assert_eq!((names, facts.service_account.as_str()), (vec!["dns", "web"], "sa"));

        let mut busy = web.clone();
        busy.metadata.resource_version = Some("2".into());
        pods.applied(&busy);
        assert!(changes.try_recv().is_err());
        pods.deleted(key.clone());
        pods.deleted(key.clone());
        assert_eq!(
            (changes.try_recv(), changes.try_recv().is_err()),
            (Ok(Change::Pod(key.clone())), true)
        );

        // A static pod is known by the hash of its file; its object stands beside it.
        let mut mirror = web.clone();
        mirror.metadata.annotations = Some(
            [("kubernetes.io/config.mirror".to_owned(), "hash".to_owned())].into_iter().collect(),
        );
        pods.applied(&mirror);
        let facts = pods.find(&key, Some("hash")).await.unwrap();
        assert_eq!((facts.uid.as_str(), facts.object_uid.as_str()), ("hash", "u"));
        pods.deleted(key.clone());

        pods.applied(&pod(&json!({"hostNetwork": true, "containers": []})));
        assert_eq!(pods.get(&key), None);
    }
}
