//! Secrets that are planted wherever people put them are not in a dump of a whole cluster.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use cilia_e2e::scenario::pods::{self, Plan};
use cilia_e2e::scenario::{Stage, chart};
use serde_json::json;
use tokio::process::Command;

use super::cilia;
use crate::asked_for;

/// Found nowhere but in secrets.
const SECRET: &str = "hunter";

pub(crate) async fn a_dump_holds_no_secrets(stage: &Stage) -> Result<()> {
    if !asked_for() {
        return Ok(());
    }
    pods::namespace(stage, "secrets", &json!({"example.com/db-password": "hunter-namespace"}))
        .await?;
    plant(stage).await?;
    let folder = tempfile::tempdir()?;
    let name = folder.path().join("dump");
    let config = stage.cluster.layout.kubeconfig().display().to_string();
    let words =
        ["--kubeconfig", &config, "sysdump", "--output-filename", &name.display().to_string()];
    let output = cilia(&words).await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let file = name.with_extension("tar.gz");
    let listed = tar(&["-tzf"], &file).await?;
    for path in ["core/pods.json", "cilium.io/ciliumendpoints.json", "sysdump-summary.txt"] {
        ensure!(listed.contains(path), "{path} is not in the dump: {listed}");
    }
    ensure!(!listed.contains("secret"), "{listed}");
    let all = tar(&["-xzOf"], &file).await?;
    let leaks: Vec<&str> = all.lines().filter(|line| line.contains(SECRET)).take(20).collect();
    ensure!(leaks.is_empty(), "secrets are in the dump:\n{}", leaks.join("\n"));
    ensure!(all.contains("[masked]") && all.contains("planted"), "the pod is in the dump");
    println!("  {} files", listed.lines().count());
    stage.delete("ciliumnodeconfig", chart::NAMESPACE, "planted").await?;
    pods::leave(stage, "secrets").await?;
    Ok(())
}

/// A pod, a secret and a config map with secrets wherever people put them.
async fn plant(stage: &Stage) -> Result<()> {
    let applied = r#"{"spec":{"containers":[{"env":[{"name":"MODE","value":"hunter-applied"}]}]}}"#;
    let mut pod = Plan::idle("secrets", "planted").manifest();
    pod["metadata"]["annotations"] = json!({
        "kubectl.kubernetes.io/last-applied-configuration": applied,
        "example.com/original": applied,
        "example.com/note": "token: hunter-annotation",
        "example.com/api-key": "hunter-key",
        "example.com/pem": "-----BEGIN EC PRIVATE KEY-----\nhunterpem\n-----END EC PRIVATE KEY-----",
    });
    pod["spec"]["containers"][0]["env"] = json!([
        {"name": "MODE", "value": "hunter-env"},
        {"name": "DB_PASSWORD", "value": "hunter-password"},
        {"name": "K8S_TOKEN", "value": "hunter-token"},
        {"name": "PIN", "value": "hunter7"},
    ]);
    pod["spec"]["containers"][0]["lifecycle"] = json!({"postStart": {"httpGet": {"path": "/?token=hunter-path", "port": 1,
            "httpHeaders": [{"name": "Authorization", "value": "hunter-header"}]}}});
    // Nobody pulls it: the pod need not run, and its arguments need not mean anything.
    pod["spec"]["containers"][0]["args"] = json!([
        "--api-token",
        "hunter-argument",
        "--db-password=hunter-option",
        "https://u:hunter-url@h/",
        "mysql -phunter-short",
        "-phunter-attached",
    ]);
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": "secrets",
        "name": "planted"}, "stringData": {"a": "hunter-secret"}});
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "secrets",
        "name": "planted"}, "data": {"a": "hunter-config-map"}});
    let settings = json!({"apiVersion": "cilium.io/v2", "kind": "CiliumNodeConfig", "metadata":
        {"namespace": chart::NAMESPACE, "name": "planted"}, "spec": {"nodeSelector": {"matchLabels":
        {"no": "node"}}, "defaults": {"kvstore-opt": "{\"etcd.password\":\"hunter-setting\"}"}}});
    let items = [pod, secret, map, settings];
    stage.apply(&json!({"apiVersion": "v1", "kind": "List", "items": items})).await?;
    Ok(())
}

async fn tar(words: &[&str], file: &Path) -> Result<String> {
    let output = Command::new("tar").args(words).arg(file).output().await.context("start tar")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
