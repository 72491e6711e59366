//! Who is behind an address.

use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::ByteString;
use serde::{Deserialize, Serialize};

use super::{Expected, or_empty, refused};
use crate::{Error, keys};

/// Identities below this mean the same in every cluster.
const RESERVED_BELOW: u32 = 256;
/// Identities from here on mean something on one node only.
const LOCAL_FROM: u32 = 1 << 24;

/// Who is behind an address or a range.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpIdentityPair {
    /// The address, or the first of the range.
    #[serde(rename = "IP")]
    pub ip: String,
    /// The range's mask; nothing for a whole address.
    #[serde(rename = "Mask", default)]
    pub mask: Option<ByteString>,
    /// The node's address: where the tunnel ends; empty if unknown.
    #[serde(rename = "HostIP", default, deserialize_with = "or_empty")]
    pub host_ip: String,
    /// The identity.
    #[serde(rename = "ID", default)]
    pub id: u32,
    /// The encryption key's index.
    #[serde(rename = "Key", default)]
    pub key: u8,
    /// Always empty.
    #[serde(rename = "Metadata", default)]
    pub metadata: String,
    /// The pod's namespace.
    #[serde(rename = "K8sNamespace", default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The pod's name.
    #[serde(rename = "K8sPodName", default, skip_serializing_if = "String::is_empty")]
    pub pod: String,
    /// The pod's service account.
    #[serde(rename = "K8sServiceAccount", default, skip_serializing_if = "String::is_empty")]
    pub service_account: String,
    /// The pod's named ports.
    #[serde(
        rename = "NamedPorts",
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "or_empty"
    )]
    pub named_ports: Vec<NamedPort>,
}

/// A port that a pod names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NamedPort {
    /// The name.
    pub name: String,
    /// The number.
    pub port: u16,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
}

impl IpIdentityPair {
    /// The entry of a prefix.
    pub fn new(prefix: IpNet, id: u32, host_ip: Option<IpAddr>) -> Self {
        let whole = prefix.prefix_len() == prefix.max_prefix_len();
        let mask = match prefix.netmask() {
            IpAddr::V4(mask) => mask.octets().to_vec(),
            IpAddr::V6(mask) => mask.octets().to_vec(),
        };
        Self {
            ip: prefix.addr().to_string(),
            mask: (!whole).then_some(ByteString(mask)),
            host_ip: host_ip.map(|ip| ip.to_string()).unwrap_or_default(),
            id,
            ..Self::default()
        }
    }

    /// The address or range that it speaks of.
    pub fn prefix(&self) -> Option<IpNet> {
        let address: IpAddr = self.ip.parse().ok()?;
        let Some(ByteString(mask)) = &self.mask else { return Some(address.into()) };
        let bits = |mask: IpAddr| ipnet::ip_mask_to_prefix(mask).ok();
        let length = match address {
            IpAddr::V4(_) => bits(<[u8; 4]>::try_from(mask.as_slice()).ok()?.into())?,
            IpAddr::V6(_) => bits(<[u8; 16]>::try_from(mask.as_slice()).ok()?.into())?,
        };
        IpNet::new(address, length).ok()
    }

    /// Where the tunnel ends.
    pub fn tunnel(&self) -> Option<IpAddr> {
        self.host_ip.parse().ok()
    }

