//! The values of all keys, as they are written byte for byte and read leniently.
//!
//! A reader ignores fields that it does not know and takes what is missing as empty; a value that
//! contradicts its key, or claims to be another cluster's, is refused: see each `check`.

mod cluster_config;
mod ip;
mod json;
mod labels;
mod node;
#[cfg(test)]
mod noise_tests;
mod policy_status;
mod service;
mod service_export;

pub use cluster_config::{Capabilities, ClusterConfig};
pub use ip::{IpIdentityPair, NamedPort};
pub use labels::parse_labels;
pub use node::{Address, Cidr, Node};
pub use policy_status::PolicyNodeStatus;
pub use service::{ClusterService, L4Addr, PortConfiguration, Zone, ZoneHint};
pub use service_export::{ExportPort, ExportType, ServiceExport, SessionAffinity};

use k8s_openapi::jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};

use crate::Error;

/// What is `null` is as what is not there: Go writes it for what is empty.
pub(crate) fn or_empty<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    from: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// A value as it is stored.
pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    // Structs of strings, numbers and maps with string keys: that cannot fail.
    json::to_vec(value).unwrap_or_default()
}

/// Reads a stored value.
pub fn decode<T: DeserializeOwned>(key: &str, bytes: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(bytes)
        .map_err(|error| Error::Value { key: key.into(), reason: error.to_string() })
}

/// The time as heartbeats and canaries have it: RFC 3339, in seconds.
pub fn now() -> Vec<u8> {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into_bytes()
}

/// What a reader of a cluster's keys insists on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// The name of the cluster that is read.
    pub cluster: String,
    /// Its id.
    pub id: u32,
}

fn refused(key: &str, reason: impl Into<String>) -> Error {
    Error::Value { key: key.into(), reason: reason.into() }
}
