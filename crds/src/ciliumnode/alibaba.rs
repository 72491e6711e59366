//! Addresses from Alibaba Cloud's elastic network interfaces.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How interfaces are made for a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct AlibabaCloudSpec {
    /// The instance's type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance_type: Option<String>,
    /// The zone that the instance is in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub availability_zone: Option<String>,
    /// The network that the instance is in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vpc_id: Option<String>,
    /// The range of that network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cidr_block: Option<String>,
    /// Switches that interfaces may be at.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vswitches: Vec<String>,
    /// Tags of switches that interfaces may be at.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub vswitch_tags: BTreeMap<String, String>,
    /// Security groups of the interfaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub security_groups: Vec<String>,
    /// Tags of security groups of the interfaces.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub security_group_tags: BTreeMap<String, String>,
}

/// The interfaces of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AlibabaCloudStatus {
    /// The interfaces by their identifier.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub enis: BTreeMap<String, AlibabaEni>,
}

/// An interface.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct AlibabaEni {
    /// Its identifier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_interface_id: Option<String>,
    /// Its MAC address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac_address: Option<String>,
    /// Its primary address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub primary_ip_address: Option<String>,
    /// Its addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub private_ipsets: Vec<AlibabaPrivateIp>,
    /// Whether it is the instance's first interface.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub interface_type: Option<String>,
    /// The instance that it is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance_id: Option<String>,
    /// The zone that it is in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone_id: Option<String>,
    /// The network that it is in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vpc: Option<AlibabaVpc>,
    /// The switch that it is at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vswitch: Option<AlibabaVswitch>,
    /// Its security groups.
    #[serde(rename = "security-groupids", default, skip_serializing_if = "Vec::is_empty")]
    pub security_group_ids: Vec<String>,
    /// Its tags.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
}

/// An address of an interface.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct AlibabaPrivateIp {
    /// The address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub private_ip_address: Option<String>,
    /// Whether it is the interface's first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub primary: Option<bool>,
}

/// A virtual network.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct AlibabaVpc {
    /// Its identifier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vpc_id: Option<String>,
    /// Its IPv4 range.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cidr: Option<String>,
    /// Its IPv6 range.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv6_cidr: Option<String>,
    /// Its further IPv4 ranges.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secondary_cidrs: Vec<String>,
}

/// A virtual switch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct AlibabaVswitch {
    /// Its identifier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vswitch_id: Option<String>,
    /// Its IPv4 range.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cidr: Option<String>,
    /// Its IPv6 range.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv6_cidr: Option<String>,
}
