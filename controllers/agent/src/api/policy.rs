//! The policies in use, and the flows that they have judged.

mod counted;
mod explain;
mod selectors;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use cilia_loader::Direction;
use cilia_loader::maps::reason;
use serde_json::{Value, json};

use super::Parts;

pub(super) use explain::{diff, explain};
pub(super) use selectors::{selectors, subject_selectors};

pub(super) async fn get(State(parts): State<Arc<Parts>>) -> Response {
    let mut answer = shown(&parts);
    match counted::rules(&parts).await {
        Ok(rules) => answer["rules"] = rules,
        Err(fault) => return (StatusCode::INTERNAL_SERVER_ERROR, fault).into_response(),
    }
    Json(answer).into_response()
}

/// The policies in use, their revision, and those that can't be used.
pub(super) fn shown(parts: &Parts) -> Value {
    let view = parts.enforcer.view().borrow().clone();
    let text = serde_json::to_string_pretty(&*view.policies).unwrap_or_default();
    let faults: Vec<Value> = view
        .faults
        .iter()
        .map(|(policy, fault)| json!({"policy": policy, "fault": fault}))
        .collect();
    json!({"policy": text, "revision": view.revision, "faults": faults})
}

/// The flows that policy has judged lately, at this node's endpoints.
pub(super) async fn flows(State(parts): State<Arc<Parts>>) -> Json<Vec<Value>> {
    let seconds =
        |time: SystemTime| time.duration_since(UNIX_EPOCH).map_or(0.0, |t| t.as_secs_f64());
    let flows = parts.bus.flows().into_iter().map(|(flow, seen)| {
        let local = parts.endpoints.get(flow.endpoint);
        let local = local.as_ref();
        json!({
            "endpoint": flow.endpoint,
            "pod": local.map(|local| local.key().to_string()),
            "identity": local.and_then(|local| local.identity).map(|identity| identity.0),
            "direction": if flow.direction == Direction::Ingress { "ingress" } else { "egress" },
            "peer": {"identity": flow.peer, "address": flow.address},
            "proto": flow.proto,
            "port": flow.port,
            "verdict": match (flow.denied, flow.audited) {
                (None, _) => "allowed",
                (Some(_), true) => "audited",
                (Some(_), false) => "denied",
            },
            "reason": flow.denied.and_then(reason::text),
            "count": seen.count,
            "cookie": seen.cookie,
            "first": seconds(seen.first),
            "last": seconds(seen.last),
        })
    });
    Json(flows.collect())
}
