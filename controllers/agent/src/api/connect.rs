//! Makes endpoints out of devices that their owners have wired themselves: `PUT` of `/v1/endpoint/{id}`.
//!
//! The CNI plugin has an API of its own, by which the agent does all of it. Here it is as Cilium's plugin does it:
//! an address is lent (`POST /v1/ipam`), the pair of devices is made and set up, and then the endpoint.

mod change;

use std::net::IpAddr;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::MethodFilter;
use axum::{Json, Router, body::Bytes};
use cilia_runtime::config::Config;

use super::access::Guarded;
use super::endpoint::{Id, show};
use super::limit::Counters;
use super::query::bad_request;
use super::{Loans, not_found};
use crate::cni;
use crate::endpoint::{Endpoints, Error};
use change::Change;

#[derive(Clone)]
struct Parts {
    endpoints: Endpoints,
    plugin: cni::Server,
    loans: Loans,
}

/// `PUT` and `PATCH` of endpoints.
pub fn router(
    config: &Config,
    endpoints: Endpoints,
    plugin: cni::Server,
    loans: Loans,
    counters: &Counters,
) -> Router {
    Guarded::new(config, counters)
        .operation("PutEndpointID", MethodFilter::PUT, "/v1/endpoint/{id}", put)
        .operation("PatchEndpointID", MethodFilter::PATCH, "/v1/endpoint/{id}", patch)
        .router()
        .with_state(Parts { endpoints, plugin, loans })
}

async fn put(State(parts): State<Parts>, Path(id): Path<String>, body: Bytes) -> Response {
    let change = match Change::read(&body) {
        Ok(change) => change,
        Err(fault) => return fault.into_response(),
    };
    let mut request = match change.request(&id) {
        Ok(request) => request,
        Err(why) => return bad_request(why),
    };
    let mut addresses: Vec<IpAddr> = Vec::new();
    for (address, lent) in request.wired.iter_mut().flat_map(|wired| &mut wired.addresses) {
        *lent = parts.loans.borrower(*address);
        addresses.push(*address);
    }
    let made = parts.plugin.adopt(request).await;
    // What the endpoint has now is lent no more, and what it does not have may be given back still.
    parts.loans.passed(&addresses);
    match made {
        Some(Ok(endpoint)) => {
            (StatusCode::CREATED, Json(show(&parts.endpoints, &endpoint, None))).into_response()
        }
        Some(Err(error)) => refused(&error),
        None => (StatusCode::SERVICE_UNAVAILABLE, "api not ready").into_response(),
    }
}

fn refused(error: &Error) -> Response {
    let status = match error {
        Error::Request { .. } | Error::NoPod { .. } | Error::Address(_) | Error::Labels(_) => {
            StatusCode::BAD_REQUEST
        }
        Error::Attached { .. } => StatusCode::CONFLICT,
        Error::NotReady(_) => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    (status, error.to_string()).into_response()
}

/// An endpoint is what its pod is: a change that asks for what there is, is done; others are refused.
async fn patch(State(parts): State<Parts>, Path(id): Path<String>, body: Bytes) -> Response {
    let (wanted, change) = match (Id::parse(&id), Change::read(&body)) {
        (Ok(wanted), Ok(change)) => (wanted, change),
        (Err(why), _) => return bad_request(why),
        (_, Err(fault)) => return fault.into_response(),
    };
    let Some(endpoint) = parts.endpoints.list().into_iter().find(|one| wanted.is(one)) else {
        return not_found(format!("no endpoint {id} on this node"));
    };
    match change.differs(&endpoint) {
        None => StatusCode::OK.into_response(),
        Some(field) => {
            bad_request(format!("{field}: it can't be changed: endpoints are what their pods are"))
        }
    }
}

#[cfg(test)]
mod tests;
