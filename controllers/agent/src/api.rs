//! Answers on the agent's unix socket, in Cilium's shapes, and the kubelet's probes.

mod bpf;
mod collector;
mod endpoint;
mod identity;
mod metrics;
mod monitor;
mod node;
mod policy;
mod service;
mod status;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use cilia_loader::Datapath;
use cilia_runtime::config::Config;
use cilia_runtime::metrics::Metrics;
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;

use crate::endpoint::Endpoints;
use crate::events::Bus;
use crate::identity::Identities;
use crate::ipcache::Cache;
use crate::node::Nodes;
use crate::policy::Enforcer;
use crate::readiness::Readiness;
use crate::service::Services;

pub use collector::Collector;

/// Who may use the socket: its owner and its group.
const MODE: u32 = 0o660;

/// What the API shows.
#[derive(Clone)]
pub struct Parts {
    /// The agent's settings.
    pub config: Arc<Config>,
    /// Whether the agent is ready.
    pub readiness: Readiness,
    /// To ask the API server how it is.
    pub client: kube::Client,
    /// This node's endpoints.
    pub endpoints: Endpoints,
    /// All identities.
    pub identities: Identities,
    /// All nodes.
    pub nodes: Nodes,
    /// Who is behind which address.
    pub ipcache: Cache,
    /// Policies and what is in place.
    pub enforcer: Enforcer,
    /// Services.
    pub services: Services,
    /// What happens to packets.
    pub bus: Bus,
    /// The maps.
    pub datapath: Arc<Datapath>,
    /// The metrics.
    pub metrics: Metrics,
}

/// Why the socket can't be served.
#[derive(Debug, thiserror::Error)]
#[error("serve {}: {cause}", path.display())]
pub struct Error {
    /// The socket.
    pub path: PathBuf,
    /// What is wrong.
    pub cause: std::io::Error,
}

/// The API, under `/v1`.
pub fn router(parts: Parts) -> Router {
    Router::new()
        .route("/v1/healthz", get(status::healthz))
        .route("/v1/config", get(status::config))
        .route("/v1/endpoint", get(endpoint::list))
        .route("/v1/endpoint/{id}", get(endpoint::get))
        .route("/v1/identity", get(identity::list))
        .route("/v1/identity/{id}", get(identity::get))
        .route("/v1/ip", get(identity::addresses))
        .route("/v1/cluster/nodes", get(node::list))
        .route("/v1/policy", get(policy::get))
        .route("/v1/policy/selectors", get(policy::selectors))
        .route("/v1/service", get(service::list))
        .route("/v1/map/{name}", get(bpf::get))
        .route("/v1/monitor", get(monitor::get))
        .route("/v1/metrics", get(metrics::get))
        .with_state(Arc::new(parts))
}

/// The kubelet's probe: 200 once every gate of readiness is open.
pub fn probe(readiness: Readiness) -> Router {
    let answer = move || {
        let closed = readiness.closed();
        std::future::ready(if closed.is_empty() {
            (StatusCode::OK, "ok\n".to_owned())
        } else {
            let line = |(gate, reason): &(&str, String)| format!("{gate}: {reason}\n");
            (StatusCode::SERVICE_UNAVAILABLE, closed.iter().map(line).collect())
        })
    };
    Router::new().route("/healthz", get(answer))
}

/// Serves `router` on the unix socket at `path` until `stop`; a socket that a former agent left is
/// replaced.
pub async fn serve(path: &Path, router: Router, stop: CancellationToken) -> Result<(), Error> {
    let failed = |cause| Error { path: path.to_owned(), cause };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(MODE)).map_err(failed)?;
    axum::serve(listener, router)
        .with_graceful_shutdown(stop.cancelled_owned())
        .await
        .map_err(failed)
}

/// An answer that something isn't there.
fn not_found(text: String) -> Response {
    (StatusCode::NOT_FOUND, text).into_response()
}

/// An answer that the kernel refused.
fn failed(error: &cilia_loader::Error) -> Response {
    (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response()
}
