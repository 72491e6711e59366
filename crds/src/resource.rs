//! How a Rust type comes to be a kind that the client library and the API server know.

/// Makes a struct a kind: `kube::Resource`, `CustomResourceExt`, and `Serialize` with
/// `apiVersion` and `kind` in front, which the API server asks for and nobody needs in memory.
macro_rules! cilium_kind {
    (
        $type:ident: $scope:ident $plural:literal [$version:literal $(, $older:literal)*]
        fields { $($name:literal: $field:ident),* $(,)? }
        optional { $($optional_name:literal: $optional:ident),* $(,)? }
        $kind:expr
    ) => {
        const KIND: crate::kind::Kind = crate::kind::Kind {
            plural: $plural,
            versions: &[$version $(, $older)*],
            namespaced: cilium_kind!(@namespaced $scope),
            ..$kind
        };

        impl kube::Resource for $type {
            type DynamicType = ();
            type Scope = cilium_kind!(@scope $scope);

            fn kind((): &()) -> std::borrow::Cow<'_, str> {
                KIND.name.into()
            }

            fn group((): &()) -> std::borrow::Cow<'_, str> {
                crate::kind::GROUP.into()
            }

            fn version((): &()) -> std::borrow::Cow<'_, str> {
                $version.into()
            }

            fn plural((): &()) -> std::borrow::Cow<'_, str> {
                KIND.plural.into()
            }

            fn meta(&self) -> &kube::api::ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut kube::api::ObjectMeta {
                &mut self.metadata
            }
        }

        impl kube::CustomResourceExt for $type {
            fn crd() -> crate::CustomResourceDefinition {
                KIND.definition::<Self>()
            }

            fn crd_name() -> &'static str {
                concat!($plural, ".cilium.io")
            }

            fn api_resource() -> kube::api::ApiResource {
                kube::api::ApiResource::erase::<Self>(&())
            }

            fn shortnames() -> &'static [&'static str] {
                KIND.short_names
            }
        }

        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use serde::ser::SerializeStruct;

                const FIELDS: usize =
                    2 + [$($name,)* $($optional_name,)*].len();
                let mut object = serializer.serialize_struct(KIND.name, FIELDS)?;
                object.serialize_field("apiVersion", concat!("cilium.io/", $version))?;
                object.serialize_field("kind", KIND.name)?;
                $(object.serialize_field($name, &self.$field)?;)*
                $(if let Some(value) = &self.$optional {
                    object.serialize_field($optional_name, value)?;
                })*
                object.end()
            }
        }
    };
    (@namespaced Namespaced) => { true };
    (@namespaced Cluster) => { false };
    (@scope Namespaced) => { k8s_openapi::NamespaceResourceScope };
    (@scope Cluster) => { k8s_openapi::ClusterResourceScope };
}

pub(crate) use cilium_kind;