    /// Errors for an entry that is not what the end of its key, `name`, says; or, of another
    /// cluster, whose identity is neither that cluster's (`owned`) nor reserved.
    pub fn check(
        &self,
        name: &str,
        remote: Option<(&Expected, &dyn Fn(u32) -> bool)>,
    ) -> Result<IpNet, Error> {
        let prefix = self.prefix().ok_or_else(|| refused(name, "IP or Mask is none"))?;
        if keys::parse_ip_name(name) != Some(prefix) {
            return Err(refused(name, format!("it speaks of {prefix}")));
        }
        if !self.host_ip.is_empty() && self.tunnel().is_none() {
            return Err(refused(name, format!("HostIP {:?} is no address", self.host_ip)));
        }
        // The bits above mean something else in the kernel's maps, and don't fit into a tunnel's header.
        if self.id >= LOCAL_FROM {
            return Err(refused(name, format!("identity {} is none of a pod or node", self.id)));
        }
        if let Some((expected, owned)) = remote
            && self.id >= RESERVED_BELOW
            && !owned(self.id)
        {
            let Expected { cluster, id } = expected;
            let reason = format!("identity {} is not one of cluster {cluster}, id {id}", self.id);
            return Err(refused(name, reason));
        }
        Ok(prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::{IpIdentityPair, NamedPort};
    use crate::value::{Expected, decode, encode};

    #[test]
    fn round_trips_byte_for_byte() {
        let pod = IpIdentityPair {
            key: 3,
            namespace: "default".into(),
            pod: "web-0".into(),
            service_account: "web".into(),
            named_ports: vec![NamedPort { name: "http".into(), port: 80, protocol: "TCP".into() }],
            ..IpIdentityPair::new(
                "10.0.0.1/32".parse().unwrap(),
                65_600,
                Some("172.18.0.2".parse().unwrap()),
            )
        };
        let range = IpIdentityPair::new("10.1.2.0/24".parse().unwrap(), 2, None);
        let cases = [
            (
                pod,
                r#"{"IP":"10.0.0.1","Mask":null,"HostIP":"172.18.0.2","ID":65600,"Key":3,"Metadata":"","K8sNamespace":"default","K8sPodName":"web-0","K8sServiceAccount":"web","NamedPorts":[{"Name":"http","Port":80,"Protocol":"TCP"}]}"#,
            ),
            (
                range,
                r#"{"IP":"10.1.2.0","Mask":"////AA==","HostIP":"","ID":2,"Key":0,"Metadata":""}"#,
            ),
        ];
        for (pair, text) in cases {
            assert_eq!(String::from_utf8(encode(&pair)).unwrap(), text);
            assert_eq!(decode::<IpIdentityPair>("k", text.as_bytes()).unwrap(), pair);
        }
    }

    #[test]
    fn other_fields_and_nulls_do_no_harm() {
        let text = r#"{"IP":"fd00::1","HostIP":null,"ID":7,"NamedPorts":null,"New":[1]}"#;
        let pair: IpIdentityPair = decode("k", text.as_bytes()).unwrap();
        assert_eq!(pair.prefix(), "fd00::1/128".parse().ok());
        assert_eq!(pair.tunnel(), None);
    }

    #[test]
    fn entries_that_contradict_are_refused() {
        let pair = IpIdentityPair::new("10.0.0.1/32".parse().unwrap(), 65_600, None);
        let expected = Expected { cluster: "east".into(), id: 1 };
        let (own, other) = (|id: u32| id >> 16 == 1, |id: u32| id >> 16 == 2);
        assert!(pair.check("10.0.0.1", None).is_ok());
        assert!(pair.check("10.0.0.2", None).is_err());
        assert!(pair.check("10.0.0.1", Some((&expected, &own))).is_ok());
        assert!(pair.check("10.0.0.1", Some((&expected, &other))).is_err());
        let host = IpIdentityPair { id: 6, ..pair.clone() };
        assert!(host.check("10.0.0.1", Some((&expected, &other))).is_ok());
        let far = IpIdentityPair { id: 1 << 24, ..pair.clone() };
        assert!(far.check("10.0.0.1", None).is_err());
        let nowhere = IpIdentityPair { host_ip: "nowhere".into(), ..pair.clone() };
        assert!(nowhere.check("10.0.0.1", None).is_err());
        let mask = Some(k8s_openapi::ByteString(vec![255, 0, 255, 0]));
        assert!(IpIdentityPair { mask, ..pair }.prefix().is_none());
    }
}
