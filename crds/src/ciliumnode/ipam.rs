//! The addresses of a node's pods: what the operator gives and what the agent uses.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{integer, schema};

/// The addresses that a node's pods get.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct IpamSpec {
    /// Ranges of the node (modes cluster-pool and kubernetes).
    #[serde(rename = "podCIDRs", default, skip_serializing_if = "Vec::is_empty")]
    pub pod_cidrs: Vec<String>,
    /// IPv4 addresses of the node, one by one (cloud and CRD modes).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pool: BTreeMap<String, AllocationIp>,
    /// IPv6 addresses of the node, one by one (cloud and CRD modes).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ipv6_pool: BTreeMap<String, AllocationIp>,
    /// Ranges of the node by pool (mode multi-pool).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pools: Option<IpamPools>,
    /// Addresses that the node has at least.
    #[serde(
        default,
        deserialize_with = "integer::fitting",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(schema_with = "schema::non_negative")]
    pub min_allocate: Option<u32>,
    /// Addresses that the node has at most.
    #[serde(
        default,
        deserialize_with = "integer::fitting",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(schema_with = "schema::non_negative")]
    pub max_allocate: Option<u32>,
    /// Addresses that the node holds unused.
    #[serde(
        default,
        deserialize_with = "integer::fitting",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(schema_with = "schema::non_negative")]
    pub pre_allocate: Option<u32>,
    /// Addresses beyond those that may come along when an interface is filled.
    #[serde(
        default,
        deserialize_with = "integer::fitting",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(schema_with = "schema::non_negative")]
    pub max_above_watermark: Option<u32>,
    /// Tags of the static address that the node shall have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub static_ip_tags: BTreeMap<String, String>,
}

/// Who holds an address.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AllocationIp {
    /// The pod, once one has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The interface that it is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
}

/// Ranges by pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IpamPools {
    /// What the agent asks for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requested: Vec<IpamPoolRequest>,
    /// What the operator has given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allocated: Vec<IpamPoolAllocation>,
}

/// How much the agent wants of a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IpamPoolRequest {
    /// The pool's name.
    #[schemars(length(min = 1))]
    pub pool: String,
    /// How many addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needed: Option<IpamPoolDemand>,
}

/// How many addresses are wanted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct IpamPoolDemand {
    /// How many of IPv4.
    #[serde(
        default,
        deserialize_with = "integer::fitting",
        skip_serializing_if = "Option::is_none"
    )]
    pub ipv4_addrs: Option<u32>,
    /// How many of IPv6.
    #[serde(
        default,
        deserialize_with = "integer::fitting",
        skip_serializing_if = "Option::is_none"
    )]
    pub ipv6_addrs: Option<u32>,
}

/// What the operator has given out of a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IpamPoolAllocation {
    /// The pool's name.
    #[schemars(length(min = 1))]
    pub pool: String,
    /// The ranges.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::cidrs")]
    pub cidrs: Vec<String>,
}

/// The addresses that are in use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct IpamStatus {
    /// IPv4 addresses in use.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub used: BTreeMap<String, AllocationIp>,
    /// IPv6 addresses in use.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ipv6_used: BTreeMap<String, AllocationIp>,
    /// How full the node's ranges are.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pod_cidrs: BTreeMap<String, PodCidrState>,
    /// What the operator could not do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator_status: Option<OperatorStatus>,
    /// IPv4 addresses on their way back.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub release_ips: BTreeMap<String, IpReleaseStatus>,
    /// IPv6 addresses on their way back.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub release_ipv6s: BTreeMap<String, IpReleaseStatus>,
    /// The static address that the node has got.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub assigned_static_ip: Option<String>,
}

/// What the operator could not do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OperatorStatus {
    /// The last error in giving addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// How full a range is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PodCidrState {
    /// How full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<PodCidrStatus>,
}

/// How full a range is.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum PodCidrStatus {
    /// It is given back.
    Released,
    /// No address is left.
    Depleted,
    /// Some addresses are taken.
    InUse,
}

/// How far the way back of an address is.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum IpReleaseStatus {
    /// The operator wants it back.
    MarkedForRelease,
    /// The agent agrees.
    ReadyForRelease,
    /// The agent refuses: it is in use.
    DoNotRelease,
    /// The operator has taken it back.
    Released,
}
