//! Answers on the agent's unix socket, in Cilium's shapes, and the kubelet's probes.

mod absent;
mod access;
mod bpf;
mod cluster;
mod collector;
pub mod connect;
mod debuginfo;
pub mod disconnect;
mod endpoint;
mod form;
mod identity;
mod ipam;
mod limit;
mod map;
mod metrics;
mod monitor;
mod mount;
mod node;
mod options;
mod policy;
mod query;
mod refusal;
mod replacement;
mod service;
mod settings;
mod status;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodFilter, get};
use axum::{Extension, Router};
use cilia_kvstore::Health;
use cilia_loader::Datapath;
use cilia_runtime::config::Config;
use cilia_runtime::metrics::Metrics;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::clustermesh::Remotes;
use crate::endpoint::Endpoints;
use crate::events::Bus;
use crate::identity::Identities;
use crate::ipcache::Cache;
use crate::node::Nodes;
use crate::policy::Enforcer;
use crate::readiness::Readiness;
use crate::service::Services;
use crate::socket;

use access::Guarded;
pub use access::allowed;
pub use collector::Collector;
pub use ipam::Loans;
pub use limit::{Counters, check as check_limits};
pub use refusal::shaped;

const PATCH: MethodFilter = MethodFilter::PATCH;
const POST: MethodFilter = MethodFilter::POST;
const DELETE: MethodFilter = MethodFilter::DELETE;

/// How long requests may take once the agent ends. Whoever listens to events never ends by itself.
const GRACE: Duration = Duration::from_millis(500);

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
    /// How the kvstore is, if there is one.
    pub kvstore: Option<watch::Receiver<Health>>,
    /// The other clusters by name, if others are read.
    pub clusters: Option<Remotes>,
    /// Addresses that are lent on request.
    pub loans: Loans,
    /// How often the API's limits let requests in.
    pub counters: Counters,
    /// What makes endpoints, and changes them.
    pub plugin: crate::cni::Server,
}

/// The API, under `/v1`. An operation is a line; what `enable-cilium-api-server-access` does not
/// name is refused, and what `api-rate-limit` limits may have to wait.
pub fn router(parts: Parts) -> Router {
    let operations = Guarded::new(&parts.config, &parts.counters)
        .get("GetHealthz", "/v1/healthz", status::healthz)
        .get("GetConfig", "/v1/config", settings::get)
        .operation("PatchConfig", PATCH, "/v1/config", options::set_of_agent)
        .get("GetEndpoint", "/v1/endpoint", endpoint::list)
        .get("GetEndpointID", "/v1/endpoint/{id}", endpoint::get)
        .get("GetEndpointIDConfig", "/v1/endpoint/{id}/config", options::of_endpoint)
        .operation(
            "PatchEndpointIDConfig",
            PATCH,
            "/v1/endpoint/{id}/config",
            options::set_of_endpoint,
        )
        .get("GetEndpointIDLabels", "/v1/endpoint/{id}/labels", endpoint::get_labels)
        .operation("PatchEndpointIDLabels", PATCH, "/v1/endpoint/{id}/labels", endpoint::set_labels)
        .get("GetEndpointIDLog", "/v1/endpoint/{id}/log", endpoint::log)
        .get("GetEndpointIDHealthz", "/v1/endpoint/{id}/healthz", endpoint::healthz)
        .get("GetIdentity", "/v1/identity", identity::list)
        .get("GetIdentityEndpoints", "/v1/identity/endpoints", identity::of_endpoints)
        .get("GetIdentityID", "/v1/identity/{id}", identity::get)
        .get("GetIP", "/v1/ip", identity::addresses)
        .get("GetClusterNodes", "/v1/cluster/nodes", node::list)
        .get("GetNodeIds", "/v1/node/ids", node::ids)
        .get("GetPolicy", "/v1/policy", policy::get)
        .get("GetPolicySelectors", "/v1/policy/selectors", policy::selectors)
        .get("GetPolicySubjectSelectors", "/v1/policy/subject-selectors", policy::subject_selectors)
        .get("GetPolicyExplain", "/v1/policy/explain", policy::explain)
        .operation("PostPolicyDiff", POST, "/v1/policy/diff", policy::diff)
        .get("GetFlows", "/v1/flows", policy::flows)
        .get("GetService", "/v1/service", service::list)
        .get("GetMap", "/v1/map", map::list)
        .get("GetMapName", "/v1/map/{name}", map::get)
        .operation("DeleteMapName", DELETE, "/v1/map/{name}", map::flush)
        .get("GetMapNameEvents", "/v1/map/{name}/events", map::events)
        .get("GetMonitor", "/v1/monitor", monitor::get)
        .get("GetMetrics", "/v1/metrics", metrics::get)
        .get("GetMetrics", "/v1/metrics/", metrics::get)
        .get("GetFqdnCache", "/v1/fqdn/cache", absent::no_names)
        .get("GetFqdnCacheID", "/v1/fqdn/cache/{id}", absent::no_names_of)
        .get("GetFqdnNames", "/v1/fqdn/names", absent::no_selectors)
        .get("GetLRP", "/v1/lrp", absent::no_redirects)
        .get("GetCgroupDumpMetadata", "/v1/cgroup-dump-metadata", absent::no_cgroups)
        .get("GetBGPPeers", "/v1/bgp/peers", absent::bgp)
        .get("GetBGPRoutes", "/v1/bgp/routes", absent::bgp_routes)
        .get("GetBGPRoutePolicies", "/v1/bgp/route-policies", absent::bgp_policies)
        .get("GetPrefilter", "/v1/prefilter", absent::prefilter)
        .operation("PatchPrefilter", PATCH, "/v1/prefilter", absent::prefilter)
        .operation("DeletePrefilter", DELETE, "/v1/prefilter", absent::prefilter)
        .operation("PostIPAM", POST, "/v1/ipam", ipam::lend)
        .operation("PostIPAMIP", POST, "/v1/ipam/{ip}", ipam::lend_this)
        .operation("DeleteIPAMIP", DELETE, "/v1/ipam/{ip}", ipam::give_back)
        .operation("DeleteFqdnCache", DELETE, "/v1/fqdn/cache", absent::nothing_to_forget)
        .get("GetDebuginfo", "/v1/debuginfo", debuginfo::get);
    operations
        .router()
        .fallback(async |uri: Uri| refusal::no_such_path(uri.path()))
        .layer(Extension(node::Clients::default()))
        .layer(Extension(monitor::Listeners::default()))
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
pub async fn serve(
    path: &Path,
    router: Router,
    stop: CancellationToken,
) -> Result<(), socket::Error> {
    let failed = |cause| socket::Error { path: path.to_owned(), cause };
    let listener = socket::bind(path)?;
    let served =
        axum::serve(listener, router).with_graceful_shutdown(stop.clone().cancelled_owned());
    let late = async {
        stop.cancelled().await;
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        served = served.into_future() => served.map_err(failed),
        () = late => Ok(()),
    }
}

/// An answer that something isn't there.
fn not_found(text: String) -> Response {
    (StatusCode::NOT_FOUND, text).into_response()
}

/// An answer that the kernel refused.
fn failed(error: &cilia_loader::Error) -> Response {
    (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response()
}
