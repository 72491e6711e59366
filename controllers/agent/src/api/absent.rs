//! Answers for parts of Cilium's API that nothing here fills: empty where there is nothing to
//! tell, 501 where something would have to be done.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};

/// No names are resolved for policies: there is no DNS proxy.
pub(super) async fn no_names() -> Json<Value> {
    Json(json!([]))
}

/// No names were resolved that could be forgotten.
pub(super) async fn nothing_to_forget() -> StatusCode {
    StatusCode::OK
}

/// No selector asks for names.
pub(super) async fn no_selectors() -> Json<Value> {
    Json(json!({"DNSPollNames": [], "FQDNPolicySelectors": []}))
}

/// Nothing redirects locally.
pub(super) async fn no_redirects() -> Json<Value> {
    Json(json!([]))
}

/// Sockets are not looked at.
pub(super) async fn no_cgroups() -> Json<Value> {
    Json(json!({"pod-metadatas": []}))
}

pub(super) async fn bgp() -> Response {
    (StatusCode::NOT_IMPLEMENTED, "BGP Control Plane is disabled\n").into_response()
}

pub(super) async fn not_built() -> Response {
    (StatusCode::NOT_IMPLEMENTED, "this operation is not built\n").into_response()
}
