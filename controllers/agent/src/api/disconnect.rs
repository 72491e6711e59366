//! Takes endpoints off the network on request, as the end of their containers would.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::MethodFilter;
use axum::{Json, body::Bytes};
use cilia_runtime::config::Config;
use serde::Deserialize;

use super::access::Guarded;
use super::endpoint::Id;
use super::form::read;
use super::limit::Counters;
use super::not_found;
use super::query::{LONGEST_NAME, bad_request};
use super::refusal::told;
use crate::cni;
use crate::endpoint::{Endpoints, LocalEndpoint};

#[derive(Clone)]
struct Parts {
    endpoints: Endpoints,
    plugin: cni::Server,
}

/// `DELETE` of endpoints.
pub fn router(
    config: &Config,
    endpoints: Endpoints,
    plugin: cni::Server,
    counters: &Counters,
) -> Router {
    Guarded::new(config, counters)
        .operation("DeleteEndpointID", MethodFilter::DELETE, "/v1/endpoint/{id}", one)
        .operation("DeleteEndpoint", MethodFilter::DELETE, "/v1/endpoint", of_container)
        .router()
        .with_state(Parts { endpoints, plugin })
}

async fn one(State(parts): State<Parts>, Path(id): Path<String>) -> Response {
    let wanted = match Id::parse(&id) {
        Ok(wanted) => wanted,
        Err(why) => return bad_request(why),
    };
    let found = parts.endpoints.list().into_iter().filter(|one| wanted.is(one)).take(1).collect();
    disconnect(&parts, found, &format!("no endpoint {id} on this node")).await
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Batch {
    container_id: String,
}

async fn of_container(State(parts): State<Parts>, body: Bytes) -> Response {
    let batch: Batch = match read("endpoint", &body) {
        Ok(batch) => batch,
        Err(fault) => return fault.into_response(),
    };
    let id = batch.container_id;
    if id.is_empty() || id.len() > LONGEST_NAME {
        return bad_request("invalid container id");
    }
    let of = |endpoint: &Arc<LocalEndpoint>| endpoint.container_id == id;
    let found: Vec<_> = parts.endpoints.list().into_iter().filter(of).collect();
    if found.is_empty() {
        return told(StatusCode::NOT_FOUND, "endpoints not found");
    }
    disconnect(&parts, found, "").await
}

/// 200, or 206 with how many could not be disconnected.
async fn disconnect(parts: &Parts, found: Vec<Arc<LocalEndpoint>>, none: &str) -> Response {
    if found.is_empty() {
        return not_found(none.to_owned());
    }
    let mut errors = 0;
    for endpoint in &found {
        match parts.plugin.disconnect(endpoint).await {
            Some(Ok(())) => {}
            Some(Err(error)) => {
                tracing::error!(id = endpoint.id, %error, "not disconnected on request");
                errors += 1;
            }
            None => {
                let text = "api not ready";
                return (StatusCode::SERVICE_UNAVAILABLE, text).into_response();
            }
        }
    }
    if errors == 0 {
        return StatusCode::OK.into_response();
    }
    (StatusCode::PARTIAL_CONTENT, Json(errors)).into_response()
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use cilia_runtime::config::{Config, Flags};
    use cilia_runtime::metrics::Metrics;
    use http::{Method, Request};
    use tower::ServiceExt as _;

    use super::{Counters, router};
    use crate::cni::Server;
    use crate::endpoint::testing::{endpoint, registry};
    use crate::readiness::Readiness;

    #[tokio::test]
    async fn what_is_asked_for_must_be_there_and_the_agent_ready() {
        let config = Config::load(Flags::agent(), [], []).expect("settings");
        let endpoints = registry(vec![endpoint(7, "c1", "web")]);
        let plugin = Server::new(Readiness::new(&["endpoints"]));
        let counters = Counters::register(&Metrics::new("cilium"));
        let router = router(&config, endpoints, plugin, &counters);
        let cases = [
            ("/v1/endpoint/8", "", 404),
            ("/v1/endpoint/70000", "", 400),
            ("/v1/endpoint/7", "", 503),
            ("/v1/endpoint", r#"{"container-id": "c1"}"#, 503),
            ("/v1/endpoint", r#"{"container-id": "c2"}"#, 404),
            ("/v1/endpoint", r#"{"container-id": ""}"#, 400),
            ("/v1/endpoint", "{}", 400),
        ];
        for (path, body, status) in cases {
            let request = Request::builder().method(Method::DELETE).uri(path);
            let request = request.header("content-type", "application/json");
            let request = request.body(Body::from(body));
            let answer =
                router.clone().oneshot(request.expect("a request")).await.expect("an answer");
            assert_eq!(answer.status(), status, "{path} {body}");
        }
    }
}
