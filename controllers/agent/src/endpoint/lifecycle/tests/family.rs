//! A node whose pods have addresses of one family only.

use cilia_crds::{CiliumEndpoint, CiliumIdentity};
use cilia_loader::testing::BpfFs;
use cilia_runtime::testing::eventually;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, PostParams};

use super::{addresses_of, connect, labels, node_with, nothing_is_left, pod, request, talk};
use crate::device::testing::{PodNetns, in_private_node};
use crate::endpoint::test_agent::Agent;
use crate::endpoint::testing::api_server;

#[test]
fn pods_of_ipv6_alone_live_and_go() {
    in_private_node(|| async {
        let server = api_server().await;
        node_with(&server, "2001:db8::1", &["fd00::/116"]).await;
        let (state, bpf) = (tempfile::tempdir().unwrap(), BpfFs::mount());
        let agent =
            Agent::start_for(&server, "agent", state.path(), bpf.path(), (false, true)).await;
        let pods: Api<Pod> = Api::namespaced(server.client(), "default");
        let objects: Api<CiliumEndpoint> = Api::namespaced(server.client(), "default");
        let places = [PodNetns::new(), PodNetns::new()];
        for (number, place) in places.iter().enumerate() {
            pods.create(&PostParams::default(), &pod(number)).await.unwrap();
            let (status, result) = agent.cni("add", &request(number, place)).await;
            assert_eq!(status, 200, "{result}");
            let [address] = &addresses_of(&result)[..] else { panic!("{result}") };
            assert!(address.starts_with("fd00::"), "{result}");
            let object = eventually(|| objects.get(if number == 0 { "p0" } else { "p1" })).await;
            let status = object.status.unwrap();
            let networking = status.networking.unwrap();
            assert_eq!(networking.node.as_deref(), Some("2001:db8::1"));
            let [pair] = &networking.addressing[..] else { panic!("{networking:?}") };
            assert_eq!(pair.ipv4, None);
            assert_eq!(pair.ipv6.as_deref(), address.strip_suffix("/128"));
        }
        let target = agent.lifecycle.parts().endpoints.list();
        let target = target.iter().find(|endpoint| endpoint.pod == "p1").unwrap();
        let mut connection =
            connect(&places[0], &places[1], target.addresses().next().unwrap()).await;
        talk(&mut connection, b"hello");
        // Labels of its own cut nothing.
        let identities: Api<CiliumIdentity> = Api::all(server.client());
        let labelled = labels::come_and_go(&agent, &objects, &identities, "p1").await;
        talk(&mut connection, b"hello again");
        agent.token.cancel();
        let agent =
            Agent::start_for(&server, "agent", state.path(), bpf.path(), (false, true)).await;
        let kept = agent.lifecycle.parts().endpoints.get(labelled.id).unwrap();
        assert_eq!((&kept.own, kept.identity), (&labelled.own, labelled.identity));
        talk(&mut connection, b"and again");
        drop(connection);
        for (number, place) in places.iter().enumerate() {
            let now = DeleteParams::default().grace_period(0);
            pods.delete(&format!("p{number}"), &now).await.unwrap();
            assert_eq!(agent.cni("del", &request(number, place)).await.0, 200);
        }
        nothing_is_left(&agent, state.path()).await;
        agent.token.cancel();
    });
}
