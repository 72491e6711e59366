//! Identities, and the addresses that have them.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use cilia_crds::NumericIdentity;
use serde_json::{Value, json};

use super::endpoint::labels;
use super::{Parts, not_found};

pub(super) async fn list(State(parts): State<Arc<Parts>>) -> Json<Vec<Value>> {
    let identities = parts.identities.snapshot();
    let show = |(id, set): (&NumericIdentity, &Arc<cilia_crds::Labels>)| json!({"id": id.0, "labels": labels(set)});
    Json(identities.iter().map(show).collect())
}

pub(super) async fn get(State(parts): State<Arc<Parts>>, Path(id): Path<String>) -> Response {
    let Ok(number) = id.parse() else {
        return (StatusCode::BAD_REQUEST, format!("{id:?} is not the number of an identity"))
            .into_response();
    };
    match parts.identities.labels(NumericIdentity(number)) {
        Some(set) => Json(json!({"id": number, "labels": labels(&set)})).into_response(),
        None => not_found(format!("no identity {number}")),
    }
}

pub(super) async fn addresses(State(parts): State<Arc<Parts>>) -> Json<Vec<Value>> {
    let entries = parts.ipcache.entries();
    let show = |((address, length), value, origin): &(
        crate::ipcache::Prefix,
        cilia_loader::RemoteEndpoint,
        _,
    )| {
        let origin: &crate::ipcache::Origin = origin;
        json!({
            "cidr": format!("{address}/{length}"),
            "identity": value.identity,
            "hostIP": value.tunnel.map(|node| node.to_string()),
            "encryptKey": value.key,
            "metadata": {"source": origin.name()},
        })
    };
    Json(entries.iter().map(show).collect())
}
