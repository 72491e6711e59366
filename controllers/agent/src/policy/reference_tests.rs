//! What policies refer to, on a real API server: blocks of addresses, groups and services.

use cilia_crds::CiliumCidrGroup;
use cilia_loader::PolicyKey;
use cilia_runtime::testing::eventually;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::Api;
use kube::api::DeleteParams;
use serde_json::json;

use super::Settings;
use super::test_agent::{Agent, TCP, create, ip, policy, web};
use crate::device::testing::{BpfFs, in_private_node};

impl Agent {
    /// The block that the kernel finds for an address.
    fn block(&self, address: &str) -> Option<u32> {
        self.datapath.blocks().get(&(ip(address), 32)).unwrap()
    }

    /// Waits until an address has an identity that the endpoint's map lets be sent to, all ports or one.
    async fn reaches(&self, address: &str, port: Option<u16>) {
        eventually(|| {
            let identity = self.ipcached(address);
            let key = |identity| match port {
                None => PolicyKey::all(identity, true),
                Some(port) => PolicyKey::port(identity, true, TCP, port),
            };
            let fine =
                identity.is_some_and(|identity| self.map().get(&key(identity)) == Some(&false));
            std::future::ready(if fine { Ok(()) } else { Err((identity, self.map())) })
        })
        .await;
    }

    fn ipcached(&self, address: &str) -> Option<u32> {
        self.address(address).map(|entry| entry.identity)
    }
}

#[test]
fn maps_follow_what_policies_refer_to() {
    in_private_node(|| async {
        let bpf = BpfFs::mount();
        let agent = Agent::with(&bpf, Settings { host: true, lockdown: false }).await;
        agent.enforcer.restore_host().unwrap();
        agent.enforcer.restored();
        agent.enforcer.realize(&web()).await.unwrap();
        agent.enforcer.realize_host().await.unwrap();
        agent.closed(&[]).await;
        let client = || agent.server.client();
        let app = json!({"matchLabels": {"app": "web"}});

        // Addresses of a NetworkPolicy, whoever has them: the longest prefix says which rule.
        let peers = json!([{"ipBlock": {"cidr": "10.0.1.0/24", "except": ["10.0.1.8/30"]}}]);
        let spec = json!({"podSelector": app, "policyTypes": ["Ingress"],
            "ingress": [{"from": peers, "ports": [{"port": 80, "protocol": "TCP"}]}]});
        let network: Api<NetworkPolicy> = Api::namespaced(client(), "default");
        create(&network, policy("block", &spec)).await;
        eventually(|| {
            let [inside, except] = ["10.0.1.5", "10.0.1.9"].map(|address| agent.block(address));
            let has = |block: Option<u32>| {
                let key = block.map(|block| PolicyKey::port(block, false, TCP, 80));
                key.is_some_and(|key| agent.map().contains_key(&key))
            };
            let right = has(inside) && except.is_some() && !has(except);
            std::future::ready(if right { Ok(()) } else { Err((inside, except, agent.map())) })
        })
        .await;
        assert_eq!(agent.block("10.0.2.5"), None);
        network.delete("block", &DeleteParams::default()).await.unwrap();
        eventually(|| {
            let left = agent.datapath.blocks().entries().unwrap();
            std::future::ready(if left.is_empty() { Ok(()) } else { Err(left) })
        })
        .await;

        // A group, which changes; and a service that has no pods, which nobody watched before.
        let groups: Api<CiliumCidrGroup> = Api::all(client());
        create(&groups, json!({"metadata": {"name": "partners"}, "spec": {"externalCIDRs": ["203.0.113.0/28"]}})).await;
        let spec = json!({"endpointSelector": app, "egress": [
            {"toCIDRSet": [{"cidrGroupRef": "partners"}]},
            {"toServices": [{"k8sService": {"serviceName": "db", "namespace": "default"}}],
             "toPorts": [{"ports": [{"port": "5432", "protocol": "TCP"}]}]}]});
        create(&agent.policies(), policy("refers", &spec)).await;
        agent.reaches("203.0.113.3", None).await;
        let services: Api<Service> = Api::namespaced(client(), "default");
        create(&services, json!({"metadata": {"name": "db"}, "spec": {"ports": [{"port": 5432}]}}))
            .await;
        let slices: Api<EndpointSlice> = Api::namespaced(client(), "default");
        create(&slices, json!({"metadata": {"name": "db-1", "labels": {"kubernetes.io/service-name": "db"}},
            "addressType": "IPv4", "endpoints": [{"addresses": ["198.51.100.9"]}], "ports": [{"port": 5432}]})).await;
        agent.reaches("198.51.100.9", Some(5432)).await;
        agent.policies().delete("refers", &DeleteParams::default()).await.unwrap();
        agent.is_behind("198.51.100.9", None).await;
        agent.token.cancel();
    });
}
