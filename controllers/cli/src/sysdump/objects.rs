//! Decides which objects of the cluster are collected. Secrets are not.

use anyhow::Context as _;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::core::discovery::verbs;
use kube::discovery::Scope;
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

use super::mask;
use super::{Content, Item};
use crate::cluster::{Cluster, said};

/// Objects that are asked for at a time, and at most.
const PAGE: u32 = 500;
const MOST: usize = 50_000;

/// Kinds of all namespaces.
const EVERYWHERE: [(&str, &str, &str); 8] = [
    ("", "v1", "Namespace"),
    ("", "v1", "Node"),
    ("", "v1", "Pod"),
    ("", "v1", "Service"),
    ("discovery.k8s.io", "v1", "EndpointSlice"),
    ("networking.k8s.io", "v1", "NetworkPolicy"),
    ("networking.k8s.io", "v1", "Ingress"),
    ("networking.k8s.io", "v1", "IngressClass"),
];

/// Kinds of the agents' namespace.
const THERE: [(&str, &str, &str); 5] = [
    ("apps", "v1", "DaemonSet"),
    ("apps", "v1", "Deployment"),
    ("apps", "v1", "ReplicaSet"),
    ("coordination.k8s.io", "v1", "Lease"),
    ("", "v1", "Event"),
];

/// Everything about a cluster's objects.
pub(super) async fn all(cluster: &Cluster) -> anyhow::Result<Vec<Item>> {
    let client = &cluster.client;
    let version = client.apiserver_version().await;
    let version =
        version.map_err(said).with_context(|| format!("reach the API server {}", cluster.name))?;
    let mut items =
        vec![Item::new("kubernetes/version.json", async move { pretty(&json!(version)) })];
    for (group, version, kind) in EVERYWHERE {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        items.push(item(Api::all_with(client.clone(), &resource), &resource));
    }
    for (group, version, kind) in THERE {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api = Api::namespaced_with(client.clone(), &cluster.namespace, &resource);
        items.push(item(api, &resource));
    }
    items.push(config_map(client.clone(), &cluster.namespace));
    // Without Cilium's kinds the rest still tells something.
    if let Ok(group) = kube::discovery::group(client, "cilium.io").await {
        for (resource, capabilities) in group.recommended_resources() {
            if !capabilities.supports_operation(verbs::LIST) {
                continue;
            }
            debug_assert!(matches!(capabilities.scope, Scope::Cluster | Scope::Namespaced));
            items.push(item(Api::all_with(client.clone(), &resource), &resource));
        }
    }
    Ok(items)
}

fn item(api: Api<DynamicObject>, resource: &ApiResource) -> Item {
    let kind = resource.kind.clone();
    let group = if resource.group.is_empty() { "core" } else { &resource.group };
    let path = format!("kubernetes/{group}/{}.json", resource.plural);
    let content: Content = Box::pin(async move { list(api, &kind).await });
    Item { path, content }
}

async fn list(api: Api<DynamicObject>, kind: &str) -> anyhow::Result<Vec<u8>> {
    let (mut items, mut parameters) = (Vec::new(), ListParams::default().limit(PAGE));
    loop {
        let page = api.list(&parameters).await.map_err(said)?;
        for object in page.items {
            let mut object = serde_json::to_value(object)?;
            object["kind"] = kind.into();
            mask::object(&mut object);
            items.push(object);
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) if items.len() < MOST => parameters = parameters.continue_token(&token),
            _ => break,
        }
    }
    pretty(&json!({"kind": format!("{kind}List"), "items": items}))
}

/// The settings, and no other config map: what others hold is not ours to take.
fn config_map(client: Client, namespace: &str) -> Item {
    let namespace = namespace.to_owned();
    Item::new("kubernetes/core/configmap-cilium-config.json", async move {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "ConfigMap"));
        let api: Api<DynamicObject> = Api::namespaced_with(client, &namespace, &resource);
        let map = api.get("cilium-config").await.map_err(said)?;
        debug_assert_eq!(map.name_any(), "cilium-config");
        let mut map = serde_json::to_value(map)?;
        mask::object(&mut map);
        pretty(&map)
    })
}

/// A value as a file.
pub(super) fn pretty(value: &Value) -> anyhow::Result<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(value)?;
    text.push(b'\n');
    Ok(text)
}
