//! What the kvstore should say of this node and its endpoints.

use std::net::IpAddr;

use cilia_crds::NumericIdentity;
use cilia_kvstore::value::{Address, IpIdentityPair, NamedPort, Node};
use ipnet::IpNet;

use crate::endpoint::LocalEndpoint;
use crate::node::{LocalNode, NodeInfo};

/// This node, as other nodes and clusters learn of it.
pub(super) fn node(
    local: &LocalNode,
    own: Option<&NodeInfo>,
    (cluster, cluster_id): (&str, u32),
    boot_id: &str,
) -> Node {
    let address = |kind: &str, ip: IpAddr| Address { kind: kind.into(), ip: ip.to_string() };
    let internal: Vec<IpAddr> = local.addresses().collect();
    let mut addresses: Vec<Address> =
        internal.iter().map(|ip| address("InternalIP", *ip)).collect();
    addresses.extend(local.routers.iter().map(|ip| address("CiliumInternalIP", *ip)));
    let others = own.iter().flat_map(|own| &own.addresses);
    let others = others.filter(|ip| !internal.contains(ip) && !local.routers.contains(ip));
    addresses.extend(others.map(|ip| address("ExternalIP", *ip)));
    let mut node = Node {
        name: local.name.clone(),
        cluster: cluster.into(),
        addresses,
        cluster_id,
        source: "local".into(),
        labels: Some(local.labels.clone()),
        node_identity: NumericIdentity::HOST.0,
        boot_id: boot_id.into(),
        ..Node::default()
    };
    node.set_ranges(&local.pod_cidrs);
    node
}

/// Who is behind an endpoint's addresses; nothing before it has an identity.
pub(super) fn ips(endpoint: &LocalEndpoint, host: Option<IpAddr>) -> Vec<(IpNet, IpIdentityPair)> {
    let Some(identity) = endpoint.identity else { return Vec::new() };
    let port = |port: &crate::endpoint::NamedPort| NamedPort {
        name: port.name.clone(),
        port: port.port,
        protocol: port.protocol.clone(),
    };
    let mut ports: Vec<NamedPort> = endpoint.named_ports.iter().map(port).collect();
    ports.sort_by(|one, other| one.name.cmp(&other.name));
    let addresses = [endpoint.ipv4.map(IpAddr::from), endpoint.ipv6.map(IpAddr::from)];
    let pair = |address: IpAddr| {
        let net = IpNet::from(address);
        let pair = IpIdentityPair {
            namespace: endpoint.namespace.clone(),
            pod: endpoint.pod.clone(),
            service_account: endpoint.service_account.clone(),
            named_ports: ports.clone(),
            ..IpIdentityPair::new(net, identity.0, host)
        };
        (net, pair)
    };
    addresses.into_iter().flatten().map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::ips;
    use crate::endpoint::{NamedPort, testing};

    #[test]
    fn ports_are_in_the_order_of_their_names() {
        let port = |name: &str, port| NamedPort { name: name.into(), port, protocol: "TCP".into() };
        let mut endpoint = testing::endpoint(7, "c1", "web");
        endpoint.identity = Some(cilia_crds::NumericIdentity(65_601));
        endpoint.named_ports = vec![port("web", 80), port("admin", 81)];
        let told = ips(&endpoint, None);
        assert!(!told.is_empty());
        for (_, pair) in told {
            let names: Vec<&str> = pair.named_ports.iter().map(|port| port.name.as_str()).collect();
            assert_eq!(names, ["admin", "web"]);
        }
    }
}
