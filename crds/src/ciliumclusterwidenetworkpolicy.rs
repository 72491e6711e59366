//! `CiliumClusterwideNetworkPolicy`: rules for endpoints of all namespaces, or for nodes.

use kube::api::ObjectMeta;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::kind::{Column, Kind};
use crate::policy::{PolicyRule, PolicyStatus};
use crate::resource::cilium_kind;

/// Rules for endpoints of all namespaces, or for nodes: the one of `spec` and those of `specs`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
pub struct CiliumClusterwideNetworkPolicy {
    /// The policy's name.
    pub metadata: ObjectMeta,
    /// One rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spec: Option<PolicyRule>,
    /// More rules.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub specs: Option<Vec<PolicyRule>>,
    /// What became of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<PolicyStatus>,
}

cilium_kind! {
    CiliumClusterwideNetworkPolicy: Cluster "ciliumclusterwidenetworkpolicies" ["v2"]
    fields { "metadata": metadata }
    optional { "spec": spec, "specs": specs, "status": status }
    Kind {
        name: "CiliumClusterwideNetworkPolicy",
        short_names: &["ccnp"],
        categories: &["cilium", "ciliumpolicy"],
        status: true,
        columns: &[Column::VALID],
        ..Kind::EMPTY
    }
}

impl CiliumClusterwideNetworkPolicy {
    /// Every rule: `spec` first, then `specs` in order.
    pub fn rules(&self) -> impl Iterator<Item = &PolicyRule> {
        self.spec.iter().chain(self.specs.iter().flatten())
    }
}
