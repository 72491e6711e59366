//! Turns slices, endpoints and nodes into what they say about prefixes.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use cilia_crds::ciliumendpoint::networking::{EncryptionSpec, EndpointNetworking, NamedPort};
use cilia_crds::{CiliumEndpoint, CiliumEndpointSlice, NumericIdentity};
use cilia_loader::RemoteEndpoint;
use cilia_policy::PortName;
use ipnet::IpNet;

use super::NodeIdentities;
use super::table::{Prefix, Said};
use crate::endpoint::LocalEndpoint;
use crate::node::{LocalNode, NodeInfo};

/// What a source outside of Kubernetes says of one prefix, by the name of the key that says so.
#[derive(Debug, Clone, PartialEq)]
pub enum Fed {
    /// Somebody is behind a prefix.
    Entry {
        /// Who says so: another word of the same name replaces it.
        name: Arc<str>,
        /// The prefix.
        prefix: Prefix,
        /// Who is behind it, and how it is reached.
        endpoint: RemoteEndpoint,
        /// How the pod names its ports.
        ports: Vec<(PortName, u16)>,
    },
    /// Nobody of this name says anything any more.
    Gone(Arc<str>),
    /// Everything that was there at the start has been told.
    Listed,
}

/// What one word means; nothing for the end of the list.
pub(super) fn fed(fed: Fed) -> Option<(Arc<str>, Said)> {
    match fed {
        Fed::Listed => None,
        Fed::Gone(name) => Some((name, Said::default())),
        Fed::Entry { name, prefix, endpoint, ports } => {
            let identity = NumericIdentity(endpoint.identity);
            let ports = ports.into_iter().map(|(name, port)| (identity, name, port)).collect();
            Some((name, Said { prefixes: vec![(prefix, endpoint)], ports }))
        }
    }
}

/// The whole address as a prefix.
pub(super) fn whole(address: IpAddr) -> (IpAddr, u8) {
    (address, if address.is_ipv4() { 32 } else { 128 })
}

/// The endpoints of a slice. Their node is the tunnel's end, even if it is this one: the writer knows.
pub(super) fn slice(slice: &CiliumEndpointSlice) -> Said {
    let mut said = Said::default();
    for endpoint in &slice.endpoints {
        add(
            &mut said,
            endpoint.id,
            endpoint.networking.as_ref(),
            endpoint.encryption,
            &endpoint.named_ports,
        );
    }
    said
}

/// An endpoint, where there are no slices.
pub(super) fn endpoint(endpoint: &CiliumEndpoint) -> Said {
    let mut said = Said::default();
    if let Some(status) = &endpoint.status {
        let identity = status.identity.as_ref().and_then(|identity| identity.id);
        add(
            &mut said,
            identity,
            status.networking.as_ref(),
            status.encryption,
            &status.named_ports,
        );
    }
    said
}

fn add(
    said: &mut Said,
    identity: Option<i64>,
    networking: Option<&EndpointNetworking>,
    encryption: Option<EncryptionSpec>,
    ports: &[NamedPort],
) {
    let identity = identity.and_then(|id| u32::try_from(id).ok()).filter(|id| *id != 0);
    let (Some(identity), Some(networking)) = (identity, networking) else { return };
    let tunnel: Option<IpAddr> = networking.node.as_deref().and_then(|node| node.parse().ok());
    let key = encryption
        .and_then(|encryption| encryption.key)
        .and_then(|key| u8::try_from(key).ok())
        .unwrap_or(0);
    let addresses =
        networking.addressing.iter().flat_map(|pair| [&pair.ipv4, &pair.ipv6]).flatten();
    for address in addresses.filter_map(|text| text.parse().ok()) {
        said.prefixes.push((whole(address), RemoteEndpoint { identity, tunnel, key }));
    }
    let identity = NumericIdentity(identity);
    let ports = ports.iter().filter_map(named_port);
    said.ports.extend(ports.map(|(name, port)| (identity, name, port)));
}

fn named_port(port: &NamedPort) -> Option<(PortName, u16)> {
    let name = port.name.as_deref().filter(|name| !name.is_empty())?;
    let proto = protocol(port.protocol.as_deref()?)?;
    Some(((name.to_ascii_lowercase().into(), proto), port.port?))
}

/// The number of a protocol that pods can name ports of.
pub fn protocol(name: &str) -> Option<u8> {
    Some(match name {
        "TCP" => 6,
        "UDP" => 17,
        "SCTP" => 132,
        _ => return None,
    })
}

/// One of the node's own endpoints: delivered without a tunnel. Nothing, if it is gone.
pub(super) fn local(endpoint: Option<&LocalEndpoint>) -> Said {
    let mut said = Said::default();
    if let Some((endpoint, identity)) = endpoint.and_then(|one| Some((one, one.identity?))) {
        let value = RemoteEndpoint { identity: identity.0, tunnel: None, key: 0 };
        said.prefixes.extend(endpoint.addresses().map(|address| (whole(address), value)));
    }
    said
}

