//! Endpoints that others wire, on a node of its own: a real API server, real namespaces, the real datapath.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use cilia_crds::CiliumNode;
use cilia_loader::testing::BpfFs;
use cilia_runtime::config::{Config, Flags};
use cilia_runtime::metrics::Metrics;
use cilia_runtime::testing::ApiServer;
use http::{Method, Request};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::router;
use crate::api::{Counters, Loans};
use crate::cni::Server;
use crate::device::name::pod_device;
use crate::device::netns::Netns;
use crate::device::pod;
use crate::device::testing::{PodNetns, in_private_node};
use crate::endpoint::Endpoints;
use crate::endpoint::test_agent::Agent;
use crate::endpoint::testing::api_server;
use crate::readiness::Readiness;

const LENT: &str = "10.0.0.77";

async fn cluster() -> ApiServer {
    let server = api_server().await;
    let nodes: Api<Node> = Api::all(server.client());
    let node = serde_json::from_value(json!({"metadata": {"name": "n1"}})).unwrap();
    nodes.create(&PostParams::default(), &node).await.unwrap();
    let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}});
    nodes.patch_status("n1", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    let nodes: Api<CiliumNode> = Api::all(server.client());
    let cilium = json!({"metadata": {"name": "n1"}, "spec": {"ipam": {"podCIDRs": ["10.0.0.0/24", "fd00::/116"]}}});
    nodes.create(&PostParams::default(), &serde_json::from_value(cilium).unwrap()).await.unwrap();
    let pods: Api<Pod> = Api::namespaced(server.client(), "default");
    for name in ["wired", "plain"] {
        let pod = json!({"metadata": {"name": name, "labels": {"app": name}},
            "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "none"}]}});
        pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    }
    server
}

async fn ask(router: &Router, method: Method, path: &str, body: &Value) -> (u16, String) {
    let request = Request::builder().method(method).uri(path);
    let request = request.header("content-type", "application/json");
    let request = request.body(Body::from(body.to_string())).unwrap();
    let answer = router.clone().oneshot(request).await.unwrap();
    let status = answer.status().as_u16();
    let body = axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap();
    (status, String::from_utf8_lossy(&body).into_owned())
}

fn wanted(container: &str, address: &str, ifindex: u32, mac: &str) -> Value {
    json!({"state": "waiting-for-identity", "container-id": container, "container-interface-name": "eth0",
        "interface-name": pod_device(container, "eth0"), "interface-index": ifindex, "mac": mac,
        "k8s-namespace": "default", "k8s-pod-name": "wired", "addressing": {"ipv4": address},
        "sync-build-endpoint": true})
}

/// Says a word from one pod to another.
async fn talk(from: &PodNetns, to: &PodNetns, address: IpAddr) {
    let (from, to) = (Netns::open(&from.path).unwrap(), Netns::open(&to.path).unwrap());
    let target = SocketAddr::new(address, 8080);
    let listen = to.run(move |_| async move { Ok(TcpListener::bind(target).unwrap()) });
    let listener = listen.await.unwrap();
    let dial = from.run(move |_| async move {
        Ok(TcpStream::connect_timeout(&target, Duration::from_secs(10)).unwrap())
    });
    let mut near = dial.await.unwrap();
    let mut far = listener.accept().unwrap().0;
    near.write_all(b"word").unwrap();
    far.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut heard = [0; 4];
    far.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"word");
}

#[test]
fn what_others_wire_becomes_an_endpoint() {
    in_private_node(|| async {
        let server = cluster().await;
        let (state, bpf) = (tempfile::tempdir().unwrap(), BpfFs::mount());
        let agent = Agent::start(&server, "agent", state.path(), bpf.path()).await;
        let parts = agent.lifecycle.parts();
        let loans = Loans::new(parts.ipam.clone(), &parts.workqueues);
        let limit =
            ["--api-rate-limit=endpoint-create=skip-initial:99,endpoint-patch=skip-initial:99"];
        let config = Config::load(Flags::agent(), limit.map(str::to_owned), []).unwrap();
        let counters = Counters::register(&Metrics::new("cilium"));
        let router = router(
            &config,
            parts.endpoints.clone(),
            agent.server.clone(),
            loans.clone(),
            &counters,
        );

        let places = [PodNetns::new(), PodNetns::new()];
        let plain = json!({"container_id": "c2", "netns": places[1].path, "ifname": "eth0",
            "args": {"K8S_POD_NAME": "plain", "K8S_POD_NAMESPACE": "default"}, "config": {}});
        let (status, result) = agent.cni("add", &plain).await;
        assert_eq!(status, 200, "{result}");

        let address: IpAddr = LENT.parse().unwrap();
        loans.lend_this(address, "default/wired").unwrap();
        let id = "/v1/endpoint/cni-attachment-id:c1:eth0";
        // There is no device yet: nothing is left of the endpoint, and nobody has the address.
        let (status, why) =
            ask(&router, Method::PUT, id, &wanted("c1", LENT, 0, "02:00:00:00:00:01")).await;
        assert_eq!((status, why.starts_with("interface-name: ")), (400, true), "{why}");
        assert_eq!((loans.list(), parts.ipam.owner(address)), (vec![], None));

        loans.lend_this(address, "default/wired").unwrap();
        let routers = parts
            .nodes
            .local()
            .unwrap()
            .routers
            .iter()
            .filter(|router| router.is_ipv4())
            .copied()
            .collect();
        let device = pod::Attachment {
            host_device: pod_device("c1", "eth0"),
            ifname: "eth0".into(),
            mtu: 1500,
            route_mtu: 1450,
            addresses: vec![address],
            routers,
        };
        let netns = Netns::open(&places[0].path).unwrap();
        let made = pod::attach(&parts.netlink, &parts.sysctl, &netns, &device).await.unwrap();
        let mut wrong = wanted("c1", LENT, made.ifindex, &made.mac.to_string());
        wrong["labels"] = json!(["reserved:world"]);
        let (status, why) = ask(&router, Method::PUT, id, &wrong).await;
        assert_eq!((status, why.contains("reserved:world")), (400, true), "{why}");
        loans.lend_this(address, "default/wired").unwrap();
        let made = pod::attach(&parts.netlink, &parts.sysctl, &netns, &device).await.unwrap();
        let mut good = wanted("c1", LENT, made.ifindex, &made.mac.to_string());
        good["labels"] = json!(["stage=test"]);
        let (status, told) = ask(&router, Method::PUT, id, &good).await;
        assert_eq!(status, 201, "{told}");
        let told: Value = serde_json::from_str(&told).unwrap();
        assert_eq!(told["status"]["state"], "ready", "{told}");
        let labels = &told["status"]["labels"]["realized"]["user"];
        assert_eq!(labels, &json!(["unspec:stage=test"]), "{told}");
        assert_eq!(told["status"]["networking"]["addressing"][0]["ipv4"], LENT, "{told}");
        assert!(told["status"]["identity"]["id"].as_u64().is_some_and(|id| id >= 256), "{told}");
        assert!(loans.list().is_empty(), "the endpoint has it: {:?}", loans.list());
        talk(&places[1], &places[0], address).await;

        let id_of = format!("/v1/endpoint/{}", told["id"]);
        let cases = [
            (Method::PUT, id, good.clone(), 409),
            (Method::PUT, &id_of, good.clone(), 400),
            (Method::PATCH, &id_of, good.clone(), 200),
            (Method::PATCH, &id_of, wanted("c1", "10.0.0.78", 0, ""), 400),
            (Method::PATCH, "/v1/endpoint/pod-name:default%2Fnone", good.clone(), 404),
            (Method::PATCH, &id_of, json!({}), 422),
        ];
        for (method, path, body, status) in cases {
            let got = ask(&router, method.clone(), path, &body).await;
            assert_eq!(got.0, status, "{method} {path} {body}: {}", got.1);
        }
        agent.lifecycle.detach("c1", "eth0").await.unwrap();
        assert_eq!(parts.ipam.owner(address), None);
        assert!(parts.netlink.link(&device.host_device).await.unwrap().is_none());

        // An agent that starts makes no endpoints yet.
        let starting = Server::new(Readiness::new(&["endpoints"]));
        let router = super::router(&config, Endpoints::default(), starting, loans, &counters);
        assert_eq!(ask(&router, Method::PUT, id, &good).await.0, 503);
        agent.token.cancel();
    });
}
