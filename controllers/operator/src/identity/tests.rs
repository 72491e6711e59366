use std::collections::BTreeMap;

use cilia_crds::{CiliumEndpointSlice, CiliumIdentity};
use cilia_runtime::testing::eventually;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::trial::Trial;

async fn make_pod(pods: &Api<Pod>, name: &str, app: &str, host_network: bool) {
    let pod = json!({
        "metadata": { "name": name, "labels": { "app": app } },
        "spec": { "hostNetwork": host_network, "containers": [{ "name": "main", "image": "main" }] },
    });
    let pod: Pod = serde_json::from_value(pod).expect("a pod");
    pods.create(&PostParams::default(), &pod).await.expect("create a pod");
}

/// Waits until there are identities for exactly these apps, one each; their names.
async fn until(identities: &Api<CiliumIdentity>, apps: &[&str]) -> BTreeMap<String, String> {
    let names = std::sync::Mutex::new(BTreeMap::new());
    eventually(|| async {
        let all = identities.list(&ListParams::default()).await.expect("list identities").items;
        let app = |identity: &CiliumIdentity| {
            let labels = &identity.security_labels;
            assert_eq!(labels["k8s:io.kubernetes.pod.namespace"], "default");
            assert_eq!(labels["k8s:io.cilium.k8s.policy.cluster"], "default");
            let namespace = "k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name";
            assert_eq!(labels[namespace], "default");
            let selectable = identity.metadata.labels.clone().unwrap_or_default();
            assert_eq!(selectable["io.kubernetes.pod.namespace"], "default");
            labels.get("k8s:app").cloned().unwrap_or_default()
        };
        let found: Vec<(String, String)> =
            all.iter().map(|identity| (app(identity), identity.name_any())).collect();
        let mut has: Vec<&str> = found.iter().map(|(app, _)| app.as_str()).collect();
        has.sort_unstable();
        if has == apps {
            *names.lock().expect("a lock") = found.into_iter().collect();
            Ok(())
        } else {
            Err(found)
        }
    })
    .await;
    names.into_inner().expect("a lock")
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_get_identities_that_stay_right() {
    let operator = ["--identity-management-mode=operator", "--enable-cilium-endpoint-slice"];
    let trial = Trial::start(&operator).await;
    // What the chart adds in this mode.
    let rights = json!({
        "metadata": { "name": "identities" },
        "rules": [{ "apiGroups": ["cilium.io"], "resources": ["ciliumidentities"], "verbs": ["create", "get"] }],
    });
    trial.allow(serde_json::from_value(rights).expect("a role")).await;
    let pods: Api<Pod> = Api::namespaced(trial.client.clone(), "default");
    let identities: Api<CiliumIdentity> = Api::all(trial.client.clone());
    let running = trial.run("identity");
    // CID-38, CID-18, CID-21: one for all pods of a label set, none for pods of the node's network.
    make_pod(&pods, "pod1", "a", false).await;
    make_pod(&pods, "pod2", "a", false).await;
    make_pod(&pods, "host", "host", true).await;
    let first = until(&identities, &["a"]).await["a"].clone();
    // CID-41.
    let label = |app: &str| Patch::Merge(json!({ "metadata": { "labels": { "app": app } } }));
    pods.patch("pod1", &PatchParams::default(), &label("b")).await.expect("label a pod");
    let names = until(&identities, &["a", "b"]).await;
    assert_eq!(names["a"], first);
    // CID-42: other labels, one more and one less.
    let forged = Patch::Merge(json!({ "security-labels": { "k8s:app": "z", "k8s:more": "yes" } }));
    identities.patch(&first, &PatchParams::default(), &forged).await.expect("edit an identity");
    assert_eq!(until(&identities, &["a", "b"]).await, names);
    let labels = identities.get(&first).await.expect("read an identity").security_labels;
    assert!(!labels.contains_key("k8s:more"), "{labels:?}");
    // CID-43.
    identities.delete(&first, &DeleteParams::default()).await.expect("delete an identity");
    eventually(|| async {
        let writes = trial.writes(0).await;
        let creations = writes.iter().filter(|write| write.verb == "create" && write.name == first);
        if creations.count() == 2 { Ok(()) } else { Err(writes) }
    })
    .await;
    assert_eq!(until(&identities, &["a", "b"]).await, names);

    // A slice uses it though its pods are gone.
    let slices: Api<CiliumEndpointSlice> = Api::all(trial.client.clone());
    let slice = json!({
        "apiVersion": "cilium.io/v2alpha1", "kind": "CiliumEndpointSlice",
        "metadata": { "name": "slice" },
        "endpoints": [{ "name": "pod2", "id": first.parse::<i64>().expect("a number") }],
    });
    let slice: CiliumEndpointSlice = serde_json::from_value(slice).expect("a slice");
    slices.create(&PostParams::default(), &slice).await.expect("create a slice");
    let now = DeleteParams::default().grace_period(0);
    pods.delete("pod2", &now).await.expect("delete a pod");
    let text = running.metrics.render();
    for line in [
        "cilium_operator_cid_controller_work_queue_event_count{resource=\"pod\",outcome=\"success\"}",
        "cilium_operator_cid_controller_work_queue_latency_count{resource=\"cid\",phase=\"enqueued\"}",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    running.stop().await;

    // A restart at rest writes nothing: after a new pod's write there are no others.
    let before = trial.writes(0).await.len();
    let running = trial.run("identity");
    make_pod(&pods, "pod3", "c", false).await;
    let names_now = until(&identities, &["a", "b", "c"]).await;
    assert_eq!((&names_now["a"], &names_now["b"]), (&names["a"], &names["b"]));
    running.stop().await;
    let writes = trial.writes(before).await;
    assert!(writes.len() == 1 && writes[0].name == names_now["c"], "{writes:?}");

    // CID-39.
    let trial = trial.with(&["--identity-management-mode=agent"]);
    let running = trial.run("identity");
    eventually(|| async { if running.is_over() { Ok(()) } else { Err("runs") } }).await;
    assert!(!running.metrics.render().contains("cid_controller"));
    running.stop().await;
}
