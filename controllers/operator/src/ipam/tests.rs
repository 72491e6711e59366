use cilia_crds::CiliumNode;
use cilia_runtime::testing::eventually;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use super::reconciler::IGNORE_ANNOTATION;
use crate::trial::Trial;

async fn make(api: &Api<CiliumNode>, name: &str, pod_cidrs: &[&str]) {
    let object = json!({
        "metadata": { "name": name },
        "spec": { "ipam": { "podCIDRs": pod_cidrs }, "addresses": [{ "type": "InternalIP", "ip": "192.0.2.1" }] },
    });
    let object: CiliumNode = serde_json::from_value(object).expect("a node");
    api.create(&PostParams::default(), &object).await.expect("create a node");
}

/// Waits until the node has these ranges and this error.
async fn until(api: &Api<CiliumNode>, name: &str, cidrs: &[&str], error: &str) {
    eventually(|| async {
        let node = api.get(name).await.expect("read a node");
        let has = node.spec.ipam.map(|ipam| ipam.pod_cidrs).unwrap_or_default();
        let ipam = node.status.and_then(|status| status.ipam);
        let status = ipam.and_then(|ipam| ipam.operator_status).and_then(|status| status.error);
        let said = status.unwrap_or_default();
        if has == cidrs && said.contains(error) && said.is_empty() == error.is_empty() {
            Ok(())
        } else {
            Err(format!("{name} has {has:?} and error {said:?}"))
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_get_ranges() {
    let trial = Trial::start(&[
        "--cluster-pool-ipv4-cidr=10.0.0.0/22",
        "--cluster-pool-ipv4-mask-size=24",
        "--cluster-pool-ipv6-cidr=fd00::/118",
        "--cluster-pool-ipv6-mask-size=120",
    ])
    .await;
    let api: Api<CiliumNode> = Api::all(trial.client.clone());
    // PCIDR-27: the node without ranges is listed before the one that has the first.
    make(&api, "a", &[]).await;
    make(&api, "b", &["10.0.0.0/24", "fd00::/120"]).await;
    let running = trial.run("ipam");
    until(&api, "a", &["10.0.1.0/24", "fd00::100/120"], "").await;

    // One that asks for another's range is told so, and is helped when the other goes.
    make(&api, "c", &["10.0.0.0/24", "fd00::200/120"]).await;
    until(&api, "c", &["10.0.0.0/24", "fd00::200/120"], "(10.0.0.0/24) is already allocated").await;
    api.delete("b", &DeleteParams::default()).await.expect("delete a node");
    until(&api, "c", &["10.0.0.0/24", "fd00::200/120"], "").await;

    // Somebody takes a node's ranges away.
    let emptied = Patch::Merge(json!({ "spec": { "ipam": { "podCIDRs": null } } }));
    api.patch("a", &PatchParams::default(), &emptied).await.expect("edit a node");
    until(&api, "a", &["10.0.1.0/24", "fd00::100/120"], "").await;
    let text = running.metrics.render();
    for metric in ["queued_total", "folds", "duration_seconds_count", "latency_seconds_count"] {
        let name = format!("\ncilium_operator_ipam_k8s_sync_{metric} ");
        assert!(text.contains(&name), "{name} in {text}");
    }
    running.stop().await;

    // PCIDR-29: somebody else looks after it from now on; its ranges are nobody else's all the same.
    let ignore = |value: serde_json::Value| {
        Patch::Merge(json!({ "metadata": { "annotations": { IGNORE_ANNOTATION: value } } }))
    };
    api.patch("a", &PatchParams::default(), &ignore(json!("true"))).await.expect("edit a node");

    // A restart at rest writes nothing: after a new node's write there are no others.
    let before = trial.writes(0).await.len();
    let running = trial.run("ipam");
    make(&api, "d", &[]).await;
    until(&api, "d", &["10.0.2.0/24", "fd00::/120"], "").await;
    api.patch("a", &PatchParams::default(), &emptied).await.expect("edit a node");
    make(&api, "e", &[]).await;
    until(&api, "e", &["10.0.3.0/24", "fd00::300/120"], "").await;
    until(&api, "a", &[], "").await;
    let writes = trial.writes(before).await;
    let names: Vec<&str> = writes.iter().map(|write| write.name.as_str()).collect();
    assert_eq!(names, ["d", "e"], "{writes:?}");
    api.patch("a", &PatchParams::default(), &ignore(json!(null))).await.expect("edit a node");
    until(&api, "a", &["10.0.1.0/24", "fd00::100/120"], "").await;
    running.stop().await;
}
