//! A service that clusters share.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Expected, or_empty, refused};
use crate::Error;

/// What ports an address has, by their names; the unnamed port's is empty.
pub type PortConfiguration = BTreeMap<String, L4Addr>;

/// A service of one cluster: where it is reached there, and what is behind it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterService {
    /// The cluster's name.
    pub cluster: String,
    /// The service's namespace.
    pub namespace: String,
    /// The service's name.
    pub name: String,
    /// Cluster addresses with their ports; none for a headless service.
    #[serde(deserialize_with = "or_empty")]
    pub frontends: BTreeMap<String, PortConfiguration>,
    /// Addresses of pods with their ports.
    #[serde(deserialize_with = "or_empty")]
    pub backends: BTreeMap<String, PortConfiguration>,
    /// Names of pods by address.
    #[serde(deserialize_with = "or_empty", skip_serializing_if = "BTreeMap::is_empty")]
    pub hostnames: BTreeMap<String, String>,
    /// Where backends are, and for whom.
    #[serde(deserialize_with = "or_empty", skip_serializing_if = "BTreeMap::is_empty")]
    pub zones: BTreeMap<String, Zone>,
    /// The service's labels.
    #[serde(deserialize_with = "or_empty")]
    pub labels: BTreeMap<String, String>,
    /// The service's selector.
    #[serde(deserialize_with = "or_empty")]
    pub selector: BTreeMap<String, String>,
    /// Always true.
    pub include_external: bool,
    /// Whether other clusters may use the backends; always true.
    pub shared: bool,
    /// The cluster's id.
    #[serde(rename = "clusterID")]
    pub cluster_id: u32,
}

/// A port with its protocol.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct L4Addr {
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// The port's number.
    pub port: u16,
}

/// Where a backend is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Zone {
    /// Its zone.
    pub zone: String,
    /// The zones that should use it.
    #[serde(deserialize_with = "or_empty")]
    pub for_zones: Vec<ZoneHint>,
}

/// A zone by its name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ZoneHint {
    /// The name.
    pub name: String,
}

impl ClusterService {
    /// Errors for a service that is not what the end of its key, `namespace/name`, says, is not of
    /// the cluster that is read, or has addresses that are none.
    pub fn check(&self, key: &str, expected: &Expected) -> Result<(), Error> {
        let named = format!("{}/{}", self.namespace, self.name);
        if self.namespace.is_empty() || self.name.is_empty() || named != key {
            return Err(refused(key, format!("it speaks of service {named}")));
        }
        if self.cluster != expected.cluster || self.cluster_id != expected.id {
            let reason = format!(
                "it is of cluster {:?}, id {}, not of {:?}, id {}",
                self.cluster, self.cluster_id, expected.cluster, expected.id
            );
            return Err(refused(key, reason));
        }
        let addresses = self.frontends.keys().chain(self.backends.keys());
        for address in addresses.chain(self.hostnames.keys()).chain(self.zones.keys()) {
            if address.parse::<IpAddr>().is_err() {
                return Err(refused(key, format!("{address:?} is no address")));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{ClusterService, L4Addr, Zone, ZoneHint};
    use crate::value::{Expected, decode, encode};

    fn service() -> ClusterService {
        let ports = |port| [("http".to_owned(), L4Addr { protocol: "TCP".into(), port })].into();
        ClusterService {
            cluster: "east".into(),
            namespace: "default".into(),
            name: "web".into(),
            frontends: [("10.96.0.10".to_owned(), ports(80))].into(),
            backends: [("10.0.0.5".to_owned(), ports(8080))].into(),
            hostnames: [("10.0.0.5".to_owned(), "web-0".to_owned())].into(),
            zones: [(
                "10.0.0.5".to_owned(),
                Zone { zone: "a".into(), for_zones: vec![ZoneHint { name: "b".into() }] },
            )]
            .into(),
            include_external: true,
            shared: true,
            cluster_id: 1,
            ..ClusterService::default()
        }
    }

    #[test]
    fn round_trips_byte_for_byte() {
        let text = r#"{"cluster":"east","namespace":"default","name":"web","frontends":{"10.96.0.10":{"http":{"Protocol":"TCP","Port":80}}},"backends":{"10.0.0.5":{"http":{"Protocol":"TCP","Port":8080}}},"hostnames":{"10.0.0.5":"web-0"},"zones":{"10.0.0.5":{"zone":"a","forZones":[{"name":"b"}]}},"labels":{},"selector":{},"includeExternal":true,"shared":true,"clusterID":1}"#;
        assert_eq!(String::from_utf8(encode(&service())).unwrap(), text);
        assert_eq!(decode::<ClusterService>("k", text.as_bytes()).unwrap(), service());
        let headless = ClusterService { frontends: [].into(), ..service() };
        assert!(String::from_utf8(encode(&headless)).unwrap().contains(r#""frontends":{}"#));
    }

    #[test]
    fn services_of_others_are_refused() {
        let east = Expected { cluster: "east".into(), id: 1 };
        assert!(service().check("default/web", &east).is_ok());
        assert!(service().check("default/db", &east).is_err());
        assert!(service().check("default/web", &Expected { id: 2, ..east.clone() }).is_err());
        let mut service = service();
        service.backends.insert("nowhere".into(), [].into());
        assert!(service.check("default/web", &east).is_err());
    }
}
