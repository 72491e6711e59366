//! What the API server is told about a kind.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceColumnDefinition, CustomResourceDefinition, CustomResourceDefinitionNames,
    CustomResourceDefinitionSpec, CustomResourceDefinitionVersion, CustomResourceSubresourceStatus,
    CustomResourceSubresources, CustomResourceValidation,
};
use kube::api::ObjectMeta;
use schemars::JsonSchema;

use crate::schema;

/// The API group of every kind.
pub const GROUP: &str = "cilium.io";

/// The label by which operators tell whose schema is newer.
pub const SCHEMA_VERSION_LABEL: &str = "io.cilium.k8s.crd.schema.version";

/// The version of the schemas made here.
pub const SCHEMA_VERSION: &str = "1.32.3";

/// What the API server is told about a kind, beside its schema.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) plural: &'static str,
    /// The first one is stored; the others are served with the same schema and deprecated.
    pub(crate) versions: &'static [&'static str],
    pub(crate) namespaced: bool,
    pub(crate) short_names: &'static [&'static str],
    pub(crate) categories: &'static [&'static str],
    /// Whether status is a subresource.
    pub(crate) status: bool,
    pub(crate) columns: &'static [Column],
}

impl Kind {
    /// What a kind need not say.
    pub(crate) const EMPTY: Self = Self {
        name: "",
        plural: "",
        versions: &[],
        namespaced: false,
        short_names: &[],
        categories: &[],
        status: false,
        columns: &[],
    };

    /// The definition of this kind, with the schema of `T`.
    pub(crate) fn definition<T: JsonSchema>(&self) -> CustomResourceDefinition {
        let label = (SCHEMA_VERSION_LABEL.to_owned(), SCHEMA_VERSION.to_owned());
        CustomResourceDefinition {
            metadata: ObjectMeta {
                name: Some(format!("{}.{GROUP}", self.plural)),
                labels: Some([label].into()),
                ..ObjectMeta::default()
            },
            spec: CustomResourceDefinitionSpec {
                group: GROUP.to_owned(),
                scope: if self.namespaced { "Namespaced" } else { "Cluster" }.to_owned(),
                names: CustomResourceDefinitionNames {
                    kind: self.name.to_owned(),
                    list_kind: Some(format!("{}List", self.name)),
                    plural: self.plural.to_owned(),
                    singular: Some(self.name.to_lowercase()),
                    short_names: owned(self.short_names),
                    categories: owned(self.categories),
                },
                versions: self.versions.iter().map(|version| self.version::<T>(version)).collect(),
                ..CustomResourceDefinitionSpec::default()
            },
            status: None,
        }
    }

    fn version<T: JsonSchema>(&self, name: &str) -> CustomResourceDefinitionVersion {
        let stored = self.versions.first() == Some(&name);
        let columns = self.columns.iter().map(Column::definition).collect::<Vec<_>>();
        CustomResourceDefinitionVersion {
            name: name.to_owned(),
            served: true,
            storage: stored,
            deprecated: (!stored).then_some(true),
            additional_printer_columns: (!columns.is_empty()).then_some(columns),
            subresources: self.status.then(|| CustomResourceSubresources {
                status: Some(CustomResourceSubresourceStatus(serde_json::json!({}))),
                scale: None,
            }),
            schema: Some(CustomResourceValidation { open_api_v3_schema: Some(schema::of::<T>()) }),
            ..CustomResourceDefinitionVersion::default()
        }
    }
}

fn owned(names: &[&str]) -> Option<Vec<String>> {
    (!names.is_empty()).then(|| names.iter().map(|&name| name.to_owned()).collect())
}

/// A column that `kubectl get` shows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    name: &'static str,
    value_type: &'static str,
    json_path: &'static str,
    wide: bool,
}

impl Column {
    pub(crate) const AGE: Self = Self::new("Age", "date", ".metadata.creationTimestamp");
    pub(crate) const VALID: Self =
        Self::new("Valid", "string", ".status.conditions[?(@.type=='Valid')].status");

    pub(crate) const fn new(
        name: &'static str,
        value_type: &'static str,
        json_path: &'static str,
    ) -> Self {
        Self { name, value_type, json_path, wide: false }
    }

    /// The same, shown with `-o wide` only.
    pub(crate) const fn wide(self) -> Self {
        Self { wide: true, ..self }
    }

    fn definition(&self) -> CustomResourceColumnDefinition {
        CustomResourceColumnDefinition {
            name: self.name.to_owned(),
            type_: self.value_type.to_owned(),
            json_path: self.json_path.to_owned(),
            priority: self.wide.then_some(1),
            ..CustomResourceColumnDefinition::default()
        }
    }
}
