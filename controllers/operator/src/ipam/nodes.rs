//! Reads nodes and carries what was decided for them to the API server: one way for all modes.

use std::sync::Arc;

use cilia_crds::CiliumNode;
use cilia_runtime::events::Recorder;
use cilia_runtime::lanes::{Job, Next};
use cilia_runtime::watch::{Key, Store};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::{Patch, PatchParams};
use kube::runtime::events::EventType;
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::{Value, json};
use tracing::warn;

use crate::conflicts::Conflicts;
use crate::failure::Failure;

const KIND: &str = "CiliumNode";
/// An annotation that is only there while writes of a leader that was cut off may be under way.
const FENCE_ANNOTATION: &str = "ipam.cilia.io/fence";

/// What every mode keeps of a `CiliumNode`. About 150 bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Object {
    pub(super) uid: String,
    pub(super) resource_version: String,
    /// What was said to be wrong; empty for nothing.
    pub(super) error: String,
    /// It was fenced off from a former leader.
    pub(super) fenced: bool,
    /// When it was made, in seconds since 1970.
    created: i64,
}

impl Object {
    pub(super) fn of(node: &CiliumNode) -> Self {
        let ipam = node.status.as_ref().and_then(|status| status.ipam.as_ref());
        let status = ipam.and_then(|ipam| ipam.operator_status.as_ref());
        Self {
            uid: node.uid().unwrap_or_default(),
            resource_version: node.resource_version().unwrap_or_default(),
            error: status.and_then(|status| status.error.clone()).unwrap_or_default(),
            fenced: node.annotations().contains_key(FENCE_ANNOTATION),
            created: super::created(&node.metadata),
        }
    }
}

/// What to write to a node.
#[derive(Debug)]
pub(super) enum Order {
    Nothing,
    /// Nothing but a mark, that moves its version.
    Fence,
    /// The mark goes; that needs no write of its own where `spec` is written.
    Write {
        /// This of its spec.
        spec: Option<Value>,
        /// This is its error; empty if it has none any more.
        error: Option<String>,
    },
}

/// The nodes, as a mode keeps them.
pub(super) struct Nodes<S> {
    api: Api<CiliumNode>,
    events: Recorder,
    store: Store<S>,
    conflicts: Conflicts<Arc<str>>,
}

impl<S: AsRef<Object>> Nodes<S> {
    pub(super) fn new(client: Client, events: Recorder, store: Store<S>) -> Self {
        Self { api: Api::all(client), events, store, conflicts: Conflicts::default() }
    }

    pub(super) fn get(&self, name: &str) -> Option<Arc<S>> {
        self.store.get(&Key::new("", name))
    }

    /// All, the older first: what two nodes have belongs to the older one.
    pub(super) fn by_age(&self) -> Vec<Arc<str>> {
        let age = |(key, node): (Key, Arc<S>)| (S::as_ref(&node).created, key.name);
        let mut nodes: Vec<(i64, Arc<str>)> = self.store.all().into_iter().map(age).collect();
        nodes.sort_unstable();
        nodes.into_iter().map(|(_, name)| name).collect()
    }

    /// Writes what was decided about the node as it was: the spec first. A conflict leaves the status alone.
    pub(super) async fn write<K>(
        &self,
        name: &Arc<str>,
        node: &Object,
        order: Order,
        job: &Job<K>,
    ) -> Result<Next, Failure> {
        let written = match order {
            Order::Nothing => return Ok(Next::Done),
            Order::Fence => {
                job.write().await;
                let mark = json!({ FENCE_ANNOTATION: node.resource_version });
                self.patch("fence", name, node, Some(mark), None).await.map(drop)
            }
            Order::Write { spec, error } => self.write_parts(name, node, spec, error, job).await,
        };
        self.conflicts.next(name, written)
    }

