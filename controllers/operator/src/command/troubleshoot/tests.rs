use std::path::Path;
use std::time::Duration;

use axum::Json;
use axum::routing::get;
use cilia_runtime::testing::free_ports;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{Report, configurations, report};

async fn troubleshoot(folder: &Path, config: &str) -> Report {
    let path = folder.join("etcd.config");
    std::fs::write(&path, config).unwrap();
    report(&path, Duration::from_secs(5)).await
}

#[tokio::test]
async fn names_the_step_that_fails() {
    let folder = tempfile::tempdir().unwrap();
    let stop = CancellationToken::new();
    let version = get(async || Json(json!({"etcdserver": "3.6.1", "etcdcluster": "3.6.0"})));
    let router = axum::Router::new().route("/version", version);
    let etcd = cilia_runtime::http::serve("127.0.0.1:0", router, &stop).await.unwrap()[0];
    let other = axum::Router::new();
    let other = cilia_runtime::http::serve("127.0.0.1:0", other, &stop).await.unwrap()[0];
    let [nobody] = free_ports();

    let found = troubleshoot(folder.path(), &format!("endpoints: [\"http://{etcd}\"]\n")).await;
    assert!(found.well && found.text.contains("Etcd server version: 3.6.1"), "{}", found.text);

    let missing = folder.path().join("missing.pem");
    let with_ca = format!("trusted-ca-file: {}\nendpoints: [\"http://{etcd}\"]", missing.display());
    let cases = [
        ("endpoints: []".to_owned(), "names no endpoints"),
        ("endpoints: {".to_owned(), "Cannot read the configuration"),
        (format!("endpoints: [\"http://127.0.0.1:{nobody}\"]"), "Cannot establish TCP connection"),
        ("endpoints: [\"http://no.such.host.invalid:1\"]".to_owned(), "Cannot resolve hostname"),
        (format!("endpoints: [\"https://{etcd}\"]"), "Cannot establish TLS connection"),
        (format!("endpoints: [\"http://{other}\"]"), "not what an etcd answers"),
        ("endpoints: [\"etcd:2379\"]".to_owned(), "neither https:// nor http://"),
        (with_ca, "TLS Root CA certificates"),
    ];
    for (config, want) in cases {
        let found = troubleshoot(folder.path(), &config).await;
        let said = found.text.lines().any(|line| line.contains('❌') && line.contains(want));
        assert!(!found.well && said, "{config}: {}", found.text);
    }
}

#[test]
fn each_file_of_the_folder_is_a_cluster() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["west", "east", "west.crt", "..data"] {
        std::fs::write(folder.path().join(name), "").unwrap();
    }
    let names: Vec<_> =
        configurations(folder.path()).unwrap().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["east", "west"]);
    assert!(configurations(&folder.path().join("none")).is_err());
}
