//! This node's endpoints.

mod detail;
mod id;

use std::collections::HashMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use cilia_crds::NumericIdentity;
use serde_json::{Value, json};

pub(super) use detail::{get_labels, healthz, log};
pub(super) use id::Id;

use super::query::{Pairs, bad_request, words};
use super::{Parts, not_found};
use crate::endpoint::{EndpointState, LocalEndpoint};
use crate::policy::{EndpointView, View};

pub(super) async fn list(
    State(parts): State<Arc<Parts>>,
    Query(query): Query<Pairs>,
    body: Bytes,
) -> Response {
    let wanted = match wanted_labels(&query, &body) {
        Ok(wanted) => wanted,
        Err(why) => return bad_request(why),
    };
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
    let global = parts.config.bool("policy-audit-mode");
    let mut shown: Vec<Value> = endpoints
        .iter()
        .filter(has)
        .map(|endpoint| show(endpoint, policies.get(&endpoint.id).copied(), global))
        .collect();
    let host = host(&parts, &view, global)
        .filter(|(labels, _)| wanted.iter().all(|label| labels.contains(label)));
    shown.extend(host.map(|(_, host)| host));
    if shown.is_empty() && !wanted.is_empty() {
        return not_found("no endpoint of this node has all of these labels".into());
    }
    Json(shown).into_response()
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
    let with_source = |label: String| {
        if label.contains(':') { label } else { format!("k8s:{label}") }
    };
    Ok(wanted.into_iter().map(with_source).collect())
}

pub(super) async fn get(State(parts): State<Arc<Parts>>, Path(id): Path<String>) -> Response {
    let view = parts.enforcer.view().borrow().clone();
    let global = parts.config.bool("policy-audit-mode");
    if parts.enforcer.host().is_some_and(|host| Id::parse(&id) == Ok(Id::Number(host)))
        && let Some((_, host)) = host(&parts, &view, global)
    {
        return Json(host).into_response();
    }
    let endpoint = match find(&parts, &id) {
        Ok(endpoint) => endpoint,
        Err(answer) => return *answer,
    };
    let policy = view.endpoints.iter().find(|policy| policy.id == endpoint.id);
    Json(show(&endpoint, policy, global)).into_response()
}

/// The endpoint that a path means, or the answer why there is none.
fn find(parts: &Parts, id: &str) -> Result<Arc<LocalEndpoint>, Box<Response>> {
    let wanted = Id::parse(id).map_err(|error| Box::new(bad_request(error)))?;
    let mut endpoints = parts.endpoints.list().into_iter();
    endpoints
        .find(|endpoint| wanted.is(endpoint))
        .ok_or_else(|| Box::new(not_found(format!("no endpoint {id} on this node"))))
}

/// The number of the endpoint that a path means, the node's own included.
pub(super) fn number(parts: &Parts, id: &str) -> Option<u16> {
    let wanted = Id::parse(id).ok()?;
    let endpoints = parts.endpoints.list();
    let found = endpoints.iter().find(|endpoint| wanted.is(endpoint)).map(|endpoint| endpoint.id);
    found.or_else(|| parts.enforcer.host().filter(|host| wanted == Id::Number(*host)))
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

/// The node itself, with its labels, if it has policy.
fn host(parts: &Parts, view: &View, global: bool) -> Option<(Vec<String>, Value)> {
    let id = parts.enforcer.host()?;
    let mut set = view.local.get(&NumericIdentity::HOST).map_or_else(
        || cilia_crds::Labels::reserved("host"),
        |labels| cilia_crds::Labels::clone(labels),
    );
    let node = parts.nodes.local();
    for (key, value) in node.iter().flat_map(|node| &node.labels) {
        set.insert("k8s", key, value);
    }
    let labels = labels(&set);
    let policy = view.endpoints.iter().find(|policy| policy.id == id);
    let state = if policy.is_some() { EndpointState::Ready } else { EndpointState::Creating };
    let shown = json!({
        "id": id,
        "status": {
            "identity": {"id": NumericIdentity::HOST.0, "labels": labels},
            "labels": {"security-relevant": labels},
            "networking": {"addressing": [{}]},
            "policy": {"realized": realized(policy, global)},
            "state": state,
        },
    });
    Some((labels, shown))
}

/// What is in place for an endpoint; `global` if nothing is enforced on this node.
fn realized(policy: Option<&EndpointView>, global: bool) -> Value {
    let enabled = match policy.map(|policy| (policy.ingress, policy.egress)) {
        Some((true, true)) => "both",
        Some((true, false)) => "ingress",
        Some((false, true)) => "egress",
        Some((false, false)) => "none",
        None => "unknown",
    };
    let audited = global || policy.is_some_and(|policy| policy.audit);
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
fn show(endpoint: &LocalEndpoint, policy: Option<&EndpointView>, global: bool) -> Value {
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
            "policy": {"realized": realized(policy, global)},
            "state": endpoint.state,
        },
    })
}
