use cilia_crds::{CiliumNode, CiliumPodIpPool};
use cilia_runtime::testing::eventually;
use k8s_openapi::api::core::v1::Event;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::trial::Trial;

/// What an agent writes: what it wants of pools, and what it lists.
fn spec(requested: &[(&str, u32)], allocated: &[(&str, &[&str])]) -> Value {
    let requested: Vec<Value> = requested
        .iter()
        .map(|(pool, n)| json!({ "pool": pool, "needed": { "ipv4-addrs": n } }))
        .collect();
    let allocated: Vec<Value> =
        allocated.iter().map(|(pool, cidrs)| json!({ "pool": pool, "cidrs": cidrs })).collect();
    json!({ "ipam": { "pools": { "requested": requested, "allocated": allocated } } })
}

async fn make(api: &Api<CiliumNode>, name: &str, spec: Value) {
    let object = json!({ "metadata": { "name": name }, "spec": spec });
    let object: CiliumNode = serde_json::from_value(object).expect("a node");
    api.create(&PostParams::default(), &object).await.expect("create a node");
}

async fn change(api: &Api<CiliumNode>, name: &str, spec: Value) {
    let patch = Patch::Merge(json!({ "spec": spec }));
    api.patch(name, &PatchParams::default(), &patch).await.expect("edit a node");
}