/// The addresses of nodes. Another node's router is reached like its pods, through the tunnel; so
/// is whatever else is in the ranges of its pods: the first packets to a new pod need not wait until
/// its slice is known here, and the other node judges them by their sender.
pub(super) fn nodes(
    own: Option<&LocalNode>,
    all: &[Arc<NodeInfo>],
    identities: &NodeIdentities,
) -> Said {
    let mut said = Said::default();
    let remote = |address: &IpAddr, tunnel| {
        let identity = identities.get(address).unwrap_or(&NumericIdentity::REMOTE_NODE).0;
        RemoteEndpoint { identity, tunnel, key: 0 }
    };
    for node in all.iter().filter(|node| own.is_none_or(|own| node.name != own.name)) {
        let routers = [
            node.cilium_internal_ipv4.map(IpAddr::from),
            node.cilium_internal_ipv6.map(IpAddr::from),
        ];
        let internal = [node.internal_ipv4.map(IpAddr::from), node.internal_ipv6.map(IpAddr::from)];
        let tunnel = internal.into_iter().flatten().next();
        for address in &node.addresses {
            let tunnel = tunnel.filter(|_| routers.contains(&Some(*address)));
            said.prefixes.push((whole(*address), remote(address, tunnel)));
        }
        let ranges = node.pod_cidrs.iter().filter(|_| tunnel.is_some());
        said.prefixes.extend(ranges.map(|range| {
            let identity = unknown_in(range, own).0;
            ((range.network(), range.prefix_len()), RemoteEndpoint { identity, tunnel, key: 0 })
        }));
    }
    if let Some(own) = own {
        let host = RemoteEndpoint { identity: NumericIdentity::HOST.0, tunnel: None, key: 0 };
        let listed =
            all.iter().filter(|node| node.name == own.name).flat_map(|node| &node.addresses);
        let addresses = own.addresses().chain(own.routers.iter().copied()).chain(listed.copied());
        let addresses: BTreeSet<IpAddr> = addresses.collect();
        said.prefixes.extend(addresses.into_iter().map(|address| (whole(address), host)));
    }
    said
}

/// Who is behind an address of a range that nobody is known to have: the world, as the datapath
/// calls it where one family or both are on.
fn unknown_in(range: &IpNet, own: Option<&LocalNode>) -> NumericIdentity {
    let has =
        |v4| own.is_some_and(|own| own.pod_cidrs.iter().any(|net| net.addr().is_ipv4() == v4));
    match range {
        _ if !(has(true) && has(false)) => NumericIdentity::WORLD,
        IpNet::V4(_) => NumericIdentity::WORLD_IPV4,
        IpNet::V6(_) => NumericIdentity::WORLD_IPV6,
    }
}

/// The identities that a former agent gave to nodes that policies tell apart.
pub(super) fn former_nodes(entries: &[(Prefix, RemoteEndpoint)]) -> NodeIdentities {
    let apart = |identity: u32| {
        identity == NumericIdentity::KUBE_APISERVER.0
            || identity & !0x00ff_ffff == cilia_policy::nodes::SCOPE
    };
    let entries = entries.iter().filter(|(_, value)| apart(value.identity));
    entries.map(|((address, _), value)| (*address, NumericIdentity(value.identity))).collect()
}

/// The prefixes that a former agent's policies named, of all that the map says.
pub(super) fn former_policy(entries: Vec<(Prefix, RemoteEndpoint)>) -> Said {
    let named = |(_, value): &(Prefix, RemoteEndpoint)| {
        value.identity & !0x00ff_ffff == cilia_policy::CIDR_SCOPE
    };
    Said { prefixes: entries.into_iter().filter(named).collect(), ports: Vec::new() }
}

/// The prefixes that policies name.
pub(super) fn policy(prefixes: &[(IpNet, NumericIdentity)]) -> Said {
    let entry = |(prefix, identity): &(IpNet, NumericIdentity)| {
        (
            (prefix.addr(), prefix.prefix_len()),
            RemoteEndpoint { identity: identity.0, tunnel: None, key: 0 },
        )
    };
    Said { prefixes: prefixes.iter().map(entry).collect(), ports: Vec::new() }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{NodeIdentities, nodes};
    use crate::node::{LocalNode, NodeInfo};

    #[test]
    fn another_node_s_ranges_lead_to_its_tunnel() {
        let ranges = vec!["10.0.1.0/24".parse().unwrap(), "fd00::100/120".parse().unwrap()];
        let own = LocalNode {
            name: "n1".into(),
            pod_cidrs: vec!["10.0.0.0/24".parse().unwrap(), "fd00::/120".parse().unwrap()],
            ..LocalNode::default()
        };
        let same = NodeInfo {
            name: "n1".into(),
            pod_cidrs: own.pod_cidrs.clone(),
            internal_ipv4: Some("192.168.0.1".parse().unwrap()),
            ..NodeInfo::default()
        };
        let other = NodeInfo {
            name: "n2".into(),
            pod_cidrs: ranges,
            internal_ipv4: Some("192.168.0.2".parse().unwrap()),
            ..NodeInfo::default()
        };
        let said = nodes(Some(&own), &[Arc::new(same), Arc::new(other)], &NodeIdentities::new());
        let shown: Vec<_> = said
            .prefixes
            .iter()
            .map(|((address, bits), value)| {
                (format!("{address}/{bits}"), value.identity, value.tunnel)
            })
            .collect();
        let tunnel = Some("192.168.0.2".parse().unwrap());
        assert_eq!(
            shown,
            [("10.0.1.0/24".to_owned(), 9, tunnel), ("fd00::100/120".to_owned(), 10, tunnel)]
        );
    }
}
