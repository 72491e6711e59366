use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cilia_crds::{CiliumEndpoint, CiliumEndpointSlice};
use cilia_runtime::testing::{eventually, eventually_for};
use cilia_runtime::watch::{Event, watch};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::trial::Trial;

const MAX: usize = 3;

/// What the slices say: namespace and name of each entry, with the slice and the identity.
type Listed = BTreeMap<(String, String), Vec<(String, i64)>>;

async fn make_namespace(client: &Client, name: &str, priority: bool) {
    let annotations =
        if priority { json!({ "cilium.io/ces-namespace": "priority" }) } else { json!({}) };
    let object = json!({ "metadata": { "name": name, "annotations": annotations } });
    let object: Namespace = serde_json::from_value(object).expect("a namespace");
    let api: Api<Namespace> = Api::all(client.clone());
    api.create(&PostParams::default(), &object).await.expect("create a namespace");
}

async fn make_endpoint(client: &Client, namespace: &str, name: &str, status: Value) {
    let object = json!({ "metadata": { "namespace": namespace, "name": name }, "status": status });
    let object: CiliumEndpoint = serde_json::from_value(object).expect("an endpoint");
    let api: Api<CiliumEndpoint> = Api::namespaced(client.clone(), namespace);
    api.create(&PostParams::default(), &object).await.expect("create an endpoint");
}

fn status(number: usize) -> Value {
    json!({
        "identity": { "id": 1000 + number },
        "networking": {
            "addressing": [{ "ipv4": format!("10.0.0.{number}"), "ipv6": format!("fd00::{number}") }],
            "node": "192.0.2.1",
        },
    })
}

async fn slices(client: &Client) -> Vec<CiliumEndpointSlice> {
    let api: Api<CiliumEndpointSlice> = Api::all(client.clone());
    api.list(&ListParams::default()).await.expect("list slices").items
}

fn listed(slices: &[CiliumEndpointSlice]) -> Listed {
    let mut listed = Listed::new();
    for slice in slices {
        let namespace = slice.namespace.clone().unwrap_or_default();
        for entry in &slice.endpoints {
            let key = (namespace.clone(), entry.name.clone().unwrap_or_default());
            let at = (slice.name_any(), entry.id.unwrap_or(0));
            listed.entry(key).or_default().push(at);
        }
    }
    listed
}

