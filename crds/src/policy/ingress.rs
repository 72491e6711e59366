//! What subjects of a rule may and may not receive.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Authentication, CidrRule, Entity, IcmpRule, PeerGroup, PortDenyRule, PortRule};
use crate::schema;
use crate::selector::LabelSelector;

/// Traffic to the subjects that is allowed. At most one of the `from` lists is given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IngressRule {
    /// Endpoints that may send.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_endpoints: Option<Vec<LabelSelector>>,
    /// Requirements on every sender, on top of all rules of this direction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_requires: Option<Vec<LabelSelector>>,
    /// Address ranges that may send.
    #[serde(rename = "fromCIDR", default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::cidrs")]
    pub from_cidr: Option<Vec<String>>,
    /// Address ranges with exceptions that may send.
    #[serde(rename = "fromCIDRSet", skip_serializing_if = "Option::is_none")]
    pub from_cidr_set: Option<Vec<CidrRule>>,
    /// Special senders that may send.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_entities: Option<Vec<Entity>>,
    /// Groups of a cloud provider that may send.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_groups: Option<Vec<PeerGroup>>,
    /// Nodes that may send.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_nodes: Option<Vec<LabelSelector>>,
    /// The ports that may be reached; absent means all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_ports: Option<Vec<PortRule>>,
    /// The ICMP messages that may be received.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub icmps: Option<Vec<IcmpRule>>,
    /// What the sender must prove.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authentication: Option<Authentication>,
}

/// Traffic to the subjects that is denied. At most one of the `from` lists is given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IngressDenyRule {
    /// Endpoints that may not send.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_endpoints: Option<Vec<LabelSelector>>,
    /// Requirements on every denied sender, on top of all deny rules of this direction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_requires: Option<Vec<LabelSelector>>,
    /// Address ranges that may not send.
    #[serde(rename = "fromCIDR", default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::cidrs")]
    pub from_cidr: Option<Vec<String>>,
    /// Address ranges with exceptions that may not send.
    #[serde(rename = "fromCIDRSet", skip_serializing_if = "Option::is_none")]
    pub from_cidr_set: Option<Vec<CidrRule>>,
    /// Special senders that may not send.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_entities: Option<Vec<Entity>>,
    /// Groups of a cloud provider that may not send.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_groups: Option<Vec<PeerGroup>>,
    /// Nodes that may not send.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_nodes: Option<Vec<LabelSelector>>,
    /// The ports that may not be reached; absent means all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_ports: Option<Vec<PortDenyRule>>,
    /// The ICMP messages that may not be received.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub icmps: Option<Vec<IcmpRule>>,
}
