//! What subjects of a rule may and may not send.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Authentication, CidrRule, Entity, FqdnSelector, IcmpRule, PeerGroup, PortDenyRule, PortRule,
    ServiceRef,
};
use crate::schema;
use crate::selector::LabelSelector;

/// Traffic from the subjects that is allowed. At most one of the `to` peer lists is given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EgressRule {
    /// Endpoints that may be reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_endpoints: Option<Vec<LabelSelector>>,
    /// Requirements on every receiver, on top of all rules of this direction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_requires: Option<Vec<LabelSelector>>,
    /// Address ranges that may be reached.
    #[serde(rename = "toCIDR", default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::cidrs")]
    pub to_cidr: Option<Vec<String>>,
    /// Address ranges with exceptions that may be reached.
    #[serde(rename = "toCIDRSet", skip_serializing_if = "Option::is_none")]
    pub to_cidr_set: Option<Vec<CidrRule>>,
    /// Special receivers that may be reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_entities: Option<Vec<Entity>>,
    /// Services whose backends may be reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_services: Option<Vec<ServiceRef>>,
    /// DNS names whose addresses may be reached.
    #[serde(rename = "toFQDNs", skip_serializing_if = "Option::is_none")]
    pub to_fqdns: Option<Vec<FqdnSelector>>,
    /// Groups of a cloud provider that may be reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_groups: Option<Vec<PeerGroup>>,
    /// Nodes that may be reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_nodes: Option<Vec<LabelSelector>>,
    /// The ports that may be reached; absent means all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_ports: Option<Vec<PortRule>>,
    /// The ICMP messages that may be sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub icmps: Option<Vec<IcmpRule>>,
    /// What the receiver must prove.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authentication: Option<Authentication>,
}

/// Traffic from the subjects that is denied. At most one of the `to` peer lists is given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EgressDenyRule {
    /// Endpoints that may not be reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_endpoints: Option<Vec<LabelSelector>>,
    /// Requirements on every denied receiver, on top of all deny rules of this direction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_requires: Option<Vec<LabelSelector>>,
    /// Address ranges that may not be reached.
    #[serde(rename = "toCIDR", default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::cidrs")]
    pub to_cidr: Option<Vec<String>>,
    /// Address ranges with exceptions that may not be reached.
    #[serde(rename = "toCIDRSet", skip_serializing_if = "Option::is_none")]
    pub to_cidr_set: Option<Vec<CidrRule>>,
    /// Special receivers that may not be reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_entities: Option<Vec<Entity>>,
    /// Services whose backends may not be reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_services: Option<Vec<ServiceRef>>,
    /// Groups of a cloud provider that may not be reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_groups: Option<Vec<PeerGroup>>,
    /// Nodes that may not be reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_nodes: Option<Vec<LabelSelector>>,
    /// The ports that may not be reached; absent means all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_ports: Option<Vec<PortDenyRule>>,
    /// The ICMP messages that may not be sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub icmps: Option<Vec<IcmpRule>>,
}
