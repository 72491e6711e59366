//! `CiliumNodeConfig`: settings of agents on nodes with certain labels, over those of all.

use std::collections::BTreeMap;

use kube::api::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::kind::Kind;
use crate::resource::cilium_kind;

/// Settings of agents on some nodes.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
pub struct CiliumNodeConfig {
    /// Its name: of several that mean a node, the last one's settings count.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// Which nodes, and what their agents are told.
    pub spec: NodeConfigSpec,
}

cilium_kind! {
    CiliumNodeConfig: Namespaced "ciliumnodeconfigs" ["v2", "v2alpha1"]
    fields { "metadata": metadata, "spec": spec }
    optional {}
    Kind {
        name: "CiliumNodeConfig",
        categories: &["cilium"],
        ..Kind::EMPTY
    }
}

/// Which nodes, and what their agents are told.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeConfigSpec {
    /// Settings, named as in the configuration of all.
    pub defaults: BTreeMap<String, String>,
    /// The nodes by their labels.
    pub node_selector: NodeSelector,
}

/// Kubernetes' own selector: its keys have no sources.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct NodeSelector {
    /// Labels that must be there with just these values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// Requirements that must all hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub match_expressions: Vec<NodeRequirement>,
}

/// A requirement on one label of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeRequirement {
    /// The label's key.
    pub key: String,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`.
    pub operator: String,
    /// The values that `In` and `NotIn` are about.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub values: Vec<String>,
}
