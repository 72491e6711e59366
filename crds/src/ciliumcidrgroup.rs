//! `CiliumCIDRGroup`: address ranges under one name, for policies to refer to.

use kube::api::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::kind::Kind;
use crate::resource::cilium_kind;
use crate::schema;

/// Address ranges under one name.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
pub struct CiliumCidrGroup {
    /// The group's name, and labels to select it by.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// The ranges.
    pub spec: CidrGroupSpec,
}

cilium_kind! {
    CiliumCidrGroup: Cluster "ciliumcidrgroups" ["v2", "v2alpha1"]
    fields { "metadata": metadata, "spec": spec }
    optional {}
    Kind {
        name: "CiliumCIDRGroup",
        short_names: &["ccg"],
        categories: &["cilium"],
        ..Kind::EMPTY
    }
}

/// What a group of address ranges holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CidrGroupSpec {
    /// The ranges; there may be none.
    #[serde(rename = "externalCIDRs")]
    #[schemars(schema_with = "schema::external_cidrs")]
    pub external_cidrs: Vec<String>,
}
