//! `CiliumIdentity`: a number that stands for a set of labels in the whole cluster.

use std::collections::BTreeMap;

use kube::api::ObjectMeta;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::kind::{Column, Kind};
use crate::resource::cilium_kind;
use crate::{Labels, NumericIdentity};

/// An identity. Its name is its number; the labels that it stands for never change.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
pub struct CiliumIdentity {
    /// The number as name, and some of the labels, to select by.
    pub metadata: ObjectMeta,
    /// The labels: `source:key` to value.
    #[serde(rename = "security-labels")]
    pub security_labels: BTreeMap<String, String>,
}

cilium_kind! {
    CiliumIdentity: Cluster "ciliumidentities" ["v2"]
    fields { "metadata": metadata, "security-labels": security_labels }
    optional {}
    Kind {
        name: "CiliumIdentity",
        short_names: &["ciliumid"],
        categories: &["cilium"],
        status: true,
        columns: &[
            Column::new("Namespace", "string", r".metadata.labels.io\.kubernetes\.pod\.namespace"),
            Column::AGE,
        ],
        ..Kind::EMPTY
    }
}

impl CiliumIdentity {
    /// The number that the name says; nothing for a name that is not how a number is written.
    pub fn number(&self) -> Option<NumericIdentity> {
        let name = self.metadata.name.as_deref()?;
        let number = NumericIdentity(name.parse().ok()?);
        (number.to_string() == name).then_some(number)
    }

    /// The labels that the number stands for.
    pub fn labels(&self) -> Labels {
        Labels::from_security_labels(&self.security_labels)
    }
}
