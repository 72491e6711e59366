//! What policies refer to, on a real API server: blocks, groups, services, nodes, the API server; and the
//! node's own policy.

use std::collections::BTreeMap;

use cilia_crds::{
    CiliumCidrGroup, CiliumClusterwideNetworkPolicy, CiliumEndpointSlice, CiliumIdentity,
    NumericIdentity,
};
use cilia_loader::PolicyKey;
use cilia_loader::testing::BpfFs;
use cilia_runtime::testing::eventually;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{ApiResource, DeleteParams, DynamicObject, PostParams};
use serde_json::{Value, json};

use super::test_agent::{Agent, TCP, create, identity, ip, policy, slice, web};
use super::{Settings, host};
use crate::device::testing::in_private_node;
use crate::endpoint::LocalEndpoint;
use crate::endpoint::testing::endpoint;

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

/// The definition of `ClusterNetworkPolicy`, as far as a test needs it.
fn cluster_policies() -> Value {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({
        "metadata": {
            "name": "clusternetworkpolicies.policy.networking.k8s.io",
            // The API server asks for it in groups of Kubernetes' own.
            "annotations": {"api-approved.kubernetes.io": "unapproved, a test's"},
        },
        "spec": {
            "group": "policy.networking.k8s.io",
            "scope": "Cluster",
            "names": {"plural": "clusternetworkpolicies", "kind": "ClusterNetworkPolicy"},
            "versions": [{"name": "v1beta1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": schema}}],
        },
    })
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

        // A prefix within another endpoint's, which only a pod that comes later names; and which nobody does after that.
        let wide = json!({"endpointSelector": app, "egress": [{"toCIDR": ["203.0.113.0/24"]}]});
        create(&agent.policies(), policy("wide", &wide)).await;
        let narrow = json!({"endpointSelector": {"matchLabels": {"app": "db"}}, "egress": [{"toCIDR": ["203.0.113.64/26"]}]});
        create(&agent.policies(), policy("narrow", &narrow)).await;
        agent.reaches("203.0.113.70", None).await;
        let mut db =
            LocalEndpoint { identity: Some(NumericIdentity(4321)), ..endpoint(9, "c2", "db") };
        db.labels.insert("k8s", "io.kubernetes.pod.namespace", "default");
        let before = agent.ipcached("203.0.113.70");
        eventually(async || {
            // The policy may be on its way.
            agent.enforcer.realize(&db).await.unwrap();
            let now = agent.ipcached("203.0.113.70");
            if now == before { Err(now) } else { Ok(()) }
        })
        .await;
        agent.reaches("203.0.113.70", None).await;
        agent.enforcer.remove(9).await;
        eventually(|| {
            let now = agent.ipcached("203.0.113.70");
            std::future::ready(if now == before { Ok(()) } else { Err(now) })
        })
        .await;
        agent.reaches("203.0.113.70", None).await;
        for name in ["wide", "narrow"] {
            agent.policies().delete(name, &DeleteParams::default()).await.unwrap();
        }

        // The API server, as its own service names it, is an entity whatever its address.
        let spec = json!({"endpointSelector": app, "egress": [{"toEntities": ["kube-apiserver"]}]});
        create(&agent.policies(), policy("api", &spec)).await;
        let known = slices.get("kubernetes").await.unwrap();
        agent.reaches(&known.endpoints.unwrap()[0].addresses[0], None).await;
        // One that moves onto a node is that node's.
        let node = json!({"metadata": {"name": "kubernetes-2", "labels": {"kubernetes.io/service-name": "kubernetes"}},
            "addressType": "IPv4", "endpoints": [{"addresses": ["192.0.2.2"]}], "ports": []});
        create(&slices, node).await;
        agent.reaches("192.0.2.2", None).await;
        assert_eq!(agent.ipcached("192.0.2.2"), Some(7));
        agent.policies().delete("api", &DeleteParams::default()).await.unwrap();

        // The node's own policy has a map of its own; nobody else's changes.
        let pods = slice("a", &[("10.0.1.5", 5000)]);
        create::<CiliumEndpointSlice>(&Api::all(client()), pods).await;
        create::<CiliumIdentity>(&Api::all(client()), identity(5000, "client")).await;
        let before = agent.map();
        let spec = json!({"nodeSelector": {}, "ingressDeny": [{"fromEndpoints": [
            {"matchLabels": {"app": "client", "io.kubernetes.pod.namespace": "default"}}]}]});
        let clusterwide: Api<CiliumClusterwideNetworkPolicy> = Api::all(client());
        create(&clusterwide, json!({"metadata": {"name": "nodes"}, "spec": spec})).await;
        eventually(|| {
            let map = agent.datapath.policy(host::ENDPOINT).unwrap().entries().unwrap();
            let map: BTreeMap<_, _> =
                map.into_iter().map(|(key, entry)| (key, entry.deny)).collect();
            let denied = map.get(&PolicyKey::all(5000, false)) == Some(&true);
            std::future::ready(if denied { Ok(()) } else { Err(map) })
        })
        .await;
        assert_eq!(agent.map(), before);

        // A kind that the cluster learns of later.
        let definition: Api<CustomResourceDefinition> = Api::all(client());
        create(&definition, cluster_policies()).await;
        let cluster: Api<DynamicObject> =
            Api::all_with(client(), &ApiResource::erase::<cilia_policy::ClusterNetworkPolicy>(&()));
        let object = json!({"apiVersion": "policy.networking.k8s.io/v1beta1", "kind": "ClusterNetworkPolicy",
            "metadata": {"name": "admin"}, "spec": {"tier": "Admin", "priority": 1,
            "subject": {"pods": {"namespaceSelector": {}, "podSelector": app}},
            "ingress": [{"name": "no", "action": "Deny", "from": [{"pods": {"namespaceSelector": {},
                "podSelector": {"matchLabels": {"app": "client"}}}}]}]}});
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        eventually(async || {
            let made = cluster.create(&PostParams::default(), &object).await;
            made.map(drop).map_err(|error| error.to_string())
        })
        .await;
        eventually(|| {
            let denied = agent.map().get(&PolicyKey::all(5000, false)) == Some(&true);
            std::future::ready(if denied { Ok(()) } else { Err(agent.map()) })
        })
        .await;

        // Every entry says which rule it is of.
        let entries = agent.datapath.policy(super::test_agent::WEB).unwrap().entries().unwrap();
        let entry = entries.iter().find(|(key, _)| *key == PolicyKey::all(5000, false)).unwrap();
        let cookie = entry.1.cookie;
        let asked = agent.enforcer.ask(move |rules| rules.origins(cookie)[0].policy.to_string());
        assert_eq!(asked.await.as_deref(), Some("ClusterNetworkPolicy admin"));
        agent.token.cancel();
    });
}
