//! The policies in use.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use super::Parts;

pub(super) async fn get(State(parts): State<Arc<Parts>>) -> Json<Value> {
    let view = parts.enforcer.view().borrow().clone();
    let text = serde_json::to_string_pretty(&*view.policies).unwrap_or_default();
    let faults: Vec<Value> = view
        .faults
        .iter()
        .map(|(policy, fault)| json!({"policy": policy, "fault": fault}))
        .collect();
    Json(json!({"policy": text, "revision": view.revision, "faults": faults}))
}

pub(super) async fn selectors(State(parts): State<Arc<Parts>>) -> Json<Value> {
    let view = parts.enforcer.view().borrow().clone();
    Json(json!({"count": view.selectors}))
}
