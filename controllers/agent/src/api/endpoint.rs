//! This node's endpoints.

mod detail;
mod found;
mod id;

use std::collections::HashMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use cilia_crds::NumericIdentity;
use serde_json::{Value, json};

use found::Host;

pub(super) use detail::{get_labels, healthz, log};
pub(super) use found::Found;
pub(super) use id::Id;

use super::query::{Pairs, bad_request, with_source, words};
use super::{Parts, identity, not_found};
use crate::endpoint::LocalEndpoint;
use crate::policy::EndpointView;

pub(super) async fn list(
    State(parts): State<Arc<Parts>>,
    Query(query): Query<Pairs>,
    body: Bytes,
) -> Response {
    let wanted = match wanted_labels(&query, &body) {
        Ok(wanted) => wanted,
        Err(why) => return bad_request(why),
    };
    let shown = having(&parts, &wanted);
    if shown.is_empty() && !wanted.is_empty() {
        return not_found("no endpoint of this node has all of these labels".into());
    }
    Json(shown).into_response()
}

/// The endpoints with all of these labels.
pub(super) fn having(parts: &Parts, wanted: &[String]) -> Vec<Value> {
    let view = parts.enforcer.view().borrow().clone();
    let policies: HashMap<u16, &EndpointView> =
        view.endpoints.iter().map(|policy| (policy.id, policy)).collect();
    let endpoints = parts.endpoints.list();
    let has = |endpoint: &&Arc<LocalEndpoint>| {
        wanted.is_empty() || {
            let of = labels(&endpoint.labels);
            wanted.iter().all(|label| of.contains(label))
        }
    };
    let mut shown: Vec<Value> = endpoints
        .iter()
        .filter(has)
        .map(|endpoint| show(endpoint, policies.get(&endpoint.id).copied()))
        .collect();
    let host = Host::of(parts);
    let host = host.filter(|host| wanted.iter().all(|label| host.labels.contains(label)));
    shown.extend(host.map(|host| show_host(&host, policies.get(&host.id).copied())));
    shown
}

/// The labels that all have to be there: of the query, or of a body as Cilium's clients send it.
fn wanted_labels(query: &Pairs, body: &Bytes) -> Result<Vec<String>, String> {
    let mut wanted = Vec::new();
    for (name, value) in query {
        match name.as_str() {
            "labels" => wanted.extend(words(value)?),
            other => return Err(format!("{other:?} is not asked of endpoints, only labels are")),
        }
    }
    if !body.iter().all(u8::is_ascii_whitespace) {
        let labels: Vec<String> = serde_json::from_slice(body)
            .map_err(|error| format!("the body is no list of labels: {error}"))?;
        wanted.extend(words(&labels.join(","))?);
    }
    Ok(wanted.into_iter().map(with_source).collect())
}

pub(super) async fn get(State(parts): State<Arc<Parts>>, found: Found) -> Response {
    let view = parts.enforcer.view().borrow().clone();
    let policy = view.endpoints.iter().find(|policy| policy.id == found.id());
    Json(match &found {
        Found::Pod(endpoint) => show(endpoint, policy),
        Found::Host(host) => show_host(host, policy),
    })
    .into_response()
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

/// What is in place for an endpoint.
fn realized(policy: Option<&EndpointView>) -> Value {
    let enabled = match policy.map(|policy| (policy.ingress, policy.egress)) {
        Some((true, true)) => "both",
        Some((true, false)) => "ingress",
        Some((false, true)) => "egress",
        Some((false, false)) => "none",
        None => "unknown",
    };
    let audited = policy.is_some_and(|policy| policy.audit);
    let enabled = match enabled {
        "both" | "ingress" | "egress" if audited => format!("audit-{enabled}"),
        other => other.to_owned(),
    };
    json!({
        "id": policy.map(|policy| policy.identity.0),
        "policy-enabled": enabled,
        "policy-revision": policy.map(|policy| policy.revision),
        "map-entries": policy.map(|policy| policy.entries),
        "map-entries-needed": policy.map(|policy| policy.needed),
        "map-entries-max": policy.map(|policy| policy.most),
        "audit": policy.is_some_and(|policy| policy.audit),
        "error": policy.and_then(|policy| policy.error.clone()),
    })
}

/// An endpoint, with what is in place for it.
pub(super) fn show(endpoint: &LocalEndpoint, policy: Option<&EndpointView>) -> Value {
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
            "health": detail::health(endpoint.state, policy),
            "identity": endpoint.identity.map(|identity| identity::show(identity, &endpoint.labels)),
            "labels": detail::labels_of(endpoint),
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
            "policy": {"realized": realized(policy)},
            "state": endpoint.state,
        },
    })
}

/// The node itself, with what is in place for it.
fn show_host(host: &Host, policy: Option<&EndpointView>) -> Value {
    json!({
        "id": host.id,
        "status": {
            "external-identifiers": {},
            "health": detail::health(host.state, policy),
            "identity": identity::show(NumericIdentity::HOST, &host.set),
            "labels": detail::shown_labels(&host.labels, &[]),
            "networking": {"addressing": [{}], "interface-name": "cilium_host"},
            "policy": {"realized": realized(policy)},
            "state": host.state,
        },
    })
}
