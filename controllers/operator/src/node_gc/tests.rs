use cilia_crds::CiliumNode;
use cilia_runtime::testing::eventually;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::events::v1::Event;
use kube::api::{ListParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::trial::Trial;

#[tokio::test(flavor = "multi_thread")]
async fn nodes_without_a_node_go() {
    // NODEGC-01, NODEGC-02.
    let trial = Trial::start(&["--nodes-gc-interval=300ms"]).await;
    let api: Api<CiliumNode> = Api::all(trial.client.clone());
    let nodes: Api<Node> = Api::all(trial.client.clone());
    let node = json!({ "metadata": { "name": "valid" } });
    let node: Node = serde_json::from_value(node).expect("a node");
    nodes.create(&PostParams::default(), &node).await.expect("create a node");
    let owner = json!([{ "apiVersion": "v1", "kind": "Node", "name": "x", "uid": "1" }]);
    for (name, metadata) in [
        ("valid", json!({})),
        ("invalid", json!({})),
        ("owned", json!({ "ownerReferences": owner })),
        ("kept", json!({ "annotations": { "cilium.io/do-not-gc": "TRUE" } })),
    ] {
        let mut object = json!({ "metadata": metadata, "spec": {} });
        object["metadata"]["name"] = json!(name);
        let object: CiliumNode = serde_json::from_value(object).expect("a node");
        api.create(&PostParams::default(), &object).await.expect("create a node");
    }
    let duty = trial.run("node_gc");
    eventually(|| async {
        let left = api.list(&ListParams::default()).await.expect("list nodes");
        let left: Vec<String> = left.items.iter().map(ResourceExt::name_any).collect();
        if left == ["kept", "owned", "valid"] { Ok(()) } else { Err(left) }
    })
    .await;
    let events: Api<Event> = Api::all(trial.client.clone());
    eventually(|| async {
        let told = events.list(&ListParams::default()).await.expect("list events").items;
        // The API server tells of its own service now and then.
        let about = told.into_iter().filter_map(|event| event.regarding);
        let nodes = about.filter(|about| about.kind.as_deref() == Some("CiliumNode"));
        let told: Vec<_> = nodes.filter_map(|about| about.name).collect();
        if told == ["invalid"] { Ok(()) } else { Err(told) }
    })
    .await;
    duty.stop().await;
    assert_eq!(trial.writes(0).await.len(), 1, "one deletion and nothing else");
}
