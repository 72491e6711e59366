//! The life of pods on a node of its own: a real API server, real namespaces, the real datapath.

mod crowd;
mod family;
mod labels;
mod trouble;

use std::collections::HashSet;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use cilia_crds::CiliumNode;
use cilia_runtime::testing::ApiServer;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::device::name::is_pod_device;
use crate::device::netns::Netns;
use crate::device::testing::PodNetns;
use crate::endpoint::test_agent::Agent;

fn request(number: usize, netns: &PodNetns) -> Value {
    json!({
        "container_id": format!("c{number}"),
        "netns": netns.path,
        "ifname": "eth0",
        "args": {"K8S_POD_NAME": format!("p{number}"), "K8S_POD_NAMESPACE": "default"},
        "config": {"cniVersion": "1.1.0", "name": "cilium"},
    })
}

fn pod(number: usize) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": format!("p{number}"), "labels": {"app": format!("app-{}", number % 5)}},
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "none"}]},
    }))
    .unwrap()
}

async fn node(server: &ApiServer) {
    node_with(server, "192.0.2.1", &["10.0.0.0/24", "fd00::/116"]).await;
}

async fn node_with(server: &ApiServer, address: &str, ranges: &[&str]) {
    let nodes: Api<Node> = Api::all(server.client());
    let node = serde_json::from_value(json!({"metadata": {"name": "n1"}})).unwrap();
    nodes.create(&PostParams::default(), &node).await.unwrap();
    let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": address}]}});
    nodes.patch_status("n1", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    let nodes: Api<CiliumNode> = Api::all(server.client());
    let cilium = json!({"metadata": {"name": "n1"}, "spec": {"ipam": {"podCIDRs": ranges}}});
    nodes.create(&PostParams::default(), &serde_json::from_value(cilium).unwrap()).await.unwrap();
}

/// Opens a connection from one pod to another, and leaves both ends open.
async fn connect(from: &PodNetns, to: &PodNetns, address: IpAddr) -> (TcpStream, TcpStream) {
    let (from, to) = (Netns::open(&from.path).unwrap(), Netns::open(&to.path).unwrap());
    let listen =
        to.run(
            move |_| async move { Ok(TcpListener::bind(SocketAddr::new(address, 8080)).unwrap()) },
        );
    let listener = listen.await.unwrap();
    let target = SocketAddr::new(address, 8080);
    let dial = from.run(move |_| async move {
        Ok(TcpStream::connect_timeout(&target, Duration::from_secs(5)).unwrap())
    });
    let near = dial.await.unwrap();
    (near, listener.accept().unwrap().0)
}

fn talk((near, far): &mut (TcpStream, TcpStream), word: &[u8]) {
    near.write_all(word).unwrap();
    far.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut heard = vec![0; word.len()];
    far.read_exact(&mut heard).unwrap();
    assert_eq!(heard, word);
}

async fn nothing_is_left(agent: &Agent, state: &std::path::Path) {
    let parts = agent.lifecycle.parts();
    let devices: HashSet<String> =
        parts.netlink.links().await.unwrap().into_iter().map(|link| link.name).collect();
    assert!(!devices.iter().any(|name| is_pod_device(name)), "{devices:?}");
    let routes = parts.netlink.routes().await.unwrap();
    let pods = |route: &crate::device::Route| {
        route.device.is_some()
            && !parts.nodes.local().unwrap().routers.contains(&route.destination.addr())
    };
    let inside = |route: &crate::device::Route| {
        parts
            .nodes
            .local()
            .unwrap()
            .pod_cidrs
            .iter()
            .any(|range| range.contains(&route.destination.addr()))
    };
    assert!(!routes.iter().any(|route| pods(route) && inside(route)), "{routes:?}");
    assert!(parts.endpoints.list().is_empty());
    let addresses = parts.datapath.endpoints().entries().unwrap();
    assert!(addresses.iter().all(|(_, info)| info.host), "{addresses:?}");
    assert_eq!(parts.datapath.policies().unwrap(), Vec::<u16>::new());
    assert!(!parts.datapath.attached().unwrap().iter().any(|name| is_pod_device(name)));
    let own = parts.nodes.local().unwrap().routers.len();
    assert_eq!(parts.ipam.list().len(), own, "the router's");
    let directories = std::fs::read_dir(state.join("state")).unwrap().count();
    assert_eq!(directories, 0);
    let connections = parts.datapath.conntrack().entries().unwrap();
    assert!(connections.is_empty(), "{connections:?}");
}

fn addresses_of(result: &Value) -> Vec<String> {
    let ips = result["ips"].as_array().unwrap().iter();
    ips.map(|ip| ip["address"].as_str().unwrap().to_owned()).collect()
}
