use cilia_crds::CiliumEndpoint;
use cilia_runtime::testing::eventually;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::trial::{Running, Trial};

/// Makes a pod that started so many seconds ago.
async fn make(pods: &Api<Pod>, name: &str, app: &str, host_network: bool, age: i64) {
    let pod = json!({
        "metadata": { "name": name, "labels": { "k8s-app": app } },
        "spec": { "hostNetwork": host_network, "containers": [{ "name": "main", "image": "main" }] },
    });
    let pod: Pod = serde_json::from_value(pod).expect("a pod");
    pods.create(&PostParams::default(), &pod).await.expect("create a pod");
    let started = Timestamp::now() - SignedDuration::from_secs(age);
    let status = json!({ "status": { "phase": "Running", "startTime": started.to_string() } });
    let params = PatchParams::default();
    pods.patch_status(name, &params, &Patch::Merge(status)).await.expect("set a pod's status");
}

async fn until_left(pods: &Api<Pod>, want: &[&str]) {
    eventually(|| async {
        let left = pods.list(&ListParams::default()).await.expect("list pods");
        let left: Vec<String> = left.items.iter().map(ResourceExt::name_any).collect();
        if left == want { Ok(()) } else { Err(left) }
    })
    .await;
}

async fn until_gauge(running: &Running, count: i64) {
    let want = format!("cilium_operator_unmanaged_pods {count}");
    eventually(|| async {
        let text = running.metrics.render();
        if text.lines().any(|line| line == want) { Ok(()) } else { Err(text) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_without_an_endpoint_are_restarted_one_by_one() {
    let trial = Trial::start(&["--unmanaged-pod-watcher-interval=1"]).await;
    let pods: Api<Pod> = Api::namespaced(trial.client.clone(), "default");
    let endpoints: Api<CiliumEndpoint> = Api::namespaced(trial.client.clone(), "default");
    // UNM-01, UNM-02.
    make(&pods, "managed", "kube-dns", false, 40).await;
    let endpoint = json!({ "metadata": { "name": "managed" } });
    let endpoint: CiliumEndpoint = serde_json::from_value(endpoint).expect("an endpoint");
    endpoints.create(&PostParams::default(), &endpoint).await.expect("create an endpoint");
    make(&pods, "host", "kube-dns", true, 40).await;
    make(&pods, "other", "web", false, 40).await;
    make(&pods, "young", "kube-dns", false, -600).await;
    make(&pods, "old", "kube-dns", false, 40).await;
    let running = trial.run("unmanaged_pods");
    until_left(&pods, &["host", "managed", "other", "young"]).await;
    until_gauge(&running, 1).await;
    running.stop().await;
    assert_eq!(trial.writes(0).await.len(), 1, "one restart and nothing else");
    let events: Api<Event> = Api::all(trial.client.clone());
    eventually(|| async {
        let told = events.list(&ListParams::default()).await.expect("list events").items;
        let about_pods = told.into_iter().filter(|event| {
            event.regarding.as_ref().is_some_and(|about| about.kind.as_deref() == Some("Pod"))
        });
        let told: Vec<_> = about_pods.filter_map(|event| event.reason).collect();
        if told == ["UnmanagedPodRestarted"] { Ok(()) } else { Err(told) }
    })
    .await;

    // UNM-03: it comes back as it was, and rests, although the next leader did not restart it. The one
    // after it in the order is restarted, and UNM-05: counted in that very look.
    make(&pods, "old", "kube-dns", false, 40).await;
    make(&pods, "older", "kube-dns", false, 40).await;
    let running = trial.run("unmanaged_pods");
    until_left(&pods, &["host", "managed", "old", "other", "young"]).await;
    until_gauge(&running, 2).await;
    running.stop().await;
    assert_eq!(trial.writes(1).await.len(), 1);

    // UNM-06.
    let mut trial = trial;
    for off in ["--unmanaged-pod-watcher-interval=0", "--disable-endpoint-crd"] {
        trial = trial.with(&[off]);
        let running = trial.run("unmanaged_pods");
        eventually(|| async { if running.is_over() { Ok(()) } else { Err(off) } }).await;
        running.stop().await;
    }
}