/// Waits until the node has these ranges, pool by pool, and an error with this in it.
async fn until(api: &Api<CiliumNode>, name: &str, want: &[(&str, &[&str])], error: &str) {
    eventually(|| async {
        let node = api.get(name).await.expect("read a node");
        let pools = node.spec.ipam.and_then(|ipam| ipam.pools).unwrap_or_default();
        let has: Vec<(String, Vec<String>)> =
            pools.allocated.into_iter().map(|one| (one.pool, one.cidrs)).collect();
        let ipam = node.status.and_then(|status| status.ipam);
        let status = ipam.and_then(|ipam| ipam.operator_status).and_then(|status| status.error);
        let said = status.unwrap_or_default();
        let right = has.len() == want.len()
            && has.iter().zip(want).all(|(has, want)| has.0 == want.0 && has.1 == want.1);
        if right && said.contains(error) && said.is_empty() == error.is_empty() {
            Ok(())
        } else {
            Err(format!("{name} has {has:?} and error {said:?}"))
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_get_ranges_of_pools() {
    let trial = Trial::start(&[
        "--ipam=multi-pool",
        "--enable-ipv6=false",
        "--auto-create-cilium-pod-ip-pools=default=ipv4-cidrs:10.0.0.0/22;ipv4-mask-size:24,red=ipv4-cidrs:10.9.0.0/30;ipv4-mask-size:32",
    ])
    .await;
    // What the chart adds in this mode.
    let role = json!({
        "metadata": { "name": "multi-pool" },
        "rules": [{ "apiGroups": ["cilium.io"], "resources": ["ciliumpodippools"], "verbs": ["list", "watch", "create"] }],
    });
    trial.allow(serde_json::from_value(role).expect("a role")).await;
    let nodes: Api<CiliumNode> = Api::all(trial.client.clone());
    let pools: Api<CiliumPodIpPool> = Api::all(trial.client.clone());
    // There before nodes ask for it: what is granted while "no such pool" is being written is
    // granted anew, and is another range then.
    let default = json!({
        "metadata": { "name": "default" },
        "spec": { "ipv4": { "cidrs": ["10.0.0.0/22"], "maskSize": 24 } },
    });
    let default: CiliumPodIpPool = serde_json::from_value(default).expect("a pool");
    pools.create(&PostParams::default(), &default).await.expect("create a pool");
    // Listed before the one that has the first block.
    make(&nodes, "a", spec(&[("default", 10)], &[])).await;
    make(&nodes, "b", spec(&[("default", 10)], &[("default", &["10.0.0.0/24"])])).await;
    let running = trial.run("ipam");
    until(&nodes, "a", &[("default", &["10.0.1.0/24"])], "").await;

    eventually(|| pools.get("red")).await;

    // More demand, of one pool and of another; a pool that is empty is said, and helped.
    change(&nodes, "a", spec(&[("default", 300), ("red", 3)], &[("default", &["10.0.1.0/24"])]))
        .await;
    let three: &[&str] = &["10.9.0.0/32", "10.9.0.1/32", "10.9.0.2/32"];
    until(&nodes, "a", &[("default", &["10.0.1.0/24", "10.0.2.0/24"]), ("red", three)], "").await;
    make(&nodes, "c", spec(&[("red", 2)], &[])).await;
    until(&nodes, "c", &[("red", &["10.9.0.3/32"])], "from pool \"red\": pool empty").await;
    change(&nodes, "a", spec(&[], &[("default", &["10.0.1.0/24"]), ("red", &["10.9.0.0/32"])]))
        .await;
    until(&nodes, "c", &[("red", &["10.9.0.1/32", "10.9.0.3/32"])], "").await;

    // The pool is deleted under use, another one takes its range, and it comes back.
    pools.delete("red", &DeleteParams::default()).await.expect("delete a pool");
    let orphans: &[&str] = &["10.9.0.1/32", "10.9.0.3/32"];
    until(&nodes, "c", &[("red", orphans)], "stays allocated to the node as an orphan").await;
    let blue: CiliumPodIpPool = serde_json::from_value(json!({
        "metadata": { "name": "blue" },
        "spec": { "ipv4": { "cidrs": ["10.9.0.0/30"], "maskSize": 32 } },
    }))
    .expect("a pool");
    pools.create(&PostParams::default(), &blue).await.expect("create a pool");
    make(&nodes, "d", spec(&[("blue", 2)], &[])).await;
    until(&nodes, "d", &[("blue", &["10.9.0.2/32"])], "pool empty").await;
    let events: Api<Event> = Api::all(trial.client.clone());
    eventually(|| async {
        let all = events.list(&ListParams::default()).await.expect("list events").items;
        let messages: Vec<String> = all.into_iter().filter_map(|event| event.message).collect();
        let told = messages.iter().any(|note| note.contains("10.9.0.1/32 (node c, from pool red)"));
        if told { Ok(()) } else { Err(messages) }
    })
    .await;
    let mut red = blue.clone();
    red.metadata.name = Some("red".to_owned());
    pools.create(&PostParams::default(), &red).await.expect("create a pool");
    until(&nodes, "c", &[("red", orphans)], "").await;

    // A mask that changes is refused, and said on the pool.
    let mask = Patch::Merge(json!({ "spec": { "ipv4": { "maskSize": 31 } } }));
    pools.patch("red", &PatchParams::default(), &mask).await.expect("edit a pool");
    eventually(|| async {
        let all = events.list(&ListParams::default()).await.expect("list events").items;
        let reasons: Vec<String> = all.into_iter().filter_map(|event| event.message).collect();
        let told = reasons.iter().any(|note| note.contains("cannot change IPv4 mask size"));
        if told { Ok(()) } else { Err(reasons) }
    })
    .await;
    let mask = Patch::Merge(json!({ "spec": { "ipv4": { "maskSize": 32 } } }));
    pools.patch("red", &PatchParams::default(), &mask).await.expect("edit a pool");

    // A node goes, and what it had helps the other.
    change(&nodes, "d", spec(&[("blue", 1)], &[("blue", &["10.9.0.2/32"])])).await;
    until(&nodes, "d", &[("blue", &["10.9.0.2/32"])], "").await;
    running.stop().await;

    // A restart at rest writes nothing: after a new node's write there are no others.
    let before = trial.writes(0).await.len();
    let running = trial.run("ipam");
    make(&nodes, "e", spec(&[("default", 10)], &[])).await;
    until(&nodes, "e", &[("default", &["10.0.2.0/24"])], "").await;
    let writes = trial.writes(before).await;
    let names: Vec<&str> = writes.iter().map(|write| write.name.as_str()).collect();
    assert_eq!(names, ["e"], "{writes:?}");
    running.stop().await;

    // After a leader that was cut off, nodes that lack something are fenced before anything is given out, and those
    // with ranges of pools that are as young as these; no trace of that is left on whom something is given.
    make(&nodes, "f", spec(&[("default", 10)], &[])).await;
    let before = trial.writes(0).await.len();
    let running = trial.run_after_one_cut_off("ipam");
    until(&nodes, "f", &[("default", &["10.0.3.0/24"])], "").await;
    let marks = async || {
        let all = nodes.list(&ListParams::default()).await.expect("list nodes").items;
        all.into_iter()
            .map(|node| node.metadata.annotations.unwrap_or_default().len())
            .sum::<usize>()
    };
    eventually(|| async {
        let left = marks().await;
        if left == 0 { Ok(()) } else { Err(left) }
    })
    .await;
    running.stop().await;
    let done = trial.writes(before).await.into_iter().filter(|write| write.code < 300);
    let names: Vec<String> = done.map(|write| write.name).collect();
    let all = ["a", "b", "c", "d", "e", "f"];
    let of = |name: &str| names.iter().filter(|one| *one == name).count();
    assert_eq!(all.map(of), [2; 6], "one fence each, and one write that takes it away: {names:?}");
    let given = names.iter().rposition(|name| name == "f");
    let fences = all.map(|name| names.iter().position(|one| one == name));
    assert!(fences.iter().all(|fence| *fence < given), "first the fences: {names:?}");
}
