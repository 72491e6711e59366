//! This node's endpoints.

mod detail;
mod found;
mod id;
mod shown;
mod user_labels;

use std::collections::HashMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use serde_json::Value;

pub(super) use detail::{get_labels, healthz, log};
pub(super) use found::{Found, Host};
pub(super) use id::Id;
pub(super) use shown::show;
use shown::show_host;
pub(super) use user_labels::set_labels;

use super::form::{Fault, read};
use super::query::{Pairs, with_source, words};
use super::{Parts, not_found};
use crate::endpoint::LocalEndpoint;
use crate::policy::EndpointView;

pub(super) async fn list(
    State(parts): State<Arc<Parts>>,
    Query(query): Query<Pairs>,
    body: Bytes,
) -> Response {
    let asked = match asked_labels(&query, &body) {
        Ok(asked) => asked,
        Err(fault) => return fault.into_response(),
    };
    let wanted = asked.unwrap_or_default();
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
            let mut of = labels(&endpoint.labels);
            of.extend(detail::derived(endpoint));
            wanted.iter().all(|label| of.contains(label))
        }
    };
    let mut shown: Vec<Value> = endpoints
        .iter()
        .filter(has)
        .map(|endpoint| show(&parts.endpoints, endpoint, policies.get(&endpoint.id).copied()))
        .collect();
    let host = Host::of(parts);
    let host = host.filter(|host| wanted.iter().all(|label| host.labels.contains(label)));
    shown.extend(host.map(|host| show_host(&host, policies.get(&host.id).copied())));
    shown
}

/// The labels that are asked for, if any are: of the query, or of a body as Cilium's clients send it.
pub(super) fn asked_labels(query: &Pairs, body: &Bytes) -> Result<Option<Vec<String>>, Fault> {
    let mut asked: Option<Vec<String>> = None;
    for (_, value) in query.iter().filter(|(name, _)| name == "labels") {
        asked.get_or_insert_default().extend(words(value).map_err(Fault::Text)?);
    }
    if !body.iter().all(u8::is_ascii_whitespace) {
        let labels: Vec<String> = read("labels", body)?;
        asked.get_or_insert_default().extend(words(&labels.join(",")).map_err(Fault::Text)?);
    }
    Ok(asked.map(|labels| labels.into_iter().map(with_source).collect()))
}

pub(super) async fn get(State(parts): State<Arc<Parts>>, found: Found) -> Response {
    let view = parts.enforcer.view().borrow().clone();
    let policy = view.endpoints.iter().find(|policy| policy.id == found.id());
    let mut shown = match &found {
        Found::Pod(endpoint) => show(&parts.endpoints, endpoint, policy),
        Found::Host(host) => show_host(host, policy),
    };
    if policy.is_some() {
        let peers = shown::peers(&parts.datapath, found.id()).await;
        for of in ["spec", "realized"] {
            if let Some(policy) = shown["status"]["policy"][of].as_object_mut() {
                policy.extend(peers.clone());
            }
        }
    }
    Json(shown).into_response()
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
