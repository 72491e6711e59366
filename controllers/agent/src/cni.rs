//! Serves the CNI plugin: connects and disconnects pods on behalf of the container runtime.
//!
//! Until the agent is far enough, every request is answered with "try again": the plugin waits
//! with an ADD and keeps a DEL for later.

pub mod conflist;
mod delete_queue;
mod request;
mod result;

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Json, Router};
use serde_json::{Value, json};

use crate::device::mtu::Mtu;
use crate::device::netns::Netns;
use crate::device::pod;
use crate::endpoint::{self, Lifecycle};
use crate::readiness::Readiness;
use request::Request;

/// The CNI specification's "try again later".
const TRY_AGAIN: u32 = 11;
/// Its "plugin not available".
const NOT_AVAILABLE: u32 = 50;
/// Its "invalid environment variables".
const ENVIRONMENT: u32 = 4;
/// Its "failed to decode content".
const DECODE: u32 = 6;
/// Cilium's "endpoint health can't be read" and "endpoint unhealthy".
const UNREADABLE: u32 = 100;
const UNHEALTHY: u32 = 101;
/// For what the specification has no code.
const OTHER: u32 = 999;

/// The CNI server; clones share it.
#[derive(Clone)]
pub struct Server(Arc<Shared>);

struct Shared {
    readiness: Readiness,
    lifecycle: OnceLock<Lifecycle>,
}

/// A refusal, as the plugin passes it on.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Refusal {
    code: u32,
    msg: String,
    details: String,
}

impl Server {
    /// Closed: answers, but connects nothing yet.
    pub fn new(readiness: Readiness) -> Self {
        Self(Arc::new(Shared { readiness, lifecycle: OnceLock::new() }))
    }

    /// Carries out the deletions that plugins kept below `run_dir`, and connects pods from now on.
    ///
    /// The queue stays locked until the server is open, so that a plugin that writes to it
    /// afterwards reaches the server when it tries once more.
    pub async fn open(
        &self,
        lifecycle: Lifecycle,
        run_dir: &std::path::Path,
    ) -> Result<(), endpoint::Error> {
        let queue = delete_queue::Queue::lock(run_dir).await?;
        for entry in queue.entries()? {
            let path = entry.path.display();
            match serde_json::from_slice::<Request>(&entry.text) {
                Ok(request) => {
                    let done = lifecycle.detach(&request.container_id, &request.ifname).await;
                    if let Err(error) = done {
                        // The others must not wait for it; the next start tries again.
                        tracing::error!(%path, %error, "could not carry out a kept deletion");
                        continue;
                    }
                }
                Err(error) => tracing::warn!(%path, %error, "ignoring a kept deletion"),
            }
            entry.remove()?;
        }
        // It is opened once.
        let _ = self.0.lifecycle.set(lifecycle);
        drop(queue);
        Ok(())
    }

    /// The routes below `/v1/cni`.
    pub fn router(&self) -> Router {
        Router::new()
            .route("/v1/cni/add", post(add))
            .route("/v1/cni/del", post(del))
            .route("/v1/cni/check", post(check))
            .route("/v1/cni/gc", post(gc))
            .route("/v1/cni/status", post(status))
            .with_state(self.clone())
    }

    /// Disconnects an endpoint as the end of its container would; nothing while the agent starts.
    pub async fn disconnect(
        &self,
        endpoint: &endpoint::LocalEndpoint,
    ) -> Option<Result<(), endpoint::Error>> {
        let lifecycle = self.lifecycle().ok()?;
        Some(lifecycle.detach(&endpoint.container_id, &endpoint.ifname).await)
    }

    /// Makes an endpoint of a device that is there already; nothing while the agent starts.
    pub async fn adopt(
        &self,
        request: endpoint::Request,
    ) -> Option<Result<Arc<endpoint::LocalEndpoint>, endpoint::Error>> {
        let lifecycle = self.lifecycle().ok()?;
        Some(lifecycle.attach(request).await.map(|attached| attached.endpoint))
    }

    /// The MTUs of pods' devices and routes; nothing while the agent starts.
    pub fn mtu(&self) -> Option<Mtu> {
        self.0.lifecycle.get().map(|lifecycle| lifecycle.parts().config.mtu)
    }

    /// Gives an endpoint labels of its own; nothing while the agent starts.
    pub async fn relabel(
        &self,
        endpoint: &endpoint::LocalEndpoint,
        wanted: endpoint::Wanted,
    ) -> Option<Result<(), endpoint::Error>> {
        let lifecycle = self.lifecycle().ok()?;
        Some(lifecycle.relabel(endpoint, wanted).await)
    }

    fn lifecycle(&self) -> Result<&Lifecycle, Refusal> {
        self.0.lifecycle.get().ok_or_else(|| Refusal {
            code: TRY_AGAIN,
            msg: "the cilium agent of this node is starting".to_owned(),
            details: self.closed_gates(),
        })
    }

    fn closed_gates(&self) -> String {
        let closed = self.0.readiness.closed();
        closed
            .iter()
            .map(|(gate, reason)| format!("{gate}: {reason}"))
            .collect::<Vec<_>>()
            .join("; ")
    }
}

