use cilia_runtime::testing::eventually;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::TAINT_KEY;
use crate::failure::Failure;
use crate::trial::Trial;

async fn make_node(api: &Api<Node>, name: &str, taints: Value) {
    let node = json!({ "metadata": { "name": name }, "spec": { "taints": taints } });
    let node: Node = serde_json::from_value(node).expect("a node");
    api.create(&PostParams::default(), &node).await.expect("create a node");
}

async fn make_agent(api: &Api<Pod>, name: &str, node: &str) {
    let pod = json!({
        "metadata": { "name": name, "labels": { "k8s-app": "cilium" }, "finalizers": ["test/keep"] },
        "spec": { "nodeName": node, "containers": [{ "name": "agent", "image": "agent" }] },
    });
    let pod: Pod = serde_json::from_value(pod).expect("a pod");
    api.create(&PostParams::default(), &pod).await.expect("create a pod");
}

async fn set_ready(api: &Api<Pod>, name: &str, ready: bool) {
    let ready = if ready { "True" } else { "False" };
    let status = json!({ "status": { "conditions": [{ "type": "Ready", "status": ready }] } });
    let patch = Patch::Strategic(status);
    api.patch_status(name, &PatchParams::default(), &patch).await.expect("set a pod's status");
}

/// Waits until the node has taints of exactly these keys, and `NetworkUnavailable` is as said.
async fn until(api: &Api<Node>, name: &str, taints: &[&str], network_up: bool) {
    eventually(|| async {
        let node = api.get(name).await.expect("read a node");
        let has = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        let has: Vec<String> = has.into_iter().map(|taint| taint.key).collect();
        let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
        let up = conditions.iter().any(|condition| {
            condition.type_ == "NetworkUnavailable"
                && condition.status == "False"
                && condition.reason.as_deref() == Some("CiliumIsUp")
                && condition.message.as_deref() == Some("Cilium is running on this node")
        });
        if has == taints && up == network_up {
            Ok(())
        } else {
            Err(format!("{name} has taints {has:?}, network up: {up}"))
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_follow_their_agents() {
    let trial = Trial::start(&["--set-cilium-node-taints"]).await;
    let nodes: Api<Node> = Api::all(trial.client.clone());
    let pods: Api<Pod> = Api::namespaced(trial.client.clone(), "default");
    let agent = json!({ "key": TAINT_KEY, "effect": "NoSchedule" });
    let foreign = json!({ "key": "foreign", "effect": "NoSchedule" });
    make_node(&nodes, "both", json!([agent, foreign])).await;
    make_node(&nodes, "none", json!([])).await;
    make_node(&nodes, "bare", json!([agent])).await;
    for node in ["both", "none"] {
        make_agent(&pods, &format!("agent-{node}"), node).await;
        set_ready(&pods, &format!("agent-{node}"), false).await;
    }
    let running = trial.run("node_taint");

    // TAINT-06: an agent that is not ready keeps its node closed; no agent: not ours to judge.
    until(&nodes, "none", &[TAINT_KEY], false).await;
    set_ready(&pods, "agent-both", true).await;
    set_ready(&pods, "agent-none", true).await;
    until(&nodes, "both", &["foreign"], true).await;
    until(&nodes, "none", &[], true).await;
    until(&nodes, "bare", &[TAINT_KEY], false).await;

    // TAINT-09: an agent that terminates serves no longer, though it still says so.
    pods.delete("agent-both", &DeleteParams::default()).await.expect("delete a pod");
    until(&nodes, "both", &["foreign", TAINT_KEY], true).await;
    // The node's owner hears of it.
    let events: Api<Event> = Api::all(trial.client.clone());
    eventually(|| async {
        let all = events.list(&ListParams::default()).await.expect("list events").items;
        let of_both = all.iter().filter_map(|event| {
            let about = event.regarding.as_ref()?;
            let reason = event.reason.as_deref()?;
            (about.name.as_deref() == Some("both") && about.uid.is_some()).then_some(reason)
        });
        let mut of_both: Vec<&str> = of_both.collect();
        of_both.sort_unstable();
        if of_both == ["CiliumAgentNotReady", "CiliumAgentReady"] { Ok(()) } else { Err(all) }
    })
    .await;

    // An agent that dies with all that told of it, as when its pod is deleted by force.
    let patch = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    pods.patch("agent-none", &PatchParams::default(), &patch).await.expect("let a pod go");
    let now = DeleteParams::default().grace_period(0);
    pods.delete("agent-none", &now).await.expect("delete a pod");
    until(&nodes, "none", &[TAINT_KEY], true).await;
    make_agent(&pods, "agent-again", "none").await;
    set_ready(&pods, "agent-again", true).await;
    until(&nodes, "none", &[], true).await;

    // A node that vanishes and returns is another one: it is not up before its agent is.
    nodes.delete("none", &DeleteParams::default()).await.expect("delete a node");
    make_node(&nodes, "none", json!([agent])).await;
    until(&nodes, "none", &[], true).await;
    running.stop().await;

    // A restart at rest writes nothing: after a new node's writes there are no others.
    let before = trial.writes(0).await.len();
    let running = trial.run("node_taint");
    make_node(&nodes, "new", json!([agent])).await;
    make_agent(&pods, "agent-new", "new").await;
    set_ready(&pods, "agent-new", true).await;
    until(&nodes, "new", &[], true).await;
    running.stop().await;
    let writes = trial.writes(before).await;
    assert!(writes.iter().all(|write| write.name == "new"), "{writes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_api_server_refuses_is_told_from_what_has_changed() {
    let trial =
        Trial::start(&["--set-cilium-node-taints", "--agent-not-ready-taint-key=a b"]).await;
    let nodes: Api<Node> = Api::all(trial.client.clone());
    let foreign = json!({ "key": "foreign", "effect": "NoSchedule" });
    make_node(&nodes, "node", json!([foreign])).await;

    // A failed test of a JSON patch and an invalid object both are 422.
    let patch = async |operations: Value| {
        let patch = Patch::Json::<()>(serde_json::from_value(operations).expect("a patch"));
        let patched = nodes.patch("node", &PatchParams::default(), &patch).await;
        let failure = patched.map_err(Failure::of("patch", "node", "node")).expect_err("refused");
        (failure.code(), failure.is_stale())
    };
    let stale = json!([{ "op": "test", "path": "/spec/taints", "value": [] }]);
    assert_eq!(patch(stale).await, (Some(422), true));
    let invalid = json!([{ "op": "replace", "path": "/spec/taints/0/key", "value": "a b" }]);
    assert_eq!(patch(invalid).await, (Some(422), false));

    // So a taint that is not valid is a failure that is logged and tried less and less often.
    let pods: Api<Pod> = Api::namespaced(trial.client.clone(), "default");
    make_agent(&pods, "agent", "node").await;
    let running = trial.run("node_taint");
    let retries = "cilium_operator_workqueue_retries_total{queue_name=\"node-queue\"} 1";
    eventually(|| async {
        let shown = running.metrics.render();
        if shown.lines().any(|line| line == retries) { Ok(()) } else { Err(shown) }
    })
    .await;
    running.stop().await;
}
