//! The command line as it is used from elsewhere, on a real API server without nodes behind it.

use std::process::ExitCode;

use cilia_runtime::testing::{ApiServer, eventually};
use clap::Parser as _;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{ConfigMap, Event, Node, Pod, Secret, Service};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::output::captured;
use crate::sysdump::read_archive;
use crate::{Arguments, run};

const NAMESPACE: &str = "kube-system";

async fn create<K>(api: &Api<K>, object: Value)
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Serialize + Clone + std::fmt::Debug,
{
    let status = object["status"].clone();
    let name = object["metadata"]["name"].as_str().expect("a name").to_owned();
    let object = serde_json::from_value(object).expect("an object");
    api.create(&PostParams::default(), &object).await.expect("created");
    if !status.is_null() {
        let status = Patch::Merge(json!({"status": status}));
        api.patch_status(&name, &PatchParams::default(), &status).await.expect("status");
    }
}

async fn run_in(server: &ApiServer, words: &[&str]) -> (anyhow::Result<ExitCode>, String) {
    let config = server.kubeconfig().display().to_string();
    let words = ["cilia", "--kubeconfig", &config].into_iter().chain(words.iter().copied());
    let arguments = Arguments::try_parse_from(words).expect("a command line");
    Box::pin(captured(run(arguments))).await
}

fn pod(name: &str, labels: &Value, node: &str, status: &Value) -> Value {
    json!({"metadata": {"name": name, "labels": labels}, "spec": {"nodeName": node,
        "hostNetwork": labels["k8s-app"] == "cilium", "containers": [{
        "name": "cilium-agent", "image": "x", "args": ["--db-password=hunter1"],
        "env": [{"name": "API_TOKEN", "value": "hunter2"}, {"name": "K8S_MODE", "value": "visible-mode"}, {"name": "MODE", "value": "hunter5"}],
    }]}, "status": status})
}

/// A cluster with one agent that restarts again and again, an operator that is not ready, a pod
/// that nobody connected, and secrets.
async fn furnish(server: &ApiServer) {
    let client = server.client();
    let definitions: Api<cilia_crds::CustomResourceDefinition> = Api::all(client.clone());
    for definition in cilia_crds::all() {
        definitions.create(&PostParams::default(), &definition).await.expect("a kind");
    }
    let endpoints: Api<cilia_crds::CiliumEndpoint> = Api::all(client.clone());
    eventually(|| async {
        endpoints.list(&ListParams::default()).await.map(drop).map_err(|e| e.to_string())
    })
    .await;
    for name in ["n1", "n2", "n3"] {
        let annotations = json!({"config.cilium.io/mtu": "9000"});
        let node = json!({"metadata": {"name": name, "annotations": annotations}});
        create::<Node>(&Api::all(client.clone()), node).await;
    }
    let template = |labels: Value| json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "x"}]}});
    let agents = json!({"k8s-app": "cilium"});
    let operators = json!({"io.cilium/app": "operator"});
    create::<DaemonSet>(
        &Api::namespaced(client.clone(), NAMESPACE),
        json!({"metadata": {"name": "cilium"}, "spec": {"selector": {"matchLabels": agents}, "template": template(agents.clone())},
            "status": {"desiredNumberScheduled": 2, "numberReady": 1, "updatedNumberScheduled": 2,
                "currentNumberScheduled": 2, "numberMisscheduled": 0}}),
    )
    .await;
    create::<Deployment>(
        &Api::namespaced(client.clone(), NAMESPACE),
        json!({"metadata": {"name": "cilium-operator"}, "spec": {"replicas": 2, "selector": {"matchLabels": operators},
            "template": template(operators.clone())}}),
    )
    .await;
    let running = json!({"phase": "Running"});
    let crashing = json!({"phase": "Running", "containerStatuses": [{"name": "cilium-agent", "image": "x", "imageID": "",
        "ready": false, "restartCount": 7, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]});
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    create(&pods, pod("cilium-a", &agents, "n1", &running)).await;
    create(&pods, pod("cilium-b", &agents, "n2", &crashing)).await;
    create(
        &Api::<Pod>::namespaced(client.clone(), "default"),
        pod("web", &json!({}), "n1", &running),
    )
    .await;
    plant(server).await;
    create::<Secret>(
        &Api::namespaced(client.clone(), NAMESPACE),
        json!({"metadata": {"name": "s"}, "stringData": {"x": "hunter3"}}),
    )
    .await;
    create::<ConfigMap>(
        &Api::namespaced(client, NAMESPACE),
        json!({"metadata": {"name": "cilium-config"}, "data": {"enable-ipv4": "true", "auth-password": "hunter4"}}),
    )
    .await;
}

