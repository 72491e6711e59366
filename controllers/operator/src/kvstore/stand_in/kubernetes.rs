//! What Kubernetes says of nodes and of their pods' addresses, as agents say it to the kvstore.
//!
//! Of endpoints only as long as an agent is silent: about 450 bytes an address.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use cilia_crds::{CiliumEndpoint, CiliumNode};
use cilia_kvstore::value::{self, IpIdentityPair, NamedPort, encode};
use kube::ResourceExt as _;

/// Where the agent says its `WireGuard` key.
const WIREGUARD_KEY: &str = "network.cilium.io/wg-pub-key";

/// One address of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pod {
    pub(super) address: IpAddr,
    /// The node's address, and what its agent says; nothing before it knows itself.
    pub(super) said: Option<(IpAddr, Box<[u8]>)>,
}

/// The addresses of an endpoint.
pub(super) fn pods(endpoint: &CiliumEndpoint) -> Box<[Pod]> {
    let Some(status) = &endpoint.status else { return Box::default() };
    let pairs = status.networking.iter().flat_map(|networking| &networking.addressing);
    let addresses = pairs.flat_map(|pair| [&pair.ipv4, &pair.ipv6]).flatten();
    let host = status.networking.as_ref().and_then(|networking| networking.node.as_ref());
    let host: Option<IpAddr> = host.and_then(|host| host.parse().ok());
    let identity = status.identity.as_ref().and_then(|identity| u32::try_from(identity.id?).ok());
    let key = status.encryption.and_then(|encryption| encryption.key).unwrap_or_default();
    let ports = status.named_ports.iter().map(|port| NamedPort {
        name: port.name.clone().unwrap_or_default(),
        port: port.port.unwrap_or_default(),
        protocol: port.protocol.clone().unwrap_or_default(),
    });
    let mut ports: Vec<NamedPort> = ports.collect();
    ports.sort_by(|one, other| one.name.cmp(&other.name));
    let pod = |address: IpAddr| {
        let said = host.zip(identity).map(|(host, identity)| {
            let pair = IpIdentityPair {
                key: u8::try_from(key).unwrap_or_default(),
                namespace: endpoint.namespace().unwrap_or_default(),
                pod: endpoint.name_any(),
                service_account: status.service_account.clone().unwrap_or_default(),
                named_ports: ports.clone(),
                ..IpIdentityPair::new(address.into(), identity, Some(host))
            };
            (host, encode(&pair).into())
        });
        Pod { address, said }
    };
    addresses.filter_map(|address| Some(pod(address.parse().ok()?))).collect()
}

/// A node of this cluster.
pub(super) fn node(node: &CiliumNode, cluster: &str, cluster_id: u32) -> value::Node {
    let spec = &node.spec;
    let address = |address: &cilia_crds::ciliumnode::NodeAddress| value::Address {
        kind: address.address_type.clone().unwrap_or_default(),
        ip: address.ip.clone().unwrap_or_default(),
    };
    let ranges = spec.ipam.iter().flat_map(|ipam| {
        let pools = ipam.pools.iter().flat_map(|pools| &pools.allocated);
        ipam.pod_cidrs.iter().chain(pools.flat_map(|pool| &pool.cidrs))
    });
    let ranges: Vec<_> = ranges.filter_map(|range| range.parse().ok()).collect();
    let families = |families: &Option<cilia_crds::ciliumnode::AddressFamilies>| {
        let families = families.clone().unwrap_or_default();
        (families.ipv4.unwrap_or_default(), families.ipv6.unwrap_or_default())
    };
    let some = |map: &BTreeMap<String, String>| Some(map.clone()).filter(|map| !map.is_empty());
    let (health, ingress) = (families(&spec.health), families(&spec.ingress));
    let key = spec.encryption.and_then(|encryption| encryption.key).unwrap_or_default();
    let mut said = value::Node {
        name: node.name_any(),
        cluster: cluster.to_owned(),
        addresses: spec.addresses.iter().map(address).collect(),
        ipv4_health: health.0,
        ipv6_health: health.1,
        ipv4_ingress: ingress.0,
        ipv6_ingress: ingress.1,
        cluster_id,
        source: "custom-resource".to_owned(),
        encryption_key: u8::try_from(key).unwrap_or_default(),
        labels: some(node.labels()),
        annotations: some(node.annotations()),
        node_identity: spec.nodeidentity.and_then(|id| u32::try_from(id).ok()).unwrap_or_default(),
        wireguard_pub_key: node.annotations().get(WIREGUARD_KEY).cloned().unwrap_or_default(),
        boot_id: spec.bootid.clone().unwrap_or_default(),
        ..value::Node::default()
    };
    said.set_ranges(&ranges);
    said
}

/// All endpoints of the cluster.
#[derive(Debug, Default)]
pub(super) struct Endpoints {
    /// How many have an address.
    addresses: HashMap<IpAddr, u32>,
    /// What a node's agent says, by the node's address.
    of_host: HashMap<IpAddr, BTreeMap<IpAddr, Box<[u8]>>>,
}

