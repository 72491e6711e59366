//! Answers probes, scrapes and the operator's small API.

mod access;
mod samples;

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use cilia_runtime::config::Config;
use cilia_runtime::http::{self, TlsFiles, metrics_router};
use cilia_runtime::metrics::Metrics;
use futures::FutureExt;
use futures::future::BoxFuture;
use kube::Client;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tracing::info;

use access::{DENIED, Operation};

/// Less than the three seconds a kubelet waits for a probe.
const PROBE_TIMEOUT: Duration = Duration::from_millis(2500);

/// Says whether the kvstore can be used, and if not, why.
pub(crate) type KvstoreHealth =
    Arc<dyn Fn() -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// What the API answers from.
#[derive(Clone)]
pub(crate) struct Sources {
    /// For the look at the API server; nothing if Kubernetes is disabled.
    pub(crate) client: Option<Client>,
    /// Nothing if the kvstore is not in use.
    pub(crate) kvstore: Option<KvstoreHealth>,
    /// The remote clusters, as `/v1/cluster` shows them: a list.
    pub(crate) clusters: Arc<dyn Fn() -> Value + Send + Sync>,
    /// All metrics.
    pub(crate) metrics: Metrics,
}

impl Sources {
    /// Without kvstore and remote clusters.
    pub(crate) fn new(client: Option<Client>, metrics: Metrics) -> Self {
        Self { client, kvstore: None, clusters: Arc::new(|| json!([])), metrics }
    }
}

/// Errors for settings that cannot work.
pub(crate) fn check(config: &Config) -> anyhow::Result<()> {
    access::allowed(config)?;
    tls_files(config)?;
    Ok(())
}

/// Starts the servers; they end with `stop`.
pub(crate) async fn serve(
    config: &Config,
    sources: Sources,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    if config.bool("enable-metrics") {
        let address = config.string("operator-prometheus-serve-addr");
        let router = metrics_router(&sources.metrics);
        let files = tls_files(config)?;
        let tls = files.is_some();
        let addresses = match files {
            Some(files) => http::serve_tls(address, router, files, stop).await?,
            None => http::serve(address, router, stop).await?,
        };
        info!(?addresses, tls, "serving metrics");
    }
    let api = router(&sources, &access::allowed(config)?);
    let addresses = http::serve(config.string("operator-api-serve-addr"), api, stop).await?;
    info!(?addresses, "serving the operator's API");
    Ok(())
}

/// What metrics are served with over TLS; nothing without it.
fn tls_files(config: &Config) -> Result<Option<TlsFiles>, cilia_runtime::config::Error> {
    if !config.bool("operator-prometheus-enable-tls") {
        return Ok(None);
    }
    let file = |flag| {
        let needed = || config.reject(flag, "a file when operator-prometheus-enable-tls is set");
        config.path(flag).ok_or_else(needed)
    };
    let authorities = config.strings("operator-prometheus-tls-client-ca-files");
    Ok(Some(TlsFiles {
        certificate: file("operator-prometheus-tls-cert-file")?,
        key: file("operator-prometheus-tls-key-file")?,
        client_authorities: authorities.iter().map(Into::into).collect(),
    }))
}

fn router(sources: &Sources, allowed: &[Operation]) -> Router {
    // The alias for probes is not subject to the list of allowed operations.
    let mut router = Router::new().route("/healthz", answer(Operation::Healthz, sources));
    for operation in Operation::ALL {
        let handler = if allowed.contains(&operation) {
            answer(operation, sources)
        } else {
            get(async || (StatusCode::FORBIDDEN, DENIED))
        };
        for path in operation.paths() {
            router = router.route(path, handler.clone());
        }
    }
    router
}

fn answer(operation: Operation, sources: &Sources) -> axum::routing::MethodRouter {
    let sources = sources.clone();
    get(move || {
        let sources = sources.clone();
        async move {
            match operation {
                Operation::Healthz => health(sources).await,
                Operation::Metrics => Json(samples::of(&sources.metrics.render())).into_response(),
                Operation::Cluster => Json((sources.clusters)()).into_response(),
            }
        }
    })
}

async fn health(sources: Sources) -> Response {
    let Some(client) = sources.client else {
        return (StatusCode::NOT_IMPLEMENTED, "Kubernetes is disabled").into_response();
    };
    let version =
        async move { client.apiserver_version().await.map(drop).map_err(|e| e.to_string()) };
    let mut looks = vec![("Kubernetes API server", version.boxed())];
    if let Some(kvstore) = sources.kvstore {
        looks.insert(0, ("kvstore", kvstore()));
    }
    let looks = looks.into_iter().map(|(what, look)| async move {
        let answer = tokio::time::timeout(PROBE_TIMEOUT, look).await;
        let answer = answer.unwrap_or_else(|_| Err("no answer in time".to_owned()));
        answer.map_err(|error| format!("{what}: {error}"))
    });
    match futures::future::try_join_all(looks).await {
        Ok(_) => "ok".into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error).into_response(),
    }
}

#[cfg(test)]
mod tests;
