//! Answers probes, scrapes and the operator's small API (operator.md 16.1).

mod samples;

use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use cilia_runtime::config::Config;
use cilia_runtime::http::{metrics_router, serve as listen};
use cilia_runtime::metrics::Metrics;
use kube::Client;
use tokio_util::sync::CancellationToken;
use tracing::info;

/// Less than the three seconds a kubelet waits for a probe.
const VERSION_TIMEOUT: Duration = Duration::from_millis(2500);

/// Starts the servers; they end with `stop`.
pub(crate) async fn serve(
    config: &Config,
    metrics: &Metrics,
    client: Option<Client>,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let api = router(client, metrics, config.strings("enable-cilium-operator-server-access"));
    let addresses = listen(config.string("operator-api-serve-addr"), api, stop).await?;
    info!(?addresses, "serving the operator's API");
    if config.bool("enable-metrics") {
        let address = config.string("operator-prometheus-serve-addr");
        let addresses = listen(address, metrics_router(metrics), stop).await?;
        info!(?addresses, "serving metrics");
    }
    Ok(())
}

fn router(client: Option<Client>, metrics: &Metrics, allowed: &[String]) -> Router {
    let health = move || health(client.clone());
    let metrics = metrics.clone();
    let samples =
        move || std::future::ready(Json(samples::of(&metrics.render(), metrics.prefix())));
    // The alias for probes is not subject to the list of allowed operations.
    let mut router = Router::new().route("/healthz", get(health.clone()));
    let denied = || {
        std::future::ready((
            StatusCode::FORBIDDEN,
            "operation not allowed by enable-cilium-operator-server-access",
        ))
    };
    for (operation, path) in [
        ("GetHealthz", "/v1/healthz"),
        ("GetMetrics", "/v1/metrics/"),
        ("GetCluster", "/v1/cluster"),
    ] {
        router = if !is_allowed(operation, allowed) {
            router.route(path, get(denied))
        } else if operation == "GetHealthz" {
            router.route(path, get(health.clone()))
        } else if operation == "GetMetrics" {
            router.route(path, get(samples.clone()))
        } else {
            // No remote clusters: there is no cluster mesh yet.
            router.route(path, get(|| std::future::ready(Json([(); 0]))))
        };
    }
    router
}

fn is_allowed(operation: &str, patterns: &[String]) -> bool {
    patterns.iter().any(|pattern| match pattern.strip_suffix('*') {
        Some(prefix) => operation.starts_with(prefix),
        None => operation == pattern,
    })
}

async fn health(client: Option<Client>) -> Response {
    let Some(client) = client else {
        return (StatusCode::NOT_IMPLEMENTED, "Kubernetes is disabled").into_response();
    };
    match tokio::time::timeout(VERSION_TIMEOUT, client.apiserver_version()).await {
        Ok(Ok(_)) => "ok".into_response(),
        Ok(Err(error)) => {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("Kubernetes API server: {error}"))
                .into_response()
        }
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, "Kubernetes API server: no answer in time")
            .into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::{is_allowed, router};
    use cilia_runtime::metrics::Metrics;
    use tokio_util::sync::CancellationToken;

    #[test]
    fn operations_are_allowed_by_name_or_prefix() {
        let cases: &[(&[&str], bool)] = &[
            (&["*"], true),
            (&["Get*"], true),
            (&["GetHealthz"], true),
            (&["GetMetrics", "Put*"], false),
            (&[], false),
        ];
        for (patterns, want) in cases {
            let patterns: Vec<String> = patterns.iter().map(ToString::to_string).collect();
            assert_eq!(is_allowed("GetHealthz", &patterns), *want, "{patterns:?}");
        }
    }

    #[tokio::test]
    async fn answers_with_the_right_status() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let stop = CancellationToken::new();
        let router = router(None, &Metrics::new("cilium_operator"), &["GetMetrics".into()]);
        let address = cilia_runtime::http::serve("127.0.0.1:0", router, &stop).await.unwrap()[0];
        let paths = [
            ("/healthz", 501),
            ("/v1/healthz", 403),
            ("/v1/metrics/", 200),
            ("/v1/cluster", 403),
            ("/x", 404),
        ];
        for (path, status) in paths {
            let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
            let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {answer}");
        }
    }
}