/// Waits until the slices list exactly these endpoints, each once, in this many slices if it matters.
async fn until_listed(
    client: &Client,
    want: &BTreeSet<(String, String)>,
    objects: Option<usize>,
) -> Listed {
    eventually_for(Duration::from_mins(2), || async {
        let slices = slices(client).await;
        let listed = listed(&slices);
        let once = listed.values().all(|at| at.len() == 1);
        let names: BTreeSet<(String, String)> = listed.keys().cloned().collect();
        let fit = slices.iter().all(|slice| (1..=MAX).contains(&slice.endpoints.len()));
        if once && fit && names == *want && objects.is_none_or(|objects| slices.len() == objects) {
            Ok(listed)
        } else {
            Err(format!("{} slices list {listed:?}", slices.len()))
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_endpoint_is_in_exactly_one_slice() {
    let trial =
        Trial::start(&["--enable-cilium-endpoint-slice", "--ces-max-ciliumendpoints-per-ces=3"])
            .await;
    let client = &trial.client;
    make_namespace(client, "fast", true).await;
    make_namespace(client, "slow", false).await;
    let mut want = BTreeSet::new();
    let pair = |namespace: &str, name: &str| (namespace.to_owned(), name.to_owned());
    for number in 0..4 {
        make_endpoint(client, "slow", &format!("pod-{number}"), status(number)).await;
        want.insert(pair("slow", &format!("pod-{number}")));
    }
    // Leftovers: a slice that lists a dead endpoint and one that lives, and one with a second copy.
    let leftovers: Api<CiliumEndpointSlice> = Api::all(client.clone());
    for (name, entries) in [
        ("ces-left", json!([{ "name": "dead" }, { "name": "pod-1", "id": 1 }])),
        ("ces-over", json!([{ "name": "pod-1", "id": 1001 }, { "name": "gone" }])),
    ] {
        let object = json!({
            "apiVersion": "cilium.io/v2alpha1", "kind": "CiliumEndpointSlice",
            "metadata": { "name": name }, "namespace": "slow", "endpoints": entries,
        });
        let object: CiliumEndpointSlice = serde_json::from_value(object).expect("a slice");
        leftovers.create(&PostParams::default(), &object).await.expect("create a slice");
    }

    // CES-23, CES-31, CES-33; an endpoint without identity is left alone (CES-29).
    let running = trial.run("endpoint_slice");
    make_endpoint(client, "slow", "unready", json!({ "state": "waiting-for-identity" })).await;
    let listed = until_listed(client, &want, Some(2)).await;
    assert_eq!(listed[&pair("slow", "pod-1")][0].1, 1001, "the truth, not the leftover");

    // A priority namespace; that it does not wait is for benchmarks to say.
    make_endpoint(client, "fast", "urgent", status(9)).await;
    want.insert(pair("fast", "urgent"));
    until_listed(client, &want, Some(3)).await;

    // CES-19: foreign edits and deletions are put right.
    let victim = slices(client).await[0].name_any();
    leftovers.delete(&victim, &DeleteParams::default()).await.expect("delete a slice");
    let victim = slices(client).await[0].name_any();
    let emptied = Patch::Merge(json!({ "endpoints": [{ "name": "forged" }] }));
    leftovers.patch(&victim, &PatchParams::default(), &emptied).await.expect("edit a slice");
    until_listed(client, &want, Some(3)).await;

    // Endpoints change and go.
    let slow: Api<CiliumEndpoint> = Api::namespaced(client.clone(), "slow");
    let changed = Patch::Merge(json!({ "status": { "identity": { "id": 5000 } } }));
    slow.patch("pod-2", &PatchParams::default(), &changed).await.expect("change an endpoint");
    for name in ["pod-0", "pod-3"] {
        slow.delete(name, &DeleteParams::default()).await.expect("delete an endpoint");
        want.remove(&pair("slow", name));
    }
    // Two remain in the namespace: one slice is enough.
    let listed = until_listed(client, &want, Some(2)).await;
    assert_eq!(listed[&pair("slow", "pod-2")][0].1, 5000);

    let text = running.metrics.render();
    for name in [
        "cilium_operator_number_of_ceps_per_ces_bucket{le=\"",
        "cilium_operator_number_of_cep_changes_per_ces_count{opcode=\"cepinserted\"}",
        "cilium_operator_ces_sync_total{outcome=\"success\",failure_type=\"\"}",
        "cilium_operator_ces_queueing_delay_seconds_count{queue=\"fast\"}",
        "cilium_operator_workqueue_depth{queue_name=\"cilium_endpoint_slice_standard\"}",
    ] {
        assert!(text.contains(name), "{name} is not in\n{text}");
    }
    running.stop().await;

    // A restart at rest writes nothing: the new process knows everything before it could write.
    let before = trial.writes(0).await.len();
    let running = trial.run("endpoint_slice");
    make_endpoint(client, "fast", "later", status(10)).await;
    want.insert(pair("fast", "later"));
    until_listed(client, &want, Some(2)).await;
    running.stop().await;
    let writes = trial.writes(before).await;
    assert_eq!(writes.len(), 1, "one for the new endpoint: {writes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn switched_off_it_does_nothing() {
    let trial = Trial::start(&["--enable-cilium-endpoint-slice=false"]).await;
    let running = trial.run("endpoint_slice");
    eventually(|| async { if running.is_over() { Ok(()) } else { Err("it still runs") } }).await;
    assert_eq!(trial.writes(0).await, []);
    running.stop().await;
}

/// Follows the slices; what it returns in the end are the endpoints that vanished while they lived.
async fn watch_for_losses(
    client: Client,
    living: Arc<Mutex<BTreeSet<(String, String)>>>,
    stop: CancellationToken,
) -> Vec<String> {
    let mut events = std::pin::pin!(watch(Api::<CiliumEndpointSlice>::all(client)));
    let mut known: BTreeMap<String, CiliumEndpointSlice> = BTreeMap::new();
    let mut losses = Vec::new();
    let visible = |known: &BTreeMap<String, CiliumEndpointSlice>| -> BTreeSet<(String, String)> {
        let slices: Vec<_> = known.values().cloned().collect();
        listed(&slices).into_keys().collect()
    };
    while let Some(Some(event)) = stop.run_until_cancelled(events.next()).await {
        let before = visible(&known);
        match event {
            Event::Applied(slice) => known.insert(slice.name_any(), slice),
            Event::Deleted(key) => known.remove(&*key.name),
            Event::Synced => None,
        };
        let after = visible(&known);
        let living = living.lock().expect("no panic while it was held");
        let gone = before.difference(&after).filter(|key| living.contains(*key));
        losses.extend(gone.map(|key| format!("{key:?}")));
    }
    losses
}

#[tokio::test(flavor = "multi_thread")]
async fn crashes_lose_nobody() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let trial = Trial::start(&[
        "--enable-cilium-endpoint-slice",
        "--ces-max-ciliumendpoints-per-ces=3",
        r#"--ces-rate-limits=[{"nodes":0,"limit":50,"burst":100}]"#,
    ])
    .await;
    let client = &trial.client;
    make_namespace(client, "fast", true).await;
    make_namespace(client, "slow", false).await;
    let living: Arc<Mutex<BTreeSet<(String, String)>>> = Arc::default();
    let stop = CancellationToken::new();
    let losses = watch_for_losses(client.clone(), Arc::clone(&living), stop.clone());
    let losses = tokio::spawn(losses);
    for round in 0..6 {
        let running = trial.run("endpoint_slice");
        for number in 0..rng.random_range(10..60) {
            let namespace = if rng.random_bool(0.6) { "fast" } else { "slow" };
            let victim = {
                // Dead before it is deleted: then its entry may go at any time.
                let mut living = living.lock().expect("no panic while it was held");
                let count = living.len();
                let victim = living.iter().nth(rng.random_range(0..=count)).cloned();
                victim.filter(|_| rng.random_bool(0.45)).inspect(|victim| {
                    living.remove(victim);
                })
            };
            if let Some((namespace, name)) = victim {
                let api: Api<CiliumEndpoint> = Api::namespaced(client.clone(), &namespace);
                api.delete(&name, &DeleteParams::default()).await.expect("delete an endpoint");
            } else {
                let name = format!("pod-{round}-{number}");
                make_endpoint(client, namespace, &name, status(number)).await;
                let key = (namespace.to_owned(), name);
                living.lock().expect("no panic while it was held").insert(key);
            }
        }
        running.kill().await;
    }
    let running = trial.run("endpoint_slice");
    let want = living.lock().expect("no panic while it was held").clone();
    until_listed(client, &want, None).await;
    running.stop().await;
    stop.cancel();
    assert_eq!(losses.await.expect("the watch does not panic"), [""; 0], "seed {seed}");
}
