//! What the node asks for and is given, on a real API server, with the test as operator and as meddler.

use std::collections::BTreeMap;
use std::path::Path;

use cilia_crds::{CiliumNode, CiliumPodIpPool};
use cilia_ipam::Family;
use cilia_runtime::lanes::Workqueues;
use cilia_runtime::metrics::Metrics;
use cilia_runtime::testing::{ApiServer, eventually};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{Keeper, Nodes};
use crate::ipam::Ipam;
use crate::node::IpamMode;
use crate::node::own::tests::config;
use crate::readiness::Readiness;

struct Agent {
    nodes: Nodes,
    ipam: Ipam,
    readiness: Readiness,
    token: CancellationToken,
}

fn start(server: &ApiServer, agent: &str, mode: IpamMode, state_dir: &Path) -> Agent {
    start_after(server, agent, mode, state_dir, &[])
}

/// An agent after one that gave `cilium_host` these addresses.
fn start_after(
    server: &ApiServer,
    agent: &str,
    mode: IpamMode,
    state_dir: &Path,
    routers: &[&str],
) -> Agent {
    let routers = routers.iter().map(|text| text.parse().unwrap()).collect();
    let mut config = config(mode);
    config.ipv6 = false;
    let (nodes, readiness, token) =
        (Nodes::default(), Readiness::new(&["node"]), CancellationToken::new());
    let ipam = Ipam::new(&config, state_dir);
    let keeper = Keeper::new(
        config,
        server.client_as(agent),
        nodes.clone(),
        ipam.clone(),
        readiness.clone(),
        &Workqueues::register(&Metrics::new("cilium")),
    );
    let stop = token.clone();
    tokio::spawn(async move { keeper.run_after(routers, stop).await });
    Agent { nodes, ipam, readiness, token }
}

async fn node(server: &ApiServer) {
    let api: Api<Node> = Api::all(server.client());
    let node: Node = serde_json::from_value(json!({"metadata": {"name": "n1"}})).unwrap();
    api.create(&PostParams::default(), &node).await.unwrap();
    let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}});
    api.patch_status("n1", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
}

/// Waits until a part of the object is as given.
async fn until(api: &Api<CiliumNode>, path: &str, want: Value) {
    eventually(|| async {
        let node = api.get_opt("n1").await.unwrap();
        let node = serde_json::to_value(node).unwrap();
        let has = node.pointer(path).cloned().unwrap_or_default();
        if has == want { Ok(()) } else { Err(format!("{path} is {has}, not {want}")) }
    })
    .await;
}

