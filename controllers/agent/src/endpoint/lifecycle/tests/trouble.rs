//! Objects that others delete, addresses that change, files that can't be removed or read.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use cilia_crds::CiliumEndpoint;
use cilia_runtime::testing::eventually;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use super::{connect, node, nothing_is_left, pod, request, talk};
use crate::device::netns::Netns;
use crate::device::testing::{PodNetns, in_private_node};
use crate::endpoint::test_agent::Agent;
use crate::endpoint::testing::api_server;

/// A pod reaches another one of its node by a port of the node, as `portmap` makes one.
async fn reach_by_the_node(from: &PodNetns, to: &PodNetns, address: IpAddr) {
    let rules = format!(
        "add table ip ports; \
         add chain ip ports in {{ type nat hook prerouting priority dstnat; }}; \
         add rule ip ports in ip daddr 192.0.2.1 tcp dport 9999 dnat to {address}:9090"
    );
    let made = std::process::Command::new("nft").arg(rules).status().unwrap();
    assert!(made.success());
    let (from, to) = (Netns::open(&from.path).unwrap(), Netns::open(&to.path).unwrap());
    let listen =
        to.run(
            move |_| async move { Ok(TcpListener::bind(SocketAddr::new(address, 9090)).unwrap()) },
        );
    let listener = listen.await.unwrap();
    let dial = from.run(|_| async {
        let target = "192.0.2.1:9999".parse().unwrap();
        Ok(TcpStream::connect_timeout(&target, Duration::from_secs(5)).unwrap())
    });
    let near = dial.await.unwrap();
    talk(&mut (near, listener.accept().unwrap().0), b"by the node");
}

/// What a deletion leaves when something of it can't be done, as this mount keeps it from.
fn hold(file: &std::path::Path) {
    use nix::mount::{MsFlags, mount};
    mount(Some(file), file, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
}

#[test]
fn trouble_costs_no_pod_its_network() {
    in_private_node(|| async {
        let server = api_server().await;
        node(&server).await;
        let state = tempfile::tempdir().unwrap();
        let bpf = cilia_loader::testing::BpfFs::mount();
        let agent = Agent::start(&server, "first", state.path(), bpf.path()).await;
        let pods: Api<Pod> = Api::namespaced(server.client(), "default");
        let objects: Api<CiliumEndpoint> = Api::namespaced(server.client(), "default");
        let places: Vec<PodNetns> = (0..3).map(|_| PodNetns::new()).collect();
        for (number, place) in places.iter().enumerate().skip(1) {
            pods.create(&PostParams::default(), &pod(number)).await.unwrap();
            let (status, result) = agent.cni("add", &request(number, place)).await;
            assert_eq!(status, 200, "{result}");
        }

        // A static pod is called by the hash of its file, and its object by another name.
        let mut mirror = pod(0);
        mirror.metadata.annotations =
            Some([("kubernetes.io/config.mirror".to_owned(), "hash".to_owned())].into());
        let mirror = pods.create(&PostParams::default(), &mirror).await.unwrap();
        let mut of_static = request(0, &places[0]);
        of_static["args"]["K8S_POD_UID"] = json!("hash");
        let (status, result) = agent.cni("add", &of_static).await;
        assert_eq!(status, 200, "{result}");
        let published = async |name: &'static str, not: Option<String>| {
            let mut uid = None;
            eventually(|| {
                let objects = objects.clone();
                let not = not.clone();
                async move {
                    let object = objects.get_opt(name).await.unwrap();
                    object.filter(|object| object.metadata.uid != not).ok_or(name)
                }
            })
            .await;
            let object = objects.get(name).await.unwrap();
            uid.clone_from(&object.metadata.uid);
            (uid, object.metadata.owner_references.unwrap().remove(0).uid)
        };
        let (_, owner) = published("p0", None).await;
        assert_eq!(Some(owner), mirror.metadata.uid);

        // An object that somebody deletes comes back by itself.
        let (uid, _) = published("p1", None).await;
        objects.delete("p1", &DeleteParams::default()).await.unwrap();
        published("p1", uid).await;

        // The node's address changes: others hear of it by the pods' objects.
        let nodes: Api<Node> = Api::all(server.client());
        for address in ["192.0.2.7", "192.0.2.1"] {
            let status =
                json!({"status": {"addresses": [{"type": "InternalIP", "address": address}]}});
            nodes.patch_status("n1", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
            eventually(|| async {
                let status = objects.get("p1").await.unwrap().status.unwrap();
                let node = status.networking.unwrap().node;
                if node.as_deref() == Some(address) { Ok(()) } else { Err(node) }
            })
            .await;
        }

        // What could not be undone keeps its addresses until it is.
        let parts = agent.lifecycle.parts();
        let second = parts.endpoints.of_attachment("c2:eth0").unwrap();
        let held = state.path().join(format!("state/{}/ep.json", second.id));
        hold(&held);
        let owns = || parts.ipam.list().iter().filter(|(_, who)| *who == second.owner()).count();
        assert_eq!(agent.cni("del", &request(2, &places[2])).await.0, 500);
        assert_eq!((owns(), parts.endpoints.list().len()), (2, 3));
        nix::mount::umount(&held).unwrap();
        assert_eq!(agent.cni("del", &request(2, &places[2])).await.0, 200);
        assert_eq!((owns(), parts.endpoints.list().len()), (0, 2));

        // A damaged file does not end a connection.
        let first = parts.endpoints.of_attachment("c1:eth0").unwrap();
        let address = first.addresses().next().unwrap();
        let mut connection = connect(&places[0], &places[1], address).await;
        talk(&mut connection, b"before");
        reach_by_the_node(&places[0], &places[1], address).await;
        agent.token.cancel();
        let file = state.path().join(format!("state/{}/ep.json", first.id));
        std::fs::write(&file, "{\"id\": ").unwrap();
        let agent = Agent::start(&server, "second", state.path(), bpf.path()).await;
        talk(&mut connection, b"after");
        let parts = agent.lifecycle.parts();
        let salvaged = parts.endpoints.get(first.id).unwrap();
        assert_eq!(
            (&salvaged.host_device, salvaged.identity, salvaged.ipv4, salvaged.ipv6),
            (&first.host_device, first.identity, first.ipv4, first.ipv6)
        );
        let valid =
            json!([0, 1].map(|n| json!({"containerID": format!("c{n}"), "ifname": "eth0"})));
        let gc = json!({"config": {"cni.dev/valid-attachments": valid}});
        assert_eq!(agent.cni("gc", &gc).await.0, 200);
        talk(&mut connection, b"still");

        drop(connection);
        let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        for (number, place) in places.iter().enumerate() {
            pods.delete(&format!("p{number}"), &now).await.unwrap();
            let (status, error) = agent.cni("del", &request(number, place)).await;
            assert_eq!(status, 200, "{error}");
        }
        eventually(|| async {
            let left = parts.ipam.list();
            if left.len() == 2 { Ok(()) } else { Err(left) }
        })
        .await;
        nothing_is_left(&agent, state.path()).await;
        agent.token.cancel();
    });
}
