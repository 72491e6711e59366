//! Keeps the `CiliumEndpoint`s of this node's endpoints as they ought to be.
//!
//! What was written last is remembered (about 1 KiB an endpoint), so that nothing is written, and
//! nothing read, that is right already.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cilia_crds::CiliumEndpoint;
use cilia_crds::ciliumendpoint::EndpointStatus;
use kube::api::{DeleteParams, GetParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client};
use serde_json::json;

use super::status::{Takeover, object, takeover, tell};
use super::{Error, LocalEndpoint, PodKey};
use crate::policy::Trouble;

/// Writes `CiliumEndpoint`s.
pub(super) struct Publisher {
    client: Client,
    published: Mutex<HashMap<PodKey, Published>>,
}

/// An object as it was seen last.
#[derive(Debug, Clone, PartialEq)]
struct Published {
    uid: String,
    /// The uid of the pod that it stands for.
    pod: String,
    /// Nothing for an object that a former agent published, or that may be gone.
    shown: Option<Shown>,
}

/// What of an object is ours.
#[derive(Debug, Clone, PartialEq)]
struct Shown {
    labels: BTreeMap<String, String>,
    /// The pod that it goes with.
    owner: Option<String>,
    status: Option<EndpointStatus>,
}

/// Where an endpoint is, for others.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    /// The node's address that others send to.
    pub(super) node: &'a str,
    /// Every address of the node.
    pub(super) addresses: &'a [String],
    /// What is wrong with its policy.
    pub(super) trouble: Option<Trouble>,
    /// The node's address that the pod says it is on.
    pub(super) pod_host: Option<&'a str>,
}

impl Publisher {
    pub(super) fn new(client: Client) -> Self {
        Self { client, published: Mutex::default() }
    }

    /// Makes the object right, and returns its uid.
    pub(super) async fn publish(
        &self,
        endpoint: &LocalEndpoint,
        place: &Place<'_>,
    ) -> Result<String, Error> {
        let key = endpoint.key();
        let mut wanted = object(endpoint, place.node);
        if let (Some(trouble), Some(status)) = (place.trouble, &mut wanted.status) {
            tell(status, trouble);
        }
        let known = self.published().get(&key).cloned();
        let of_pod = |known: &Published| known.pod == endpoint.object_uid;
        if let Some(Published { uid, shown: Some(known), .. }) = known.filter(of_pod) {
            if known == shown(&wanted) {
                return Ok(uid);
            }
            match self.patch(&uid, &known, &wanted).await {
                Ok(()) => return Ok(self.remember(endpoint, uid, shown(&wanted))),
                Err(error) if started_over(&error) => self.forget(&key),
                Err(error) => return Err(self.failed("patch", &key, error)),
            }
        }
        // Mostly it is a pod that has just come, and nothing of its name is there.
        if endpoint.published_uid.is_none() {
            match self.api(&key).create(&PostParams::default(), &wanted).await {
                Ok(created) => return Ok(self.found(endpoint, &created)),
                Err(error) if started_over(&error) => {}
                Err(error) => return Err(self.failed("create", &key, error)),
            }
        }
        // The API server's cache is asked first, and etcd only if that turns out to be behind.
        let cached = GetParams { resource_version: Some("0".to_owned()) };
        match self.make_right(endpoint, &wanted, place, &cached).await {
            Err(Error::Kubernetes { cause, .. }) if started_over(&cause) => {
                self.make_right(endpoint, &wanted, place, &GetParams::default()).await
            }
            outcome => outcome,
        }
    }

    async fn make_right(
        &self,
        endpoint: &LocalEndpoint,
        wanted: &CiliumEndpoint,
        place: &Place<'_>,
        freshness: &GetParams,
    ) -> Result<String, Error> {
        let key = endpoint.key();
        let api = self.api(&key);
        let present = match api.get_with(&key.name, freshness).await {
            Ok(present) => Some(present),
            Err(kube::Error::Api(status)) if status.code == 404 => None,
            Err(error) => return Err(self.failed("get", &key, error)),
        };
        if let Some(present) = present {
            match takeover(endpoint, &present, place.pod_host, place.addresses) {
                Takeover::Refuse(reason) => {
                    return Err(Error::Foreign { name: key.to_string(), reason });
                }
                Takeover::Replace => self.delete(&key, present.metadata.uid.as_deref()).await?,
                Takeover::Take if shown(&present) == shown(wanted) => {
                    return Ok(self.found(endpoint, &present));
                }
                Takeover::Take => {
                    let uid = present.metadata.uid.clone().unwrap_or_default();
                    let patched = self.patch(&uid, &shown(&present), wanted).await;
                    patched.map_err(|error| self.failed("patch", &key, error))?;
                    return Ok(self.remember(endpoint, uid, shown(wanted)));
                }
            }
        }
        let created = api.create(&PostParams::default(), wanted).await;
        let created = created.map_err(|error| self.failed("create", &key, error))?;
        Ok(self.found(endpoint, &created))
    }

