//! Addresses from Azure's network interfaces.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How interfaces are used for a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct AzureSpec {
    /// The interface whose addresses pods get; absent means all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface_name: Option<String>,
}

/// The interfaces of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AzureStatus {
    /// The interfaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<AzureInterface>,
}

/// An interface.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct AzureInterface {
    /// Its identifier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its MAC address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// How far it is provisioned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Its addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<AzureAddress>,
    /// Its security group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub security_group: Option<String>,
    /// The gateway of its subnet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
    /// The former place of `gateway`.
    #[serde(rename = "GatewayIP", skip_serializing_if = "Option::is_none")]
    pub gateway_ip: Option<String>,
    /// The range of its subnet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cidr: Option<String>,
}

/// An address of an interface.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AzureAddress {
    /// The address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip: Option<String>,
    /// The subnet that it is in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subnet: Option<String>,
    /// How far it is provisioned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
}
