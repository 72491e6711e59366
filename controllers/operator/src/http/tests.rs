use std::sync::Arc;

use cilia_runtime::metrics::Metrics;
use cilia_runtime::testing::{ApiServer, client_of, free_ports};
use futures::FutureExt;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

use super::access::Operation;
use super::{Sources, router};

/// The status of an answer and its text.
async fn ask(sources: Sources, allowed: &[Operation], request: &str) -> (u16, String) {
    let stop = CancellationToken::new();
    let router = router(&sources, allowed);
    let address = cilia_runtime::http::serve("127.0.0.1:0", router, &stop).await.unwrap()[0];
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    let text = answer.split_once("\r\n\r\n").map(|(_, text)| text.to_owned());
    (status.unwrap_or_default(), text.unwrap_or_default())
}

fn without_kubernetes() -> Sources {
    Sources::new(None, Metrics::new("cilium_operator"))
}

#[tokio::test]
async fn answers_what_is_allowed() {
    for (request, status) in [
        ("GET /healthz", 501),
        ("GET /v1/healthz", 403),
        ("GET /v1/metrics/", 200),
        ("GET /v1/metrics", 200),
        ("POST /v1/metrics/", 405),
        ("GET /v1/cluster", 403),
        ("GET /x", 404),
    ] {
        let (got, text) = ask(without_kubernetes(), &[Operation::Metrics], request).await;
        assert_eq!(got, status, "{request}: {text}");
    }
}

#[tokio::test]
async fn shows_metrics_and_clusters_as_json() {
    let (_, text) = ask(without_kubernetes(), &Operation::ALL, "GET /v1/metrics/").await;
    let samples: Value = serde_json::from_str(&text).unwrap();
    let version = &samples.as_array().unwrap()[0];
    assert_eq!(version["name"], "cilium_operator_version");
    assert_eq!(version["labels"]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(version["value"], 1.0);

    let (_, text) = ask(without_kubernetes(), &Operation::ALL, "GET /v1/cluster").await;
    assert_eq!(text, "[]");
    let sources =
        Sources { clusters: Arc::new(|| json!([{"name": "west"}])), ..without_kubernetes() };
    let (_, text) = ask(sources, &Operation::ALL, "GET /v1/cluster").await;
    assert_eq!(text, r#"[{"name":"west"}]"#);
}

#[tokio::test]
async fn health_is_that_of_the_api_server_and_the_kvstore() {
    let server = ApiServer::start().await;
    let healthy = Sources { client: Some(server.client()), ..without_kubernetes() };
    let health = async |sources| ask(sources, &[], "GET /healthz").await;
    assert_eq!(health(healthy.clone()).await, (200, "ok".to_owned()));

    let [port] = free_ports();
    let nobody = client_of(([127, 0, 0, 1], port).into(), "test");
    let (status, text) = health(Sources { client: Some(nobody), ..healthy.clone() }).await;
    assert!(status == 500 && text.starts_with("Kubernetes API server: "), "{status} {text}");

    let kvstore = |answer: Result<(), String>| Sources {
        kvstore: Some(Arc::new(move || std::future::ready(answer.clone()).boxed())),
        ..healthy.clone()
    };
    assert_eq!(health(kvstore(Ok(()))).await.0, 200);
    let broken = health(kvstore(Err("no quorum".into()))).await;
    assert_eq!(broken, (500, "kvstore: no quorum".to_owned()));
}
