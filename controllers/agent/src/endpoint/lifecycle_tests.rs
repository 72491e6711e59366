//! The life of pods on a node of its own: a real API server, real namespaces, the real datapath.

use std::collections::{BTreeSet, HashSet};
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use cilia_crds::{CiliumEndpoint, CiliumNode};
use cilia_runtime::testing::{ApiServer, eventually, eventually_for};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::device::name::is_pod_device;
use crate::device::netns::Netns;
use crate::device::testing::{PodNetns, in_private_node};
use crate::endpoint::EndpointState;
use crate::endpoint::test_agent::{Agent, ask};
use crate::endpoint::testing::api_server;

const PODS: usize = 100;

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
    let nodes: Api<Node> = Api::all(server.client());
    let node = serde_json::from_value(json!({"metadata": {"name": "n1"}})).unwrap();
    nodes.create(&PostParams::default(), &node).await.unwrap();
    let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}});
    nodes.patch_status("n1", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    let nodes: Api<CiliumNode> = Api::all(server.client());
    let cilium = json!({"metadata": {"name": "n1"}, "spec": {"ipam": {"podCIDRs": ["10.0.0.0/24", "fd00::/116"]}}});
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

#[test]
fn a_hundred_pods_live_move_and_go_without_a_trace() {
    in_private_node(|| async {
        let server = api_server().await;
        node(&server).await;
        let state = tempfile::tempdir().unwrap();
        let bpf = crate::device::testing::BpfFs::mount();
        let agent = Agent::start(&server, "first", state.path(), bpf.path()).await;
        let pods: Api<Pod> = Api::namespaced(server.client(), "default");
        for number in 0..PODS {
            pods.create(&PostParams::default(), &pod(number)).await.unwrap();
        }
        let places: Vec<PodNetns> = (0..PODS).map(|_| PodNetns::new()).collect();

        // A hundred at once.
        let start = Instant::now();
        let added = places.iter().enumerate().map(|(number, place)| {
            let (cni, body) = (agent.server.clone(), request(number, place));
            tokio::spawn(async move { ask(&cni, "add", &body).await })
        });
        let mut results = Vec::new();
        for added in added.collect::<Vec<_>>() {
            let (status, result) = added.await.unwrap();
            assert_eq!(status, 200, "{result}");
            results.push(result);
        }
        eprintln!("{PODS} pods connected in {:?}", start.elapsed());
        let addresses: BTreeSet<String> = results.iter().flat_map(addresses_of).collect();
        assert_eq!(addresses.len(), 2 * PODS, "no address is given twice");
        let before = agent.lifecycle.parts().endpoints.list();
        assert_eq!(before.len(), PODS);
        let objects: Api<CiliumEndpoint> = Api::namespaced(server.client(), "default");
        eventually_for(Duration::from_secs(30), || async {
            let count = objects.list(&ListParams::default()).await.unwrap().items.len();
            let recorded = agent.lifecycle.parts().endpoints.list();
            let recorded =
                recorded.iter().filter(|endpoint| endpoint.published_uid.is_some()).count();
            if (count, recorded) == (PODS, PODS) { Ok(()) } else { Err((count, recorded)) }
        })
        .await;
        eprintln!("{PODS} pods published after {:?}", start.elapsed());

        // The same again is the same; what is wrong is seen.
        assert_eq!(agent.cni("add", &request(3, &places[3])).await, (200, results[3].clone()));
        assert_eq!(agent.cni("check", &request(3, &places[3])).await.0, 200);
        let (status, error) = agent.cni("check", &request(3, &places[4])).await;
        assert_eq!((status, &error["code"]), (500, &json!(101)), "{error}");
        assert_eq!(agent.cni("status", &json!({})).await.0, 200);

        // A pod that does not exist leaves nothing behind.
        let spare = PodNetns::new();
        let (status, error) = agent.cni("add", &request(PODS + 1, &spare)).await;
        assert_eq!(status, 500);
        assert!(error["msg"].as_str().unwrap().contains("find pod default/p101"), "{error}");
        assert_eq!(agent.lifecycle.parts().ipam.list().len(), 2 * PODS + 2);

        // Pods reach each other, and go on while the agent is replaced.
        let target = |number: usize, ipv6: bool| {
            let endpoint =
                before.iter().find(|endpoint| endpoint.pod == format!("p{number}")).unwrap();
            endpoint.addresses().find(|address| address.is_ipv6() == ipv6).unwrap()
        };
        let mut connections = [
            connect(&places[0], &places[1], target(1, false)).await,
            connect(&places[2], &places[3], target(3, true)).await,
        ];
        for connection in &mut connections {
            talk(connection, b"before");
        }
        agent.token.cancel();
        drop(agent);
        for connection in &mut connections {
            talk(connection, b"meanwhile");
        }
        std::fs::create_dir_all(state.path().join("deleteQueue")).unwrap();
        let kept = request(PODS - 1, &places[PODS - 1]).to_string();
        std::fs::write(state.path().join("deleteQueue/x.delete"), kept).unwrap();
        let agent = Agent::start(&server, "second", state.path(), bpf.path()).await;
        for connection in &mut connections {
            talk(connection, b"after");
        }
        let after = agent.lifecycle.parts().endpoints.list();
        assert_eq!(after.len(), PODS - 1, "all but the one that was to be disconnected");
        for endpoint in &after {
            let former = before.iter().find(|former| former.id == endpoint.id).unwrap();
            assert_eq!(
                (&former.pod, former.ipv4, former.ipv6),
                (&endpoint.pod, endpoint.ipv4, endpoint.ipv6)
            );
        }
        eventually(|| async {
            let ready = agent.lifecycle.parts().endpoints.list();
            let ready = ready.iter().filter(|e| e.state == EndpointState::Ready).count();
            if ready == PODS - 1 { Ok(()) } else { Err(ready) }
        })
        .await;
        let written: Vec<_> = server
            .writes()
            .await
            .into_iter()
            .filter(|write| write.agent.starts_with("second"))
            .collect();
        assert!(
            written.iter().all(|write| write.verb == "delete"),
            "a restart writes nothing: {written:?}"
        );
        assert_eq!(written.len(), 1, "but what it has to remove: {written:?}");

        // New labels are a new identity.
        let labels = json!({"metadata": {"labels": {"app": "moved"}}});
        let identity = objects.get("p5").await.unwrap().status.unwrap().identity.unwrap();
        pods.patch("p5", &PatchParams::default(), &Patch::Merge(labels)).await.unwrap();
        eventually(|| async {
            let now = objects.get("p5").await.unwrap().status.unwrap().identity.unwrap();
            if now.id != identity.id && now.labels.contains(&"k8s:app=moved".to_owned()) {
                Ok(())
            } else {
                Err(now)
            }
        })
        .await;

        // GC knows better than we; DEL takes the rest; both are fine twice.
        let valid: Vec<_> = (1..PODS - 1)
            .map(|n| json!({"containerID": format!("c{n}"), "ifname": "eth0"}))
            .collect();
        let gc = json!({"config": {"cni.dev/valid-attachments": valid}});
        for _ in 0..2 {
            assert_eq!(agent.cni("gc", &gc).await.0, 200);
            assert_eq!(agent.lifecycle.parts().endpoints.list().len(), PODS - 2);
        }
        drop(connections);
        for (number, place) in places.iter().enumerate() {
            pods.delete(
                &format!("p{number}"),
                &DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() },
            )
            .await
            .unwrap();
            let (status, error) = agent.cni("del", &request(number, place)).await;
            assert_eq!(status, 200, "{error}");
        }
        eventually_for(Duration::from_secs(30), || async {
            let left = objects.list(&ListParams::default()).await.unwrap().items.len();
            if left == 0 { Ok(()) } else { Err(left) }
        })
        .await;
        nothing_is_left(&agent, state.path()).await;
        agent.token.cancel();
    });
}

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
        let bpf = crate::device::testing::BpfFs::mount();
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

fn addresses_of(result: &Value) -> Vec<String> {
    let ips = result["ips"].as_array().unwrap().iter();
    ips.map(|ip| ip["address"].as_str().unwrap().to_owned()).collect()
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
    assert_eq!(parts.ipam.list().len(), 2, "the router's");
    let directories = std::fs::read_dir(state.join("state")).unwrap().count();
    assert_eq!(directories, 0);
    let connections = parts.datapath.conntrack().entries().unwrap();
    assert!(connections.is_empty(), "{connections:?}");
}
