//! Addresses from Amazon's elastic network interfaces.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{integer, schema};

/// How interfaces are made for a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct EniSpec {
    /// The instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance_id: Option<String>,
    /// The instance's type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance_type: Option<String>,
    /// The zone that the instance is in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub availability_zone: Option<String>,
    /// The network that the instance is in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vpc_id: Option<String>,
    /// The subnet of the instance's first interface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_subnet_id: Option<String>,
    /// Subnets that interfaces may be in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subnet_ids: Vec<String>,
    /// Tags of subnets that interfaces may be in.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub subnet_tags: BTreeMap<String, String>,
    /// Security groups of the interfaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub security_groups: Vec<String>,
    /// Tags of security groups of the interfaces.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub security_group_tags: BTreeMap<String, String>,
    /// Tags of interfaces to leave alone.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub exclude_interface_tags: BTreeMap<String, String>,
    /// The first interface whose addresses pods may have.
    #[serde(
        default,
        deserialize_with = "integer::fitting",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(schema_with = "schema::non_negative")]
    pub first_interface_index: Option<u32>,
    /// Superseded by the same in `ipam`.
    #[serde(
        default,
        deserialize_with = "integer::fitting",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(schema_with = "schema::non_negative")]
    pub min_allocate: Option<u32>,
    /// Superseded by the same in `ipam`.
    #[serde(
        default,
        deserialize_with = "integer::fitting",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(schema_with = "schema::non_negative")]
    pub pre_allocate: Option<u32>,
    /// Superseded by the same in `ipam`.
    #[serde(
        default,
        deserialize_with = "integer::fitting",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(schema_with = "schema::non_negative")]
    pub max_above_watermark: Option<u32>,
    /// Whether interfaces go with the instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delete_on_termination: Option<bool>,
    /// Whether pods may have an interface's primary address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub use_primary_address: Option<bool>,
    /// Whether addresses are taken one by one even where prefixes could be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disable_prefix_delegation: Option<bool>,
}

/// The interfaces of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EniStatus {
    /// The interfaces by their identifier.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub enis: BTreeMap<String, Eni>,
}

/// An interface.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Eni {
    /// Its identifier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Its primary address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip: Option<String>,
    /// Its MAC address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// Its number on the instance.
    #[serde(
        default,
        deserialize_with = "integer::fitting",
        skip_serializing_if = "Option::is_none"
    )]
    pub number: Option<u32>,
    /// What it says of itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The zone that it is in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub availability_zone: Option<String>,
    /// The subnet that it is in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subnet: Option<EniSubnet>,
    /// The network that it is in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vpc: Option<EniVpc>,
    /// Its secondary addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
    /// Its prefixes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prefixes: Vec<String>,
    /// Its public address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub public_ip: Option<String>,
    /// Its security groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub security_groups: Vec<String>,
    /// Its tags.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
}

/// A subnet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EniSubnet {
    /// Its identifier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Its range.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cidr: Option<String>,
}

/// A virtual network.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct EniVpc {
    /// Its identifier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Its first range.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub primary_cidr: Option<String>,
    /// All of its ranges.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cidrs: Vec<String>,
}
