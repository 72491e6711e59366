//! How an endpoint is reached: the part that `CiliumEndpoint` and `CiliumEndpointSlice` share.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::integer;

/// The addresses of an endpoint, and the node that it is on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EndpointNetworking {
    /// One pair of addresses per interface.
    pub addressing: Vec<AddressPair>,
    /// The address under which other nodes reach the endpoint's node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// The addresses of one interface.
#[derive(
    Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct AddressPair {
    /// The IPv4 address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<String>,
    /// The IPv6 address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<String>,
}

/// How traffic to it is encrypted.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    JsonSchema,
)]
pub struct EncryptionSpec {
    /// The key's index: of `IPsec`, 255 for `WireGuard`, 0 for none.
    #[serde(
        default,
        deserialize_with = "integer::fitting",
        skip_serializing_if = "Option::is_none"
    )]
    pub key: Option<u32>,
}

/// A port of a container that has a name.
#[derive(
    Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct NamedPort {
    /// The port's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The port's number.
    #[serde(
        default,
        deserialize_with = "integer::fitting",
        skip_serializing_if = "Option::is_none"
    )]
    pub port: Option<u16>,
    /// The port's protocol.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
}
