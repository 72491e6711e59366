use std::time::Duration;

use cilia_crds::{CiliumEndpoint, CiliumEndpointSlice, CiliumIdentity, NumericIdentity};
use cilia_identity::Space;
use cilia_runtime::events::Recorder;
use cilia_runtime::metrics::Metrics;
use cilia_runtime::testing::eventually;
use cilia_runtime::watch::{Event, Key, reflect};
use futures::StreamExt as _;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::Collections;
use super::collector::{Collector, IdentityState, Settings};
use super::pace::Load;
use super::report::Report;
use crate::trial::Trial;

#[tokio::test(flavor = "multi_thread")]
async fn identities_go_when_nobody_uses_them() {
    // IDGC-01, with an identity that only a slice uses, and one that was marked and is used again.
    let trial = Trial::start(&[
        "--identity-allocation-mode=crd",
        "--identity-gc-interval=100ms",
        "--identity-heartbeat-timeout=300ms",
        "--enable-cilium-endpoint-slice",
    ])
    .await;
    let client = &trial.client;
    let identities: Api<CiliumIdentity> = Api::all(client.clone());
    for (name, annotations) in [
        ("88888", json!({})),
        ("99999", json!({ "io.cilium.heartbeat": "2026-01-01T00:00:00.000000000Z" })),
        ("77777", json!({})),
    ] {
        let object = json!({
            "metadata": { "name": name, "annotations": annotations },
            "security-labels": { "k8s:app": name },
        });
        let object: CiliumIdentity = serde_json::from_value(object).expect("an identity");
        identities.create(&PostParams::default(), &object).await.expect("create an identity");
    }
    let endpoints: Api<CiliumEndpoint> = Api::namespaced(client.clone(), "default");
    let object =
        json!({ "metadata": { "name": "pod" }, "status": { "identity": { "id": 99999 } } });
    let object: CiliumEndpoint = serde_json::from_value(object).expect("an endpoint");
    endpoints.create(&PostParams::default(), &object).await.expect("create an endpoint");
    let slices: Api<CiliumEndpointSlice> = Api::all(client.clone());
    let object = json!({
        "apiVersion": "cilium.io/v2alpha1", "kind": "CiliumEndpointSlice",
        "metadata": { "name": "ces" }, "endpoints": [{ "name": "other", "id": 77777 }],
    });
    let object: CiliumEndpointSlice = serde_json::from_value(object).expect("a slice");
    slices.create(&PostParams::default(), &object).await.expect("create a slice");

    let duty = trial.run("identity_gc");
    eventually(|| async {
        let left = identities.list(&ListParams::default()).await.expect("list identities");
        let left: Vec<(String, usize)> = left
            .items
            .iter()
            .map(|identity| (identity.name_any(), identity.annotations().len()))
            .collect();
        let want = [("77777".to_owned(), 0), ("99999".to_owned(), 0)];
        if left == want { Ok(()) } else { Err(left) }
    })
    .await;
    eventually(|| async {
        let text = duty.metrics.render();
        let alive = "identity_gc_entries{status=\"alive\",identity_type=\"crd\"} 2";
        if text.contains(alive) { Ok(()) } else { Err(text) }
    })
    .await;
    duty.stop().await;
    let writes = trial.writes(0).await;
    let verbs: Vec<(&str, &str)> =
        writes.iter().map(|write| (write.verb.as_str(), write.name.as_str())).collect();
    let want = [("patch", "99999"), ("patch", "88888"), ("delete", "88888")];
    assert_eq!(verbs, want, "one mark off, one mark on, one deletion");

    // IDGC-10: what was changed or is gone since it was seen was not deleted, and isn't counted so.
    let mut seen = Vec::new();
    for name in ["50001", "50002", "50003"] {
        let object = json!({
            "metadata": { "name": name, "annotations": { "io.cilium.heartbeat": "" } },
            "security-labels": { "k8s:app": name },
        });
        let object: CiliumIdentity = serde_json::from_value(object).expect("an identity");
        identities.create(&PostParams::default(), &object).await.expect("create an identity");
        seen.push(Event::Applied(identities.get(name).await.expect("read an identity")));
    }
    let touched = Patch::Merge(json!({ "metadata": { "labels": { "touched": "yes" } } }));
    identities.patch("50001", &PatchParams::default(), &touched).await.expect("change one");
    identities.delete("50002", &DeleteParams::default()).await.expect("delete one");
    let (store, changes) = reflect(futures::stream::iter(seen), IdentityState::of);
    assert_eq!(changes.count().await, 3);
    let metrics = Metrics::new("cilium_operator");
    let settings = Settings {
        interval: Duration::from_hours(1),
        timeout: Duration::ZERO,
        floor: (10.0, 10.0),
        space: Space::new(0, 255).expect("allowed"),
    };
    let events = Recorder::new(client.clone(), "test");
    let report = Report::new(&metrics, &Collections::register(&metrics), events);
    let collector = Collector::new(client.clone(), store, settings, report);
    // Somebody uses it since it was marked.
    collector.used(Key::new("default", "used"), vec![NumericIdentity(50002)]);
    collector.run().await;
    let text = metrics.render();
    for count in [
        "identity_gc_entries{status=\"alive\",identity_type=\"crd\"} 2",
        "identity_gc_entries{status=\"deleted\",identity_type=\"crd\"} 1",
        "identity_gc_runs{outcome=\"success\",identity_type=\"crd\"} 1",
        "identity_numbers{state=\"taken\"} 3",
    ] {
        assert!(text.contains(count), "{count} in {text}");
    }
    assert!(identities.get_opt("50003").await.expect("read an identity").is_none());
    super::exhaustion::the_range_is_used_up(trial).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_that_fills_is_told_of_with_the_label_that_fills_it() {
    let server = cilia_runtime::testing::ApiServer::start().await;
    let client = server.client();
    let seen = (0..300).map(|number| {
        let object = json!({
            "metadata": { "name": (1000 + number).to_string(), "resourceVersion": "1", "uid": "u" },
            "security-labels": {
                "k8s:io.kubernetes.pod.namespace": "default",
                "k8s:app": "report",
                "k8s:job-name": number.to_string(),
            },
        });
        Event::Applied(serde_json::from_value::<CiliumIdentity>(object).expect("an identity"))
    });
    let (store, changes) = reflect(futures::stream::iter(seen), IdentityState::of);
    assert_eq!(changes.count().await, 300);
    let metrics = Metrics::new("cilium_operator");
    let events = Recorder::new(client.clone(), "test");
    let report = Report::new(&metrics, &Collections::register(&metrics), events);
    let identities: Vec<_> =
        store.all().into_iter().map(|(_, state)| state.labels.clone()).collect();
    let load = Load { size: 10_000, taken: 300, due: 0, made: 0.0 };
    report.advise(load, identities.clone()).await;
    report.advise(Load { size: 500, ..load }, identities).await;
    let text = metrics.render();
    let excess = "identity_label_excess{label=\"k8s:job-name\"} 299";
    assert!(text.contains(excess), "{excess} in {text}");
    let events: Api<k8s_openapi::api::events::v1::Event> = Api::all(client);
    eventually(|| async {
        let all = events.list(&ListParams::default()).await.expect("list events").items;
        let ours: Vec<_> = all
            .into_iter()
            .filter(|event| event.reason.as_deref() == Some("IdentitiesMultiply"))
            .map(|event| (event.regarding.and_then(|about| about.name), event.note))
            .collect();
        let [(Some(namespace), Some(note))] = ours.as_slice() else { return Err(ours) };
        let parts = ["300 of 500", "300 values", "k8s:!job-name$"];
        let right = namespace == "default" && parts.iter().all(|part| note.contains(part));
        if right { Ok(()) } else { Err(ours) }
    })
    .await;
}
