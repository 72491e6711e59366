//! `CiliumNode`: a node's addresses and pod ranges, as its agent and the operator agree on them.

use kube::api::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ciliumendpoint::networking::EncryptionSpec;
use crate::kind::{Column, Kind};
use crate::resource::cilium_kind;

pub mod alibaba;
pub mod azure;
pub mod eni;
pub mod ipam;

use alibaba::{AlibabaCloudSpec, AlibabaCloudStatus};
use azure::{AzureSpec, AzureStatus};
use eni::{EniSpec, EniStatus};
use ipam::{IpamSpec, IpamStatus};

/// A node. Its name is that of the Kubernetes node.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
pub struct CiliumNode {
    /// The node's name and labels.
    pub metadata: ObjectMeta,
    /// What the node is, and which ranges are its.
    pub spec: NodeSpec,
    /// What the node uses of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<NodeStatus>,
}

cilium_kind! {
    CiliumNode: Cluster "ciliumnodes" ["v2"]
    fields { "metadata": metadata, "spec": spec }
    optional { "status": status }
    Kind {
        name: "CiliumNode",
        short_names: &["cn", "ciliumn"],
        categories: &["cilium"],
        status: true,
        columns: &[
            Column::new(
                "CiliumInternalIP",
                "string",
                r#".spec.addresses[?(@.type=="CiliumInternalIP")].ip"#,
            ),
            Column::new("InternalIP", "string", r#".spec.addresses[?(@.type=="InternalIP")].ip"#),
            Column::AGE,
        ],
        ..Kind::EMPTY
    }
}

/// What a node is, and which ranges are its.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct NodeSpec {
    /// The node's addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<NodeAddress>,
    /// Addresses of the node's health endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health: Option<AddressFamilies>,
    /// Addresses of the node's ingress proxy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ingress: Option<AddressFamilies>,
    /// How traffic to the node is encrypted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encryption: Option<EncryptionSpec>,
    /// The addresses that the node's pods get.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipam: Option<IpamSpec>,
    /// Changes when the node boots.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bootid: Option<String>,
    /// The machine's name to its cloud provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance_id: Option<String>,
    /// The node's security identity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodeidentity: Option<i64>,
    /// Addresses from Amazon's network interfaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eni: Option<EniSpec>,
    /// Addresses from Azure's network interfaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub azure: Option<AzureSpec>,
    /// Addresses from Alibaba Cloud's network interfaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alibaba_cloud: Option<AlibabaCloudSpec>,
}

/// An address of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeAddress {
    /// What it is: `InternalIP`, `ExternalIP`, `CiliumInternalIP` or `Hostname`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub address_type: Option<String>,
    /// The address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip: Option<String>,
}

/// An address of each family.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AddressFamilies {
    /// The IPv4 address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<String>,
    /// The IPv6 address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<String>,
}

/// What a node uses of its ranges.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct NodeStatus {
    /// The addresses that are in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipam: Option<IpamStatus>,
    /// Amazon's network interfaces of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eni: Option<EniStatus>,
    /// Azure's network interfaces of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub azure: Option<AzureStatus>,
    /// Alibaba Cloud's network interfaces of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alibaba_cloud: Option<AlibabaCloudStatus>,
}
