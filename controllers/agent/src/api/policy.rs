//! The policies in use, the flows that they have judged, and how strictly they are enforced.

mod counted;
mod explain;
mod selectors;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use cilia_loader::Direction;
use cilia_loader::maps::reason;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Parts, endpoint, not_found};
use crate::policy::Error;

pub(super) use explain::{diff, explain};
pub(super) use selectors::{selectors, subject_selectors};

/// The option under which Cilium has audit mode.
const AUDIT: &str = "PolicyAuditMode";

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

/// The options of an endpoint, as Cilium's `EndpointConfigurationStatus` has them.
pub(super) async fn endpoint_config(
    State(parts): State<Arc<Parts>>,
    found: endpoint::Found,
) -> Response {
    let id = found.id();
    let view = parts.enforcer.view().borrow().clone();
    let shown = view.endpoints.iter().find(|endpoint| endpoint.id == id);
    let audit = shown.map_or_else(|| parts.datapath.policy_audit(), |endpoint| endpoint.audit);
    Json(json!({"realized": {"options": {AUDIT: said(audit)}}, "immutable": {}})).into_response()
}

/// What options are to be.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Wanted {
    #[serde(default)]
    options: Map<String, Value>,
    #[serde(default)]
    policy_enforcement: Option<String>,
}

impl Wanted {
    /// Whether policy is to be recorded only, if anything is wanted; or what is wrong.
    fn read(body: &[u8], enforcement: &str) -> Result<Option<bool>, String> {
        let wanted: Self =
            serde_json::from_slice(body).map_err(|error| format!("the body: {error}"))?;
        if wanted.policy_enforcement.is_some_and(|wanted| wanted != enforcement) {
            return Err(format!(
                "policy-enforcement: it is {enforcement:?} for as long as the agent runs; set enable-policy in the \
                 ConfigMap cilium-config and restart the agents"
            ));
        }
        let mut audit = None;
        for (option, value) in &wanted.options {
            if option != AUDIT {
                return Err(format!(
                    "options.{option}: only {AUDIT} can be changed while the agent runs; set others \
                     in the ConfigMap cilium-config and restart the agents"
                ));
            }
            audit = value.as_str().and_then(enabled);
            if audit.is_none() {
                let fault = "is neither \"Enabled\" nor \"Disabled\"";
                return Err(format!("options.{option}: {value} {fault}"));
            }
        }
        Ok(audit)
    }
}

pub(super) async fn set_endpoint_config(
    State(parts): State<Arc<Parts>>,
    found: endpoint::Found,
    body: Bytes,
) -> Response {
    let id = found.id();
    set_audit(&parts, Some(id), &body).await
}

/// The options of the agent that can be changed while it runs; a restart forgets the change.
pub(super) fn options(parts: &Parts) -> Value {
    let options = json!({AUDIT: said(parts.datapath.policy_audit())});
    json!({"options": options, "policy-enforcement": parts.config.string("enable-policy")})
}

pub(super) async fn set_config(State(parts): State<Arc<Parts>>, body: Bytes) -> Response {
    set_audit(&parts, None, &body).await
}

async fn set_audit(parts: &Parts, whose: Option<u16>, body: &[u8]) -> Response {
    let audit = match Wanted::read(body, parts.config.string("enable-policy")) {
        Ok(Some(audit)) => audit,
        Ok(None) => return StatusCode::OK.into_response(),
        Err(fault) => return (StatusCode::BAD_REQUEST, fault).into_response(),
    };
    match parts.enforcer.set_audit(whose, audit).await {
        Ok(()) => StatusCode::OK.into_response(),
        Err(error @ Error::Unknown { .. }) => not_found(error.to_string()),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

fn said(on: bool) -> &'static str {
    if on { "Enabled" } else { "Disabled" }
}

fn enabled(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "enabled" | "enable" | "true" | "on" | "1" => Some(true),
        "disabled" | "disable" | "false" | "off" | "0" => Some(false),
        _ => None,
    }
}
