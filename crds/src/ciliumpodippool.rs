//! `CiliumPodIPPool`: address ranges that multi-pool IPAM takes the ranges of nodes from.

use kube::api::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::kind::Kind;
use crate::resource::cilium_kind;
use crate::schema;
use crate::selector::LabelSelector;

/// A pool of addresses for pods.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
pub struct CiliumPodIpPool {
    /// The pool's name.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// The ranges, and whose they are.
    pub spec: PodIpPoolSpec,
}

cilium_kind! {
    CiliumPodIpPool: Cluster "ciliumpodippools" ["v2alpha1"]
    fields { "metadata": metadata, "spec": spec }
    optional {}
    Kind {
        name: "CiliumPodIPPool",
        short_names: &["cpip"],
        categories: &["cilium"],
        ..Kind::EMPTY
    }
}

/// The ranges of a pool, and the pods that it is for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodIpPoolSpec {
    /// The IPv4 ranges.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<Ipv4PoolSpec>,
    /// The IPv6 ranges.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Ipv6PoolSpec>,
    /// Pods that take their addresses from here without asking.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_selector: Option<LabelSelector>,
    /// Namespaces whose pods take their addresses from here without asking.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,
}

/// IPv4 ranges of a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ipv4PoolSpec {
    /// The ranges.
    #[schemars(schema_with = "schema::pool_cidrs")]
    pub cidrs: Vec<String>,
    /// The prefix length of what a node is given at a time.
    #[schemars(range(min = 1, max = 32))]
    pub mask_size: u8,
}

/// IPv6 ranges of a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ipv6PoolSpec {
    /// The ranges.
    #[schemars(schema_with = "schema::pool_cidrs")]
    pub cidrs: Vec<String>,
    /// The prefix length of what a node is given at a time.
    #[schemars(range(min = 1, max = 128))]
    pub mask_size: u8,
}