/// Secrets wherever people put them.
async fn plant(server: &ApiServer) {
    let client = server.client();
    let applied = r#"{"spec":{"containers":[{"env":[{"name":"MODE","value":"hunter-applied"}]}]}}"#;
    let annotations = json!({
        "kubectl.kubernetes.io/last-applied-configuration": applied,
        "example.com/original": applied,
        "example.com/note": "token: hunter-annotation",
        "example.com/pem": "-----BEGIN EC PRIVATE KEY-----\nhunterpem\n-----END EC PRIVATE KEY-----",
    });
    let args = json!([
        "--api-token",
        "hunter-argument",
        "https://u:hunter-url@h/",
        "-phunter-attached",
        "run -p hunter-short",
    ]);
    let env = json!([{"name": "MODE", "value": "hunter-env"}, {"name": "K8S_TOKEN", "value": "hunter-token"}]);
    let container = json!({"name": "c", "image": "x", "args": args, "env": env,
        "readinessProbe": {"httpGet": {"path": "/?token=hunter-path", "port": 1,
            "httpHeaders": [{"name": "Authorization", "value": "hunter-header"}]}}});
    create::<Pod>(
        &Api::namespaced(client.clone(), "default"),
        json!({"metadata": {"name": "planted", "annotations": annotations},
            "spec": {"nodeName": "n1", "hostNetwork": true, "containers": [container]},
            "status": {"phase": "Failed", "message": "could not log in with password=hunter-status"}}),
    )
    .await;
    create::<Service>(
        &Api::namespaced(client.clone(), "default"),
        json!({"metadata": {"name": "planted", "annotations": annotations}, "spec": {"ports": [{"port": 80}]}}),
    )
    .await;
    create::<ConfigMap>(
        &Api::namespaced(client.clone(), NAMESPACE),
        json!({"metadata": {"name": "planted"}, "data": {"a": "hunter-config-map"}}),
    )
    .await;
    let about = json!({"kind": "Pod", "namespace": NAMESPACE, "name": "cilium-a"});
    create::<Event>(
        &Api::namespaced(client, NAMESPACE),
        json!({"metadata": {"name": "planted"}, "involvedObject": about, "reason": "Failed",
            "message": "GET https://u:hunter-event@h/ failed"}),
    )
    .await;
}

#[tokio::test]
async fn the_cluster_is_looked_at_from_elsewhere() {
    let server = ApiServer::start().await;
    let (outcome, _) = run_in(&server, &["endpoint", "list"]).await;
    let error = format!("{:#}", outcome.expect_err("nothing is installed"));
    assert!(error.contains("is Cilia installed"), "{error}");

    furnish(&server).await;
    let (outcome, text) = run_in(&server, &["status", "-o", "json", "--timeout", "5s"]).await;
    assert_eq!(outcome.expect("a status"), ExitCode::FAILURE);
    let status: Value = serde_json::from_str(&text).expect("JSON");
    let problems: Vec<&str> = status["problems"]
        .as_array()
        .expect("problems")
        .iter()
        .filter_map(|problem| problem["problem"].as_str())
        .collect();
    let wanted = [
        "0 of 2 operators are ready",
        "node n3 has no agent",
        "agent on n1: does not answer: ",
        "agent on n2: CrashLoopBackOff",
        "1 of 1 pods have no CiliumEndpoint",
    ];
    assert_eq!(problems.len(), wanted.len(), "{problems:?}");
    for (problem, wanted) in problems.iter().zip(wanted) {
        assert!(problem.starts_with(wanted), "{wanted}: {problems:?}");
    }
    let (outcome, text) = run_in(&server, &["status"]).await;
    assert_eq!(outcome.expect("a status"), ExitCode::FAILURE);
    assert!(
        text.contains("What is wrong:\n  0 of 2 operators are ready\n    -> kubectl"),
        "{text}"
    );
    let waiting = ["status", "--wait", "--wait-duration", "1s", "--brief"];
    let (outcome, text) = run_in(&server, &waiting).await;
    assert_eq!(outcome.expect("a status"), ExitCode::FAILURE);
    assert_eq!(text, "0 of 2 operators are ready\n");

    let (outcome, _) = run_in(&server, &["--node", "n9", "endpoint", "list"]).await;
    let error = format!("{:#}", outcome.expect_err("no such node"));
    assert!(error.contains("no agent runs on --node n9; agents run on: n1"), "{error}");
    let (outcome, _) = run_in(&server, &["endpoint", "list"]).await;
    assert_eq!(outcome.expect("each agent was asked"), ExitCode::FAILURE);

    let folder = tempfile::tempdir().expect("a folder");
    let to = folder.path().join("settings");
    let words = [
        "build-config",
        "--node-name",
        "n1",
        "--dest",
        &to.display().to_string(),
        "--source",
        "config-map:cilium-config,node:",
    ];
    let (outcome, _) = run_in(&server, &words).await;
    assert_eq!(outcome.expect("settings"), ExitCode::SUCCESS);
    let read = |name: &str| std::fs::read_to_string(to.join(name)).expect(name);
    assert_eq!((read("enable-ipv4").as_str(), read("mtu").as_str()), ("true", "9000"));

    let name = folder.path().join("dump");
    let (outcome, text) =
        run_in(&server, &["sysdump", "--output-filename", &name.display().to_string()]).await;
    assert_eq!(outcome.expect("a dump"), ExitCode::SUCCESS);
    let file = folder.path().join("dump.tar.gz");
    assert_eq!(text.trim(), file.display().to_string());
    let files = read_archive(&file);
    for path in [
        "dump/kubernetes/core/pods.json",
        "dump/kubernetes/core/configmap-cilium-config.json",
        "dump/kubernetes/cilium.io/ciliumendpoints.json",
        "dump/kubernetes/cilium.io/ciliumnetworkpolicies.json",
        "dump/sysdump-summary.txt",
    ] {
        assert!(files.contains_key(path), "{path}: {:?}", files.keys());
    }
    let all: String = files.values().map(|content| String::from_utf8_lossy(content)).collect();
    let leaks: Vec<&str> = all.lines().filter(|line| line.contains("hunter")).collect();
    assert!(leaks.is_empty(), "secrets are in the dump: {leaks:#?}");
    assert!(all.contains("could not log in with") && all.contains("\"planted\""));
    assert!(!files.keys().any(|path| path.contains("secret")), "{:?}", files.keys());
    assert!(all.contains("visible-mode") && all.contains("\"enable-ipv4\": \"true\""));
    let summary = String::from_utf8_lossy(&files["dump/sysdump-summary.txt"]).into_owned();
    assert!(summary.contains("not collected: agents/cilium-a/status.json"), "{summary}");
}
