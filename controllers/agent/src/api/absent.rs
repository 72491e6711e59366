//! Answers for parts of Cilium's API that nothing here fills: empty where there is nothing to tell, and what an agent
//! of Cilium's says that has them switched off where something would have to be done.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use ipnet::IpNet;
use serde_json::{Value, json};

use super::endpoint::{Host, Id};
use super::form::{no_choice, no_type, required};
use super::query::{Pairs, bad_request};
use super::refusal::told;
use super::{Parts, not_found};

/// The tables that routes may be asked of.
const TABLES: [&str; 3] = ["loc-rib", "adj-rib-in", "adj-rib-out"];

/// No names are resolved for policies: there is no DNS proxy.
pub(super) async fn no_names(Query(query): Query<Pairs>) -> Response {
    nothing_resolved(&query)
}

fn nothing_resolved(query: &Pairs) -> Response {
    let prefixes = query.iter().filter(|(name, _)| name == "cidr");
    match prefixes.map(|(_, prefix)| prefix).find(|prefix| prefix.parse::<IpNet>().is_err()) {
        Some(wrong) => bad_request(format!("netip.ParsePrefix({wrong:?}): no prefix")),
        None => not_found("no name was resolved".into()),
    }
}

/// Nor for one endpoint, which has to be there.
pub(super) async fn no_names_of(
    State(parts): State<Arc<Parts>>,
    Path(id): Path<String>,
    Query(query): Query<Pairs>,
) -> Response {
    let wanted = match Id::parse(&id) {
        Ok(wanted) => wanted,
        Err(why) => return bad_request(why),
    };
    let host = Host::of(&parts).is_some_and(|host| wanted == Id::Number(host.id));
    if host || parts.endpoints.list().iter().any(|endpoint| wanted.is(endpoint)) {
        return nothing_resolved(&query);
    }
    told(StatusCode::NOT_FOUND, &format!("unable to find target endpoint ID: {id}"))
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

/// No routes are exchanged.
pub(super) async fn bgp() -> Response {
    (StatusCode::NOT_IMPLEMENTED, "BGP control plane is disabled").into_response()
}

/// Nor are there any to be told of one table.
pub(super) async fn bgp_routes(Query(query): Query<Pairs>) -> Response {
    let asked =
        |wanted: &str| query.iter().find(|(name, _)| name == wanted).map(|(_, value)| value);
    for name in ["afi", "safi", "table_type"] {
        if asked(name).is_none_or(String::is_empty) {
            return required(name, "query").into_response();
        }
    }
    if !asked("table_type").is_some_and(|table| TABLES.contains(&table.as_str())) {
        return no_choice("table_type", "query", &TABLES).into_response();
    }
    bgp_policies(Query(query)).await
}

/// Nor are there policies for them.
pub(super) async fn bgp_policies(Query(query): Query<Pairs>) -> Response {
    let router = query.iter().find(|(name, value)| name == "router_asn" && !value.is_empty());
    match router {
        Some((name, value)) if value.parse::<i64>().is_err() => {
            no_type(name, "query", "int64", value).into_response()
        }
        _ => bgp().await,
    }
}

/// No program runs at XDP.
pub(super) async fn prefilter() -> Response {
    let why = "prefilter is not enabled in daemon";
    (StatusCode::INTERNAL_SERVER_ERROR, why).into_response()
}
