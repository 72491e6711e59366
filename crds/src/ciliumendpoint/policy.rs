//! The realized policy of an endpoint. Agents leave it empty; older ones filled it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::integer;

/// The realized policy of an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EndpointPolicy {
    /// What it may receive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ingress: Option<EndpointPolicyDirection>,
    /// What it may send.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress: Option<EndpointPolicyDirection>,
}

/// The realized policy in one direction.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EndpointPolicyDirection {
    /// Whether what is not allowed is dropped.
    pub enforcing: bool,
    /// How far the realization is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// What is allowed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed: Vec<IdentityTuple>,
    /// What is denied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub denied: Vec<IdentityTuple>,
    /// What is about to be allowed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub adding: Vec<IdentityTuple>,
    /// What is about to be allowed no longer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removing: Vec<IdentityTuple>,
}

/// Traffic with one identity.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct IdentityTuple {
    /// The identity's number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<i64>,
    /// The identity's labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub identity_labels: BTreeMap<String, String>,
    /// The port; 0 for all.
    #[serde(
        default,
        deserialize_with = "integer::fitting",
        skip_serializing_if = "Option::is_none"
    )]
    pub dest_port: Option<u16>,
    /// The protocol's number; 0 for all.
    #[serde(
        default,
        deserialize_with = "integer::fitting",
        skip_serializing_if = "Option::is_none"
    )]
    pub protocol: Option<u8>,
}
