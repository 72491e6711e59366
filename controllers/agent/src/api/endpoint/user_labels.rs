//! Labels that somebody gives an endpoint beside those of its pod: `PATCH` of `/v1/endpoint/{id}/labels`.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;

use super::super::Parts;
use super::super::form::read;
use super::super::query::bad_request;
use super::Found;
use crate::endpoint::{Error, Wanted};

/// Cilium's `LabelConfigurationSpec`: all of the user's labels, as they are to be.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    user: Option<Vec<String>>,
}

pub(in super::super) async fn set_labels(
    State(parts): State<Arc<Parts>>,
    found: Found,
    body: Bytes,
) -> Response {
    let spec: Spec = match read("configuration", &body) {
        Ok(spec) => spec,
        Err(fault) => return fault.into_response(),
    };
    let refused = |why: String| (StatusCode::INTERNAL_SERVER_ERROR, why).into_response();
    let wanted = match Wanted::read(&spec.user.unwrap_or_default()) {
        Ok(wanted) => wanted,
        Err(why) => return refused(why.to_string()),
    };
    let Found::Pod(endpoint) = found else {
        return bad_request("endpoint may not be associated reserved labels");
    };
    match parts.plugin.relabel(&endpoint, wanted).await {
        Some(Ok(())) => StatusCode::OK.into_response(),
        Some(Err(Error::NotReady(why))) => (StatusCode::SERVICE_UNAVAILABLE, why).into_response(),
        Some(Err(error)) => refused(error.to_string()),
        None => (StatusCode::SERVICE_UNAVAILABLE, "api not ready").into_response(),
    }
}
