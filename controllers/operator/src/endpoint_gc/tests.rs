use std::collections::BTreeSet;
use std::time::Duration;

use cilia_crds::{CiliumEndpoint, CiliumEndpointSlice};
use cilia_runtime::events::Recorder;
use cilia_runtime::lanes::Next;
use cilia_runtime::metrics::Metrics;
use cilia_runtime::testing::eventually_for;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use super::collector::{Agents, Collector, Task};
use super::decision::Endpoint;
use crate::trial::Trial;

async fn make_pod(client: &Client, name: &str, phase: &str) -> String {
    let api: Api<Pod> = Api::namespaced(client.clone(), "default");
    let pod = json!({
        "metadata": { "name": name },
        "spec": { "containers": [{ "name": "main", "image": "main" }] },
    });
    let pod: Pod = serde_json::from_value(pod).expect("a pod");
    let pod = api.create(&PostParams::default(), &pod).await.expect("create a pod");
    let status = Patch::Merge(json!({ "status": { "phase": phase } }));
    api.patch_status(name, &PatchParams::default(), &status).await.expect("set a pod's status");
    pod.uid().unwrap_or_default()
}

/// Makes an endpoint; its owner is a pod of this name and uid.
async fn make_endpoint(client: &Client, name: &str, owner: Option<(&str, &str)>) {
    let api: Api<CiliumEndpoint> = Api::namespaced(client.clone(), "default");
    let owners: Vec<_> = owner
        .into_iter()
        .map(|(name, uid)| json!({ "apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid }))
        .collect();
    let object = json!({ "metadata": { "name": name, "ownerReferences": owners } });
    let object: CiliumEndpoint = serde_json::from_value(object).expect("an endpoint");
    api.create(&PostParams::default(), &object).await.expect("create an endpoint");
}

async fn until_left(client: &Client, want: &[&str]) {
    let api: Api<CiliumEndpoint> = Api::all(client.clone());
    let want: BTreeSet<String> = want.iter().map(ToString::to_string).collect();
    eventually_for(Duration::from_secs(30), || async {
        let left = api.list(&ListParams::default()).await.expect("list endpoints");
        let left: BTreeSet<String> = left.items.iter().map(ResourceExt::name_any).collect();
        if left == want { Ok(()) } else { Err(left) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn endpoints_go_after_their_pods() {
    // EPGC-01, but with a pod that is only Pending, too.
    let trial = Trial::start(&["--cilium-endpoint-gc-interval=2s"]).await;
    let client = &trial.client;
    let running = make_pod(client, "pod2", "Running").await;
    let finished = make_pod(client, "pod3", "Succeeded").await;
    make_pod(client, "cep4", "Pending").await;
    make_pod(client, "cep5", "Failed").await;
    make_endpoint(client, "cep1", None).await;
    make_endpoint(client, "cep2", Some(("pod2", &running))).await;
    make_endpoint(client, "cep3", Some(("pod3", &finished))).await;
    make_endpoint(client, "cep4", None).await;
    make_endpoint(client, "cep5", None).await;
    make_endpoint(client, "cep6", Some(("pod6", "00000000-0000-0000-0000-000000000000"))).await;
    // A name that is used again: the pod it belonged to is gone, and its agent will take it over.
    make_pod(client, "again", "Running").await;
    make_endpoint(client, "again", Some(("again", "00000000-0000-0000-0000-000000000001"))).await;
    // CESGC-01: slices that nobody keeps.
    let slices: Api<CiliumEndpointSlice> = Api::all(client.clone());
    let duty = trial.run("endpoint_gc");
    until_left(client, &["again", "cep2", "cep4"]).await;
    let events: Api<Event> = Api::namespaced(client.clone(), "default");
    eventually_for(Duration::from_secs(30), || async {
        let all = events.list(&ListParams::default()).await.expect("list events").items;
        let collected = all.iter().filter(|e| e.reason.as_deref() == Some("EndpointCollected"));
        let mut names: Vec<_> = collected.filter_map(|e| e.regarding.clone()?.name).collect();
        names.sort_unstable();
        if names == ["cep1", "cep3", "cep5", "cep6"] { Ok(()) } else { Err(names) }
    })
    .await;
    // It finishes: the endpoint goes, and what comes later under its name stays.
    let finished = Patch::Merge(json!({ "status": { "phase": "Succeeded" } }));
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    pods.patch_status("again", &PatchParams::default(), &finished).await.expect("end a pod");
    until_left(client, &["cep2", "cep4"]).await;
    // It counts when it hears that they are gone, which the test may do first.
    eventually_for(Duration::from_secs(30), || async {
        let text = duty.metrics.render();
        if text.contains("endpoint_gc_objects{outcome=\"success\"} 5") { Ok(()) } else { Err(text) }
    })
    .await;
    duty.stop().await;
    // Slices are off: their kind is not even registered, and nobody minds (CESGC-03).
    assert!(slices.list(&ListParams::default()).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_collection_all_endpoints_go_at_once() {
    // EPGC-02, CESGC-02.
    let trial =
        Trial::start(&["--cilium-endpoint-gc-interval=0", "--enable-cilium-endpoint-slice"]).await;
    let client = &trial.client.clone();
    make_pod(client, "pod", "Running").await;
    make_endpoint(client, "pod", None).await;
    let slices: Api<CiliumEndpointSlice> = Api::all(client.clone());
    let slice = json!({
        "apiVersion": "cilium.io/v2alpha1", "kind": "CiliumEndpointSlice",
        "metadata": { "name": "kept" }, "endpoints": [],
    });
    let slice: CiliumEndpointSlice = serde_json::from_value(slice).expect("a slice");
    slices.create(&PostParams::default(), &slice).await.expect("create a slice");
    let duty = trial.run("endpoint_gc");
    until_left(client, &[]).await;
    duty.stop().await;
    slices.get("kept").await.expect("slices are on, so theirs is another duty");
    // Slices are switched off, with their kind still there, but an agent may not know yet.
    let trial = trial.with(&["--cilium-endpoint-gc-interval=1h", "--cilium-pod-labels=agent=yes"]);
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let label = Patch::Merge(json!({ "metadata": { "labels": { "agent": "yes" } } }));
    pods.patch("pod", &PatchParams::default(), &label).await.expect("label a pod");
    // Times of objects have no fractions of seconds.
    eventually_for(Duration::from_secs(30), || async {
        let pod = pods.get("pod").await.expect("read a pod");
        let age = pod.creation_timestamp().map(|time| Timestamp::now().duration_since(time.0));
        if age.is_some_and(|age| age.as_millis() > 1000) { Ok(()) } else { Err(age) }
    })
    .await;
    let metrics = Metrics::new("test");
    let collector = Collector::new(
        client.clone(),
        Recorder::new(client.clone(), "test"),
        Duration::from_hours(1),
        Agents { namespace: String::new(), labels: "agent=yes".to_owned() },
        &metrics,
    );
    // EPGC-05: one that was changed since it was looked at stays, one that is gone is gone; neither counts.
    make_endpoint(client, "changed", None).await;
    let endpoints: Api<CiliumEndpoint> = Api::namespaced(client.clone(), "default");
    let looked_at = endpoints.get("changed").await.expect("read an endpoint");
    let mut endpoint = Endpoint {
        namespace: "default".to_owned(),
        name: "changed".to_owned(),
        uid: looked_at.uid().unwrap_or_default(),
        resource_version: "1".to_owned(),
        age: Duration::ZERO,
        owners: Vec::new(),
    };
    assert!(!collector.remove(&endpoint).await.expect("no failure"), "it was changed");
    endpoints.get("changed").await.expect("it is there");
    endpoints.delete("changed", &DeleteParams::default()).await.expect("delete an endpoint");
    endpoint.resource_version = looked_at.resource_version().unwrap_or_default();
    assert!(collector.remove(&endpoint).await.expect("no failure"), "it is gone");
    let counts = metrics.render();
    for outcome in ["success", "fail"] {
        let line = format!("test_endpoint_gc_objects{{outcome=\"{outcome}\"}} 0");
        assert!(counts.contains(&line), "{line} in {counts}");
    }
    let next = collector.run(Task::RemoveSlices).await.expect("a look at agents");
    assert!(matches!(next, Next::After(_)), "{next:?}");
    let removals = trial.writes(0).await;
    assert!(removals.iter().all(|write| write.verb != "deletecollection"), "{removals:?}");
    // The agent is restarted, too, and the duty runs as a whole: CESGC-01.
    let now = DeleteParams::default().grace_period(0);
    pods.delete("pod", &now).await.expect("delete a pod");
    let duty = trial.run("endpoint_gc");
    // Nobody here takes the finalizer off that orphaning puts on; that it was asked for is enough.
    eventually_for(Duration::from_secs(30), || async {
        let writes = trial.writes(0).await;
        let done = writes.last().is_some_and(|write| {
            (write.verb.as_str(), write.resource.as_str(), write.code)
                == ("deletecollection", "ciliumendpointslices", 200)
        });
        if done { Ok(()) } else { Err(writes) }
    })
    .await;
    duty.stop().await;
}
