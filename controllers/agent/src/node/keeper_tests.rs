//! The node's object on a real API server, with the test as operator and as meddler.

use cilia_crds::CiliumNode;
use cilia_runtime::lanes::Workqueues;
use cilia_runtime::metrics::Metrics;
use cilia_runtime::testing::{ApiServer, eventually};
use cilia_runtime::watch::Event;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{Keeper, Nodes};
use crate::ipam::Ipam;
use crate::node::own::tests::config;
use crate::node::{IpamMode, LocalNode};
use crate::readiness::Readiness;

fn start(server: &ApiServer, agent: &str) -> (Nodes, Readiness, CancellationToken) {
    let (nodes, readiness, token) =
        (Nodes::default(), Readiness::new(&["node"]), CancellationToken::new());
    let workqueues = Workqueues::register(&Metrics::new("cilium"));
    let keeper = Keeper::new(
        config(IpamMode::ClusterPool),
        server.client_as(agent),
        nodes.clone(),
        Ipam::default(),
        readiness.clone(),
        &workqueues,
    );
    let stop = token.clone();
    tokio::spawn(async move { keeper.run(stop).await });
    (nodes, readiness, token)
}

async fn patch(api: &Api<CiliumNode>, patch: Value) {
    api.patch("n1", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_object_is_made_kept_and_left_alone() {
    let server = crate::endpoint::testing::api_server().await;
    let (nodes, readiness, token) = start(&server, "first");
    let says = async |words: &str| {
        eventually(|| async {
            let closed = readiness.closed();
            if closed.iter().any(|(_, reason)| reason.contains(words)) {
                Ok(())
            } else {
                Err(closed)
            }
        })
        .await;
    };
    says("waiting for Kubernetes to have a Node n1").await;
    let kubernetes: Api<Node> = Api::all(server.client());
    let node: Node =
        serde_json::from_value(json!({"metadata": {"name": "n1", "labels": {"zone": "a"}}}))
            .unwrap();
    kubernetes.create(&PostParams::default(), &node).await.unwrap();
    let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}, {"type": "Hostname", "address": "n1"}]}});
    kubernetes.patch_status("n1", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    says("waiting for cilium-operator").await;

    let api: Api<CiliumNode> = Api::all(server.client());
    patch(&api, json!({"spec": {"ipam": {"podCIDRs": ["10.0.0/24"]}}})).await;
    says("CiliumNode n1: spec.ipam.podCIDRs[0]: \"10.0.0/24\" is no CIDR").await;
    patch(&api, json!({"spec": {"ipam": {"podCIDRs": ["10.0.0.0/24", "fd00::/120"]}}})).await;
    let local = nodes.wait_local().await;
    assert_eq!(local.routers.len(), 2);
    let is_right = async || {
        eventually(|| async {
            let node = api.get("n1").await.unwrap();
            let info = super::NodeInfo::from(&node);
            let right = info.internal_ipv4 == "192.0.2.1".parse().ok()
                && info.cilium_internal_ipv4 == "10.0.0.1".parse().ok()
                && info.cilium_internal_ipv6 == "fd00::1".parse().ok()
                && info.labels.get("zone").is_some_and(|zone| zone == "a")
                && node
                    .metadata
                    .owner_references
                    .iter()
                    .flatten()
                    .any(|owner| owner.kind == "Node")
                && node.spec.bootid.is_some();
            if right { Ok(()) } else { Err(node) }
        })
        .await;
    };
    is_right().await;
    patch(
        &api,
        json!({"metadata": {"ownerReferences": null}, "spec": {"addresses": null, "bootid": "x"}}),
    )
    .await;
    is_right().await;
    assert_eq!(nodes.local().unwrap(), local);

    // Deleted, it comes back with the ranges that pods have addresses from.
    api.delete("n1", &kube::api::DeleteParams::default()).await.unwrap();
    eventually(|| async {
        let node = api.get_opt("n1").await.unwrap();
        let ranges = node.clone().and_then(|node| node.spec.ipam).map(|ipam| ipam.pod_cidrs);
        let want = ["10.0.0.0/24", "fd00::/120"].map(str::to_owned);
        if ranges.is_some_and(|ranges| ranges == want) { Ok(()) } else { Err(node) }
    })
    .await;
    is_right().await;
    assert_eq!(nodes.local().unwrap(), local);

    // A second node comes and goes.
    let other: CiliumNode = serde_json::from_value(
        json!({"metadata": {"name": "n2"}, "spec": {"ipam": {"podCIDRs": ["10.0.1.0/24"]}}}),
    )
    .unwrap();
    api.create(&PostParams::default(), &other).await.unwrap();
    eventually(|| async { if nodes.list().len() == 2 { Ok(()) } else { Err(nodes.list()) } }).await;
    api.delete("n2", &kube::api::DeleteParams::default()).await.unwrap();
    eventually(|| async { if nodes.list().len() == 1 { Ok(()) } else { Err(nodes.list()) } }).await;

    // A new agent finds everything right.
    token.cancel();
    let (nodes, readiness, token) = start(&server, "second");
    let again: LocalNode = LocalNode::clone(&*nodes.wait_local().await);
    eventually(|| async { readiness.closed().pop().map_or(Ok(()), Err) }).await;
    assert_eq!(again, *local);
    let written =
        server.writes().await.into_iter().filter(|write| write.agent.starts_with("second")).count();
    assert_eq!(written, 0);
    token.cancel();
}

#[tokio::test]
async fn an_answer_that_comes_late_is_no_news() {
    let nowhere = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    let keeper = Keeper::new(
        config(IpamMode::ClusterPool),
        kube::Client::try_from(nowhere).unwrap(),
        Nodes::default(),
        Ipam::default(),
        Readiness::new(&["node"]),
        &Workqueues::register(&Metrics::new("cilium")),
    );
    let node = |version: &str| -> CiliumNode {
        let metadata = json!({"name": "n1", "uid": "u", "resourceVersion": version});
        serde_json::from_value(json!({"metadata": metadata, "spec": {}})).unwrap()
    };
    keeper.cilium_node(Event::Applied(node("70")));
    keeper.wrote("patch", Ok(node("69"))).await.unwrap();
    let version = || keeper.seen().own.as_ref()?.metadata.resource_version.clone();
    assert_eq!(version().as_deref(), Some("70"), "the watch has said more");
    keeper.wrote("patch", Ok(node("100"))).await.unwrap();
    assert_eq!(version().as_deref(), Some("100"));
}
