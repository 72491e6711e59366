//! A node as other nodes and clusters learn of it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::ByteString;
use serde::{Deserialize, Serialize};

use super::{Expected, or_empty, refused};
use crate::Error;

/// A node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its cluster's name.
    pub cluster: String,
    /// Every address of it.
    #[serde(rename = "IPAddresses", deserialize_with = "or_empty")]
    pub addresses: Vec<Address>,
    /// The first range of its pods' IPv4 addresses.
    #[serde(rename = "IPv4AllocCIDR")]
    pub ipv4_cidr: Option<Cidr>,
    /// The others.
    #[serde(rename = "IPv4SecondaryAllocCIDRs")]
    pub ipv4_more: Option<Vec<Cidr>>,
    /// The first range of its pods' IPv6 addresses.
    #[serde(rename = "IPv6AllocCIDR")]
    pub ipv6_cidr: Option<Cidr>,
    /// The others.
    #[serde(rename = "IPv6SecondaryAllocCIDRs")]
    pub ipv6_more: Option<Vec<Cidr>>,
    /// The health endpoint's address; empty for none. So are the next three.
    #[serde(rename = "IPv4HealthIP", deserialize_with = "or_empty")]
    pub ipv4_health: String,
    /// The health endpoint's IPv6 address.
    #[serde(rename = "IPv6HealthIP", deserialize_with = "or_empty")]
    pub ipv6_health: String,
    /// The ingress's address.
    #[serde(rename = "IPv4IngressIP", deserialize_with = "or_empty")]
    pub ipv4_ingress: String,
    /// The ingress's IPv6 address.
    #[serde(rename = "IPv6IngressIP", deserialize_with = "or_empty")]
    pub ipv6_ingress: String,
    /// Its cluster's id.
    #[serde(rename = "ClusterID")]
    pub cluster_id: u32,
    /// Who learned of it: `local`, `custom-resource`, `kvstore`.
    pub source: String,
    /// The index of its encryption key.
    pub encryption_key: u8,
    /// Its labels.
    pub labels: Option<BTreeMap<String, String>>,
    /// Its annotations.
    pub annotations: Option<BTreeMap<String, String>>,
    /// Its identity.
    pub node_identity: u32,
    /// Its `WireGuard` key; empty for none.
    pub wireguard_pub_key: String,
    /// Tells its reboots apart.
    #[serde(rename = "BootID")]
    pub boot_id: String,
}

/// An address of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Address {
    /// `InternalIP`, `ExternalIP`, `CiliumInternalIP`, ...
    #[serde(rename = "Type")]
    pub kind: String,
    /// The address.
    #[serde(rename = "IP")]
    pub ip: String,
}

/// A range of addresses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cidr {
    /// Its first address.
    #[serde(rename = "IP")]
    pub ip: String,
    /// Its mask.
    #[serde(rename = "Mask")]
    pub mask: ByteString,
}

impl From<IpNet> for Cidr {
    fn from(net: IpNet) -> Self {
        let mask = match net.netmask() {
            IpAddr::V4(mask) => mask.octets().to_vec(),
            IpAddr::V6(mask) => mask.octets().to_vec(),
        };
        Self { ip: net.network().to_string(), mask: ByteString(mask) }
    }
}

impl Cidr {
    fn net(&self) -> Option<IpNet> {
        let mask = Some(self.mask.clone());
        super::IpIdentityPair { ip: self.ip.clone(), mask, ..Default::default() }.prefix()
    }
}

impl Node {
    /// Sets the ranges of its pods: the first of a family is the primary one.
    pub fn set_ranges(&mut self, ranges: &[IpNet]) {
        let of = |v4: bool| ranges.iter().copied().filter(move |net| net.addr().is_ipv4() == v4);
        let more = |v4| {
            let more: Vec<Cidr> = of(v4).skip(1).map(Cidr::from).collect();
            (!more.is_empty()).then_some(more)
        };
        self.ipv4_cidr = of(true).next().map(Cidr::from);
        self.ipv6_cidr = of(false).next().map(Cidr::from);
        (self.ipv4_more, self.ipv6_more) = (more(true), more(false));
    }

