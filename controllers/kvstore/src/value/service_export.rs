//! A service that a cluster exports by the Multi-Cluster Services API.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::SessionAffinityConfig;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

use super::{Expected, or_empty, refused};
use crate::Error;

/// What one cluster says of a service that it exports.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceExport {
    /// The cluster's name.
    pub cluster: String,
    /// The service's name.
    pub name: String,
    /// The service's namespace.
    pub namespace: String,
    /// What is annotated on the import in other clusters; see [`ServiceExport::annotations`].
    #[serde(default, deserialize_with = "or_empty", skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// The import's labels in other clusters; see [`ServiceExport::labels`].
    #[serde(default, deserialize_with = "or_empty", skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The labels once more, for readers of former releases.
    #[serde(
        rename = "Labels",
        default,
        deserialize_with = "or_empty",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub former_labels: BTreeMap<String, String>,
    /// The annotations once more, for readers of former releases.
    #[serde(
        rename = "Annotations",
        default,
        deserialize_with = "or_empty",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub former_annotations: BTreeMap<String, String>,
    /// Since when it is exported: of two clusters that disagree, the older export counts.
    pub export_creation_timestamp: Time,
    /// The service's ports.
    #[serde(default, deserialize_with = "or_empty")]
    pub ports: Vec<ExportPort>,
    /// Whether it has an address in other clusters.
    #[serde(rename = "type")]
    pub kind: ExportType,
    /// Whether a client stays with its backend.
    pub session_affinity: SessionAffinity,
    /// For how long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_affinity_config: Option<SessionAffinityConfig>,
    /// `IPv4`, `IPv6`, or both; the first is preferred.
    #[serde(
        rename = "ipFamilies",
        default,
        deserialize_with = "or_empty",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub ip_families: Vec<String>,
    /// Which endpoints pods of the same node reach: `Cluster` or `Local`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub internal_traffic_policy: Option<String>,
    /// Which endpoints are preferred: `PreferClose`, `PreferSameZone` or `PreferSameNode`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic_distribution: Option<String>,
}

/// Whether an exported service has an address in other clusters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExportType {
    /// It has one.
    ClusterSetIP,
    /// Only its pods have.
    Headless,
}

/// Whether a client stays with its backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SessionAffinity {
    /// By its address.
    ClientIP,
    /// It does not.
    None,
}

/// A port of an exported service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExportPort {
    /// Its name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// `TCP`, `UDP` or `SCTP`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub protocol: String,
    /// What is spoken on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_protocol: Option<String>,
    /// Its number.
    pub port: i32,
}

impl ServiceExport {
    /// What is annotated, whichever release has written it.
    pub fn annotations(&self) -> &BTreeMap<String, String> {
        if self.annotations.is_empty() { &self.former_annotations } else { &self.annotations }
    }

    /// The labels, whichever release has written them.
    pub fn labels(&self) -> &BTreeMap<String, String> {
        if self.labels.is_empty() { &self.former_labels } else { &self.labels }
    }

    /// Errors for an export that is not what the end of its key, `namespace/name`, says, or not of
    /// the cluster that is read.
    pub fn check(&self, key: &str, expected: &Expected) -> Result<(), Error> {
        let named = format!("{}/{}", self.namespace, self.name);
        if self.namespace.is_empty() || self.name.is_empty() || named != key {
            return Err(refused(key, format!("it speaks of service {named}")));
        }
        if self.cluster != expected.cluster {
            let reason =
                format!("it is of cluster {:?}, not of {:?}", self.cluster, expected.cluster);
            return Err(refused(key, reason));
        }
        let policy = self.internal_traffic_policy.as_deref();
        let spread = self.traffic_distribution.as_deref();
        for (field, said, allowed) in [
            ("internalTrafficPolicy", policy, &["Cluster", "Local"][..]),
            ("trafficDistribution", spread, &["PreferClose", "PreferSameZone", "PreferSameNode"]),
        ] {
            if let Some(said) = said.filter(|said| !allowed.contains(said)) {
                let allowed = allowed.join(", ");
                return Err(refused(key, format!("{field} is {said:?}, none of {allowed}")));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{ExportType, ServiceExport, SessionAffinity};
    use crate::value::{Expected, decode, encode};

    #[test]
    fn round_trips_byte_for_byte() {
        for text in [
            r#"{"cluster":"east","name":"web","namespace":"default","annotations":{"a":"b"},"Annotations":{"a":"b"},"exportCreationTimestamp":"2024-05-01T12:00:00Z","ports":[{"name":"http","protocol":"TCP","appProtocol":"http","port":80},{"port":53}],"type":"ClusterSetIP","sessionAffinity":"ClientIP","sessionAffinityConfig":{"clientIP":{"timeoutSeconds":600}},"ipFamilies":["IPv4","IPv6"],"internalTrafficPolicy":"Local","trafficDistribution":"PreferClose"}"#,
            r#"{"cluster":"east","name":"db","namespace":"default","labels":{"app":"db"},"Labels":{"app":"db"},"exportCreationTimestamp":"2024-05-01T12:00:00Z","ports":[],"type":"Headless","sessionAffinity":"None"}"#,
        ] {
            let export: ServiceExport = decode("k", text.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(encode(&export)).unwrap(), text);
        }
    }

    #[test]
    fn what_is_missing_or_means_nothing_is_refused() {
        let text = r#"{"cluster":"east","name":"web","namespace":"default","Annotations":null,"Labels":{"a":"b"},"exportCreationTimestamp":"2024-05-01T12:00:00Z","ports":null,"type":"Headless","sessionAffinity":"None","more":1}"#;
        let export: ServiceExport = decode("k", text.as_bytes()).unwrap();
        assert_eq!(
            (export.kind, export.session_affinity),
            (ExportType::Headless, SessionAffinity::None)
        );
        // As former releases have written it.
        assert!(export.annotations().is_empty());
        assert_eq!(export.labels()["a"], "b");
        let east = Expected { cluster: "east".into(), id: 1 };
        assert!(export.check("default/web", &east).is_ok());
        let odd = Some("Nearby".to_owned());
        let odd = ServiceExport { traffic_distribution: odd, ..export.clone() };
        assert!(odd.check("default/web", &east).is_err());
        assert!(export.check("default/db", &east).is_err());
        let west = Expected { cluster: "west".into(), id: 2 };
        assert!(export.check("default/web", &west).is_err());
        for (is, other) in [
            (r#""exportCreationTimestamp":"2024-05-01T12:00:00Z","#, ""),
            (r#""type":"Headless""#, r#""type":"Other""#),
        ] {
            let text = text.replace(is, other);
            assert!(decode::<ServiceExport>("k", text.as_bytes()).is_err(), "{text}");
        }
    }
}