    async fn write_parts<K>(
        &self,
        name: &str,
        node: &Object,
        spec: Option<Value>,
        error: Option<String>,
        job: &Job<K>,
    ) -> Result<(), Failure> {
        let mut version = node.resource_version.clone();
        if spec.is_some() || error.is_none() {
            job.write().await;
            let unmark = node.fenced.then(|| json!({ FENCE_ANNOTATION: null }));
            let done = if spec.is_some() { "set ranges of" } else { "take the fence's mark off" };
            version = self.patch(done, name, node, unmark, spec).await?;
        }
        let Some(error) = error else { return Ok(()) };
        if !error.is_empty() {
            warn!(node = name, error, "node cannot have all that it asks for");
            self.tell(name, node, &error);
        }
        let value = if error.is_empty() { Value::Null } else { json!(error) };
        let mut patch = guard(&node.uid, &version);
        patch["status"] = json!({ "ipam": { "operator-status": { "error": value } } });
        job.write().await;
        let params = PatchParams::default();
        let patched = self.api.patch_status(name, &params, &Patch::Merge(&patch)).await;
        patched.map(drop).map_err(Failure::of("set status of", KIND, name))
    }

    /// Writes annotations and spec; the version that the object has then.
    async fn patch(
        &self,
        operation: &'static str,
        name: &str,
        node: &Object,
        annotations: Option<Value>,
        spec: Option<Value>,
    ) -> Result<String, Failure> {
        let mut patch = guard(&node.uid, &node.resource_version);
        if let Some(annotations) = annotations {
            patch["metadata"]["annotations"] = annotations;
        }
        if let Some(spec) = spec {
            patch["spec"] = spec;
        }
        let params = PatchParams::default();
        let patched = self.api.patch_metadata(name, &params, &Patch::Merge(&patch)).await;
        let patched = patched.map_err(Failure::of(operation, KIND, name))?;
        Ok(patched.resource_version().unwrap_or_default())
    }

    fn tell(&self, name: &str, node: &Object, text: &str) {
        let reference = ObjectReference {
            api_version: Some(CiliumNode::api_version(&()).into_owned()),
            kind: Some(KIND.to_owned()),
            name: Some(name.to_owned()),
            uid: Some(node.uid.clone()),
            ..ObjectReference::default()
        };
        self.events.about(reference, EventType::Warning, "NoPodCIDR", text.to_owned());
    }
}

/// A patch that is refused if the object is another or has changed.
fn guard(uid: &str, resource_version: &str) -> Value {
    json!({ "metadata": { "uid": uid, "resourceVersion": resource_version } })
}

#[cfg(test)]
mod tests {
    use cilia_crds::CiliumNode;
    use cilia_runtime::events::Recorder;
    use cilia_runtime::testing::client_of;
    use cilia_runtime::watch::{Event, reflect};
    use futures::StreamExt as _;
    use serde_json::json;

    use super::{Nodes, Object};

    impl AsRef<Object> for Object {
        fn as_ref(&self) -> &Object {
            self
        }
    }

    #[tokio::test]
    async fn of_two_the_older_comes_first() {
        // So what both have is the older one's, and the other is told.
        let node = |(name, created): (&str, &str)| {
            let node =
                json!({ "metadata": { "name": name, "creationTimestamp": created }, "spec": {} });
            Event::Applied(serde_json::from_value::<CiliumNode>(node).expect("a node"))
        };
        let all = [
            ("a", "2026-01-01T00:00:02Z"),
            ("d", "2026-01-01T00:00:01Z"),
            ("c", "2026-01-01T00:00:01Z"),
            ("b", "2026-01-01T00:00:03Z"),
        ];
        let events = futures::stream::iter(all.map(node));
        let (store, changes) = reflect(events, |node| Some(Object::of(&node)));
        assert_eq!(changes.count().await, 4);
        let client = client_of(([127, 0, 0, 1], 1).into(), "test");
        let nodes = Nodes::new(client.clone(), Recorder::new(client, "test"), store);
        let names: Vec<String> = nodes.by_age().iter().map(ToString::to_string).collect();
        assert_eq!(names, ["c", "d", "a", "b"]);
    }
}