impl Endpoints {
    pub(super) fn add(&mut self, pods: &[Pod]) {
        for Pod { address, said } in pods {
            *self.addresses.entry(*address).or_default() += 1;
            if let Some((host, value)) = said {
                self.of_host.entry(*host).or_default().insert(*address, value.clone());
            }
        }
    }

    pub(super) fn remove(&mut self, pods: &[Pod]) {
        for Pod { address, said } in pods {
            if let Some(count) = self.addresses.get_mut(address) {
                *count -= 1;
                if *count == 0 {
                    self.addresses.remove(address);
                }
            }
            let Some((host, value)) = said else { continue };
            let Some(of_host) = self.of_host.get_mut(host) else { continue };
            // Another endpoint may have it by now.
            if of_host.get(address) == Some(value) {
                of_host.remove(address);
            }
            if of_host.is_empty() {
                self.of_host.remove(host);
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    pub(super) fn has(&self, address: IpAddr) -> bool {
        self.addresses.contains_key(&address)
    }

    /// What the agent of this host says of its endpoints.
    pub(super) fn of_host(&self, host: IpAddr) -> impl Iterator<Item = (&IpAddr, &[u8])> {
        let said = self.of_host.get(&host).into_iter().flatten();
        said.map(|(address, value)| (address, &**value))
    }
}

#[cfg(test)]
mod tests {
    use super::{Endpoints, node, pods};
    use cilia_kvstore::value::encode;
    use serde_json::json;

    #[test]
    fn values_are_those_that_agents_write() {
        let endpoint = serde_json::from_value(json!({
            "metadata": { "name": "web-0", "namespace": "default" },
            "status": {
                "identity": { "id": 65_601 }, "encryption": { "key": 3 }, "service-account": "web",
                "named-ports": [
                    { "name": "http", "port": 80, "protocol": "TCP" }, { "name": "dns", "port": 53, "protocol": "UDP" },
                ],
                "networking": { "addressing": [{ "ipv4": "10.0.1.1", "ipv6": "fd00::1" }], "node": "172.18.0.1" },
            },
        }));
        let pods = pods(&endpoint.expect("an endpoint"));
        let said =
            pods[0].said.as_ref().map(|(_, value)| String::from_utf8_lossy(value).into_owned());
        let want = r#"{"IP":"10.0.1.1","Mask":null,"HostIP":"172.18.0.1","ID":65601,"Key":3,"Metadata":"","K8sNamespace":"default","K8sPodName":"web-0","K8sServiceAccount":"web","NamedPorts":[{"Name":"dns","Port":53,"Protocol":"UDP"},{"Name":"http","Port":80,"Protocol":"TCP"}]}"#;
        assert_eq!((pods.len(), said.as_deref()), (2, Some(want)));
        let mut all = Endpoints::default();
        all.add(&pods);
        let host = "172.18.0.1".parse().expect("an address");
        assert!(all.has(pods[1].address) && all.of_host(host).count() == 2);
        all.remove(&pods);
        assert!(all.is_empty() && all.of_host.is_empty());
    }

    #[test]
    fn a_node_has_all_of_its_ranges() {
        let object = serde_json::from_value(json!({
            "metadata": { "name": "n1", "labels": { "a": "b" }, "annotations": { super::WIREGUARD_KEY: "key" } },
            "spec": {
                "addresses": [{ "type": "InternalIP", "ip": "172.18.0.1" }],
                "health": { "ipv4": "10.0.1.9" }, "bootid": "boot", "nodeidentity": 7,
                "ipam": {
                    "podCIDRs": ["10.0.1.0/24"],
                    "pools": { "allocated": [{ "pool": "red", "cidrs": ["10.1.0.0/24"] }] },
                },
            },
        }));
        let said = encode(&node(&object.expect("a node"), "east", 1));
        let want = r#"{"Name":"n1","Cluster":"east","IPAddresses":[{"Type":"InternalIP","IP":"172.18.0.1"}],"IPv4AllocCIDR":{"IP":"10.0.1.0","Mask":"////AA=="},"IPv4SecondaryAllocCIDRs":[{"IP":"10.1.0.0","Mask":"////AA=="}],"IPv6AllocCIDR":null,"IPv6SecondaryAllocCIDRs":null,"IPv4HealthIP":"10.0.1.9","IPv6HealthIP":"","IPv4IngressIP":"","IPv6IngressIP":"","ClusterID":1,"Source":"custom-resource","EncryptionKey":0,"Labels":{"a":"b"},"Annotations":{"network.cilium.io/wg-pub-key":"key"},"NodeIdentity":7,"WireguardPubKey":"key","BootID":"boot"}"#;
        assert_eq!(String::from_utf8_lossy(&said), want);
    }
}
