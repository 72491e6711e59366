//! A hundred pods come at once, live through another agent, get other labels, and go.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use cilia_crds::CiliumEndpoint;
use cilia_runtime::testing::{eventually, eventually_for};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;

use super::{addresses_of, connect, node, nothing_is_left, pod, request, talk};
use crate::device::testing::{PodNetns, in_private_node};
use crate::endpoint::EndpointState;
use crate::endpoint::test_agent::{Agent, ask};
use crate::endpoint::testing::api_server;

const PODS: usize = 100;

#[test]
fn a_hundred_pods_live_move_and_go_without_a_trace() {
    in_private_node(|| async {
        let server = api_server().await;
        node(&server).await;
        let state = tempfile::tempdir().unwrap();
        let bpf = cilia_loader::testing::BpfFs::mount();
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