    /// The ranges of its pods.
    pub fn ranges(&self) -> Vec<IpNet> {
        let more = [&self.ipv4_more, &self.ipv6_more].into_iter().flatten().flatten();
        let all = self.ipv4_cidr.iter().chain(&self.ipv6_cidr).chain(more);
        all.filter_map(Cidr::net).collect()
    }

    /// Errors for a node that is not what its key says, or not of the cluster that is read.
    pub fn check(&self, key: &str, expected: &Expected) -> Result<(), Error> {
        if self.name.is_empty() || self.name != key {
            return Err(refused(key, format!("it speaks of node {:?}", self.name)));
        }
        if self.cluster != expected.cluster {
            let reason = format!("cluster is {:?}, not {:?}", self.cluster, expected.cluster);
            return Err(refused(key, reason));
        }
        if self.cluster_id != expected.id {
            let reason = format!("cluster id is {}, not {}", self.cluster_id, expected.id);
            return Err(refused(key, reason));
        }
        let none = self.addresses.iter().find(|address| address.ip.parse::<IpAddr>().is_err());
        if let Some(Address { kind, ip }) = none {
            return Err(refused(key, format!("{kind} {ip:?} is no address")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Address, Node};
    use crate::value::{Expected, decode, encode};

    fn node() -> Node {
        let mut node = Node {
            name: "n1".into(),
            cluster: "east".into(),
            addresses: vec![Address { kind: "InternalIP".into(), ip: "172.18.0.2".into() }],
            cluster_id: 1,
            source: "local".into(),
            labels: Some([("a".to_owned(), "b".to_owned())].into()),
            node_identity: 1,
            boot_id: "boot".into(),
            ..Node::default()
        };
        let ranges = ["10.0.0.0/24", "fd00::/64", "10.0.9.0/24"];
        node.set_ranges(&ranges.map(|range| range.parse().unwrap()));
        node
    }

    #[test]
    fn round_trips_byte_for_byte() {
        let text = r#"{"Name":"n1","Cluster":"east","IPAddresses":[{"Type":"InternalIP","IP":"172.18.0.2"}],"IPv4AllocCIDR":{"IP":"10.0.0.0","Mask":"////AA=="},"IPv4SecondaryAllocCIDRs":[{"IP":"10.0.9.0","Mask":"////AA=="}],"IPv6AllocCIDR":{"IP":"fd00::","Mask":"//////////8AAAAAAAAAAA=="},"IPv6SecondaryAllocCIDRs":null,"IPv4HealthIP":"","IPv6HealthIP":"","IPv4IngressIP":"","IPv6IngressIP":"","ClusterID":1,"Source":"local","EncryptionKey":0,"Labels":{"a":"b"},"Annotations":null,"NodeIdentity":1,"WireguardPubKey":"","BootID":"boot"}"#;
        assert_eq!(String::from_utf8(encode(&node())).unwrap(), text);
        let read: Node = decode("k", text.as_bytes()).unwrap();
        assert_eq!(read, node());
        let shown: Vec<_> = read.ranges().iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["10.0.0.0/24", "fd00::/64", "10.0.9.0/24"]);
    }

    #[test]
    fn nodes_of_others_are_refused() {
        let east = Expected { cluster: "east".into(), id: 1 };
        assert!(node().check("n1", &east).is_ok());
        assert!(node().check("n2", &east).is_err());
        let mut nowhere = node();
        nowhere.addresses[0].ip = "nowhere".into();
        assert!(nowhere.check("n1", &east).is_err());
        assert!(node().check("n1", &Expected { id: 2, ..east.clone() }).is_err());
        assert!(node().check("n1", &Expected { cluster: "west".into(), ..east }).is_err());
    }
}
