//! ICMP messages of a rule.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::integer;

/// Of IPv4.messages; one of them must match.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IcmpRule {
    /// The messages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 40))]
    pub fields: Vec<IcmpField>,
}

/// One kind of ICMP message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IcmpField {
    /// The IP family.
    #[serde(default)]
    pub family: IcmpFamily,
    /// The message's type, as number or as name.
    #[serde(rename = "type", deserialize_with = "integer::nearest")]
    #[schemars(schema_with = "icmp_type")]
    pub icmp_type: IntOrString,
}

/// The IP family of an ICMP message.
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
pub enum IcmpFamily {
    /// Of IPv4.
    #[serde(rename = "IPv4")]
    #[default]
    Ipv4,
    /// Of IPv6.
    #[serde(rename = "IPv6")]
    Ipv6,
}

/// The names that the schema admits as types of ICMP messages, of both families; as Cilium has
/// them, with the odd one and the doubles.
pub const TYPE_NAMES: &[&str] = &[
    "EchoReply",
    "DestinationUnreachable",
    "Redirect",
    "Echo",
    "RouterAdvertisement",
    "RouterSelection",
    "TimeExceeded",
    "ParameterProblem",
    "Timestamp",
    "TimestampReply",
    "Photuris",
    "ExtendedEchoRequest",
    "ExtendedEcho Reply",
    "PacketTooBig",
    "ParameterProblem",
    "EchoRequest",
    "MulticastListenerQuery",
    "MulticastListenerReport",
    "MulticastListenerDone",
    "RouterSolicitation",
    "RouterAdvertisement",
    "NeighborSolicitation",
    "NeighborAdvertisement",
    "RedirectMessage",
    "RouterRenumbering",
    "ICMPNodeInformationQuery",
    "ICMPNodeInformationResponse",
    "InverseNeighborDiscoverySolicitation",
    "InverseNeighborDiscoveryAdvertisement",
    "HomeAgentAddressDiscoveryRequest",
    "HomeAgentAddressDiscoveryReply",
    "MobilePrefixSolicitation",
    "MobilePrefixAdvertisement",
    "DuplicateAddressRequestCodeSuffix",
    "DuplicateAddressConfirmationCodeSuffix",
];

/// A message's type: a number up to 255, or a name.
fn icmp_type(_: &mut SchemaGenerator) -> Schema {
    let number = "[0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5]";
    json_schema!({
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "pattern": format!("^({number}|{})$", TYPE_NAMES.join("|")),
        "x-kubernetes-int-or-string": true,
    })
}