async fn patch(api: &Api<CiliumNode>, patch: Value) {
    api.patch("n1", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

fn asks(pools: &[(&str, u32)]) -> Value {
    let one = |(pool, n): &(&str, u32)| json!({"pool": pool, "needed": {"ipv4-addrs": n}});
    pools.iter().map(one).collect()
}

fn lists(pools: &[(&str, &[&str])]) -> Value {
    let one = |(pool, cidrs): &(&str, &[&str])| json!({"pool": pool, "cidrs": cidrs});
    pools.iter().map(one).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pools_are_asked_for_used_and_given_back() {
    const REQUESTED: &str = "/spec/ipam/pools/requested";
    const ALLOCATED: &str = "/spec/ipam/pools/allocated";
    let server = crate::endpoint::testing::api_server().await;
    let folder = tempfile::tempdir().unwrap();
    let mode = || IpamMode::MultiPool {
        default_pool: "default".to_owned(),
        pre_allocation: BTreeMap::from([("default".to_owned(), 8)]),
    };
    node(&server).await;
    let pools: Api<CiliumPodIpPool> = Api::all(server.client());
    for (name, range) in [("default", "10.0.0.0/16"), ("red", "10.9.0.0/16")] {
        let pool = json!({
            "metadata": {"name": name},
            "spec": {"ipv4": {"cidrs": [range], "maskSize": 27}},
        });
        pools.create(&PostParams::default(), &serde_json::from_value(pool).unwrap()).await.unwrap();
    }
    let agent = start(&server, "first", mode(), folder.path());
    let api: Api<CiliumNode> = Api::all(server.client());
    until(&api, REQUESTED, asks(&[("default", 8)])).await;
    eventually(|| async {
        let closed = agent.readiness.closed();
        let says = |words: &str| closed.iter().any(|(_, reason)| reason.contains(words));
        if says("pool default of spec.ipam.pools.allocated") { Ok(()) } else { Err(closed) }
    })
    .await;
    let given = |allocated: Value| json!({"spec": {"ipam": {"pools": {"allocated": allocated}}}});
    let default: (&str, &[&str]) = ("default", &["10.0.0.0/27"]);
    patch(&api, given(lists(&[default]))).await;
    let local = agent.nodes.wait_local().await;
    assert_eq!(local.routers, ["10.0.0.1".parse::<std::net::IpAddr>().unwrap()]);
    until(&api, REQUESTED, asks(&[("default", 16)])).await;
    agent.ipam.restored();

    // A pod of another pool waits in its ADD for the operator.
    let add = |pod: &'static str| {
        let ipam = agent.ipam.clone();
        tokio::spawn(async move {
            ipam.allocate_out_of(&[(Family::V4, "red".to_owned())], pod, pod).await
        })
    };
    let pod = add("n/p");
    until(&api, REQUESTED, asks(&[("default", 16), ("red", 1)])).await;
    let both = lists(&[default, ("red", &["10.9.0.7/32"])]);
    patch(&api, given(both.clone())).await;
    assert_eq!(pod.await.unwrap().unwrap().ipv4, "10.9.0.7".parse().ok());
    eventually(|| async {
        let local = agent.nodes.local().unwrap();
        if local.pod_cidrs.len() == 2 { Ok(()) } else { Err(local) }
    })
    .await;

    // Somebody takes it off the list under the pod: it comes back.
    patch(&api, given(lists(&[default]))).await;
    until(&api, ALLOCATED, both.clone()).await;

    // The pod goes, and with it the demand and the range.
    agent.ipam.release("n/p");
    until(&api, REQUESTED, asks(&[("default", 16)])).await;
    until(&api, ALLOCATED, lists(&[default])).await;

    // The object is deleted: it comes back with what is in use.
    api.delete("n1", &kube::api::DeleteParams::default()).await.unwrap();
    until(&api, ALLOCATED, lists(&[default])).await;
    until(&api, "/spec/addresses/1/ip", json!("10.0.0.1")).await;
    assert_eq!(agent.nodes.local().unwrap().routers, local.routers);

    // The next agent finds everything right, its router's address too.
    agent.token.cancel();
    let next = start(&server, "second", mode(), folder.path());
    assert_eq!(next.nodes.wait_local().await.routers, local.routers);
    next.ipam.restored();
    let mut other = next.ipam.demand();
    other.borrow_and_update();
    let pods = [(Family::V4, "default".to_owned())];
    let pair = next.ipam.allocate_out_of(&pods, "n/q", "n/q").await.unwrap();
    assert_ne!(pair.ipv4, "10.0.0.1".parse().ok());
    let kubernetes: Api<Node> = Api::all(server.client());
    let label = json!({"metadata": {"labels": {"zone": "b"}}});
    kubernetes.patch("n1", &PatchParams::default(), &Patch::Merge(label)).await.unwrap();
    until(&api, "/metadata/labels/zone", json!("b")).await;
    let writes = server.writes().await.into_iter();
    let writes = writes.filter(|write| write.agent.starts_with("second")).count();
    assert_eq!(writes, 1, "only the label was written");
    next.token.cancel();

    // The object is deleted while no agent runs: what the device has stays the router's, and its range the node's.
    api.delete("n1", &kube::api::DeleteParams::default()).await.unwrap();
    let third = start_after(&server, "third", mode(), folder.path(), &["10.0.0.9"]);
    third.ipam.restored();
    until(&api, ALLOCATED, lists(&[default])).await;
    let local = third.nodes.wait_local().await;
    assert_eq!(local.routers, ["10.0.0.9".parse::<std::net::IpAddr>().unwrap()]);
    third.token.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listed_addresses_are_used_told_and_given_back() {
    let server = crate::endpoint::testing::api_server().await;
    let folder = tempfile::tempdir().unwrap();
    node(&server).await;
    let agent = start(&server, "first", IpamMode::Crd, folder.path());
    let api: Api<CiliumNode> = Api::all(server.client());
    until(&api, "/metadata/name", json!("n1")).await;
    let pool = json!({"10.0.0.4": {}, "10.0.0.5": {}, "10.0.0.6": {}});
    patch(&api, json!({"spec": {"ipam": {"pool": pool}}})).await;
    let local = agent.nodes.wait_local().await;
    assert_eq!(local.routers, ["10.0.0.4".parse::<std::net::IpAddr>().unwrap()]);
    let pods = [(Family::V4, String::new())];
    agent.ipam.allocate_out_of(&pods, "n/p (c:eth0)", "n/p").await.unwrap();
    let used = json!({"10.0.0.4": {"owner": "router"}, "10.0.0.5": {"owner": "n/p"}});
    until(&api, "/status/ipam/used", used).await;

    // One is used and stays; one is not, and is given out no more.
    let marked = json!({"10.0.0.5": "marked-for-release", "10.0.0.6": "marked-for-release"});
    let status = json!({"status": {"ipam": {"release-ips": marked}}});
    api.patch_status("n1", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    let answered = json!({"10.0.0.5": "do-not-release", "10.0.0.6": "ready-for-release"});
    until(&api, "/status/ipam/release-ips", answered).await;
    assert!(agent.ipam.allocate_out_of(&pods, "n/q (d:eth0)", "n/q").await.is_err());
    patch(&api, json!({"spec": {"ipam": {"pool": {"10.0.0.6": null}}}})).await;
    let released = json!({"status": {"ipam": {"release-ips": {"10.0.0.6": "released"}}}});
    api.patch_status("n1", &PatchParams::default(), &Patch::Merge(released)).await.unwrap();
    until(&api, "/status/ipam/release-ips", json!({"10.0.0.5": "do-not-release"})).await;

    // A new agent writes nothing but that it does not know the pod any more.
    agent.token.cancel();
    let next = start(&server, "second", IpamMode::Crd, folder.path());
    assert_eq!(next.nodes.wait_local().await.routers, local.routers);
    next.ipam.restore("10.0.0.5".parse().unwrap(), "n/p (c:eth0)").unwrap();
    next.ipam.release("n/p (c:eth0)");
    until(&api, "/status/ipam/used", json!({"10.0.0.4": {"owner": "router"}})).await;
    next.token.cancel();

    // The object is deleted while no agent runs: whoever lists addresses lists the router's again.
    api.delete("n1", &kube::api::DeleteParams::default()).await.unwrap();
    let third = start_after(&server, "third", IpamMode::Crd, folder.path(), &["10.0.0.6"]);
    until(&api, "/metadata/name", json!("n1")).await;
    let pool = json!({"10.0.0.4": {}, "10.0.0.5": {}, "10.0.0.6": {}});
    patch(&api, json!({"spec": {"ipam": {"pool": pool}}})).await;
    let local = third.nodes.wait_local().await;
    assert_eq!(local.routers, ["10.0.0.6".parse::<std::net::IpAddr>().unwrap()]);
    third.token.cancel();
}
