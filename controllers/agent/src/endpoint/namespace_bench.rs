//! How long the labels of a namespace take to arrive at all of its endpoints' objects.
//!
//! One agent has all of the pods, in network namespaces without containers: one node more than does the work of four
//! with 250 pods each. Client, API server, devices, datapath and the wait for other nodes are those of the program.
//!
//! `CILIA_NAMESPACE_PODS=1000 cargo test -p cilia-agent -- --ignored --nocapture a_namespace_changes`

use std::time::{Duration, Instant};

use cilia_crds::{CiliumEndpoint, CiliumNode};
use cilia_identity::Space;
use cilia_runtime::testing::{ApiServer, eventually_for};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::test_agent::{Agent, ask};
use super::testing::api_server;
use crate::device::testing::{BpfFs, PodNetns, in_private_node};
use crate::identity::{Identities, Management, Settings};

const SETS: usize = 10;
const LIMIT: Duration = Duration::from_mins(5);
const PARALLEL: usize = 16;
/// The default of `identity-change-grace-period`.
const GRACE: Duration = Duration::from_secs(5);

fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

async fn cluster(server: &ApiServer, pods: usize) {
    let post = PostParams::default();
    let nodes: Api<Node> = Api::all(server.client());
    nodes.create(&post, &object(json!({"metadata": {"name": "n1"}}))).await.unwrap();
    let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}});
    nodes.patch_status("n1", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    let nodes: Api<CiliumNode> = Api::all(server.client());
    let ranges = json!(["10.0.0.0/20", "fd00::/112"]);
    let node = json!({"metadata": {"name": "n1"}, "spec": {"ipam": {"podCIDRs": ranges}}});
    nodes.create(&post, &object(node)).await.unwrap();
    let api: Api<Pod> = Api::namespaced(server.client(), "default");
    let create = async |number: usize| {
        let pod = json!({
            "metadata": {"name": format!("p{number}"), "labels": {"app": format!("app-{}", number % SETS)}},
            "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "none"}]},
        });
        api.create(&post, &object(pod)).await.map(drop)
    };
    stream::iter(0..pods).map(create).buffer_unordered(PARALLEL).try_collect::<()>().await.unwrap();
}

/// Waits until so many objects have the label.
async fn wait(server: &ApiServer, pods: usize, label: &str) {
    let objects: Api<CiliumEndpoint> = Api::namespaced(server.client(), "default");
    let moved = |endpoint: &CiliumEndpoint| {
        let identity = endpoint.status.as_ref().and_then(|status| status.identity.as_ref());
        identity.is_some_and(|identity| identity.labels.iter().any(|own| own.contains(label)))
    };
    eventually_for(LIMIT, || async {
        let objects = objects.list(&ListParams::default()).await.unwrap().items;
        let count = objects.iter().filter(|endpoint| moved(endpoint)).count();
        if count == pods { Ok(()) } else { Err(count) }
    })
    .await;
}

#[test]
#[ignore = "a benchmark"]
fn a_namespace_changes() {
    let pods = std::env::var("CILIA_NAMESPACE_PODS");
    let pods = pods.map_or(100, |pods| pods.parse().expect("CILIA_NAMESPACE_PODS is a number"));
    in_private_node(|| async move {
        let server = api_server().await;
        cluster(&server, pods).await;
        let (state, bpf) = (tempfile::tempdir().unwrap(), BpfFs::mount());
        let settings = Settings {
            space: Space::new(0, 255).unwrap(),
            management: Management::Agent,
            well_known: Vec::new(),
            timeout: LIMIT,
            grace: GRACE,
        };
        let identities = Identities::with_settings(server.client_as("agent"), settings);
        let agent = Agent::start_with(&server, "agent", state.path(), bpf.path(), identities).await;
        let places: Vec<PodNetns> = (0..pods).map(|_| PodNetns::new()).collect();
        let add = async |(number, place): (usize, &PodNetns)| {
            let body = json!({
                "container_id": format!("c{number}"),
                "netns": place.path,
                "ifname": "eth0",
                "args": {"K8S_POD_NAME": format!("p{number}"), "K8S_POD_NAMESPACE": "default"},
                "config": {"cniVersion": "1.1.0", "name": "cilium"},
            });
            let (status, result) = ask(&agent.server, "add", &body).await;
            assert_eq!(status, 200, "{result}");
        };
        let adds = stream::iter(places.iter().enumerate());
        adds.map(add).buffer_unordered(PARALLEL).collect::<()>().await;
        wait(&server, pods, "app=").await;

        let namespaces: Api<Namespace> = Api::all(server.client());
        for turn in 0..3 {
            let value = format!("turn-{turn}");
            let patch = Patch::Merge(json!({"metadata": {"labels": {"team": value}}}));
            let start = Instant::now();
            namespaces.patch("default", &PatchParams::default(), &patch).await.unwrap();
            wait(&server, pods, &value).await;
            println!("{pods} pods, all objects updated after {:.2?}", start.elapsed());
        }
        agent.token.cancel();
    });
}
