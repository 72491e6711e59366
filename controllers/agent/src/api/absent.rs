//! Answers for parts of Cilium's API that nothing here fills: empty where there is nothing to
//! tell, 501 where something would have to be done.

use std::future::{Ready, ready};

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};

use super::endpoint::Found;

/// No names are resolved for policies: there is no DNS proxy.
pub(super) async fn no_names() -> Json<Value> {
    Json(json!([]))
}

/// Nor for one endpoint, which has to be there.
pub(super) async fn no_names_of(_: Found) -> Json<Value> {
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

/// Why endpoints' labels are not changed.
pub(super) const BY_PODS: &str =
    "an endpoint's labels are those of its pod and namespace: kubectl label changes them";
/// Why policies are not written through this API.
pub(super) const BY_OBJECTS: &str =
    "policies are Kubernetes objects: kubectl apply and delete change them";
/// Why there is no prefilter.
pub(super) const NO_XDP: &str = "no program runs at XDP: a CiliumClusterwideNetworkPolicy with nodeSelector denies \
                                 ranges to the node (enable-host-firewall)";

/// An answer that an operation is no part of this API, and why.
pub(super) fn because(
    why: &'static str,
) -> impl Fn() -> Ready<Response> + Clone + Send + Sync + 'static {
    move || {
        let text = format!("not part of Cilia: {why}\n");
        ready((StatusCode::NOT_IMPLEMENTED, text).into_response())
    }
}
