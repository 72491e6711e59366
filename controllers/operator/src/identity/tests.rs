use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use cilia_crds::{CiliumEndpointSlice, CiliumIdentity, Labels, NumericIdentity};
use cilia_identity::{Filter, Fixed, Managed, Record, Space};
use cilia_runtime::events::Recorder;
use cilia_runtime::lanes::{Job, Lane, Lanes, Retry, Workqueues};
use cilia_runtime::testing::eventually;
use cilia_runtime::watch::{self, Change, Key, reflect};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::metrics::Metrics;
use super::reconciler::{Item, Reconciler};
use super::sources::PodState;
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

/// Waits for an event of this reason about this object.
async fn until_told(trial: &Trial, kind: &str, name: &str, reason: &str) {
    let events: Api<Event> = Api::all(trial.client.clone());
    eventually(|| async {
        let all = events.list(&ListParams::default()).await.expect("list events").items;
        let told = all.iter().any(|event| {
            let about = event.regarding.clone().unwrap_or_default();
            about.kind.as_deref() == Some(kind)
                && about.name.as_deref() == Some(name)
                && event.reason.as_deref() == Some(reason)
        });
        if told { Ok(()) } else { Err(all) }
    })
    .await;
}

/// Where every number is taken the pod is told; where its namespace is not known (CID-17) it is tried again.
async fn without_a_number_or_a_namespace(trial: &Trial) {
    let space = Space::new(0, 511).expect("allowed");
    let mut managed = Managed::new(space);
    for number in space.range() {
        let mut labels = Labels::new();
        labels.insert("k8s", "app", &number.to_string());
        let record = Record { labels: Arc::new(labels), created: 1, marked: false };
        managed.seen(NumericIdentity(number), record);
    }
    let pods: Api<Pod> = Api::namespaced(trial.client.clone(), "default");
    let pod = pods.get("pod1").await.expect("read a pod");
    let stranger = json!({ "metadata": { "name": "pod1", "namespace": "nowhere" }, "spec": { "containers": [] } });
    let stranger: Pod = serde_json::from_value(stranger).expect("a pod");
    let (filter, fixed) = (Filter::new::<&str>(&[], None).expect("defaults"), Fixed::default());
    let all = [pod, stranger].map(watch::Event::Applied);
    let of = move |pod| PodState::of(pod, &filter, &fixed, "default");
    let (pods, changes) = reflect(futures::stream::iter(all), of);
    let keys: Vec<Key> = changes
        .filter_map(|change| async move {
            let Change::Object { key, .. } = change else { return None };
            Some(key)
        })
        .collect()
        .await;
    let default: Namespace =
        serde_json::from_value(json!({ "metadata": { "name": "default" } })).expect("a namespace");
    let known = futures::stream::iter([watch::Event::Applied(default)]);
    let (namespaces, changes) = reflect(known, |_| Some(Labels::new()));
    assert_eq!(changes.count().await, 1);
    let metrics = cilia_runtime::metrics::Metrics::new("cilium_operator");
    let queues = Workqueues::register(&metrics);
    let lanes = Lanes::new(vec![Lane::new("identities")], Retry::default(), None, &queues);
    let reconciler = Arc::new(Reconciler {
        client: trial.client.clone(),
        events: Recorder::new(trial.client.clone(), "test"),
        managed: Mutex::new(managed),
        pods,
        namespaces,
        complete: CancellationToken::new(),
        lanes: lanes.clone(),
        metrics: Metrics::new(&metrics),
        conflicts: crate::conflicts::Conflicts::default(),
        first: Mutex::default(),
        unplaced: Mutex::default(),
    });
    for key in keys {
        lanes.add(0, Item::Pod(key));
    }
    let stop = CancellationToken::new();
    let (running, stopped) = (Arc::clone(&reconciler), stop.clone());
    let run = tokio::spawn(async move {
        let handle = |job: Job<Item>| {
            let reconciler = Arc::clone(&running);
            async move { reconciler.reconcile(&job).await }
        };
        lanes.run(1, &stopped, handle).await;
    });
    until_told(trial, "Pod", "pod1", "NoIdentity").await;
    let retried = "cilium_operator_workqueue_retries_total{queue_name=\"identities\"} ";
    eventually(|| async {
        let text = metrics.render();
        let line = text.lines().find_map(|line| line.strip_prefix(retried)?.parse::<u32>().ok());
        if line.is_some_and(|retries| retries >= 2) { Ok(()) } else { Err(text) }
    })
    .await;
    // Recorded once, at the end: what is tried again has not ended.
    let failed = "cid_controller_work_queue_event_count{resource=\"pod\",outcome=\"fail\"} 0";
    assert!(metrics.render().contains(failed), "{}", metrics.render());
    stop.cancel();
    run.await.expect("no panic");
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_get_identities_that_stay_right() {
    let operator = [
        "--identity-management-mode=operator",
        "--enable-cilium-endpoint-slice",
        "--fixed-identity-mapping=128=store",
    ];
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
    // Nor for those whose number is fixed: agents know it.
    let fixed = json!({
        "metadata": { "name": "fixed", "labels": { "io.cilium.fixed-identity": "store" } },
        "spec": { "containers": [{ "name": "main", "image": "main" }] },
    });
    let fixed: Pod = serde_json::from_value(fixed).expect("a pod");
    pods.create(&PostParams::default(), &fixed).await.expect("create a pod");
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
    until_told(&trial, "CiliumIdentity", &first, "LabelsRestored").await;
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

    // A label of the namespace moves all of its pods; what nobody uses any more stays for the collector.
    let running = trial.run("identity");
    let namespaces: Api<Namespace> = Api::all(trial.client.clone());
    let team = Patch::Merge(json!({ "metadata": { "labels": { "team": "x" } } }));
    namespaces.patch("default", &PatchParams::default(), &team).await.expect("label a namespace");
    eventually(|| async {
        let all = identities.list(&ListParams::default()).await.expect("list identities").items;
        let key = "k8s:io.cilium.k8s.namespace.labels.team";
        let of_team =
            all.iter().filter(|one| one.security_labels.get(key).is_some_and(|x| x == "x"));
        let mut apps: Vec<_> =
            of_team.filter_map(|one| one.security_labels.get("k8s:app")).collect();
        apps.sort_unstable();
        if apps == ["b", "c"] && all.len() == 5 {
            Ok(())
        } else {
            Err(format!("{apps:?} of {}", all.len()))
        }
    })
    .await;
    running.stop().await;
    without_a_number_or_a_namespace(&trial).await;

    // CID-39.
    let trial = trial.with(&["--identity-management-mode=agent"]);
    let running = trial.run("identity");
    eventually(|| async { if running.is_over() { Ok(()) } else { Err("runs") } }).await;
    assert!(!running.metrics.render().contains("cid_controller"));
    running.stop().await;
}