    /// Removes the object of an endpoint that is gone, if it is still the one that was published.
    pub(super) async fn withdraw(&self, key: &PodKey) -> Result<(), Error> {
        let Some(known) = self.published().get(key).cloned() else { return Ok(()) };
        self.delete(key, Some(&known.uid)).await?;
        self.forget(key);
        Ok(())
    }

    /// Notes that a former agent published an endpoint, so that it can be withdrawn.
    pub(super) fn restore(&self, endpoint: &LocalEndpoint) {
        if let Some(uid) = &endpoint.published_uid {
            let mut published = self.published();
            let known = published.entry(endpoint.key());
            let (uid, pod) = (uid.clone(), endpoint.object_uid.clone());
            known.or_insert(Published { uid, pod, shown: None });
        }
    }

    /// What was seen may not be there any more: the next publication looks at what is.
    pub(super) fn doubt(&self, key: &PodKey) {
        if let Some(known) = self.published().get_mut(key) {
            known.shown = None;
        }
    }

    fn forget(&self, key: &PodKey) {
        self.published().remove(key);
    }

    /// Makes the object of this uid say what it should.
    ///
    /// A namespace's labels change a thousand of them at once, so it costs the API server as little as can be: it need
    /// not note which field is whose (none is anybody else's; that is half of its work on such a write, and of what
    /// every watcher reads), nor look for fields that it does not know, nor say what it was just told.
    async fn patch(&self, uid: &str, from: &Shown, to: &CiliumEndpoint) -> Result<(), kube::Error> {
        let key = PodKey {
            namespace: to.metadata.namespace.clone().unwrap_or_default(),
            name: to.metadata.name.clone().unwrap_or_default(),
        };
        let wanted = shown(to);
        let mut steps = vec![
            json!({"op": "test", "path": "/metadata/uid", "value": uid}),
            json!({"op": "add", "path": "/metadata/managedFields", "value": [{}]}),
        ];
        if from.labels != wanted.labels {
            steps.push(json!({"op": "add", "path": "/metadata/labels", "value": wanted.labels}));
        }
        if from.owner != wanted.owner {
            let owners = &to.metadata.owner_references;
            steps.push(json!({"op": "add", "path": "/metadata/ownerReferences", "value": owners}));
        }
        if from.status != wanted.status {
            let op = if from.status.is_some() { "replace" } else { "add" };
            steps.push(json!({"op": op, "path": "/status", "value": wanted.status}));
        }
        let patch = serde_json::from_value(json!(steps)).map_err(kube::Error::SerdeError)?;
        let params = PatchParams::default().validation_ignore();
        let (api, patch) = (self.api(&key), Patch::Json::<()>(patch));
        api.patch_metadata(&key.name, &params, &patch).await.map(drop)
    }

    async fn delete(&self, key: &PodKey, uid: Option<&str>) -> Result<(), Error> {
        let preconditions = Preconditions { uid: uid.map(str::to_owned), resource_version: None };
        let guarded =
            DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        match self.api(key).delete(&key.name, &guarded).await {
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            Err(error) => Err(self.failed("delete", key, error)),
            Ok(_) => Ok(()),
        }
    }

    fn found(&self, endpoint: &LocalEndpoint, object: &CiliumEndpoint) -> String {
        self.remember(endpoint, object.metadata.uid.clone().unwrap_or_default(), shown(object))
    }

    fn remember(&self, endpoint: &LocalEndpoint, uid: String, shown: Shown) -> String {
        let (pod, shown) = (endpoint.object_uid.clone(), Some(shown));
        self.published().insert(endpoint.key(), Published { uid: uid.clone(), pod, shown });
        uid
    }

    fn api(&self, key: &PodKey) -> Api<CiliumEndpoint> {
        Api::namespaced(self.client.clone(), &key.namespace)
    }

    fn published(&self) -> MutexGuard<'_, HashMap<PodKey, Published>> {
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[expect(clippy::unused_self, reason = "reads like the other verbs of the publisher")]
    fn failed(&self, operation: &'static str, key: &PodKey, cause: kube::Error) -> Error {
        Error::Kubernetes {
            operation,
            object: format!("CiliumEndpoint {key}"),
            cause: Box::new(cause),
        }
    }
}

fn shown(object: &CiliumEndpoint) -> Shown {
    let labels = object.metadata.labels.clone().unwrap_or_default();
    let mut owners = object.metadata.owner_references.iter().flatten();
    let owner = owners.find(|owner| owner.kind == "Pod").map(|owner| owner.uid.clone());
    Shown { labels: labels.into_iter().collect(), owner, status: object.status.clone() }
}

/// Whether the object is another one, or none, or one more, than was thought.
fn started_over(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 404 | 409 | 422))
}

#[cfg(test)]
#[path = "publish_tests.rs"]
mod tests;
