//! The load: identities, and pods and endpoints that use them.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use cilia_crds::{CiliumEndpoint, CiliumIdentity};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;

/// Requests in flight.
const PARALLEL: usize = 48;
/// Between two new label sets.
const PACE: Duration = Duration::from_millis(50);
const FIRST: usize = 256;
/// The namespace whose labels change.
const MOVED: &str = "bench-moved";

pub(super) struct Load {
    client: Client,
    namespaces: usize,
}

/// The app of the label set of this number, in the namespace that changes.
pub(super) fn moved(set: usize) -> String {
    format!("moved-{set}")
}

impl Load {
    pub(super) fn new(client: Client, namespaces: usize) -> Self {
        Self { client, namespaces }
    }

    fn namespace(&self, number: usize) -> String {
        format!("bench-{}", number % self.namespaces)
    }

    /// All namespaces, and the pods of the one that changes: so many, of so many label sets.
    pub(super) async fn namespaces(&self, (pods, sets): (usize, usize)) -> Result<()> {
        let api: Api<Namespace> = Api::all(self.client.clone());
        let names = (0..self.namespaces).map(|number| self.namespace(number));
        for name in names.chain([MOVED.to_owned()]) {
            let namespace = json!({ "metadata": { "name": name } });
            api.create(&PostParams::default(), &serde_json::from_value(namespace)?).await?;
        }
        let one = |number: usize| {
            self.pod(MOVED.to_owned(), format!("moved-{number}"), moved(number % sets))
        };
        stream::iter(0..pods).map(one).buffer_unordered(PARALLEL).try_collect().await
    }

    pub(super) async fn seed(&self, identities: usize, pods: usize) -> Result<()> {
        let identity = async |number: usize| {
            let object = json!({
                "metadata": { "name": (FIRST + number).to_string() },
                "security-labels": {
                    "k8s:app": format!("app-{number}"),
                    "k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name": self.namespace(number),
                    "k8s:io.cilium.k8s.policy.cluster": "default",
                    "k8s:io.kubernetes.pod.namespace": self.namespace(number),
                },
            });
            let object: CiliumIdentity = serde_json::from_value(object)?;
            let api: Api<CiliumIdentity> = Api::all(self.client.clone());
            api.create(&PostParams::default(), &object).await.context("create an identity")?;
            if number < pods {
                self.pod(self.namespace(number), format!("pod-{number}"), format!("app-{number}"))
                    .await?;
                self.endpoint(number).await?;
            }
            anyhow::Ok(())
        };
        stream::iter(0..identities).map(identity).buffer_unordered(PARALLEL).try_collect().await
    }

    /// Creates pods of new label sets, one after the other; by app, the moment before each request.
    ///
    /// The first pod in a namespace for half a minute waits up to 100 ms for the API server's `LimitRanger`, which
    /// lists the namespace's limits meanwhile. That is no operator's, so each namespace has a dry run right before.
    pub(super) async fn new_sets(&self, count: usize) -> Result<HashMap<String, Instant>> {
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        let mut asked = HashMap::new();
        let mut ticks = tokio::time::interval(PACE);
        for number in 0..count {
            let api: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace(number));
            api.create(&dry_run, &pod("dry-run", "dry-run")?).await.context("dry run of a pod")?;
            ticks.tick().await;
            let app = format!("new-{number}");
            asked.insert(app.clone(), Instant::now());
            self.pod(self.namespace(number), app.clone(), app).await?;
        }
        Ok(asked)
    }

    pub(super) async fn change_namespace(&self) -> Result<()> {
        let api: Api<Namespace> = Api::all(self.client.clone());
        let labels = Patch::Merge(json!({ "metadata": { "labels": { "changed": "yes" } } }));
        api.patch(MOVED, &PatchParams::default(), &labels).await?;
        Ok(())
    }

    async fn pod(&self, namespace: String, name: String, app: String) -> Result<()> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &namespace);
        let made = api.create(&PostParams::default(), &pod(&name, &app)?).await;
        made.context("create a pod").map(drop)
    }

    async fn endpoint(&self, number: usize) -> Result<()> {
        let endpoint = json!({
            "metadata": { "name": format!("pod-{number}"), "namespace": self.namespace(number) },
            "status": {
                "identity": { "id": FIRST + number, "labels": [format!("k8s:app=app-{number}")] },
                "networking": { "addressing": [{ "ipv4": "10.0.0.1" }], "node": "192.168.0.1" },
                "state": "ready",
            },
        });
        let endpoint: CiliumEndpoint = serde_json::from_value(endpoint)?;
        let api: Api<CiliumEndpoint> =
            Api::namespaced(self.client.clone(), &self.namespace(number));
        api.create(&PostParams::default(), &endpoint).await.context("create an endpoint").map(drop)
    }
}

fn pod(name: &str, app: &str) -> Result<Pod> {
    Ok(serde_json::from_value(json!({
        "metadata": { "name": name, "labels": { "app": app, "pod-template-hash": "5d4f8c7b9" } },
        "spec": { "nodeName": "node", "containers": [{ "name": "main", "image": "main" }] },
    }))?)
}