async fn add(State(server): State<Server>, body: axum::body::Bytes) -> Response {
    answer(async {
        let lifecycle = server.lifecycle()?;
        let attached = lifecycle.attach(parse(&body)?.attachment()?).await?;
        Ok(result::of(&attached.endpoint, &attached.device))
    })
    .await
}

async fn del(State(server): State<Server>, body: axum::body::Bytes) -> Response {
    answer(async {
        let request = parse(&body)?;
        server.lifecycle()?.detach(&request.container_id, &request.ifname).await?;
        Ok(Value::Null)
    })
    .await
}

async fn check(State(server): State<Server>, body: axum::body::Bytes) -> Response {
    answer(async {
        let request = parse(&body)?;
        let faults = faults(server.lifecycle()?, &request).await?;
        if faults.is_empty() {
            return Ok(Value::Null);
        }
        let msg = format!("the endpoint of {} is not as it should be", request.attachment_id());
        Err(Refusal { code: UNHEALTHY, msg, details: faults.join("; ") })
    })
    .await
}

/// What is wrong with an attachment, and differs from what its ADD said.
async fn faults(lifecycle: &Lifecycle, request: &Request) -> Result<Vec<String>, Refusal> {
    let parts = lifecycle.parts();
    let Some(endpoint) = parts.endpoints.of_attachment(&request.attachment_id()) else {
        return Ok(vec!["it has no endpoint".to_owned()]);
    };
    let unreadable = |error: &dyn std::fmt::Display| Refusal {
        code: UNREADABLE,
        msg: format!("the state of endpoint {} can't be read: {error}", endpoint.id),
        details: String::new(),
    };
    let Some(device) = lifecycle.expected_device(&endpoint) else {
        return Ok(vec!["the node has no addresses".to_owned()]);
    };
    let netns = match Netns::open(request.netns.as_ref()) {
        Ok(netns) => netns,
        Err(error) => return Ok(vec![error.to_string()]),
    };
    let mut faults = pod::faults(&netns, &device).await.map_err(|error| unreadable(&error))?;
    if parts
        .netlink
        .link(&endpoint.host_device)
        .await
        .map_err(|error| unreadable(&error))?
        .is_none()
    {
        faults.push(format!("device {} is missing", endpoint.host_device));
    }
    if !parts.map.holds(&endpoint).map_err(|error| unreadable(&error))? {
        faults.push("the datapath does not know its addresses".to_owned());
    }
    let said = request.previous_addresses();
    let strange = said.iter().filter(|address| !endpoint.addresses().any(|own| own == **address));
    faults.extend(
        strange.map(|address| format!("address {address} of the previous result is not its own")),
    );
    Ok(faults)
}

async fn gc(State(server): State<Server>, body: axum::body::Bytes) -> Response {
    answer(async {
        let lifecycle = server.lifecycle()?;
        let valid: HashSet<String> = parse(&body)?.valid_devices()?;
        for endpoint in lifecycle.parts().endpoints.list() {
            if !valid.contains(&endpoint.host_device) {
                tracing::info!(id = endpoint.id, pod = %endpoint.key(), "the runtime knows this attachment no more");
                lifecycle.detach(&endpoint.container_id, &endpoint.ifname).await?;
            }
        }
        Ok(Value::Null)
    })
    .await
}

async fn status(State(server): State<Server>) -> Response {
    answer(async {
        let details = server.closed_gates();
        if details.is_empty() && server.lifecycle().is_ok() {
            return Ok(Value::Null);
        }
        Err(Refusal {
            code: NOT_AVAILABLE,
            msg: "the cilium agent of this node is not ready".to_owned(),
            details,
        })
    })
    .await
}

fn parse(body: &[u8]) -> Result<Request, Refusal> {
    serde_json::from_slice(body).map_err(|error| Refusal {
        code: DECODE,
        msg: format!("read the CNI request: {error}"),
        details: String::new(),
    })
}

async fn answer(work: impl Future<Output = Result<Value, Refusal>>) -> Response {
    match work.await {
        Ok(result) => Json(result).into_response(),
        Err(refusal) => {
            let status = match refusal.code {
                TRY_AGAIN | NOT_AVAILABLE => StatusCode::SERVICE_UNAVAILABLE,
                ENVIRONMENT | DECODE => StatusCode::BAD_REQUEST,
                _ => StatusCode::INTERNAL_SERVER_ERROR,
            };
            let Refusal { code, msg, details } = refusal;
            (status, Json(json!({"code": code, "msg": msg, "details": details}))).into_response()
        }
    }
}

impl From<endpoint::Error> for Refusal {
    fn from(error: endpoint::Error) -> Self {
        let code = match &error {
            endpoint::Error::NotReady(_) => TRY_AGAIN,
            endpoint::Error::Request { .. } => ENVIRONMENT,
            _ => OTHER,
        };
        if code != TRY_AGAIN {
            tracing::warn!(%error, "a CNI request failed");
        }
        Self { code, msg: error.to_string(), details: String::new() }
    }
}
