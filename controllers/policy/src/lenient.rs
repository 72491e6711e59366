//! Reads objects that the schema may have let through although they can't be read.
//!
//! One such object would otherwise fail the list that it is in, and with it every policy.

use std::borrow::Cow;

use cilia_crds::policy::PolicyCondition;
use kube::Resource;
use kube::api::ObjectMeta;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

/// An object, or why it can't be read.
#[derive(Debug, Clone)]
pub struct Lenient<K> {
    metadata: ObjectMeta,
    /// What its status says of it, readable or not.
    pub conditions: Vec<PolicyCondition>,
    /// The object; or what is wrong with it.
    pub object: Result<K, String>,
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Lenient<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error as _;
        let value = serde_json::Value::deserialize(deserializer)?;
        let metadata = value.get("metadata").cloned().unwrap_or_default();
        let metadata = serde_json::from_value(metadata).map_err(D::Error::custom)?;
        let conditions = value.pointer("/status/conditions").cloned().unwrap_or_default();
        let conditions = serde_json::from_value(conditions).unwrap_or_default();
        let object = crate::parse::typed(&value);
        Ok(Self { metadata, conditions, object })
    }
}

impl<K: Resource<DynamicType = ()>> Resource for Lenient<K> {
    type DynamicType = ();
    type Scope = K::Scope;

    fn kind(dt: &()) -> Cow<'_, str> {
        K::kind(dt)
    }

    fn group(dt: &()) -> Cow<'_, str> {
        K::group(dt)
    }

    fn version(dt: &()) -> Cow<'_, str> {
        K::version(dt)
    }

    fn api_version(dt: &()) -> Cow<'_, str> {
        K::api_version(dt)
    }

    fn plural(dt: &()) -> Cow<'_, str> {
        K::plural(dt)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use cilia_crds::CiliumNetworkPolicy;
    use kube::ResourceExt as _;
    use serde_json::json;

    use super::Lenient;

    #[test]
    fn what_cannot_be_read_keeps_its_name() {
        let object = json!({
            "metadata": {"name": "odd", "namespace": "shop"},
            "spec": {"endpointSelector": {}, "ingress": [{"fromEntities": ["of-a-later-release"]}]},
        });
        let read: Lenient<CiliumNetworkPolicy> =
            serde_json::from_value(object).expect("metadata suffice");
        assert_eq!((read.name_any(), read.namespace()), ("odd".into(), Some("shop".into())));
        let fault = read.object.expect_err("an unknown entity");
        assert!(fault.starts_with("spec.ingress[0].fromEntities[0]: "), "{fault}");
        assert!(fault.contains("of-a-later-release"), "{fault}");
    }
}
