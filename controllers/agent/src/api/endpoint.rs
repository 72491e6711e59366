//! This node's endpoints.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};

use super::{Parts, not_found};
use crate::endpoint::LocalEndpoint;
use crate::policy::EndpointView;

pub(super) async fn list(State(parts): State<Arc<Parts>>) -> Json<Vec<Value>> {
    let view = parts.enforcer.view().borrow().clone();
    let endpoints = parts.endpoints.list();
    let of = |endpoint: &Arc<LocalEndpoint>| {
        show(endpoint, view.endpoints.iter().find(|policy| policy.id == endpoint.id))
    };
    Json(endpoints.iter().map(of).collect())
}

/// The endpoint that a path means: a number, or what it is known by with a prefix.
pub(super) async fn get(State(parts): State<Arc<Parts>>, Path(id): Path<String>) -> Response {
    let endpoints = parts.endpoints.list();
    let Some(endpoint) = endpoints.iter().find(|endpoint| is(endpoint, &id)) else {
        return not_found(format!("no endpoint {id} on this node"));
    };
    let view = parts.enforcer.view().borrow().clone();
    let policy = view.endpoints.iter().find(|policy| policy.id == endpoint.id);
    Json(show(endpoint, policy)).into_response()
}

fn is(endpoint: &LocalEndpoint, id: &str) -> bool {
    let (prefix, name) = id.split_once(':').unwrap_or(("cilium-local", id));
    let pod = || format!("{}/{}", endpoint.namespace, endpoint.pod);
    match prefix {
        "cilium-local" => name.parse() == Ok(endpoint.id),
        "pod-name" | "cep-name" => name == pod(),
        "container-id" => name == endpoint.container_id,
        "cni-attachment-id" => name == endpoint.attachment() || name == endpoint.container_id,
        "ipv4" => endpoint.ipv4.is_some_and(|address| name.parse() == Ok(address)),
        "ipv6" => endpoint.ipv6.is_some_and(|address| name.parse() == Ok(address)),
        _ => false,
    }
}

/// Labels as `source:key=value`, sorted.
pub(super) fn labels(labels: &cilia_crds::Labels) -> Vec<String> {
    let one = |(key, value): (&cilia_crds::LabelKey, &str)| {
        if value.is_empty() { key.to_string() } else { format!("{key}={value}") }
    };
    let mut shown: Vec<String> = labels.iter().map(one).collect();
    shown.sort_unstable();
    shown
}

fn show(endpoint: &LocalEndpoint, policy: Option<&EndpointView>) -> Value {
    let enabled = match policy.map(|policy| (policy.ingress, policy.egress)) {
        Some((true, true)) => "both",
        Some((true, false)) => "ingress",
        Some((false, true)) => "egress",
        Some((false, false)) => "none",
        None => "unknown",
    };
    let names: Vec<Value> = endpoint
        .named_ports
        .iter()
        .map(|port| json!({"name": port.name, "port": port.port, "protocol": port.protocol}))
        .collect();
    json!({
        "id": endpoint.id,
        "status": {
            "external-identifiers": {
                "cni-attachment-id": endpoint.attachment(),
                "container-id": endpoint.container_id,
                "k8s-namespace": endpoint.namespace,
                "k8s-pod-name": endpoint.pod,
                "pod-name": format!("{}/{}", endpoint.namespace, endpoint.pod),
            },
            "identity": endpoint.identity.map(|identity| json!({"id": identity.0, "labels": labels(&endpoint.labels)})),
            "labels": {"security-relevant": labels(&endpoint.labels)},
            "named-ports": names,
            "networking": {
                "addressing": [{
                    "ipv4": endpoint.ipv4.map(|address| address.to_string()),
                    "ipv6": endpoint.ipv6.map(|address| address.to_string()),
                }],
                "container-interface-name": endpoint.ifname,
                "host-mac": endpoint.node_mac.to_string(),
                "interface-index": endpoint.ifindex,
                "interface-name": endpoint.host_device,
                "mac": endpoint.mac.to_string(),
            },
            "policy": {
                "realized": {
                    "id": policy.map(|policy| policy.identity.0),
                    "policy-enabled": enabled,
                    "policy-revision": policy.map(|policy| policy.revision),
                    "map-entries": policy.map(|policy| policy.entries),
                    "error": policy.and_then(|policy| policy.error.clone()),
                },
            },
            "state": endpoint.state,
        },
    })
}
